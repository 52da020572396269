//! Replay of the step program with durations that were measured on the run.
//!
//! The programs of all ranks are those that the engine ran. A rank's measured time in passes is
//! divided over its passes by the spans of a sampled step, or by model FLOPs where none was
//! sampled; calls take their prices at the probed links times one factor, by which the replay takes
//! as long as the measured step. A what-if figure is another replay with one thing changed.

use super::facts::{RunFacts, TaskFacts};
use super::measured_step::{MeasuredStep, RankTime};
use crate::time::{CallPrices, call_mode, recomputed_shares};
use crate::traffic::{Interconnect, step_calls};
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_config::{Consistency, Recipe, SyncMode};
use lockstep_model::Blueprint;
use lockstep_parallel::from_recipe::{blueprint_of, blueprint_of_rank};
use lockstep_parallel::step_program::StepKind;
use lockstep_parallel::{ReplicaPlan, stages, strategies};
use lockstep_schedule::step::{CallMode, Play, Program, TaskId, TaskOp, play};
use lockstep_schedule::{Costs, Link, Links};
use std::collections::BTreeMap;

/// Most tasks of all ranks together that are replayed.
const MAX_TASKS: usize = 200_000;
/// Halvings of the interval in which the factor of calls lies.
const NUM_HALVINGS: u32 = 40;
/// Largest factor of calls: beyond it their prices explain nothing.
const MAX_FACTOR: f64 = 1e6;
/// Bandwidth without any transfer time, in bytes per second.
const UNLIMITED: BytesPerSecond = BytesPerSecond(1e30);

/// Programs of all ranks with the durations of their tasks, in seconds.
pub(super) struct StepReplay {
    programs: Vec<Program>,
    mode: CallMode,
    /// Computation of each task, by rank.
    compute: Vec<Vec<f64>>,
    /// Priced time of calls and messages, by rank and task, and its part at unlimited bandwidth.
    calls: Vec<Vec<[f64; 2]>>,
    /// Measured over priced time of calls.
    pub(super) factor: f64,
    /// Part of the step that the programs do not explain.
    pub(super) unexplained: f64,
}

/// Factors of the durations in a replay.
#[derive(Clone, Copy)]
pub(super) struct Scales<'a> {
    /// Time in passes, by rank.
    pub(super) compute: &'a dyn Fn(usize) -> f64,
    /// Time of transfers, without latency.
    pub(super) transfer: f64,
    /// Latency of calls.
    pub(super) latency: f64,
}

impl Scales<'_> {
    /// As measured.
    pub(super) const MEASURED: Scales<'static> =
        Scales { compute: &|_| 1.0, transfer: 1.0, latency: 1.0 };

    /// Without communication.
    pub(super) const SILENT: Scales<'static> =
        Scales { compute: &|_| 1.0, transfer: 0.0, latency: 0.0 };
}

impl StepReplay {
    /// Replay of a run's median step; `None` where the strategy has no program that all ranks run
    /// together, where ranks are unknown, or where the programs are too large.
    pub(super) fn of(facts: &RunFacts, measured: &MeasuredStep) -> Option<Self> {
        let mut replay = Self::build(facts, &facts.recipe, &measured.ranks, true)?;
        // A step begins with its wait for data, whatever follows.
        let data = measured.mean(|rank| rank.data_seconds);
        let target = measured.seconds - measured.chance_wait() - data;
        replay.factor = replay.fitted_factor(target);
        replay.unexplained = measured.seconds - replay.seconds(Scales::MEASURED);
        Some(replay)
    }

    /// Replay of another recipe whose ranks take these times, with the calls of this one.
    pub(super) fn with_recipe(
        &self,
        facts: &RunFacts,
        recipe: &Recipe,
        ranks: &[RankTime],
    ) -> Option<Self> {
        let other = Self::build(facts, recipe, ranks, false)?;
        Some(Self { factor: self.factor, unexplained: self.unexplained, ..other })
    }

