//! Stragglers by what-if analysis (Lin et al. 2025, "Understanding Stragglers in Large Model
//! Training Using What-if Analysis"): how much faster a recorded job would have been if all
//! workers took the same time for the same operation, and whose operations explain the difference.
//!
//! Each computation of the ideal step takes the mean of its kind over workers and steps, each
//! communication the median of its transfers. The recorded step is replayed without the gaps
//! between operations; the ratio of the two is the slowdown. Attributions replay the ideal step
//! with the recorded operations of one data-parallel rank, stage or kind; explained shares replay
//! the recorded step with the ideal operations of some workers.

mod dependencies;
mod graph;
mod trace;

pub use trace::{Kind, Operation, Trace, TraceError, Worker, WorkerStep, parse};

use dependencies::StepGraph;
use serde::Serialize;
use std::collections::BTreeMap;
use trace::Kind::{
    BackwardCompute, BackwardRecv, BackwardSend, ForwardCompute, ForwardRecv, ForwardSend,
    Optimizer,
};

/// Slowdown from which on a job suffers from stragglers (Lin et al. 2025, section 4).
const STRAGGLING: f64 = 1.1;
/// Share of the slowdown from which on workers or a stage are its cause (section 5).
const CAUSE: f64 = 0.5;
/// Correlation of forward and backward times from which on sequence lengths differ (section 5.3).
const CORRELATED: f64 = 0.9;
/// Slowest workers that are judged together, in percent.
const SLOW_PERCENT: usize = 3;

/// Cause of a slowdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Less than a tenth is lost.
    None,
    /// A few workers are slow in every step.
    SlowWorkers,
    /// The last stage has more work than the others.
    LastStage,
    /// Micro-batches of different sequence lengths: other workers are slow in every step.
    SequenceLengths,
    /// Something else.
    Other,
}

/// Result of the analysis.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StragglerReport {
    /// Mean recorded step time, in seconds.
    pub step_seconds: f64,
    /// Mean step time without stragglers.
    pub ideal_seconds: f64,
    /// Ratio of the replayed step time to the ideal one.
    pub slowdown: f64,
    /// Ratio of the recorded step time to the replayed one: gaps between operations.
    pub gap_slowdown: f64,
    /// Slowdown of the ideal step by the operations of each data-parallel rank.
    pub by_dp_rank: BTreeMap<u32, f64>,
    /// Slowdown of the ideal step by the operations of each stage.
    pub by_stage: BTreeMap<u32, f64>,
    /// Slowdown of the ideal step by each kind of operation; sends and receives of a direction
    /// together.
    pub by_operation: BTreeMap<&'static str, f64>,
    /// Global ranks of the slowest 3 % of the workers.
    pub slowest_ranks: Vec<u64>,
    /// Share of the slowdown that those workers explain.
    pub share_of_slowest: f64,
    /// Share of the slowdown that the last stage explains.
    pub share_of_last_stage: f64,
    /// Correlation of forward and backward times of micro-batches within a worker.
    pub pass_correlation: f64,
    /// Cause.
    pub cause: Cause,
}

/// Operation of the replayed step, wherever it is recorded.
struct Place {
    worker: Worker,
    kind: Kind,
}

/// Recorded and ideal durations of a trace.
struct Replay {
    step: StepGraph,
    places: Vec<Place>,
    /// By step and operation: computation, or transfer without the wait for other ranks.
    recorded: Vec<Vec<f64>>,
    /// By kind.
    ideal: BTreeMap<Kind, f64>,
}

/// Analyses a trace.
pub fn analyze(trace: &Trace) -> Result<StragglerReport, TraceError> {
    let replay = Replay::new(trace)?;
    let step_seconds = mean(trace.steps.values().map(|step| {
        let operations = || step.values().flatten();
        let start = operations().fold(f64::INFINITY, |start, at| start.min(at.start));
        operations().fold(0.0_f64, |end, at| end.max(at.end())) - start
    }));
    let replayed = replay.seconds(|_| true);
    let ideal = replay.seconds(|_| false);
    let kept = |keep: &dyn Fn(&Place) -> bool| replay.seconds(keep) / ideal;
    let by_dp_rank: BTreeMap<u32, f64> = (0..trace.num_replicas)
        .map(|rank| (rank, kept(&|place| place.worker.dp_rank == rank)))
        .collect();
    let by_stage: BTreeMap<u32, f64> = (0..trace.num_stages)
        .map(|stage| (stage, kept(&|place| place.worker.stage == stage)))
        .collect();
    let by_operation = replay
        .ideal
        .keys()
        .map(|kind| (label(*kind), kept(&|place| label(place.kind) == label(*kind))))
        .collect();
    let slowest = slowest(trace, &by_dp_rank, &by_stage);
    let explained = |mends: &dyn Fn(&Place) -> bool| {
        (replayed - replay.seconds(|place| !mends(place))) / (replayed - ideal)
    };
    let share_of_slowest = explained(&|place| slowest.contains(&place.worker));
    let last = trace.num_stages - 1;
    let share_of_last_stage = explained(&|place| place.worker.stage == last);
    let pass_correlation = pass_correlation(trace);
    let slowdown = replayed / ideal;
    let cause = if slowdown < STRAGGLING {
        Cause::None
    } else if share_of_slowest >= CAUSE {
        Cause::SlowWorkers
    } else if pass_correlation >= CORRELATED {
        Cause::SequenceLengths
    } else if trace.num_stages > 1 && share_of_last_stage >= CAUSE {
        Cause::LastStage
    } else {
        Cause::Other
    };
    Ok(StragglerReport {
        step_seconds,
        ideal_seconds: ideal,
        slowdown,
        gap_slowdown: step_seconds / replayed,
        by_dp_rank,
        by_stage,
        by_operation,
        slowest_ranks: slowest.iter().map(|worker| trace.ranks[worker]).collect(),
        share_of_slowest,
        share_of_last_stage,
        pass_correlation,
        cause,
    })
}

