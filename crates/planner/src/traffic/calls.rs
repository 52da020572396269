//! The calls that a step makes, by the group of workers that makes them.
//!
//! Workers that share the batch add up gradients and bring parameters, as their ZeRO stage asks:
//!
//! | stage | gradients of a bucket | parameters of a bucket |
//! |---|---|---|
//! | 0 | one all-reduce | |
//! | 1 | one reduce-scatter | one all-gather after the step |
//! | 2 | an all-to-all in every pass | one all-gather after the step |
//! | 3 | an all-to-all in every pass | an all-gather whenever neither window holds it |
//!
//! Stages of a pipeline send each other microbatches, and what an embedding and its copy in the
//! head owe each other; holders of slices complete each other's sums (`program`). A worker
//! alone makes the same calls; their schedules have no steps.

use super::program::Program;
use super::windows::Windows;
use lockstep_config::units::Bytes;
use lockstep_config::{Dtype, Recipe};
use lockstep_mesh::{Axis, Mesh};
use lockstep_model::Blueprint;
use lockstep_parallel::sparse::SparseTable;
use lockstep_parallel::trained::Trained;
use lockstep_parallel::{Buckets, ReplicaPlan, Shares, asked, tune};
use lockstep_schedule::collective::pairwise;
use lockstep_schedule::collective::sparse::{self, INDEX_BYTES, Plan};
use lockstep_schedule::{Addends, Layout, Op, Schedule};
use std::ops::Range;

/// What an element takes: parameters travel as `f32`, and gradients unless they are rounded.
pub const ELEMENT: Bytes = Bytes(4);

/// What it takes of gradients that are.
const NARROW_ELEMENT: Bytes = Bytes(2);

/// Numbers by which workers agree on a table before its rows travel.
const SHAPE_LEN: usize = 5;

/// How long the parts of a call's vector are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lengths {
    /// A vector of so many elements, cut evenly.
    Even(usize),
    /// Part i belongs to rank i.
    Parts(Vec<usize>),
    /// Part s·n + d is what rank s has for rank d.
    Pairs(Vec<usize>),
}

/// A call that all members of a group make together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What it does.
    pub op: Op,
    /// The bucket that it is about; of no meaning among holders of slices.
    pub bucket: usize,
    /// On how much.
    pub lengths: Lengths,
    /// What an element takes.
    pub element: Bytes,
    /// How often in a step.
    pub times: u64,
    /// Which of the buffers that buckets use in turn it is made on; none where the bucket has a
    /// buffer of its own.
    pub turns: Vec<usize>,
}

/// The calls of one group in a step.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupCalls {
    /// What the members add up.
    pub addends: Addends,
    /// In no particular order.
    pub list: Vec<Call>,
}

/// Messages of one kind that a device of a pipeline, or a rank, sends in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// The device or rank that it goes to.
    pub to: usize,
    /// Its elements.
    pub len: usize,
    /// How often.
    pub times: u64,
}

/// All calls of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepCalls {
    /// How the workers stand.
    pub mesh: Mesh,
    /// Among those that share the batch, by device and holder.
    pub data: Vec<Vec<GroupCalls>>,
    /// Among those that hold slices of the same blocks, by device and part of the batch.
    pub tensor: Vec<Vec<GroupCalls>>,
    /// From a device to others of its pipeline, by device and part of the batch.
    pub messages: Vec<Vec<Vec<Message>>>,
    /// Behind the step, among consecutive ranks of which this is the first ([`super::kinds`]).
    pub behind: Vec<(usize, GroupCalls)>,
    /// Behind the step, from each rank to its neighbours, where they tell nobody else.
    pub told: Vec<Vec<Message>>,
    /// Whether rows of an embedding's table travel one by one: then it depends on the text how much
    /// is moved.
    pub has_rows: bool,
    /// Whether this is what will be moved, or only about the most that may be.
    pub is_exact: bool,
}

