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
use lockstep_config::{Isolation, Recipe, TransportChoice};
use lockstep_model::Blueprint;
use lockstep_parallel::trained::Trained;
use lockstep_parallel::zero::NUM_IN_FLIGHT;
use lockstep_parallel::{Activations, Buckets, Footprint, ReplicaPlan, asked, tune};

/// What the engine takes besides, whatever the model: code that is touched, stacks, the allocator's
/// own. Fitted to runs of 1 to 13 million parameters, in which it varied by half a MiB.
const RUNTIME_BYTES: Bytes = Bytes(9_000_000);

/// What every other rank costs one: rings, flags, plans of calls. Fitted to runs of 2 to 8 ranks.
const PEER_BYTES: Bytes = Bytes(600_000);

/// How long the engine tries lengths of buckets, and how many bytes a second all ranks of a host
/// sweep over meanwhile, roughly.
const TRIAL_SECONDS: f64 = 0.06;
const TRIAL_BYTES_PER_SECOND: f64 = 4e9;

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
    fn new(held: &Footprint, num_seen: usize) -> Self {
        Self {
            weights: bytes(held.weights),
            gradients: bytes(held.gradients),
            optimizer: bytes(held.optimizer),
            activations: bytes(held.activations),
            buffers: bytes(held.buffers),
            shared: bytes(num_seen),
        }
    }

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
            let seen = seen_elements(&plan, blueprint) + trial_elements(recipe, &plan, blueprint);
            let rank = |worker| {
                let held = Footprint::plan(blueprint, &plan, recipe.optim.name, worker);
                RankMemory::new(&held, seen)
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
        let shares_memory = recipe.run.transport != TransportChoice::Tcp;
        let of_rank =
            |rank: &RankMemory| rank.own() + if shares_memory { rank.shared } else { Bytes(0) };
        let model = if is_one {
            self.total()
        } else {
            self.ranks.iter().map(of_rank).max().unwrap_or_default()
        };
        model + process + RUNTIME_BYTES + PEER_BYTES * (self.ranks.len() as u64 - 1)
    }
}

/// What each block of the model saves of a lane, by name.
pub fn activations_by_block(recipe: &Recipe, blueprint: &Blueprint) -> Vec<(String, Bytes)> {
    let plan = asked::plan_at(recipe, blueprint, 0);
    let lens = Activations::planned_by_block(blueprint, plan.lane, plan.recompute);
    let names = blueprint.blocks.iter().map(|block| block.name().to_owned());
    names.zip(lens.into_iter().map(bytes)).collect()
}

/// Elements in other ranks' buffers that a rank looks at: its part of what they bring to a sum, and
/// their parts of parameters.
fn seen_elements(plan: &ReplicaPlan, blueprint: &Blueprint) -> usize {
    let workers = plan.shares.len();
    let buckets = Buckets::new(blueprint, plan.bucket_len, workers);
    let trained = Trained::new(blueprint, &buckets, &plan.phases, plan.phase);
    let of_others = |elements: usize| elements / workers * (workers - 1);
    let (whole, longest) = (trained.grads.num_params(), trained.grads.max_len());
    let one_lane = plan.leaves.lanes_per_leaf == 1;
    let leaves = if one_lane { NUM_IN_FLIGHT * longest } else { whole };
    let weights = of_others(buckets.num_params());
    match plan.zero {
        0 => of_others(whole),
        1 => of_others(whole) + weights,
        2 => of_others(leaves) + weights,
        _ => of_others(leaves) + of_others(2 * buckets.max_len()),
    }
}

/// Elements in other ranks' buffers that were looked at only to find the best length of buckets:
/// pages once touched stay. Trials end when they have taken long enough.
fn trial_elements(recipe: &Recipe, plan: &ReplicaPlan, blueprint: &Blueprint) -> usize {
    let workers = plan.shares.len();
    if recipe.parallel.bucket_bytes != Bytes(0) || workers == 1 {
        return 0;
    }
    let lens = tune::possible_bucket_lens(workers, blueprint.num_params());
    let seconds = |tried: usize| (tried * 4 * workers * 4) as f64 / TRIAL_BYTES_PER_SECOND;
    let tried = lens
        .into_iter()
        .fold(0, |tried, len| if seconds(tried) < TRIAL_SECONDS { tried + len } else { tried });
    let seen = tried / workers * (workers - 1);
    // Gradients that stay whole come to lie in the same pages for the most part.
    if plan.zero == 0 { seen / 3 } else { seen }
}

const fn bytes(elements: usize) -> Bytes {
    Bytes((elements * size_of::<f32>()) as u64)
}
