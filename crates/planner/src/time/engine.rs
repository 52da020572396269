//! Step time on this machine: the step programs that the engine runs, played with the durations of
//! their tasks ([`lockstep_schedule::step::play()`]).
//!
//! Calls overlap with computation where cores are free or a network carries them; elsewhere they
//! occupy the compute queue. Workers of one machine share its cores, so a step takes at least as
//! long as the work of all workers on all cores.
//!
//! One pipeline is played: that of the first tensor-parallel rank and of the data-parallel rank
//! with most micro-batches. Other ranks have the same programs, or fewer passes, and never make it
//! wait. Where ranks have different roles (parameter servers, federated clients, threads of
//! Hogwild), all of them are played.

use super::calls::CallPrices;
use super::tasks::{TaskTimes, microbatch_flops};
use crate::calibration::machine::MachineCalibration;
use crate::shorter_steps::ShorterSteps;
use crate::traffic::{Interconnect, rank_at, step_calls};
use lockstep_config::units::{Flops, FlopsPerSecond, Seconds};
use lockstep_config::{Recipe, SyncMode};
use lockstep_mesh::Axis;
use lockstep_model::Blueprint;
use lockstep_parallel::from_recipe::{blueprint_of, blueprint_of_rank};
use lockstep_parallel::local_sgd::auto_steps;
use lockstep_parallel::step_program::{RankPlan, StepKind};
use lockstep_parallel::{Leaves, ReplicaPlan, strategies};
use lockstep_schedule::step::{CallMode, Program, Task, TaskId, play};

/// Step time by part.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepTime {
    /// Forward and backward.
    pub compute: Seconds,
    /// Optimizer step and fixed cost per step.
    pub update: Seconds,
    /// Communication, hidden or not.
    pub communication: Seconds,
    /// Exposed communication: what calls and messages add to the step.
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

/// Mean step time of a recipe over the step_counts of its steps.
pub fn mean(
    recipe: &Recipe,
    interconnect: &Interconnect,
    machine: &MachineCalibration<'_>,
) -> StepTime {
    if recipe.sync.mode == SyncMode::LocalSgd && recipe.sync.local_steps_is_auto {
        let chosen = chosen_local_steps(recipe, interconnect, machine);
        return mean(&recipe.with_local_steps(chosen), interconnect, machine);
    }
    let step_counts = StepKind::of_run(recipe);
    let num_steps: u64 = step_counts.values().sum();
    let run = Run::new(recipe, interconnect, machine);
    let mut prices = CallPrices::new(recipe.run.workers, interconnect, machine);
    step_counts.iter().fold(StepTime::default(), |mean, (kind, count)| {
        let (step, share) = (run.step(kind, &mut prices), *count as f64 / num_steps as f64);
        StepTime {
            compute: mean.compute + step.compute * share,
            update: mean.update + step.update * share,
            communication: mean.communication + step.communication * share,
            exposed: mean.exposed + step.exposed * share,
            bubble: mean.bubble + step.bubble * share,
            flops: step.flops,
        }
    })
}

/// Steps of a round that the run will choose from its measurements.
fn chosen_local_steps(
    recipe: &Recipe,
    interconnect: &Interconnect,
    machine: &MachineCalibration<'_>,
) -> u64 {
    let of = |sets: u64| mean(&recipe.with_local_steps(sets), interconnect, machine);
    // Rounds of one step end with an exchange each; those of the whole run with one in all.
    let (often, seldom) = (of(1), of(recipe.train.steps.max(1)));
    let exchange = (often.communication - seldom.communication).max(Seconds(0.0));
    let step = seldom.compute + seldom.update;
    auto_steps::steps_for(step.0, exchange.0).min(recipe.train.steps.max(1))
}

/// Everything about a recipe's steps but their kind.
struct Run<'a> {
    recipe: &'a Recipe,
    blueprint: Blueprint,
    plan: ReplicaPlan,
    /// Data-parallel rank that is played.
    part: usize,
    tasks: TaskTimes<'a>,
    mode: CallMode,
    /// Threads of all workers over the cores that they have.
    oversubscription: f64,
    /// Mean over largest number of micro-batches of a data-parallel rank.
    balance: f64,
    /// Share of the machine's cores that the threads of a rank are, where all ranks are played.
    share_of_rank: Option<f64>,
    flops: Flops,
}