    pub(super) fn build(
        facts: &RunFacts,
        recipe: &Recipe,
        ranks: &[RankTime],
        is_recorded: bool,
    ) -> Option<Self> {
        let is_played = is_joint(recipe)
            && !recipe.model.family.is_problem()
            && recipe.unmodelled_traffic().is_none();
        if !is_played || ranks.len() != recipe.run.workers {
            return None;
        }
        let blueprint = blueprint_of_rank(recipe, 0);
        let mut plan = step_calls::plan_at(recipe, &blueprint, 0);
        let has_own_buckets = recipe.parallel.bucket_bytes == facts.recipe.parallel.bucket_bytes;
        if let Some(len) = facts.bucket_len.filter(|_| has_own_buckets) {
            plan.bucket_len = len;
        }
        let programs = programs(recipe, &plan, &blueprint)?;
        let interconnect = interconnect(facts, recipe);
        let num_threads = recipe.run.num_threads(facts.cores.unwrap_or(1), recipe.run.workers);
        // Workers that sleep through most of a micro-batch leave their cores free.
        let has_free_cores = recipe.emulate.microbatch.0 > 0.0
            || facts.cores.is_some_and(|cores| num_threads * recipe.run.workers < cores);
        let whole = blueprint_of(recipe);
        let compute = programs.iter().enumerate().map(|(at, program)| {
            let spans = facts.spans.get(&program.rank).filter(|_| is_recorded);
            match ranks.get(at) {
                Some(rank) => compute_seconds(recipe, &whole, program, rank, spans),
                // Nothing measures the updates of servers; the factor of calls has them.
                None => vec![0.0; program.tasks.len()],
            }
        });
        let compute = compute.collect();
        let [all, latencies] =
            [Costs::clone as fn(&Costs) -> Costs, at_unlimited_bandwidth].map(|costs| {
                let mut prices = CallPrices::with_costs(&interconnect, Box::new(costs));
                let of_rank = |program| call_seconds(program, &mut prices);
                programs.iter().map(of_rank).collect::<Vec<Vec<f64>>>()
            });
        let both = |(all, latencies): (Vec<f64>, Vec<f64>)| {
            all.into_iter().zip(latencies).map(|(all, latency)| [all, latency.min(all)]).collect()
        };
        let calls = all.into_iter().zip(latencies).map(both).collect();
        let mode = call_mode(recipe, &interconnect, has_free_cores);
        Some(Self { programs, mode, compute, calls, factor: 1.0, unexplained: 0.0 })
    }

    /// Step time with scaled durations.
    pub(super) fn seconds(&self, scales: Scales<'_>) -> f64 {
        (self.play(scales).period.0 + self.unexplained).max(0.0)
    }

    /// Programs of all ranks.
    pub(super) fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// The step in time with scaled durations.
    pub(super) fn play(&self, scales: Scales<'_>) -> Play {
        let Scales { compute, transfer, latency } = scales;
        let seconds = |at: usize, id: TaskId| {
            let task = id.0 as usize;
            let is_pass = self.programs[at].tasks[task].op.block_pass().is_some();
            let own = self.compute[at][task] * if is_pass { compute(at) } else { 1.0 };
            let [call, alpha] = self.calls[at][task];
            Seconds(own + self.factor * (transfer * (call - alpha) + latency * alpha))
        };
        play(&self.programs, self.mode, seconds).expect("programs of a plan end")
    }

    /// Share of the time of a rank's calls that is latency, over all ranks; 0 without calls.
    pub(super) fn latency_share(&self) -> f64 {
        let calls = self.calls.iter().flatten();
        let sums = calls.fold([0.0, 0.0], |sum, call| [sum[0] + call[0], sum[1] + call[1]]);
        if sums[0] > 0.0 { sums[1] / sums[0] } else { 0.0 }
    }

    /// Collective calls and messages of a rank.
    pub(super) fn num_calls(&self, rank: usize) -> usize {
        let is_call = |op: &TaskOp| matches!(op, TaskOp::Send(_));
        let tasks = self.programs[rank].tasks.iter();
        tasks.filter(|task| task.call.is_some() || is_call(&task.op)).count()
    }

    /// Factor of the calls by which the replay takes this long.
    fn fitted_factor(&mut self, seconds: f64) -> f64 {
        let mut with = |factor: f64| {
            self.factor = factor;
            self.seconds(Scales::MEASURED)
        };
        if with(0.0) >= seconds {
            return 0.0;
        }
        let mut high = 1.0;
        while with(high) < seconds {
            high *= 2.0;
            if high > MAX_FACTOR {
                // No call is on the critical path.
                return 0.0;
            }
        }
        let mut low = 0.0;
        for _ in 0..NUM_HALVINGS {
            let middle = f64::midpoint(low, high);
            if with(middle) < seconds { low = middle } else { high = middle }
        }
        high
    }
}

/// Whether all steps of a recipe are of one kind, in which ranks wait for the same others whatever
/// their speeds are. Rounds of local steps exchange in few of them, which the median step does not
/// show; asynchronous servers answer whoever comes first.
fn is_joint(recipe: &Recipe) -> bool {
    match recipe.sync.mode {
        SyncMode::AllReduce | SyncMode::Gossip => true,
        SyncMode::ParameterServer => recipe.sync.server.consistency == Consistency::Sync,
        SyncMode::LocalSgd | SyncMode::Federated | SyncMode::Hogwild => false,
    }
}

/// Programs of the most frequent kind of step: workers in order, then servers.
fn programs(recipe: &Recipe, plan: &ReplicaPlan, blueprint: &Blueprint) -> Option<Vec<Program>> {
    let counts = StepKind::of_run(recipe);
    let (kind, _) = counts.iter().max_by_key(|(_, count)| **count)?;
    // A lower bound of the tasks, before any program is built.
    let passes = 2 * recipe.num_microbatches() * blueprint.blocks.len();
    if passes > MAX_TASKS {
        return None;
    }
    let programs = strategies::programs(recipe, plan, blueprint, kind);
    let num_tasks: usize = programs.iter().map(|program| program.tasks.len()).sum();
    (num_tasks <= MAX_TASKS && programs.len() >= recipe.run.workers).then_some(programs)
}