/// What is known of a step besides its plan.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'a> {
    /// How many rows of the embedding's table each worker's micro-batches touch, by rank. What a holder of
    /// slices has of the table are rows too. Nothing where that is not known: then as many travel
    /// as there are.
    pub rows_by_rank: Option<&'a [usize]>,
    /// Rounds of an evaluation between this step and the one before.
    pub evaluation_rounds: usize,
}

impl Call {
    /// A call that is made once, on a buffer of its own.
    pub const fn once(op: Op, lengths: Lengths) -> Self {
        Self { op, bucket: 0, lengths, element: ELEMENT, times: 1, turns: Vec::new() }
    }

    /// Elements of the whole vector.
    pub fn count(&self) -> usize {
        match &self.lengths {
            Lengths::Even(count) => *count,
            Lengths::Parts(lens) | Lengths::Pairs(lens) => lens.iter().sum(),
        }
    }

    /// Where its chunks lie.
    pub fn layout(&self, schedule: &Schedule) -> Layout {
        match &self.lengths {
            Lengths::Even(count) => Layout::even(schedule, *count),
            Lengths::Parts(lens) => Layout::by_part(schedule, lens),
            Lengths::Pairs(lens) => Layout::explicit(schedule, lens),
        }
    }
}

/// The plans that a step may have, the likeliest first: they differ in the length of buckets where
/// that is measured when the run starts.
pub fn plans_at(recipe: &Recipe, blueprint: &Blueprint, step: u64) -> Vec<ReplicaPlan> {
    let plan = asked::plan_at(recipe, blueprint, step);
    if recipe.parallel.bucket_bytes != Bytes(0) {
        return vec![plan];
    }
    let lens = tune::possible_bucket_lens(plan.shares.len(), blueprint.num_params());
    lens.into_iter().map(|bucket_len| ReplicaPlan { bucket_len, ..plan.clone() }).collect()
}

/// The likeliest of them.
pub fn plan_at(recipe: &Recipe, blueprint: &Blueprint, step: u64) -> ReplicaPlan {
    plans_at(recipe, blueprint, step).swap_remove(0)
}

/// The calls of a step under a plan.
pub fn of_plan(plan: &ReplicaPlan, blueprint: &Blueprint, known: Known<'_>) -> StepCalls {
    let mesh = plan.mesh;
    let holders = mesh.degree(Axis::Tensor);
    let devices: Vec<Device<'_>> = (0..mesh.degree(Axis::Pipeline))
        .map(|device| Device::new(plan, blueprint, device))
        .collect();
    let each = |device: usize, of_part: &dyn Fn(&Program<'_>) -> GroupCalls| -> Vec<GroupCalls> {
        (0..plan.shares.len()).map(|part| of_part(&devices[device].program(part))).collect()
    };
    let tensor = |program: &Program<'_>| GroupCalls {
        addends: Addends::one_each(holders),
        list: if holders == 1 { Vec::new() } else { program.exchanges() },
    };
    let rows_of = |device: usize, holder: usize| -> Option<Vec<usize>> {
        let rank = |part| super::rank_at(&mesh, device, part, holder);
        known.rows_by_rank.map(|rows| (0..plan.shares.len()).map(|p| rows[rank(p)]).collect())
    };
    let data = |(index, device): (usize, &Device<'_>)| {
        let of_holder =
            |holder| device.data(rows_of(index, holder).as_deref(), known.evaluation_rounds);
        (0..holders).map(of_holder).collect()
    };
    let messages = |device: &Device<'_>| {
        (0..plan.shares.len()).map(|part| device.program(part).messages(part)).collect()
    };
    let has_rows = plan.zero == 0 && devices.iter().any(|device| device.sparse.is_some());
    StepCalls {
        mesh,
        data: devices.iter().enumerate().map(data).collect(),
        tensor: (0..devices.len()).map(|device| each(device, &tensor)).collect(),
        messages: devices.iter().map(messages).collect(),
        behind: Vec::new(),
        told: Vec::new(),
        has_rows,
        is_exact: !has_rows || known.rows_by_rank.is_some(),
    }
}

