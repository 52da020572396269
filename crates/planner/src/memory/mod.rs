//! The memory of every rank, by what it is for, before any of it is allocated.
//!
//! The engine's own count ([`Footprint`]) is exact: what a worker allocates is what it says, and
//! tests hold the two together. What a process holds besides is its code, its text and, where
//! workers share memory, those pages of the others that it looks into: a page that is touched
//! counts for everybody who touches it.
//!
//! - [`zero`]: what the stages of ZeRO save, by closed form.
//! - [`check`](mod@check): does it fit, and what would?

pub mod check;
pub mod zero;

pub use check::{Room, TooLarge, check};

use crate::traffic::calls;
use lockstep_config::units::Bytes;
use lockstep_config::{Isolation, Recipe};
use lockstep_model::Blueprint;
use lockstep_parallel::{Activations, Footprint, asked};

/// Bytes of one rank by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankMemory {
    /// Parameters.
    pub weights: Bytes,
    /// Sums of gradients: the leaf at work, and those that wait for their sibling.
    pub gradients: Bytes,
    /// What the optimizer keeps.
    pub optimizer: Bytes,
    /// What a lane leaves between forward and backward.
    pub activations: Bytes,
    /// Scratch, buckets on their way, windows for parameters that are brought.
    pub buffers: Bytes,
    /// Pages of other ranks that this one looks into.
    pub shared: Bytes,
}

/// The memory of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// By rank, in the step that takes most.
    pub ranks: Vec<RankMemory>,
    /// The first step that takes most.
    pub peak_step: u64,
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
        let num_workers = recipe.run.workers;
        let at = |step| -> Vec<RankMemory> {
            (0..num_workers).map(|worker| rank(recipe, blueprint, step, worker)).collect()
        };
        let most = |ranks: &Vec<RankMemory>| ranks.iter().map(RankMemory::own).sum::<Bytes>();
        let steps = asked::turning_points(recipe, blueprint);
        let all = steps.into_iter().map(|step| (step, at(step)));
        // The first of those that take most.
        let (peak_step, ranks) = all
            .reduce(|best, next| if most(&next.1) > most(&best.1) { next } else { best })
            .expect("a run has a first step");
        Self { ranks, peak_step }
    }

    /// What the processes of the run allocate together.
    pub fn total(&self) -> Bytes {
        self.ranks.iter().map(RankMemory::own).sum()
    }

    /// What the largest process will show as its own: all ranks where they are threads of one, a
    /// rank and what it sees of others where they are processes. `process` is what it takes before
    /// it has a model.
    pub fn largest_process(&self, recipe: &Recipe, process: Bytes) -> Bytes {
        let is_one = recipe.run.isolation == Isolation::Threads || self.ranks.len() == 1;
        if is_one {
            return self.total() + process;
        }
        let each = self.ranks.iter().map(|rank| rank.own() + rank.shared);
        each.max().unwrap_or_default() + process
    }
}

/// What each block of the model saves of a lane, by name.
pub fn activations_by_block(recipe: &Recipe, blueprint: &Blueprint) -> Vec<(String, Bytes)> {
    let plan = asked::plan_at(recipe, blueprint, 0);
    let lens = Activations::planned_by_block(blueprint, plan.lane, plan.recompute);
    let names = blueprint.blocks.iter().map(|block| block.name().to_owned());
    names.zip(lens.into_iter().map(bytes)).collect()
}

fn rank(recipe: &Recipe, blueprint: &Blueprint, step: u64, worker: usize) -> RankMemory {
    let (plan, _) = calls::plan_at(recipe, blueprint, step);
    let held = Footprint::plan(blueprint, &plan, recipe.optim.name, worker);
    let others = recipe.run.workers - 1;
    let share = |elements: usize| elements / recipe.run.workers * others;
    // The part of each exchanged buffer of all others that this rank adds up or fetches.
    let seen = match plan.zero {
        0 => share(held.gradients),
        1 => share(held.gradients + held.weights),
        2 => share(held.weights) + share(held.buffers),
        _ => share(held.buffers),
    };
    RankMemory {
        weights: bytes(held.weights),
        gradients: bytes(held.gradients),
        optimizer: bytes(held.optimizer),
        activations: bytes(held.activations),
        buffers: bytes(held.buffers),
        shared: bytes(seen),
    }
}

const fn bytes(elements: usize) -> Bytes {
    Bytes((elements * size_of::<f32>()) as u64)
}
