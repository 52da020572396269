//! Step time on this machine: computation at the measured speed, and communication at the modelled
//! cost of its schedules.
//!
//! A step of a worker is its micro-batches in sequence, then its share of the optimizer step; calls
//! overlap with backward where cores are free. A micro-batch is FLOPs at a measured rate, plus
//! costs that do not depend on its length ([`crate::calibration::machine`]). Workers of one machine
//! share its cores, so the total work of all workers counts, and at least that of the worker with
//! most micro-batches.

use super::calls::prices;
use super::engine_pipeline::Path;
use crate::calibration::machine::MachineCalibration;
use crate::overlap::{self, Bucket};
use crate::traffic::{GroupCalls, Interconnect, StepCalls, rank_at};
use lockstep_config::units::{Flops, FlopsPerSecond, Seconds};
use lockstep_config::{Recipe, Recompute};
use lockstep_model::Blueprint;
use lockstep_parallel::from_recipe::blueprint_of;

/// Step time by part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    /// Forward and backward.
    pub compute: Seconds,
    /// Optimizer step and fixed cost per step.
    pub update: Seconds,
    /// Communication, hidden or not.
    pub communication: Seconds,
    /// Exposed communication.
    pub exposed: Seconds,
    /// Bubble fraction of the pipeline.
    pub bubble: f64,
    /// FLOPs of all workers.
    pub flops: Flops,
}

impl StepTime {
    /// Step time.
    pub fn seconds(&self) -> Seconds {
        self.compute + self.update + self.exposed
    }

    /// Share of the machine's peak that the step achieves (MFU).
    pub fn peak_share(&self, peak: FlopsPerSecond) -> f64 {
        (self.flops / self.seconds()) / peak
    }
}

/// Mean step time of a recipe over its classes of steps, each with its share.
pub fn mean(
    recipe: &Recipe,
    step_classes: &[(f64, StepCalls)],
    interconnect: &Interconnect,
    machine: &MachineCalibration<'_>,
) -> StepTime {
    let mut steps = step_classes
        .iter()
        .map(|(share, calls)| (share, step(recipe, calls, interconnect, machine)));
    let (share, first) = steps.next().expect("a run has a step");
    // Classes differ only in communication.
    let (communication, exposed) = steps.fold(
        (first.communication * *share, first.exposed * *share),
        |(communication, exposed), (share, step)| {
            (communication + step.communication * *share, exposed + step.exposed * *share)
        },
    );
    StepTime { communication, exposed, ..first }
}

/// Step time of a recipe, with calls on this interconnect.
pub fn step(
    recipe: &Recipe,
    calls: &StepCalls,
    interconnect: &Interconnect,
    machine: &MachineCalibration<'_>,
) -> StepTime {
    let blueprint = &blueprint_of(recipe);
    let leaves = recipe.leaf_shares();
    let workers = recipe.run.workers;
    let threads = recipe.run.num_threads(machine.cores, workers);
    let num_busy = (threads * workers).min(machine.cores) as f64;
    let per_leaf = recipe.microbatches_per_leaf() as f64;
    let most = per_leaf * leaves.iter().copied().max().unwrap_or(0) as f64;
    let total = per_leaf * leaves.iter().sum::<usize>() as f64;
    // With fewer threads than cores a part of the machine is idle.
    let all = num_busy / machine.cores as f64;
    let one = threads.min(machine.cores) as f64 / machine.cores as f64;
    let microbatch =
        microbatch_seconds(recipe, blueprint, machine) + leaf_seconds(blueprint, machine, per_leaf);
    // More workers than cores take turns.
    let oversubscription = (workers * threads) as f64 / num_busy;
    let blocks = machine.block(threads) * recompute_factor(recipe, blueprint);
    let path = Path::new(recipe, blueprint, calls, interconnect, machine);
    let alone = path.seconds(microbatch * (1.0 / one), blocks, false);
    let together = path.seconds(microbatch * (1.0 / one), blocks, true);
    let cores =
        microbatch * (total / all) + blocks * (path.blocks_per_worker(most) * oversubscription);
    let compute = cores.max(alone);
    let num_updates = if recipe.parallel.zero == 0 { leaves.len() as f64 } else { 1.0 };
    let per_param = Seconds(machine.update_seconds_per_param / all);
    let update = per_param * (blueprint.num_params() as f64 * num_updates)
        + Seconds(machine.step_overhead_seconds * oversubscription);
    let microbatch_seconds = compute * (1.0 / most);
    let (data, exposed) =
        communication(recipe, calls, interconnect, machine, microbatch_seconds, threads);
    let after_step = after_step_seconds(recipe, calls, interconnect, machine);
    let flops = Flops(total * microbatch_flops_of_model(recipe, blueprint).0);
    let waited = cores.max(together) - compute;
    StepTime {
        compute,
        update,
        communication: data + after_step + path.communication(),
        exposed: exposed + after_step + waited,
        bubble: path.bubble(microbatch, blocks),
        flops,
    }
}