impl<'a> Run<'a> {
    fn new(
        recipe: &'a Recipe,
        interconnect: &Interconnect,
        machine: &'a MachineCalibration<'a>,
    ) -> Self {
        let (blueprint, whole) = (blueprint_of_rank(recipe, 0), blueprint_of(recipe));
        let plan = step_calls::plan_at(recipe, &blueprint, 0);
        let (workers, threads) = match recipe.sync.mode {
            // Each thread of Hogwild computes alone.
            SyncMode::Hogwild => (recipe.sync.threads, 1),
            _ => (recipe.run.workers, recipe.run.num_threads(machine.cores, recipe.run.workers)),
        };
        let is_whole = matches!(
            recipe.sync.mode,
            SyncMode::ParameterServer | SyncMode::Federated | SyncMode::Hogwild
        );
        let assignment = plan.leaf_assignment();
        let one_each = Leaves { microbatches_per_leaf: 1, ..plan.leaves };
        let num_own = |part: usize| {
            assignment.microbatches_of(part, one_each).len() * plan.leaves.microbatches_per_leaf
        };
        let num_microbatches: Vec<usize> = (0..plan.shares.len()).map(num_own).collect();
        let most = num_microbatches.iter().copied().max().unwrap_or(0);
        let total = num_microbatches.iter().sum::<usize>() as f64;
        Self {
            recipe,
            part: num_microbatches.iter().position(|num| *num == most).unwrap_or(0),
            tasks: TaskTimes::new(recipe, &whole, &plan, machine, threads),
            mode: call_mode(recipe, interconnect, threads * workers < machine.cores),
            oversubscription: ((workers * threads) as f64 / machine.cores as f64).max(1.0),
            balance: total / (most * num_microbatches.len()).max(1) as f64,
            share_of_rank: is_whole.then(|| threads as f64 / machine.cores as f64),
            flops: Flops(total * microbatch_flops(recipe, &whole).0),
            blueprint,
            plan,
        }
    }

    /// Programs of the ranks that are played.
    fn programs(&self, recipe: &Recipe, plan: &ReplicaPlan, kind: &StepKind) -> Vec<Program> {
        if self.share_of_rank.is_some() {
            return strategies::programs(recipe, plan, &self.blueprint, kind);
        }
        let mesh = &plan.mesh;
        let program = |device: usize| {
            let rank = rank_at(mesh, device, self.part, 0);
            RankPlan::new(plan, &self.blueprint, rank).training_of(recipe, kind)
        };
        (0..mesh.degree(Axis::Pipeline)).map(program).collect()
    }

    fn step(&self, kind: &StepKind, prices: &mut CallPrices<'_>) -> StepTime {
        let played = match ShorterSteps::of(self.recipe, &self.plan) {
            Some(shorter) => {
                let both = shorter
                    .steps
                    .each_ref()
                    .map(|(recipe, plan)| self.play(&self.programs(recipe, plan, kind), prices));
                PlayedStep::extrapolated(both, &shorter)
            }
            None => self.play(&self.programs(self.recipe, &self.plan, kind), prices),
        };
        let PlayedStep { alone, together, passes_end, passes, calls, updates } = played;
        // Cores that a worker leaves idle help the others, if these wait for cores.
        let on_all_cores = |times: &[Seconds], balance: f64| match self.share_of_rank {
            Some(share) => times.iter().copied().sum::<Seconds>() * share,
            None => mean_of(times) * (balance * self.oversubscription),
        };
        let updated = on_all_cores(&updates, 1.0);
        let computed = on_all_cores(&passes, self.balance) + updated;
        let called = match self.mode {
            CallMode::Background => Seconds(0.0),
            CallMode::Blocking => mean_of(&calls),
        };
        let update = longest(&updates).max(updated);
        let without_calls = alone.max(computed);
        StepTime {
            compute: without_calls - update,
            update,
            communication: longest(&calls),
            exposed: together.max(computed + called) - without_calls,
            // Share of the passes' time in which a rank of the pipeline waits for others.
            bubble: if passes.len() == 1 { 0.0 } else { 1.0 - mean_of(&passes) / passes_end },
            flops: self.flops,
        }
    }