/// What a device of the pipeline holds.
struct Device<'a> {
    plan: &'a ReplicaPlan,
    blueprint: &'a Blueprint,
    index: usize,
    buckets: Buckets,
    trained: Trained,
    sparse: Option<SparseTable>,
}

impl<'a> Device<'a> {
    fn new(plan: &'a ReplicaPlan, blueprint: &'a Blueprint, index: usize) -> Self {
        let buckets = plan.buckets(blueprint).here(|block| plan.stages.device_of(block) == index);
        let trained = Trained::new(blueprint, &buckets, &plan.phases, plan.phase);
        let sparse = plan.sparse(blueprint, &trained);
        Self { plan, blueprint, index, buckets, trained, sparse }
    }

    /// What it does with a part of the batch.
    fn program(&self, part: usize) -> Program<'_> {
        let Self { plan, blueprint, index, buckets, trained, .. } = self;
        Program::new(plan, blueprint, *index, (buckets, trained), part)
    }

    /// The calls among those that share the batch; `rows` of the table that each of them brings.
    fn data(&self, rows: Option<&[usize]>, evaluation_rounds: usize) -> GroupCalls {
        let Self { plan, trained, .. } = self;
        let addends = match &plan.leaf_shares() {
            Shares::Contiguous(runs) => Addends::of_leaves(runs),
            Shares::Cyclic { num_workers } => Addends::one_each(*num_workers),
        };
        let mut list = Vec::new();
        let of_grads = trained.grads.list.iter().enumerate().filter(|(_, bucket)| bucket.len > 0);
        let num_filled = of_grads.clone().count();
        for (place, (index, bucket)) in of_grads.enumerate() {
            let parts = bucket.part_lens();
            let turns = filled_in(plan, num_filled, num_filled - 1 - place);
            let table = self.sparse.filter(|table| table.bucket == index).zip(rows);
            let first = list.len();
            match (plan.zero, table) {
                (0, Some((table, rows))) => list.extend(by_rows(table, rows, bucket.len)),
                (0, None) => list.push(call(Op::AllReduce, index, Lengths::Even(bucket.len), 1)),
                (1, _) => list.push(call(Op::ReduceScatter, index, Lengths::Parts(parts), 1)),
                _ => list.extend(
                    exchanges(plan, index, &parts)
                        .into_iter()
                        .map(|call| Call { turns: turns.clone(), ..call }),
                ),
            }
            if plan.wire != Dtype::F32 {
                list[first..].iter_mut().for_each(|call| call.element = NARROW_ELEMENT);
            }
        }
        list.extend(self.gathers(evaluation_rounds));
        list.retain(|call| call.times > 0);
        GroupCalls { addends, list }
    }

    /// Which parameters are gathered in a step, and how often.
    fn gathers(&self, evaluation_rounds: usize) -> Vec<Call> {
        let Self { plan, buckets, trained, .. } = self;
        let gather = |bucket: usize, stretch: &Range<usize>, times: u64| {
            let parts = buckets.list[bucket].part_lens_of(stretch);
            call(Op::AllGather, bucket, Lengths::Parts(parts), times)
        };
        match plan.zero {
            0 => Vec::new(),
            1 | 2 => {
                let runs = trained.of_bucket.iter().enumerate();
                let runs = runs.flat_map(|(index, runs)| runs.iter().map(move |run| (index, run)));
                let runs = runs.filter(|(_, run)| !run.is_empty());
                runs.map(|(index, run)| gather(index, run, 1)).collect()
            }
            _ => {
                // Those that share the batch run as many microbatches, empty ones included.
                let program = self.program(0);
                let mut windows = Windows::new(buckets);
                for (block, next) in program.evaluation_fetches(evaluation_rounds) {
                    windows.fetch(block, next);
                }
                windows.count_anew();
                for (block, next) in program.fetches() {
                    windows.fetch(block, next);
                }
                let brought = windows.num_gathers.into_iter().enumerate();
                brought
                    .map(|(index, times)| {
                        let turns = (0..2).filter(|window| times[*window] > 0).collect();
                        let whole = 0..buckets.list[index].len;
                        Call { turns, ..gather(index, &whole, times.iter().sum()) }
                    })
                    .collect()
            }
        }
    }
}

