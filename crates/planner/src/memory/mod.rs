//! Memory of every rank by purpose, before it is allocated.
//!
//! The engine's own count ([`Footprint`]) is exact, and tests compare it with the allocations. A
//! process also holds its code, its data and, where workers share memory, the pages of other
//! workers that it accesses: a page counts for every process that accesses it.
//!
//! - [`zero`]: ZeRO in closed form; [`activations`]: activations in closed form.
//! - [`process`]: memory of a process besides its model; `mapped_pages`: memory of calls.
//! - [`fit`]: whether a run fits, and a recipe that would; [`microbatch`]: the largest micro-batch
//!   size that does.

pub mod activations;
pub mod fit;
mod mapped_pages;
pub mod microbatch;
pub mod process;
pub mod zero;

pub use fit::{MemoryBudget, OutOfMemory, check};
pub use microbatch::with_microbatch;
pub use process::Process;

use crate::traffic::{GroupCalls, Interconnect, StepInputs, rank_at, step_calls, sync_pattern};
use lockstep_config::units::Bytes;
use lockstep_config::{Isolation, Recipe};
use lockstep_model::Blueprint;
use lockstep_parallel::{Activations, Footprint, ReplicaPlan, from_recipe};

/// Bytes of one rank by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankMemory {
    /// Parameters.
    pub weights: Bytes,
    /// Gradient sums: the leaf in progress, and those that wait for their sibling.
    pub gradients: Bytes,
    /// Optimizer state.
    pub optimizer: Bytes,
    /// Activations of a micro-batch between forward and backward.
    pub activations: Bytes,
    /// Scratch, buckets in transfer, prefetch windows.
    pub buffers: Bytes,
    /// Memory of calls: mapped pages of other ranks, and scratch memory.
    pub shared: Bytes,
}

/// Memory of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// Memory by rank, in the step with the highest peak.
    pub ranks: Vec<RankMemory>,
    /// Parameters of a bucket.
    pub bucket_len: usize,
    /// First step with the highest peak.
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
    /// Bytes that the rank allocates.
    pub fn own(&self) -> Bytes {
        self.weights + self.gradients + self.optimizer + self.activations + self.buffers
    }

    /// Parts by name, largest first.
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
    /// Memory of a recipe.
    pub fn of(recipe: &Recipe, blueprint: &Blueprint) -> Self {
        let likeliest = step_calls::plan_at(recipe, blueprint, 0).bucket_len;
        Self::with_bucket_len(recipe, blueprint, likeliest)
    }

    /// Memory of a recipe with this bucket length.
    pub fn with_bucket_len(recipe: &Recipe, blueprint: &Blueprint, bucket_len: usize) -> Self {
        let at = |step| -> Vec<RankMemory> {
            let plan = from_recipe::plan_at(recipe, blueprint, step);
            let plan = ReplicaPlan { bucket_len, ..plan };
            let rank = |worker| {
                let [outer, besides] =
                    sync_pattern::extra_elements(recipe, &plan, blueprint, worker).map(bytes);
                let held = Footprint::plan(blueprint, &plan, recipe.optim.name, worker);
                let mut memory = RankMemory::from(&held);
                memory.optimizer += outer;
                memory.buffers += besides;
                memory
            };
            (0..recipe.run.workers).map(rank).collect()
        };
        let most = |ranks: &Vec<RankMemory>| ranks.iter().map(RankMemory::own).sum::<Bytes>();
        let steps = from_recipe::phase_boundaries(recipe, blueprint);
        let all = steps.into_iter().map(|step| (step, at(step)));
        // First of the steps with the highest peak.
        let (peak_step, ranks) = all
            .reduce(|best, next| if most(&next.1) > most(&best.1) { next } else { best })
            .expect("a run has a first step");
        Self { ranks, bucket_len, peak_step }
    }

    /// Bytes that all processes of the run allocate.
    pub fn total(&self) -> Bytes {
        self.ranks.iter().map(RankMemory::own).sum()
    }

    /// Adds the memory of calls.
    pub fn with_mapped_pages(mut self, recipe: &Recipe, blueprint: &Blueprint) -> Self {
        let plan = from_recipe::plan_at(recipe, blueprint, self.peak_step);
        let plan = ReplicaPlan { bucket_len: self.bucket_len, ..plan };
        let mut calls = step_calls::of_plan(&plan, blueprint, StepInputs::default());
        let interconnect = Interconnect::of_recipe(recipe);
        sync_pattern::apply(&sync_pattern::all(recipe), recipe, &plan, blueprint, &mut calls);
        for (first, group) in &calls.after_step {
            self.add_mapped_pages(
                group,
                &interconnect,
                &|member| first + member,
                mapped_pages::staged_by_rank,
            );
        }
        for (device, tp_ranks) in calls.data.iter().enumerate() {
            for (tp_rank, calls) in tp_ranks.iter().enumerate() {
                let rank = |part| rank_at(&plan.mesh, device, part, tp_rank);
                self.add_mapped_pages(calls, &interconnect, &rank, mapped_pages::bytes_by_rank);
            }
        }
        for (device, parts) in calls.tensor.iter().enumerate() {
            for (part, calls) in parts.iter().enumerate() {
                let rank = |tp_rank| rank_at(&plan.mesh, device, part, tp_rank);
                self.add_mapped_pages(calls, &interconnect, &rank, mapped_pages::staged_by_rank);
            }
        }
        self
    }

    /// Adds the memory of a group's calls; `rank` maps group ranks to ranks.
    fn add_mapped_pages(
        &mut self,
        calls: &GroupCalls,
        interconnect: &Interconnect,
        rank: &dyn Fn(usize) -> usize,
        mapped: fn(&GroupCalls, &Interconnect) -> Vec<Bytes>,
    ) {
        let ranks: Vec<usize> = (0..calls.contributions.num_ranks()).map(rank).collect();
        let interconnect = interconnect.among(&ranks);
        let (mapped, working) =
            (mapped(calls, &interconnect), mapped_pages::working_by_rank(calls, &interconnect));
        for (rank, (mapped, working)) in ranks.into_iter().zip(mapped.into_iter().zip(working)) {
            self.ranks[rank].shared += mapped + working;
        }
    }

    /// Resident memory of each rank's process: all ranks where they are threads of one process, a
    /// rank and its mapped pages where they are processes.
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

/// Activations that each block of the model saves per micro-batch, by name.
pub fn activations_by_block(recipe: &Recipe, blueprint: &Blueprint) -> Vec<(String, Bytes)> {
    let plan = from_recipe::plan_at(recipe, blueprint, 0);
    let lens = Activations::planned_by_block(blueprint, plan.microbatch, plan.recompute);
    let names = blueprint.blocks.iter().map(|block| block.name().to_owned());
    names.zip(lens.into_iter().map(bytes)).collect()
}

const fn bytes(elements: usize) -> Bytes {
    Bytes((elements * size_of::<f32>()) as u64)
}
