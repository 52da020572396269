//! The events of a run, summed up in memory that does not grow with the length of the run, but for
//! the bounded columns of its steps.

use crate::columns::{Column, Columns};
use crate::ranks::{MAX_RANKS, Ranks};
use lockstep_telemetry::Event;
use lockstep_telemetry::console::Sanitized;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// Lines of the log that are kept.
const MAX_LOG_LINES: usize = 400;
/// Generated texts that are kept.
const MAX_SAMPLES: usize = 20;
/// Evaluations, points of other curves and marks that are kept; later ones replace the oldest.
const MAX_POINTS: usize = 20_000;
/// Sampled steps whose spans are kept.
const MAX_SPAN_STEPS: usize = 8;
/// Spans of other ranks in those steps.
const MAX_RANK_SPANS: usize = 63 * MAX_SPAN_STEPS;

/// Start of a run's attempt.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are those of `Event::RunStarted`")]
pub struct Started {
    pub recipe_hash: String,
    pub kernel_class: String,
    pub num_params: u64,
    pub tokens_per_step: u64,
    pub num_steps: u64,
    pub num_threads: usize,
    pub workers: usize,
    pub device: Option<String>,
    pub microbatch: Option<usize>,
    pub recompute: Option<String>,
    pub flops_per_token: Option<f64>,
    pub peak_flops_per_second: Option<f64>,
}

/// End of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are those of `Event::RunFinished`")]
pub struct Finished {
    pub steps: u64,
    pub final_loss: Option<f64>,
    pub validation_loss: Option<f64>,
    pub losses_hash: String,
    pub weights_hash: String,
    pub run_seconds: f64,
}

/// Gradient compression as last measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the fields are those of `Event::Compressed`")]
pub struct Compressed {
    pub step: u64,
    pub delta: f64,
    pub residual_norm: f64,
    pub message_bytes: u64,
    pub dense_bytes: u64,
}

/// Kind of a line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The run continues, degraded.
    Warning,
    /// A change of state.
    Info,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LogLine {
    /// Time since the start of the attempt.
    pub seconds: f64,
    /// Last completed step before it.
    pub step: u64,
    /// Kind.
    pub level: Level,
    /// Text on one line.
    pub text: String,
}

/// Text that the model has generated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Last completed step before it.
    pub step: u64,
    /// Text.
    pub text: String,
}

/// Task of a sampled step: id in the step program, action, start and duration in seconds.
pub type TaskSpan = (u32, String, f64, f64);

/// A point of a curve beside those of the steps: step and value.
type Points = VecDeque<(u64, f64)>;

/// History of a run.
#[derive(Clone, Debug, Default)]
pub struct History {
    started: Option<Started>,
    finished: Option<Finished>,
    columns: Columns,
    /// Curves beside those of the steps, by name.
    curves: BTreeMap<String, Points>,
    ranks: Ranks,
    compressed: Option<Compressed>,
    spans: VecDeque<(u64, Vec<TaskSpan>)>,
    /// Step, rank and spans of other ranks.
    rank_spans: VecDeque<(u64, usize, Vec<TaskSpan>)>,
    /// Gradients of each worker by their staleness.
    staleness: BTreeMap<usize, Vec<(u64, u64)>>,
    log: VecDeque<LogLine>,
    samples: VecDeque<Sample>,
    num_skipped: u64,
    num_attempts: u64,
    /// Completed steps at the start of the newest attempt.
    attempt_step: u64,
    num_events: u64,
    seconds: f64,
}