    /// Plays programs with the durations of their tasks.
    fn play(&self, programs: &[Program], prices: &mut CallPrices<'_>) -> PlayedStep {
        let times: Vec<_> = programs.iter().map(|it| self.tasks.of(it, prices)).collect();
        let task = |at: usize, id: TaskId| &programs[at].tasks[id.0 as usize];
        let played = |with_calls: bool| {
            let is_free = |task: &Task| task.queue.is_communication() && !with_calls;
            let seconds = |at: usize, id: TaskId| {
                let time = times[at][id.0 as usize];
                if is_free(task(at, id)) { Seconds(0.0) } else { time }
            };
            play(programs, self.mode, seconds).expect("programs of a plan end")
        };
        let (alone, together) = (played(false), played(true));
        let sums = |is_it: fn(&Task) -> bool| -> Vec<Seconds> {
            let of_rank = |(program, times): (&Program, &Vec<Seconds>)| {
                let tasks = program.tasks.iter().zip(times).filter(|(task, _)| is_it(task));
                tasks.map(|(_, seconds)| *seconds).sum()
            };
            programs.iter().zip(&times).map(of_rank).collect()
        };
        let is_pass = |task: &Task| task.op.block_pass().is_some();
        let ranks = programs.iter().zip(&alone.ranks);
        let spans = ranks.flat_map(|(program, rank)| program.tasks.iter().zip(&rank.tasks));
        let passes = spans.filter(|(task, _)| is_pass(task));
        PlayedStep {
            passes_end: passes.map(|(_, span)| span.end).fold(Seconds(0.0), Seconds::max),
            alone: alone.period,
            together: together.period,
            passes: sums(is_pass),
            calls: sums(|task| task.queue.is_communication()),
            updates: sums(|task| !task.queue.is_communication() && task.op.block_pass().is_none()),
        }
    }
}

/// Times of a step that was played.
struct PlayedStep {
    /// Period without communication, and with it.
    alone: Seconds,
    together: Seconds,
    /// End of the last pass without communication.
    passes_end: Seconds,
    /// Sums over passes, over calls and messages, and over the other tasks, by played rank.
    passes: Vec<Seconds>,
    calls: Vec<Seconds>,
    updates: Vec<Seconds>,
}

impl PlayedStep {
    /// Times of a step of very many micro-batches, from those of both shorter ones.
    fn extrapolated([short, long]: [Self; 2], by: &ShorterSteps) -> Self {
        let sums = |short: &[Seconds], long: &[Seconds]| {
            short.iter().zip(long).map(|(short, long)| by.seconds([*short, *long])).collect()
        };
        Self {
            alone: by.seconds([short.alone, long.alone]),
            together: by.seconds([short.together, long.together]),
            passes_end: by.seconds([short.passes_end, long.passes_end]),
            passes: sums(&short.passes, &long.passes),
            calls: sums(&short.calls, &long.calls),
            updates: sums(&short.updates, &long.updates),
        }
    }
}

/// Threads that run calls. A call in shared memory, or between processes of one machine, occupies
/// computing cores; so does every call unless workers measured that they do not share cores.
pub(crate) fn call_mode(
    recipe: &Recipe,
    interconnect: &Interconnect,
    has_free_cores: bool,
) -> CallMode {
    let costs = &interconnect.costs;
    let is_network = costs.port.is_some() && costs.core_contention.is_none();
    if recipe.parallel.overlap && (has_free_cores || is_network) {
        CallMode::Background
    } else {
        CallMode::Blocking
    }
}

fn mean_of(times: &[Seconds]) -> Seconds {
    times.iter().copied().sum::<Seconds>() * (1.0 / times.len() as f64)
}

fn longest(times: &[Seconds]) -> Seconds {
    times.iter().copied().fold(Seconds(0.0), Seconds::max)
}
