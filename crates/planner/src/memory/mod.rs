//! The memory of every rank, by what it is for, before any of it is allocated.
//!
//! The engine's own count ([`Footprint`]) is exact: what a worker allocates is what it says, and
//! tests hold the two together. What a process holds besides is its code, its text and, where
//! workers share memory, those pages of the others that it looks into: a page that is touched
//! counts for everybody who touches it.
//!
//! - [`zero`]: what the stages of ZeRO save, by closed form; [`activations`]: layers, likewise.
//! - [`process`]: what a process holds besides its model; `seen`: what calls take.
//! - [`check`](mod@check): does it fit, and what would? [`microbatch`]: the largest that does.

pub mod activations;
pub mod check;
pub mod microbatch;
pub mod process;
mod seen;
pub mod zero;

pub use check::{Room, TooLarge, check};
pub use microbatch::with_microbatch;
pub use process::Process;

use crate::forecast::wires;
use crate::traffic::{GroupCalls, Known, Wires, calls, kinds, rank_at};
use lockstep_config::units::Bytes;
use lockstep_config::{Isolation, Recipe};
use lockstep_model::Blueprint;
use lockstep_parallel::{Activations, Footprint, ReplicaPlan, asked};

/// Bytes of one rank by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankMemory {
    /// Parameters.
    pub weights: Bytes,
    /// Sums of gradients: the leaf at work, and those that wait for their sibling.
    pub gradients: Bytes,
    /// What the optimizer keeps.
    pub optimizer: Bytes,
    /// What a micro-batch leaves between forward and backward.
    pub activations: Bytes,
    /// Scratch, buckets on their way, windows for parameters that are brought.
    pub buffers: Bytes,
    /// What calls take: pages of other ranks that this one looks into, and working memory.
    pub shared: Bytes,
}

/// The memory of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// By rank, in the step that takes most.
    pub ranks: Vec<RankMemory>,
    /// Parameters of a bucket.
    pub bucket_len: usize,
    /// The first step that takes most.
    pub peak_step: u64,
}

impl From<&Footprint> for RankMemory {
    fn from(held: &Footprint) -> Self {
        Self {
            weights: bytes(held.weights),
            gradients: bytes(held.gradients),
            optimizer: bytes(held.optimizer),
            activations: bytes(held.activations),
            buffers: bytes(held.buffers),
            shared: Bytes(0),
        }
    }
}

impl RankMemory {
    /// What the rank allocates.
    pub fn own(&self) -> Bytes {
        self.weights + self.gradients + self.optimizer + self.activations + self.buffers
    }

    /// The parts by name, largest first.
    pub fn parts(&self) -> Vec<(&'static str, Bytes)> {
        let mut parts = vec![
            ("weights", self.weights),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("buffers", self.buffers),
        ];
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        parts
    }
}

impl Memory {
    /// The memory that a recipe will take.
    pub fn of(recipe: &Recipe, blueprint: &Blueprint) -> Self {
        let likeliest = calls::plan_at(recipe, blueprint, 0).bucket_len;
        Self::with_bucket_len(recipe, blueprint, likeliest)
    }

    /// The same, with buckets of this length.
    pub fn with_bucket_len(recipe: &Recipe, blueprint: &Blueprint, bucket_len: usize) -> Self {
        let at = |step| -> Vec<RankMemory> {
            let plan = asked::plan_at(recipe, blueprint, step);
            let plan = ReplicaPlan { bucket_len, ..plan };
            let rank = |worker| {
                let [outer, besides] = kinds::held(recipe, &plan, blueprint, worker).map(bytes);
                let held = Footprint::plan(blueprint, &plan, recipe.optim.name, worker);
                let mut memory = RankMemory::from(&held);
                memory.optimizer += outer;
                memory.buffers += besides;
                memory
            };
            (0..recipe.run.workers).map(rank).collect()
        };
        let most = |ranks: &Vec<RankMemory>| ranks.iter().map(RankMemory::own).sum::<Bytes>();
        let steps = asked::turning_points(recipe, blueprint);
        let all = steps.into_iter().map(|step| (step, at(step)));
        // The first of those that take most.
        let (peak_step, ranks) = all
            .reduce(|best, next| if most(&next.1) > most(&best.1) { next } else { best })
            .expect("a run has a first step");
        Self { ranks, bucket_len, peak_step }
    }

    /// What the processes of the run allocate together.
    pub fn total(&self) -> Bytes {
        self.ranks.iter().map(RankMemory::own).sum()
    }

    /// The same with what calls take.
    pub fn with_seen(mut self, recipe: &Recipe, blueprint: &Blueprint) -> Self {
        let plan = asked::plan_at(recipe, blueprint, self.peak_step);
        let plan = ReplicaPlan { bucket_len: self.bucket_len, ..plan };
        let mut calls = calls::of_plan(&plan, blueprint, Known::default());
        let wires = wires(recipe);
        kinds::apply(&kinds::all(recipe), recipe, &plan, blueprint, &mut calls);
        for (first, group) in &calls.behind {
            self.add_seen(group, &wires, &|member| first + member, seen::staged_by_rank);
        }
        for (device, holders) in calls.data.iter().enumerate() {
            for (holder, calls) in holders.iter().enumerate() {
                let rank = |part| rank_at(&plan.mesh, device, part, holder);
                self.add_seen(calls, &wires, &rank, seen::bytes_by_rank);
            }
        }
        for (device, parts) in calls.tensor.iter().enumerate() {
            for (part, calls) in parts.iter().enumerate() {
                let rank = |holder| rank_at(&plan.mesh, device, part, holder);
                self.add_seen(calls, &wires, &rank, seen::staged_by_rank);
            }
        }
        self
    }

    /// Adds what the calls of a group take; `rank` is that of a member.
    fn add_seen(
        &mut self,
        calls: &GroupCalls,
        wires: &Wires,
        rank: &dyn Fn(usize) -> usize,
        seen: fn(&GroupCalls, &Wires) -> Vec<Bytes>,
    ) {
        let members: Vec<usize> = (0..calls.addends.num_ranks()).map(rank).collect();
        let wires = wires.among(&members);
        let (seen, working) = (seen(calls, &wires), seen::working_by_rank(calls, &wires));
        for (rank, (seen, working)) in members.into_iter().zip(seen.into_iter().zip(working)) {
            self.ranks[rank].shared += seen + working;
        }
    }

    /// What the process of each rank will show as its own: all ranks where they are threads of one,
    /// a rank and what it sees of others where they are processes.
    pub fn processes(&self, recipe: &Recipe, process: Process) -> Vec<Bytes> {
        let num_ranks = self.ranks.len() as u64;
        if recipe.run.isolation == Isolation::Threads {
            let all = self.total() + process.besides(num_ranks, 0);
            return vec![all; self.ranks.len()];
        }
        let besides = process.besides(1, num_ranks - 1);
        self.ranks.iter().map(|rank| rank.own() + rank.shared + besides).collect()
    }
}

/// What each block of the model saves of a micro-batch, by name.
pub fn activations_by_block(recipe: &Recipe, blueprint: &Blueprint) -> Vec<(String, Bytes)> {
    let plan = asked::plan_at(recipe, blueprint, 0);
    let lens = Activations::planned_by_block(blueprint, plan.microbatch, plan.recompute);
    let names = blueprint.blocks.iter().map(|block| block.name().to_owned());
    names.zip(lens.into_iter().map(bytes)).collect()
}

const fn bytes(elements: usize) -> Bytes {
    Bytes((elements * size_of::<f32>()) as u64)
}