impl History {
    /// Takes the next event, which was recorded `seconds` after the start of its attempt.
    pub fn take(&mut self, seconds: f64, event: &Event) {
        self.num_events += 1;
        self.seconds = seconds;
        match event {
            Event::RunStarted { .. } => self.start(event),
            Event::Step {
                step,
                loss,
                lr,
                grad_norm,
                tokens_per_second,
                step_seconds,
                data_wait_seconds,
                exposed_communication_seconds,
                straggler_wait_seconds,
                is_skipped,
                ..
            } => {
                if self.columns.last(Column::Loss).is_some_and(|(last, _)| last >= *step) {
                    self.forget_after(step.saturating_sub(1));
                }
                self.num_skipped += u64::from(*is_skipped);
                let figures = [
                    *loss,
                    *lr,
                    *grad_norm,
                    *tokens_per_second,
                    *step_seconds,
                    *data_wait_seconds,
                    *exposed_communication_seconds,
                    *straggler_wait_seconds,
                ];
                self.columns.push(*step, figures);
            }
            Event::Resources { step, resident_bytes, mfu, .. } => {
                self.point("resident_bytes", *step, *resident_bytes as f64);
                if let Some(mfu) = mfu {
                    self.point("mfu", *step, *mfu);
                }
            }
            Event::Evaluated { step, validation_loss, .. } => {
                self.point("validation_loss", *step, *validation_loss);
            }
            Event::TaskEvaluated { step, task, scores, .. } => {
                for (metric, score) in scores {
                    self.point(&format!("{task}: {metric}"), *step, *score);
                }
            }
            Event::Consensus { step, distance, .. } => {
                self.point("consensus_distance", *step, *distance);
            }
            Event::RoundFinished { step, drift, .. } => self.point("drift", *step, *drift),
            &Event::Compressed { step, delta, residual_norm, message_bytes, dense_bytes } => {
                self.point("compression_error", step, delta);
                let compressed =
                    Compressed { step, delta, residual_norm, message_bytes, dense_bytes };
                self.compressed = Some(compressed);
            }
            Event::RankCounters { .. } => self.ranks.count(event, self.attempt_step),
            Event::TaskSpans { step, spans } => {
                push_bounded(&mut self.spans, MAX_SPAN_STEPS, (*step, spans.clone()));
            }
            Event::RankSpans { step, worker, spans } => {
                push_bounded(&mut self.rank_spans, MAX_RANK_SPANS, (*step, *worker, spans.clone()));
            }
            Event::Staleness { worker, counts, .. } if *worker < MAX_RANKS => {
                self.staleness.insert(*worker, counts.clone());
            }
            Event::Sample { text } => {
                let sample = Sample { step: self.step(), text: text.clone() };
                push_bounded(&mut self.samples, MAX_SAMPLES, sample);
            }
            _ => {}
        }
        self.note(event);
    }

    fn start(&mut self, event: &Event) {
        let Event::RunStarted {
            recipe_hash,
            kernel_class,
            num_params,
            tokens_per_step,
            num_steps,
            num_threads,
            workers,
            device,
            microbatch,
            recompute,
            flops_per_token,
            peak_flops_per_second,
        } = event
        else {
            return;
        };
        self.num_attempts += 1;
        self.attempt_step = self.step();
        self.finished = None;
        self.ranks.start_attempt();
        self.staleness.clear();
        self.started = Some(Started {
            recipe_hash: recipe_hash.clone(),
            kernel_class: kernel_class.clone(),
            num_params: *num_params,
            tokens_per_step: *tokens_per_step,
            num_steps: *num_steps,
            num_threads: *num_threads,
            workers: *workers,
            device: device.clone(),
            microbatch: *microbatch,
            recompute: recompute.clone(),
            flops_per_token: *flops_per_token,
            peak_flops_per_second: *peak_flops_per_second,
        });
    }

    /// Removes steps that are run again.
    fn forget_after(&mut self, last_step: u64) {
        self.columns.truncate(last_step);
        for points in self.curves.values_mut() {
            points.retain(|(step, _)| *step <= last_step);
        }
        self.ranks.forget_after(last_step);
        self.spans.retain(|(step, _)| *step <= last_step);
        self.rank_spans.retain(|(step, ..)| *step <= last_step);
    }

    fn point(&mut self, curve: &str, step: u64, value: f64) {
        match self.curves.get_mut(curve) {
            Some(points) => push_bounded(points, MAX_POINTS, (step, value)),
            None => _ = self.curves.insert(curve.to_owned(), Points::from([(step, value)])),
        }
    }

