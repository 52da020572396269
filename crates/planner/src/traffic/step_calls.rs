//! Calls of a step, by group.
//!
//! Data-parallel ranks reduce gradients and gather parameters by ZeRO stage:
//!
//! | stage | gradients of a bucket | parameters of a bucket |
//! |---|---|---|
//! | 0 | one all-reduce | |
//! | 1 | one reduce-scatter | one all-gather after the step |
//! | 2 | an all-to-all per pass | one all-gather after the step |
//! | 3 | an all-to-all per pass | an all-gather whenever no prefetch window holds it |
//!
//! Pipeline stages exchange micro-batches and the gradients and weights of a tied embedding;
//! tensor-parallel ranks run the collectives of their blocks (`stage_program`). A single worker
//! makes the same calls; their schedules have no steps.

use super::call::{Call, ELEMENT, GroupCalls, Lengths, StepCalls, call};
use super::prefetch::PrefetchWindows;
use super::stage_program::Program;
use lockstep_config::units::Bytes;
use lockstep_config::{Dtype, Recipe};
use lockstep_mesh::Axis;
use lockstep_model::Blueprint;
use lockstep_parallel::sparse_embedding::SparseEmbedding;
use lockstep_parallel::trainable_params::TrainableParams;
use lockstep_parallel::{Buckets, LeafAssignment, ReplicaPlan, bucket_tuning, from_recipe};
use lockstep_schedule::collective::pairwise;
use lockstep_schedule::collective::sparse::{self, INDEX_BYTES, Plan};
use lockstep_schedule::{Contributions, Op};
use std::ops::Range;

/// Bytes of a rounded gradient element.
const NARROW_ELEMENT: Bytes = Bytes(2);

/// Numbers exchanged per table before its rows are.
const SHAPE_LEN: usize = 5;

/// Inputs of a step beyond its plan.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepInputs<'a> {
    /// Number of embedding rows with a gradient, by rank; vocabulary shards count their own rows.
    /// `None` counts the dense exchange.
    pub rows_by_rank: Option<&'a [usize]>,
    /// Rounds of an evaluation between this step and the previous one.
    pub evaluation_rounds: usize,
}

/// Candidate plans of a step, most likely first: they differ in the bucket length where it is tuned
/// at start-up.
pub fn plans_at(recipe: &Recipe, blueprint: &Blueprint, step: u64) -> Vec<ReplicaPlan> {
    let plan = from_recipe::plan_at(recipe, blueprint, step);
    if recipe.parallel.bucket_bytes != Bytes(0) {
        return vec![plan];
    }
    let lens = bucket_tuning::candidate_bucket_lens(plan.shares.len(), blueprint.num_params());
    lens.into_iter().map(|bucket_len| ReplicaPlan { bucket_len, ..plan.clone() }).collect()
}

/// Most likely plan of a step.
pub fn plan_at(recipe: &Recipe, blueprint: &Blueprint, step: u64) -> ReplicaPlan {
    plans_at(recipe, blueprint, step).swap_remove(0)
}

/// Calls of a step under a plan.
pub fn of_plan(plan: &ReplicaPlan, blueprint: &Blueprint, known: StepInputs<'_>) -> StepCalls {
    let mesh = plan.mesh;
    let tp_ranks = mesh.degree(Axis::Tensor);
    let devices: Vec<Device<'_>> = (0..mesh.degree(Axis::Pipeline))
        .map(|device| Device::new(plan, blueprint, device))
        .collect();
    let each = |device: usize, of_part: &dyn Fn(&Program<'_>) -> GroupCalls| -> Vec<GroupCalls> {
        (0..plan.shares.len()).map(|part| of_part(&devices[device].program(part))).collect()
    };
    let tensor = |program: &Program<'_>| GroupCalls {
        contributions: Contributions::one_each(tp_ranks),
        list: if tp_ranks == 1 { Vec::new() } else { program.exchanges() },
    };
    let rows_of = |device: usize, tp_rank: usize| -> Option<Vec<usize>> {
        let rank = |part| super::rank_at(&mesh, device, part, tp_rank);
        known.rows_by_rank.map(|rows| (0..plan.shares.len()).map(|p| rows[rank(p)]).collect())
    };
    let data = |(index, device): (usize, &Device<'_>)| {
        let of_tp_rank =
            |tp_rank| device.data(rows_of(index, tp_rank).as_deref(), known.evaluation_rounds);
        (0..tp_ranks).map(of_tp_rank).collect()
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
        after_step: Vec::new(),
        neighbor_messages: Vec::new(),
        has_rows,
        is_exact: !has_rows || known.rows_by_rank.is_some(),
    }
}

