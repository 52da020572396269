//! How long a step takes on this machine: computation at the speed that was measured, and
//! communication at the price of its schedules.
//!
//! A step of a worker is its micro-batches, one after the other, then its share of the update; calls run
//! beside backward where cores are free for them. A micro-batch is arithmetic, which has a speed, and what
//! it takes besides, however short it is ([`calibration`]). Workers of one machine share its cores,
//! so what counts is the work of all of them together, and at least that of the one with most
//! micro-batches.

pub mod calibration;
mod path;

pub use calibration::{Calibration, Format, Machine, Point, SumPoint};

use crate::overlap::{self, Bucket};
use crate::traffic::{Call, Chosen, GroupCalls, StepCalls, Wires, rank_at};
use lockstep_config::units::{Flops, FlopsPerSecond, Seconds};
use lockstep_config::{Recipe, Recompute};
use lockstep_model::Blueprint;
use lockstep_parallel::asked::blueprint_of;
use path::Path;

/// The parts of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    /// Forward and backward.
    pub compute: Seconds,
    /// The optimizer, and what a step takes whatever is in it.
    pub update: Seconds,
    /// All calls, hidden or not.
    pub communication: Seconds,
    /// What of them is not hidden.
    pub exposed: Seconds,
    /// The share of their time in which the devices of a pipeline wait for microbatches.
    pub bubble: f64,
    /// Arithmetic of all workers.
    pub flops: Flops,
}

impl StepTime {
    /// The whole step.
    pub fn seconds(&self) -> Seconds {
        self.compute + self.update + self.exposed
    }

    /// The share of the machine's peak that the step reaches.
    pub fn peak_share(&self, peak: FlopsPerSecond) -> f64 {
        (self.flops / self.seconds()) / peak
    }
}

/// How long the mean step of a recipe takes whose steps are of these kinds, each with its share.
pub fn mean(
    recipe: &Recipe,
    kinds: &[(f64, StepCalls)],
    wires: &Wires,
    machine: &Calibration,
) -> StepTime {
    let mut steps = kinds.iter().map(|(share, calls)| (share, step(recipe, calls, wires, machine)));
    let (share, first) = steps.next().expect("a run has a step");
    // Only what they exchange sets them apart.
    let (communication, exposed) = steps.fold(
        (first.communication * *share, first.exposed * *share),
        |(communication, exposed), (share, step)| {
            (communication + step.communication * *share, exposed + step.exposed * *share)
        },
    );
    StepTime { communication, exposed, ..first }
}

/// How long a step of a recipe takes, with calls as they are on these wires.
pub fn step(recipe: &Recipe, calls: &StepCalls, wires: &Wires, machine: &Calibration) -> StepTime {
    let blueprint = &blueprint_of(recipe);
    let leaves = recipe.leaf_shares();
    let workers = recipe.run.workers;
    let threads = recipe.run.num_threads(machine.cores, workers);
    let num_busy = (threads * workers).min(machine.cores) as f64;
    let per_leaf = recipe.microbatches_per_leaf() as f64;
    let most = per_leaf * leaves.iter().copied().max().unwrap_or(0) as f64;
    let total = per_leaf * leaves.iter().sum::<usize>() as f64;
    // With fewer threads than cores a part of the machine stands still.
    let all = num_busy / machine.cores as f64;
    let one = threads.min(machine.cores) as f64 / machine.cores as f64;
    let microbatch =
        microbatch_seconds(recipe, blueprint, machine) + leaf_seconds(blueprint, machine, per_leaf);
    // More workers than cores wait for each other.
    let crowd = (workers * threads) as f64 / num_busy;
    let blocks = machine.block(threads) * again(recipe, blueprint);
    let path = Path::new(recipe, blueprint, calls, wires, machine);
    let alone = path.seconds(microbatch * (1.0 / one), blocks, false);
    let together = path.seconds(microbatch * (1.0 / one), blocks, true);
    let cores = microbatch * (total / all) + blocks * (path.blocks_per_worker(most) * crowd);
    let compute = cores.max(alone);
    let num_updates = if recipe.parallel.zero == 0 { leaves.len() as f64 } else { 1.0 };
    let per_param = Seconds(machine.update_seconds_per_param / all);
    let update = per_param * (blueprint.num_params() as f64 * num_updates)
        + Seconds(machine.step_overhead_seconds * crowd);
    let microbatch_seconds = compute * (1.0 / most);
    let (data, exposed) = communication(recipe, calls, wires, machine, microbatch_seconds, threads);
    let behind = seconds_behind(recipe, calls, wires, machine);
    let flops = Flops(total * microbatch_flops_of_model(recipe, blueprint).0);
    let waited = cores.max(together) - compute;
    StepTime {
        compute,
        update,
        communication: data + behind + path.communication(),
        exposed: exposed + behind + waited,
        bubble: path.bubble(microbatch, blocks),
        flops,
    }
}

/// What a micro-batch takes on all cores, but for the blocks' own price.
fn microbatch_seconds(recipe: &Recipe, blueprint: &Blueprint, machine: &Calibration) -> Seconds {
    let again = again(recipe, blueprint);
    let products = microbatch_flops_of_model(recipe, blueprint) / machine.rate(recipe.model.width);
    let scores = Seconds(machine.format.score_seconds * microbatch_scores(recipe));
    (products + scores + machine.passing(blueprint.num_params())) * again
}

/// Scores of attention in a micro-batch: one for every head, token, and token before it.
pub fn microbatch_scores(recipe: &Recipe) -> f64 {
    let model = &recipe.model;
    let of_sequence = model.context * (model.context + 1) / 2;
    (recipe.train.microbatch_size * model.layers * model.heads * of_sequence) as f64
}