    /// Appends to the log what people would look for in it.
    fn note(&mut self, event: &Event) {
        let (level, text) = match event {
            Event::RunStarted { workers, num_steps, .. } => {
                let attempt = self.num_attempts;
                let plural = if *workers == 1 { "" } else { "s" };
                let text =
                    format!("attempt {attempt}: {workers} worker{plural} for {num_steps} steps");
                (Level::Info, text)
            }
            Event::Warning { message } => (Level::Warning, message.clone()),
            Event::Restored { step, path } => {
                (Level::Info, format!("resumed after step {step} from {path}"))
            }
            Event::CheckpointSaved { step, stall_seconds, .. } => {
                let text = format!("checkpoint of step {step} saved, {stall_seconds:.3} s stall");
                (Level::Info, text)
            }
            Event::WorkersMissing { step, missing, .. } => {
                (Level::Warning, format!("step {step} without the gradients of ranks {missing:?}"))
            }
            Event::ServerLost { server, successor, .. } => {
                (Level::Warning, format!("server {server} was lost; rank {successor} takes over"))
            }
            Event::Step { step, is_skipped: true, .. } => {
                (Level::Warning, format!("step {step} skipped: its gradients are not finite"))
            }
            Event::TargetReached { target_loss, .. } => {
                (Level::Info, format!("the target loss {target_loss} is reached"))
            }
            Event::RunFinished {
                steps,
                final_loss,
                validation_loss,
                losses_hash,
                weights_hash,
                run_seconds,
            } => {
                self.finished = Some(Finished {
                    steps: *steps,
                    final_loss: final_loss.is_finite().then_some(*final_loss),
                    validation_loss: validation_loss.filter(|loss| loss.is_finite()),
                    losses_hash: losses_hash.clone(),
                    weights_hash: weights_hash.clone(),
                    run_seconds: *run_seconds,
                });
                (Level::Info, format!("finished after {steps} steps and {run_seconds:.1} s"))
            }
            _ => return,
        };
        let text = Sanitized(&text).to_string();
        let line = LogLine { seconds: self.seconds, step: self.step(), level, text };
        push_bounded(&mut self.log, MAX_LOG_LINES, line);
    }

    /// Number of completed steps.
    pub fn step(&self) -> u64 {
        self.columns.last(Column::Loss).map_or(0, |(step, _)| step)
    }

    /// Start of the newest attempt.
    pub fn started(&self) -> Option<&Started> {
        self.started.as_ref()
    }

    /// End of the run, if it has come to it.
    pub fn finished(&self) -> Option<&Finished> {
        self.finished.as_ref()
    }

    /// Figures of the steps.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// Points of a curve beside those of the steps, with steps in a range.
    pub fn curve(&self, name: &str, [first, last]: [u64; 2]) -> Vec<(f64, f64)> {
        let points = self.curves.get(name).into_iter().flatten();
        let inside = points.filter(|(step, _)| (first..=last).contains(step));
        inside.map(|(step, value)| (*step as f64, *value)).collect()
    }

    /// Names of the curves beside those of the steps.
    pub fn curve_names(&self) -> impl Iterator<Item = &str> {
        self.curves.keys().map(String::as_str)
    }

    /// Newest point of a curve.
    pub fn last_point(&self, curve: &str) -> Option<(u64, f64)> {
        self.curves.get(curve)?.back().copied()
    }

    /// Counters of the ranks.
    pub fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// Gradient compression as last measured; absent where nothing is compressed.
    pub fn compressed(&self) -> Option<&Compressed> {
        self.compressed.as_ref()
    }

    /// Sampled steps, oldest first.
    pub fn sampled_steps(&self) -> impl Iterator<Item = u64> {
        self.spans.iter().map(|(step, _)| *step)
    }

    /// Ranks with their spans of a sampled step, rank 0 first.
    pub fn spans_of(&self, step: u64) -> Vec<(usize, &[TaskSpan])> {
        let own = self.spans.iter().filter(|(of, _)| *of == step);
        let others = self.rank_spans.iter().filter(|(of, ..)| *of == step);
        let own = own.map(|(_, spans)| (0, spans.as_slice()));
        own.chain(others.map(|(_, rank, spans)| (*rank, spans.as_slice()))).collect()
    }

    /// Sampled steps with the spans of other ranks, oldest first.
    pub fn rank_spans(&self) -> impl Iterator<Item = &(u64, usize, Vec<TaskSpan>)> {
        self.rank_spans.iter()
    }

    /// Applied gradients of all workers by their staleness.
    pub fn staleness(&self) -> BTreeMap<u64, u64> {
        let mut all = BTreeMap::new();
        for (staleness, gradients) in self.staleness.values().flatten() {
            *all.entry(*staleness).or_default() += gradients;
        }
        all
    }

    /// Sampled steps with the spans of rank 0, oldest first.
    pub fn spans(&self) -> impl Iterator<Item = &(u64, Vec<TaskSpan>)> {
        self.spans.iter()
    }

    /// Log, oldest line first.
    pub fn log(&self) -> impl Iterator<Item = &LogLine> {
        self.log.iter()
    }