/// Parameters of a pipeline rank.
struct Device<'a> {
    plan: &'a ReplicaPlan,
    blueprint: &'a Blueprint,
    index: usize,
    buckets: Buckets,
    trained: TrainableParams,
    sparse: Option<SparseEmbedding>,
}

impl<'a> Device<'a> {
    fn new(plan: &'a ReplicaPlan, blueprint: &'a Blueprint, index: usize) -> Self {
        let buckets = plan.buckets(blueprint).here(|block| plan.stages.device_of(block) == index);
        let trained = TrainableParams::new(blueprint, &buckets, &plan.phases, plan.phase);
        let sparse = plan.sparse(blueprint, &trained);
        Self { plan, blueprint, index, buckets, trained, sparse }
    }

    /// Program with a data-parallel rank.
    fn program(&self, part: usize) -> Program<'_> {
        let Self { plan, blueprint, index, buckets, trained, .. } = self;
        Program::new(plan, blueprint, *index, (buckets, trained), part)
    }

    /// Data-parallel calls; `rows` are the embedding rows of each rank.
    fn data(&self, rows: Option<&[usize]>, evaluation_rounds: usize) -> GroupCalls {
        let Self { plan, trained, .. } = self;
        let contributions = match &plan.leaf_assignment() {
            LeafAssignment::Contiguous(runs) => Contributions::of_leaves(runs),
            LeafAssignment::Cyclic { num_workers } => Contributions::one_each(*num_workers),
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
        GroupCalls { contributions, list }
    }

    /// All-gathers of parameters in a step, with their counts.
    fn gathers(&self, evaluation_rounds: usize) -> Vec<Call> {
        let Self { plan, buckets, trained, .. } = self;
        let gather = |bucket: usize, run: &Range<usize>, times: u64| {
            let parts = buckets.list[bucket].part_lens_of(run);
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
                // All data-parallel ranks run equally many micro-batches, padding included.
                let program = self.program(0);
                let mut windows = PrefetchWindows::new(buckets);
                for (block, next) in program.evaluation_fetches(evaluation_rounds) {
                    windows.fetch(block, next);
                }
                windows.reset_counts();
                for (block, next) in program.fetches() {
                    windows.fetch(block, next);
                }
                let gathered = windows.num_gathers.into_iter().enumerate();
                gathered
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

/// Calls of a sparse table with these rows per rank, and of the rest of its bucket of `len`
/// elements, as the engine makes them.
fn by_rows(sparse: SparseEmbedding, rows: &[usize], len: usize) -> Vec<Call> {
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

/// Pool buffers of the bucket that backward fills as number `place` of `num_filled`, where leaves
/// of one micro-batch alternate between two buffers. A step begins with the buffer that was
/// returned last: a bucket's buffers alternate, unless a step has one pass and an odd number of
/// buckets.
fn filled_in(plan: &ReplicaPlan, num_filled: usize, place: usize) -> Vec<usize> {
    let num_passes = plan.leaves.num_leaves.div_ceil(plan.shares.len());
    // Rounded gradients are in one of the two buffers, wherever they were filled.
    let is_pooled = |microbatches: usize| microbatches == 1 || plan.wire != Dtype::F32;
    match plan.leaves.microbatches_per_leaf {
        microbatches if num_passes == 1 && num_filled % 2 == 1 && is_pooled(microbatches) => {
            vec![place % 2]
        }
        microbatches if is_pooled(microbatches) => vec![0, 1],
        _ => Vec::new(),
    }
}

/// All-to-alls of a bucket: full passes, and a last one in which some workers have no leaf.
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
