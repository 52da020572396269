//! The calls that a step makes on the group that gradients and parameters travel on.
//!
//! | stage | gradients of a bucket | parameters of a bucket |
//! |---|---|---|
//! | 0 | one all-reduce | |
//! | 1 | one reduce-scatter | one all-gather after the step |
//! | 2 | an all-to-all in every pass | one all-gather after the step |
//! | 3 | an all-to-all in every pass | an all-gather whenever neither window holds it |
//!
//! A worker alone makes the same calls; their schedules have no steps.

use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_model::Blueprint;
use lockstep_parallel::sparse::SparseTable;
use lockstep_parallel::trained::Trained;
use lockstep_parallel::{Buckets, ReplicaPlan, Shares, asked, tune};
use lockstep_schedule::{Addends, Layout, Op, Schedule};
use std::ops::Range;

/// What an element takes: gradients and parameters travel as `f32`.
pub const ELEMENT: Bytes = Bytes(4);

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

/// A call that all ranks make together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// What it does.
    pub op: Op,
    /// The bucket that it is about.
    pub bucket: usize,
    /// On how much.
    pub lengths: Lengths,
    /// How often in a step.
    pub times: u64,
    /// Which of the buffers that buckets use in turn it is made on; none where the bucket has a
    /// buffer of its own.
    pub turns: Vec<usize>,
}

/// All calls of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepCalls {
    /// What the ranks add up.
    pub addends: Addends,
    /// In no particular order.
    pub list: Vec<Call>,
    /// Whether this is what will be moved, or only the most that may be.
    pub is_exact: bool,
}

impl Call {
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
pub fn of_plan(plan: &ReplicaPlan, blueprint: &Blueprint) -> StepCalls {
    let num_workers = plan.shares.len();
    let shares = plan.leaf_shares();
    let buckets = Buckets::new(blueprint, plan.bucket_len, num_workers);
    let trained = Trained::new(blueprint, &buckets, &plan.phases, plan.phase);
    let sparse = SparseTable::find(blueprint, &trained, &shares, plan.leaves, plan.lane);
    let addends = match &shares {
        Shares::Contiguous(runs) => Addends::of_leaves(runs),
        Shares::Cyclic { num_workers } => Addends::one_each(*num_workers),
    };
    let mut list = Vec::new();
    let of_grads = trained.grads.list.iter().enumerate().filter(|(_, bucket)| bucket.len > 0);
    let num_filled = of_grads.clone().count();
    for (place, (index, bucket)) in of_grads.enumerate() {
        let parts = bucket.part_lens();
        let turns = filled_in(plan, num_filled, num_filled - 1 - place);
        match plan.zero {
            0 => list.push(call(Op::AllReduce, index, Lengths::Even(bucket.len), 1)),
            1 => list.push(call(Op::ReduceScatter, index, Lengths::Parts(parts), 1)),
            _ => list.extend(
                exchanges(plan, index, &parts)
                    .into_iter()
                    .map(|call| Call { turns: turns.clone(), ..call }),
            ),
        }
    }
    list.extend(gathers(plan, &buckets, &trained));
    list.retain(|call| call.times > 0);
    StepCalls { addends, list, is_exact: plan.zero > 0 || sparse.is_none() }
}

fn call(op: Op, bucket: usize, lengths: Lengths, times: u64) -> Call {
    Call { op, bucket, lengths, times, turns: Vec::new() }
}

/// The buffers that the bucket which backward fills as number `place` of `num_filled` comes to lie
/// in, where leaves of one lane are filled in two buffers in turn. A step begins with the buffer
/// that came back last: so the turns of a bucket alternate, unless a step has one pass and an odd
/// number of them.
fn filled_in(plan: &ReplicaPlan, num_filled: usize, place: usize) -> Vec<usize> {
    let num_passes = plan.leaves.num_leaves.div_ceil(plan.shares.len());
    match plan.leaves.lanes_per_leaf {
        1 if num_passes == 1 && num_filled % 2 == 1 => vec![place % 2],
        1 => vec![0, 1],
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

/// Which parameters are gathered in a step, and how often.
fn gathers(plan: &ReplicaPlan, buckets: &Buckets, trained: &Trained) -> Vec<Call> {
    let gather = |bucket: usize, stretch: &Range<usize>, times: u64| {
        let parts = buckets.list[bucket].part_lens_of(stretch);
        call(Op::AllGather, bucket, Lengths::Parts(parts), times)
    };
    match plan.zero {
        0 => Vec::new(),
        1 | 2 => {
            let runs = trained.of_bucket.iter().enumerate();
            runs.flat_map(|(index, runs)| runs.iter().map(move |run| gather(index, run, 1)))
                .collect()
        }
        _ => {
            let num_blocks = buckets.list.last().map_or(0, |last| last.blocks.end);
            let num_passes = plan.leaves.num_leaves.div_ceil(plan.shares.len());
            let num_lanes = num_passes * plan.leaves.lanes_per_leaf;
            let first = trained.first_block;
            let mut windows = Windows::new(buckets);
            for _ in 0..num_lanes {
                for block in 0..num_blocks {
                    windows.fetch(block, Some((block + 1).min(num_blocks - 1)));
                }
                for block in (first..num_blocks).rev() {
                    windows.fetch(block, (block > first).then(|| block - 1));
                }
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

/// Room for two buckets at a time, as [`lockstep_parallel::weights`] has it: while blocks compute
/// in one, the next bucket arrives in the other. A step begins with nothing there.
struct Windows<'a> {
    buckets: &'a Buckets,
    held: [Option<usize>; 2],
    /// By bucket and window.
    num_gathers: Vec<[u64; 2]>,
}

impl<'a> Windows<'a> {
    fn new(buckets: &'a Buckets) -> Self {
        Self { buckets, held: [None; 2], num_gathers: vec![[0; 2]; buckets.list.len()] }
    }

    fn fetch(&mut self, block: usize, next: Option<usize>) {
        let bucket = self.buckets.of_block(block);
        let at = self.bring(bucket, 0);
        if let Some(next) = next.map(|next| self.buckets.of_block(next))
            && next != bucket
        {
            self.bring(next, 1 - at);
        }
    }

    /// Brings a bucket into a window, unless it is in one already; says in which it is.
    fn bring(&mut self, bucket: usize, window: usize) -> usize {
        if let Some(at) = self.held.iter().position(|held| *held == Some(bucket)) {
            return at;
        }
        self.held[window] = Some(bucket);
        self.num_gathers[bucket][window] += 1;
        window
    }
}