    /// Generated texts, oldest first.
    pub fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter()
    }

    /// Steps without an update, repeated ones included.
    pub fn num_skipped(&self) -> u64 {
        self.num_skipped
    }

    /// Number of attempts.
    pub fn num_attempts(&self) -> u64 {
        self.num_attempts
    }

    /// Number of events so far; it changes whenever the history does.
    pub fn num_events(&self) -> u64 {
        self.num_events
    }

    /// Time that is left, by the median of the newest steps.
    pub fn remaining_seconds(&self) -> Option<f64> {
        let left = self.started.as_ref()?.num_steps.saturating_sub(self.step());
        let step = self.columns.recent_median(Column::StepSeconds, 100)?;
        (self.finished.is_none() && step.is_finite()).then_some(left as f64 * step)
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, most: usize, value: T) {
    if queue.len() == most {
        queue.pop_front();
    }
    queue.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, loss: f64) -> Event {
        Event::Step {
            step,
            loss,
            lr: 1e-3,
            grad_norm: 1.0,
            tokens_per_second: 100.0,
            step_seconds: 0.5,
            data_wait_seconds: 0.0,
            exposed_communication_seconds: 0.1,
            straggler_wait_seconds: 0.0,
            is_skipped: false,
            seqlen: None,
            loss_scale: None,
            zeroed_fraction: None,
            preference_accuracy: None,
            preference_margin: None,
        }
    }

    fn evaluated(step: u64, loss: f64) -> Event {
        Event::Evaluated {
            step,
            validation_loss: loss,
            perplexity: loss.exp(),
            train_seconds: 0.0,
            wire_bytes: 0,
        }
    }

    fn compressed(step: u64) -> Event {
        Event::Compressed {
            step,
            delta: 0.25,
            residual_norm: 2.0,
            message_bytes: 100,
            dense_bytes: 3200,
        }
    }

    #[test]
    fn an_attempt_after_a_failure_replaces_the_lost_steps() {
        let mut history = History::default();
        for number in 1..=5 {
            history.take(1.0, &step(number, number as f64));
        }
        history.take(1.0, &evaluated(5, 9.0));
        history.take(1.0, &compressed(5));
        history.take(0.5, &Event::Restored { step: 3, path: "p".to_owned() });
        history.take(1.0, &step(4, 0.25));
        history.take(1.0, &evaluated(4, 8.0));
        let all = [0, u64::MAX];
        assert_eq!(history.columns().points(Column::Loss, all)[3..], [(4.0, 0.25)]);
        assert_eq!(history.curve("validation_loss", all), [(4.0, 8.0)]);
        assert_eq!(history.compressed().map(|it| it.dense_bytes / it.message_bytes), Some(32));
        assert_eq!(history.step(), 4);
        assert_eq!(history.log().last().unwrap().text, "resumed after step 3 from p");
    }

    #[test]
    fn logs_samples_and_spans_are_bounded_and_free_of_control_characters() {
        let mut history = History::default();
        for number in 0..1000 {
            let message = format!("warning {number}\u{1b}[31m");
            history.take(1.0, &Event::Warning { message });
            history.take(1.0, &Event::Sample { text: number.to_string() });
            let spans = vec![(1, "forward".to_owned(), 0.0, 0.5)];
            history.take(1.0, &Event::TaskSpans { step: number, spans: spans.clone() });
            let worker = 1 + number as usize % 2;
            history.take(1.0, &Event::RankSpans { step: number, worker, spans });
        }
        assert_eq!(history.log().count(), MAX_LOG_LINES);
        assert_eq!(history.samples().count(), MAX_SAMPLES);
        assert_eq!(history.spans().count(), MAX_SPAN_STEPS);
        assert_eq!(history.sampled_steps().last(), Some(999));
        assert_eq!(history.spans_of(999).iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 2]);
        assert!(history.spans_of(1000).is_empty());
        assert_eq!(history.rank_spans().count(), MAX_RANK_SPANS);
        assert_eq!(
            history.rank_spans().last().map(|(step, worker, _)| (*step, *worker)),
            Some((999, 2))
        );
        assert!(history.log().all(|line| !line.text.contains('\u{1b}')));
        assert_eq!(history.num_events(), 4000);
    }

    #[test]
    fn staleness_is_that_of_all_workers_now() {
        let mut history = History::default();
        let staleness = |worker: usize, counts: &[(u64, u64)]| Event::Staleness {
            step: 10,
            worker,
            mean: 1.0,
            max: 2,
            counts: counts.to_vec(),
        };
        history.take(1.0, &staleness(0, &[(0, 5)]));
        history.take(1.0, &staleness(0, &[(0, 7), (1, 3)]));
        history.take(1.0, &staleness(1, &[(1, 2), (2, 1)]));
        assert_eq!(history.staleness(), BTreeMap::from([(0, 7), (1, 5), (2, 1)]));
    }
}