/// What a micro-batch's part of a leaf takes on all cores.
fn leaf_seconds(
    blueprint: &Blueprint,
    machine: &Calibration,
    microbatches_per_leaf: f64,
) -> Seconds {
    machine.leaf(blueprint.num_params()) * (1.0 / microbatches_per_leaf)
}

/// Arithmetic of one micro-batch, forward and backward, as a model is counted.
fn microbatch_flops_of_model(recipe: &Recipe, blueprint: &Blueprint) -> Flops {
    let per_token = blueprint.flops_per_token();
    let tokens = (recipe.train.microbatch_size * recipe.model.context) as f64;
    Flops((per_token.forward + per_token.backward) as f64 * tokens)
}

/// How many times that is computed, where some of it is computed again.
fn again(recipe: &Recipe, blueprint: &Blueprint) -> f64 {
    let layers = blueprint.blocks.iter().filter(|block| block.io().is_layer());
    let forward: u64 =
        layers.map(|block| block.flops_per_token(recipe.model.context).forward).sum();
    // Attention scores and sums: two products of context x head_dim for each head and token, of
    // which causality leaves half.
    let model = &recipe.model;
    let attention = 2 * model.layers * model.context * model.heads * model.head_dim();
    let again = match recipe.parallel.recompute {
        Recompute::None => 0.0,
        Recompute::Selective => attention as f64,
        Recompute::Full => forward as f64,
        Recompute::Every(k) => {
            forward as f64 * (model.layers.div_ceil(k)) as f64 / model.layers.max(1) as f64
        }
    };
    let once = blueprint.flops_per_token();
    1.0 + again / (once.forward + once.backward) as f64
}

/// The price of calls of a group whose members are these ranks: bucket, and all of its calls.
fn prices(
    calls: &GroupCalls,
    wires: &Wires,
    members: &[usize],
    machine: &Calibration,
) -> Vec<(usize, Seconds)> {
    let wires = wires.among(members);
    let costs = machine.costs(&wires.costs);
    let mut chosen = Chosen::new(&wires, &calls.addends);
    let price = |call: &Call| {
        let seconds = wires.call_seconds(chosen.of(call), call, &costs);
        (call.bucket, seconds * call.times as f64)
    };
    calls.list.iter().map(price).collect()
}

/// What comes behind a step, which nothing hides; groups that meet at the same time take as long as
/// one of them.
fn seconds_behind(
    recipe: &Recipe,
    calls: &StepCalls,
    wires: &Wires,
    machine: &Calibration,
) -> Seconds {
    let of_group = |(first, group): &(usize, GroupCalls)| {
        let members: Vec<usize> = (*first..first + group.addends.num_ranks()).collect();
        let all = prices(group, wires, &members, machine);
        let all: Seconds = all.into_iter().map(|(_, seconds)| seconds).sum();
        all * (members.len() as f64 / recipe.run.workers as f64)
    };
    let all: Seconds = calls.behind.iter().map(of_group).sum();
    all * crowd(recipe, wires, machine)
}

/// What is priced are ranks with a core each.
fn crowd(recipe: &Recipe, wires: &Wires, machine: &Calibration) -> f64 {
    let crowd = (recipe.run.workers as f64 / machine.cores as f64).max(1.0);
    if wires.costs.crowd.is_some() { 1.0 } else { crowd }
}

/// All calls of those that share the batch, and what of them sticks out: on the device of the
/// pipeline that has most.
fn communication(
    recipe: &Recipe,
    calls: &StepCalls,
    wires: &Wires,
    machine: &Calibration,
    microbatch: Seconds,
    threads: usize,
) -> (Seconds, Seconds) {
    let of_device = |(device, holders): (usize, &Vec<GroupCalls>)| {
        let calls_of_first = &holders[0];
        let parts = 0..calls_of_first.addends.num_ranks();
        let members: Vec<usize> = parts.map(|part| rank_at(&calls.mesh, device, part, 0)).collect();
        prices(calls_of_first, wires, &members, machine)
    };
    let by_device = calls.data.iter().enumerate().map(of_device);
    let sum =
        |calls: &[(usize, Seconds)]| calls.iter().map(|(_, seconds)| *seconds).sum::<Seconds>();
    let mut last_microbatch =
        by_device.reduce(|a, b| if sum(&b) > sum(&a) { b } else { a }).unwrap_or_default();
    let all = sum(&last_microbatch);
    // A call in memory, or between processes of one machine, is work of the cores that compute; so
    // are all of them unless workers found that they do not share their cores.
    let has_free_cores = threads * recipe.run.workers < machine.cores;
    let is_network = wires.costs.port.is_some() && wires.costs.crowd.is_none();
    if !recipe.parallel.overlap || !(has_free_cores || is_network) {
        let all = all * crowd(recipe, wires, machine);
        return (all, all);
    }
    // Buckets leave from the last to the first while backward, two thirds of a micro-batch, goes on.
    last_microbatch.sort_by_key(|(bucket, _)| std::cmp::Reverse(*bucket));
    let backward = microbatch * (2.0 / 3.0);
    let num_calls = last_microbatch.len().max(1) as f64;
    let bucket = |(index, (_, transfer)): (usize, &(usize, Seconds))| Bucket {
        ready: backward * ((index + 1) as f64 / num_calls),
        transfer: *transfer,
    };
    let buckets: Vec<Bucket> = last_microbatch.iter().enumerate().map(bucket).collect();
    (all, overlap::exposed(&buckets, backward))
}