/// The calls of a table of which workers have so many rows each, and of what lies behind it in a
/// bucket of `len`; as the engine makes them.
fn by_rows(sparse: SparseTable, rows: &[usize], len: usize) -> Vec<Call> {
    let (bucket, table) = (sparse.bucket, sparse.table());
    let shapes = Lengths::Even(SHAPE_LEN * rows.len());
    let mut list = vec![Call { element: INDEX_BYTES, ..call(Op::AllGather, bucket, shapes, 1) }];
    let table_len = table.num_rows * table.row_len;
    let shape = sparse::Table {
        num_rows: table.num_rows,
        row_bytes: ELEMENT * table.row_len as u64,
        row_len: table.row_len,
    };
    let plan = sparse::plan(shape, rows, &pairwise::all_gather(rows.len()));
    if matches!(plan, Plan::Sparse { .. }) {
        let numbers = Lengths::Parts(rows.to_vec());
        list.push(Call { element: INDEX_BYTES, ..call(Op::AllGather, bucket, numbers, 1) });
        let values = rows.iter().map(|num| num * table.row_len).collect();
        list.push(call(Op::AllGather, bucket, Lengths::Parts(values), 1));
    } else {
        list.push(call(Op::AllReduce, bucket, Lengths::Even(table_len), 1));
    }
    if len > table_len {
        list.push(call(Op::AllReduce, bucket, Lengths::Even(len - table_len), 1));
    }
    list
}

pub(super) fn call(op: Op, bucket: usize, lengths: Lengths, times: u64) -> Call {
    Call { bucket, times, ..Call::once(op, lengths) }
}

/// The buffers that the bucket which backward fills as number `place` of `num_filled` comes to lie
/// in, where leaves of one micro-batch are filled in two buffers in turn. A step begins with the buffer
/// that came back last: so the turns of a bucket alternate, unless a step has one pass and an odd
/// number of them.
fn filled_in(plan: &ReplicaPlan, num_filled: usize, place: usize) -> Vec<usize> {
    let num_passes = plan.leaves.num_leaves.div_ceil(plan.shares.len());
    // What travels rounded is in one of two buffers whatever it was filled in.
    let is_pooled = |microbatches: usize| microbatches == 1 || plan.wire != Dtype::F32;
    match plan.leaves.microbatches_per_leaf {
        microbatches if num_passes == 1 && num_filled % 2 == 1 && is_pooled(microbatches) => {
            vec![place % 2]
        }
        microbatches if is_pooled(microbatches) => vec![0, 1],
        _ => Vec::new(),
    }
}

/// The exchanges of a bucket: whole passes, and a last one in which some workers have no leaf.
fn exchanges(plan: &ReplicaPlan, bucket: usize, parts: &[usize]) -> Vec<Call> {
    let num_workers = plan.shares.len();
    let num_leaves = plan.leaves.num_leaves;
    let pass = |num_with_leaf: usize, times: usize| {
        let from = |worker: usize| {
            parts.iter().map(move |&len| if worker < num_with_leaf { len } else { 0 })
        };
        let pairs = (0..num_workers).flat_map(from).collect();
        call(Op::AllToAll, bucket, Lengths::Pairs(pairs), times as u64)
    };
    let last = num_leaves % num_workers;
    vec![pass(num_workers, num_leaves / num_workers), pass(last, usize::from(last > 0))]
}