/// Kinds that are attributed together.
fn label(kind: Kind) -> &'static str {
    match kind {
        ForwardSend | ForwardRecv => "forward-pp-comm",
        BackwardSend | BackwardRecv => "backward-pp-comm",
        _ => kind.name(),
    }
}

/// The slowest workers: a worker is as slow as the lesser of its data-parallel rank and its stage.
fn slowest(
    trace: &Trace,
    by_dp_rank: &BTreeMap<u32, f64>,
    by_stage: &BTreeMap<u32, f64>,
) -> Vec<Worker> {
    let slowdown = |worker: &Worker| by_dp_rank[&worker.dp_rank].min(by_stage[&worker.stage]);
    let mut workers: Vec<Worker> = trace.ranks.keys().copied().collect();
    workers.sort_by(|a, b| slowdown(b).total_cmp(&slowdown(a)).then(a.cmp(b)));
    workers.truncate((workers.len() * SLOW_PERCENT).div_ceil(100));
    workers
}

impl Replay {
    fn new(trace: &Trace) -> Result<Self, TraceError> {
        let step = StepGraph::of(trace)?;
        let first = trace.steps.values().next().ok_or(TraceError::Empty)?;
        let places: Vec<Place> = first
            .iter()
            .flat_map(|(worker, operations)| {
                operations.iter().map(|at| Place { worker: *worker, kind: at.kind })
            })
            .collect();
        let mut recorded = Vec::with_capacity(trace.steps.len());
        for workers in trace.steps.values() {
            let operations: Vec<&Operation> = workers.values().flatten().collect();
            let mut seconds: Vec<f64> = operations.iter().map(|at| at.duration).collect();
            for members in &step.meetings {
                let starts = members.iter().map(|at| operations[*at as usize].start);
                let start = starts.fold(0.0_f64, f64::max);
                for member in members {
                    let end = operations[*member as usize].end();
                    seconds[*member as usize] = (end - start).max(0.0);
                }
            }
            recorded.push(seconds);
        }
        let ideal = ideal(&places, &recorded);
        Ok(Self { step, places, recorded, ideal })
    }

    /// Mean step time with the recorded durations of these operations and the ideal ones of others.
    fn seconds(&self, is_recorded: impl Fn(&Place) -> bool) -> f64 {
        let is_recorded: Vec<bool> = self.places.iter().map(is_recorded).collect();
        let ideal: Vec<f64> = self.places.iter().map(|place| self.ideal[&place.kind]).collect();
        let mut ends = Vec::new();
        mean(self.recorded.iter().map(|recorded| {
            let seconds = |at: usize| if is_recorded[at] { recorded[at] } else { ideal[at] };
            self.step.graph.ends(seconds, &mut ends);
            let updates = self.places.iter().zip(&ends);
            let updates = updates.filter(|(place, _)| place.kind == Optimizer);
            updates.fold(0.0_f64, |last, (_, end)| last.max(*end))
        }))
    }
}

/// Ideal duration by kind: mean of computations, median of transfers.
fn ideal(places: &[Place], recorded: &[Vec<f64>]) -> BTreeMap<Kind, f64> {
    let mut seconds: BTreeMap<Kind, Vec<f64>> = BTreeMap::new();
    for step in recorded {
        for (place, duration) in places.iter().zip(step) {
            seconds.entry(place.kind).or_default().push(*duration);
        }
    }
    let ideal = |(kind, mut seconds): (Kind, Vec<f64>)| {
        if !kind.is_communication() {
            return (kind, mean(seconds.into_iter()));
        }
        seconds.sort_by(f64::total_cmp);
        let middle = seconds.len() / 2;
        let below = seconds[(seconds.len() - 1) / 2];
        (kind, f64::midpoint(below, seconds[middle]))
    };
    seconds.into_iter().map(ideal).collect()
}

/// Mean over workers of the correlation (Pearson) of forward and backward times of their
/// micro-batches; both grow with the length of the sequences.
fn pass_correlation(trace: &Trace) -> f64 {
    let mut passes: BTreeMap<Worker, Vec<(f64, f64)>> = BTreeMap::new();
    for step in trace.steps.values() {
        for (worker, operations) in step {
            let of = |kind| {
                let found = operations.iter().filter(move |at| at.kind == kind);
                found.map(|at| at.duration)
            };
            let both = of(ForwardCompute).zip(of(BackwardCompute));
            passes.entry(*worker).or_default().extend(both);
        }
    }
    mean(passes.values().map(|pairs| correlation(pairs)))
}

fn correlation(pairs: &[(f64, f64)]) -> f64 {
    let (x, y) = (mean(pairs.iter().map(|pair| pair.0)), mean(pairs.iter().map(|pair| pair.1)));
    let sum = |of: fn(f64, f64) -> f64| -> f64 {
        pairs.iter().map(|pair| of(pair.0 - x, pair.1 - y)).sum()
    };
    let spread = (sum(|dx, _| dx * dx) * sum(|_, dy| dy * dy)).sqrt();
    if spread > 0.0 { sum(|dx, dy| dx * dy) / spread } else { 0.0 }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u64), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / count as f64 }
}