/// Time of a micro-batch on all cores, without the cost per block.
fn microbatch_seconds(
    recipe: &Recipe,
    blueprint: &Blueprint,
    machine: &MachineCalibration<'_>,
) -> Seconds {
    let recompute_factor = recompute_factor(recipe, blueprint);
    let products = microbatch_flops_of_model(recipe, blueprint) / machine.rate(recipe.model.width);
    let scores = Seconds(machine.format.score_seconds * microbatch_scores(recipe));
    (products + scores + machine.passing(blueprint.num_params())) * recompute_factor
}

/// Attention scores of a micro-batch: one per head, token, and preceding token.
pub fn microbatch_scores(recipe: &Recipe) -> f64 {
    let model = &recipe.model;
    let of_sequence = model.context * (model.context + 1) / 2;
    (recipe.train.microbatch_size * model.layers * model.heads * of_sequence) as f64
}

/// Time of a micro-batch's share of a leaf on all cores.
fn leaf_seconds(
    blueprint: &Blueprint,
    machine: &MachineCalibration<'_>,
    microbatches_per_leaf: f64,
) -> Seconds {
    machine.leaf(blueprint.num_params()) * (1.0 / microbatches_per_leaf)
}

/// Model FLOPs of one micro-batch, forward and backward.
fn microbatch_flops_of_model(recipe: &Recipe, blueprint: &Blueprint) -> Flops {
    let per_token = blueprint.flops_per_token();
    let tokens = (recipe.train.microbatch_size * recipe.model.context) as f64;
    Flops((per_token.forward + per_token.backward) as f64 * tokens)
}

/// Factor on the computation from recomputation.
fn recompute_factor(recipe: &Recipe, blueprint: &Blueprint) -> f64 {
    let layers = blueprint.blocks.iter().filter(|block| block.io().is_layer());
    let forward: u64 =
        layers.map(|block| block.flops_per_token(recipe.model.context).forward).sum();
    // Attention scores and sums: two products of context x head_dim per head and token, half of
    // which the causal mask leaves.
    let model = &recipe.model;
    let attention = 2 * model.layers * model.context * model.heads * model.head_dim();
    let recompute_factor = match recipe.parallel.recompute {
        Recompute::None => 0.0,
        Recompute::Selective => attention as f64,
        Recompute::Full => forward as f64,
        Recompute::Every(k) => {
            forward as f64 * (model.layers.div_ceil(k)) as f64 / model.layers.max(1) as f64
        }
    };
    let once = blueprint.flops_per_token();
    1.0 + recompute_factor / (once.forward + once.backward) as f64
}

/// Communication after a step, which overlaps with nothing; concurrent groups take as long as one
/// of them.
fn after_step_seconds(
    recipe: &Recipe,
    calls: &StepCalls,
    interconnect: &Interconnect,
    machine: &MachineCalibration<'_>,
) -> Seconds {
    let of_group = |(first, group): &(usize, GroupCalls)| {
        let ranks: Vec<usize> = (*first..first + group.contributions.num_ranks()).collect();
        let all = prices(group, interconnect, &ranks, machine);
        let all: Seconds = all.into_iter().map(|(_, seconds)| seconds).sum();
        all * (ranks.len() as f64 / recipe.run.workers as f64)
    };
    let all: Seconds = calls.after_step.iter().map(of_group).sum();
    all * oversubscription(recipe, interconnect, machine)
}

/// The cost model assumes one core per rank.
fn oversubscription(
    recipe: &Recipe,
    interconnect: &Interconnect,
    machine: &MachineCalibration<'_>,
) -> f64 {
    let oversubscription = (recipe.run.workers as f64 / machine.cores as f64).max(1.0);
    if interconnect.costs.core_contention.is_some() { 1.0 } else { oversubscription }
}

/// Data-parallel communication, and its exposed part, on the busiest pipeline rank.
fn communication(
    recipe: &Recipe,
    calls: &StepCalls,
    interconnect: &Interconnect,
    machine: &MachineCalibration<'_>,
    microbatch: Seconds,
    threads: usize,
) -> (Seconds, Seconds) {
    let of_device = |(device, tp_ranks): (usize, &Vec<GroupCalls>)| {
        let calls_of_first = &tp_ranks[0];
        let parts = 0..calls_of_first.contributions.num_ranks();
        let ranks: Vec<usize> = parts.map(|part| rank_at(&calls.mesh, device, part, 0)).collect();
        prices(calls_of_first, interconnect, &ranks, machine)
    };
    let by_device = calls.data.iter().enumerate().map(of_device);
    let sum =
        |calls: &[(usize, Seconds)]| calls.iter().map(|(_, seconds)| *seconds).sum::<Seconds>();
    let mut last_microbatch =
        by_device.reduce(|a, b| if sum(&b) > sum(&a) { b } else { a }).unwrap_or_default();
    let all = sum(&last_microbatch);
    // A call in shared memory, or between processes of one machine, occupies computing cores; so
    // does every call unless workers measured that they do not share cores.
    let has_free_cores = threads * recipe.run.workers < machine.cores;
    let is_network =
        interconnect.costs.port.is_some() && interconnect.costs.core_contention.is_none();
    if !recipe.parallel.overlap || !(has_free_cores || is_network) {
        let all = all * oversubscription(recipe, interconnect, machine);
        return (all, all);
    }
    // Buckets leave from the last to the first during backward, two thirds of a micro-batch.
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