/// Links as the run probed them, or the engine's default costs.
fn interconnect(facts: &RunFacts, recipe: &Recipe) -> Interconnect {
    let assumed = Interconnect::of_recipe(recipe);
    let Some(links) = facts.links else { return assumed };
    let messages =
        Link { latency: Seconds(links.latency), bandwidth: BytesPerSecond(links.bandwidth) };
    let port = Some(BytesPerSecond(links.port));
    Interconnect { costs: Costs { messages, port, ..assumed.costs }, ..assumed }
}

/// Costs of which only latencies remain.
fn at_unlimited_bandwidth(costs: &Costs) -> Costs {
    Costs {
        messages: Link { bandwidth: UNLIMITED, ..costs.messages },
        memory: costs.memory.map(|memory| Link { bandwidth: UNLIMITED, ..memory }),
        port: costs.port.map(|_| UNLIMITED),
        local: UNLIMITED,
        links: Links::NONE,
        ..costs.clone()
    }
}

/// Priced time of a program's calls and messages, by task.
fn call_seconds(program: &Program, prices: &mut CallPrices<'_>) -> Vec<f64> {
    let seconds = |task: &lockstep_schedule::step::Task| {
        if let Some((call, group)) = program.call(task) {
            return prices.call(call, group).0;
        }
        match &task.op {
            TaskOp::Send(message) => prices.message(program.rank, message).0,
            _ => 0.0,
        }
    };
    program.tasks.iter().map(seconds).collect()
}

/// Measured computation of a rank, divided over the tasks of its program.
fn compute_seconds(
    recipe: &Recipe,
    whole: &Blueprint,
    program: &Program,
    rank: &RankTime,
    spans: Option<&BTreeMap<u32, TaskFacts>>,
) -> Vec<f64> {
    let weights = spans.and_then(|spans| span_weights(program, spans));
    let weights = weights.unwrap_or_else(|| pass_weights(recipe, whole, program));
    let sum: f64 = weights.iter().sum();
    let each = if sum > 0.0 { rank.compute_seconds / sum } else { 0.0 };
    let mut seconds: Vec<f64> = weights.iter().map(|weight| weight * each).collect();
    let update = |op: &TaskOp| matches!(op, TaskOp::Update { .. });
    let updates = program.tasks.iter().filter(|task| update(&task.op)).count();
    for (task, seconds) in program.tasks.iter().zip(&mut seconds) {
        if update(&task.op) {
            *seconds = rank.optimizer_seconds / updates as f64;
        }
    }
    seconds
}

/// Durations of a sampled step's passes, where the sample is of this program.
fn span_weights(program: &Program, spans: &BTreeMap<u32, TaskFacts>) -> Option<Vec<f64>> {
    let mut weights = vec![0.0; program.tasks.len()];
    for (id, task) in program.iter().filter(|(_, task)| task.op.block_pass().is_some()) {
        let span = spans.get(&id.0).filter(|span| span.action == task.op.to_string())?;
        weights[id.0 as usize] = span.seconds.max(0.0);
    }
    Some(weights)
}

/// Shares of passes by model FLOPs: the forward pass and the two gradients take a third each.
fn pass_weights(recipe: &Recipe, whole: &Blueprint, program: &Program) -> Vec<f64> {
    let (costs, recomputed) = (stages::costs(whole), recomputed_shares(recipe, whole));
    let mut weights = vec![0.0; program.tasks.len()];
    for (id, task) in program.iter() {
        let Some(pass) = task.op.block_pass().filter(|pass| pass.part == 0) else { continue };
        let block = pass.block as usize;
        let share = match task.op {
            TaskOp::Recompute(_) => recomputed[block],
            TaskOp::Backward(_) => 2.0 / 3.0,
            _ => 1.0 / 3.0,
        };
        let num_parts = 1 + program.collectives_of(id).count();
        let weight = costs[block] as f64 * share / num_parts as f64;
        let parts = weights[id.0 as usize..].iter_mut().step_by(2).take(num_parts);
        parts.for_each(|part| *part = weight);
    }
    weights
}

/// Whether a bucket length is smaller than the engine would choose, given the parameters.
pub(super) fn has_small_buckets(recipe: &Recipe, bucket_len: usize) -> bool {
    let Bytes(set) = recipe.parallel.bucket_bytes;
    let least = lockstep_parallel::bucket_tuning::candidate_bucket_lens(recipe.parallel.data, 0);
    set > 0 && least.first().is_some_and(|least| bucket_len < *least)
}
