//! Asynchronous sharded checkpoints during training.
//!
//! Between two steps each rank copies its own state ([`Replica::visit_checkpoint_pieces`]) and
//! continues. A background thread writes the copy; the thread of rank 0 commits the checkpoint when
//! all shards are written. At most one checkpoint is in flight: the next one waits for it.
//!
//! All ranks agree on saving with an all-reduce, because a timer or a signal reaches one rank only.
//! They agree after every step; with checkpoints of bounded overhead, the default, only a few times
//! a second, so that short steps and slow links do not notice.
//!
//! [`Replica::visit_checkpoint_pieces`]: lockstep_parallel::Replica::visit_checkpoint_pieces

use crate::checkpoint_dir::dir_of;
use crate::learner::Learner;
use crate::options::{LastStepReceiver, Options, SaveSignals};
use crate::resume_state::ResumeState;
use crate::step_log::StepLog;
use crate::{TrainError, stragglers, worker_state};
use lockstep_checkpoint::CheckpointError;
use lockstep_checkpoint::failure_rate::observed_mtbf;
use lockstep_checkpoint::sharded::{Commit, Position, Snapshot, Store, Writer};
use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_config::{Compression, Interval, Recipe, interval};
use lockstep_data::Cursor;
use lockstep_platform::{FileKind, Interrupts, JoinHandle, World};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Minimum timeout for the shards of other ranks.
const MIN_TIMEOUT: Duration = Duration::from_mins(10);

/// Grace period for a checkpoint in flight when a run fails.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(300);

/// Assumed write bandwidth of a disk before the first measurement.
const UNMEASURED_BYTES_PER_SECOND: f64 = 2e8;

/// Decisions after a step. The all-reduce takes their maximum.
const CONTINUE: u32 = 0;
const SAVE: u32 = 1;
const SAVE_ON_TERMINATION: u32 = 2;
const SAVE_ON_INTERRUPT: u32 = 3;

/// Shortest and longest time between two agreements of bounded checkpoints.
const MIN_AGREEMENT_PAUSE: f64 = 0.1;
const MAX_AGREEMENT_PAUSE: f64 = 2.0;

/// Largest number of steps between two agreements.
const MAX_AGREEMENT_STEPS: u32 = 10_000;

/// Largest part of the time that agreements may take, up to the longest pause.
const MAX_AGREEMENT_SHARE: f64 = 0.002;

/// Line that follows Ctrl-C.
const INTERRUPTED: &str = "\ninterrupted: saving after this step; Ctrl-C again stops at once\n";

/// Line that follows Ctrl-C from the last step on, which is saved as the result.
const INTERRUPTED_AT_END: &str = "\ninterrupted: the run is at its last step and saves its result; \
                                  Ctrl-C again stops at once\n";

/// Writes checkpoints of one rank.
pub struct CheckpointSaver {
    recipe: Recipe,
    world: World,
    comm: Comm,
    store: Store,
    /// Opened at the first checkpoint, or at once if the folder exists.
    writer: Option<Writer>,
    pending: Option<PendingWrite>,
    snapshot: Snapshot,
    /// Bytes of this rank's state, which bound the first write.
    state_bytes: u64,
    /// Time of the last checkpoint, or of the start of this attempt.
    last: Duration,
    /// Start of this attempt, and duration of the earlier ones.
    began: Duration,
    seconds_before: f64,
    write_seconds: Option<f64>,
    stall_seconds: f64,
    num_failures: u64,
    agreements: Agreements,
    signals: SaveSignals,
    /// Whether the last step has begun.
    is_ending: bool,
    on_last_step: Option<LastStepReceiver>,
}

/// Times of the agreements on saving.
struct Agreements {
    /// First step after which the ranks agree again.
    next_step: u64,
    /// Step and time of the last agreement.
    last: (u64, Duration),
    /// Shortest duration of an agreement so far: the others waited for a slower rank.
    seconds: f64,
}

/// A checkpoint in flight.
struct PendingWrite {
    thread: Box<dyn JoinHandle>,
    finished: Arc<Mutex<Option<FinishedWrite>>>,
    step: u64,
    /// Start of the stall, and its duration once training continues.
    began: Duration,
    stall_seconds: Option<f64>,
}

/// Result of a finished write.
struct FinishedWrite {
    snapshot: Snapshot,
    result: Result<(), CheckpointError>,
    write_seconds: f64,
}

impl CheckpointSaver {
    /// Prepares checkpoints under `run_dir`. All ranks call it together. If checkpoints exist
    /// already, no older attempt of the run can add to them from now on.
    pub fn open(
        recipe: &Recipe,
        world: &World,
        comm: &Comm,
        run_dir: &Path,
        start: &ResumeState,
        options: &mut Options,
        learner: &Learner,
    ) -> Result<Self, TrainError> {
        let now = world.clock().now();
        let mut saver = Self {
            recipe: recipe.clone(),
            world: world.clone(),
            comm: comm.clone(),
            store: Store::new(world, &dir_of(recipe, run_dir)),
            writer: None,
            pending: None,
            snapshot: Snapshot::default(),
            state_bytes: state_bytes(learner),
            last: now,
            began: now,
            seconds_before: start.seconds,
            write_seconds: None,
            stall_seconds: 0.0,
            num_failures: options.attempt.restarts,
            agreements: Agreements {
                next_step: 0,
                last: (start.step, now),
                seconds: f64::INFINITY,
            },
            signals: options.save_signals,
            is_ending: false,
            on_last_step: options.on_last_step.take(),
        };
        if recipe.checkpoint.is_on() {
            handle_signals(world, options.save_signals, INTERRUPTED);
            // The first call of a collective allocates, which no step may do.
            comm.all_reduce(&mut [CONTINUE, 0], Reduction::Max)?;
            let metadata = world.files().metadata(saver.store.dir());
            // Open an explicitly configured folder now, so that a wrong path fails early.
            let is_named = !recipe.checkpoint.dir.is_empty();
            let mut begins = [u32::from(is_named || metadata == Some(FileKind::Directory))];
            comm.broadcast(&mut begins, 0)?;
            if begins[0] == 1 {
                saver.take_over()?;
            }
        }
        Ok(saver)
    }

    /// Announces the last of these steps, after which no checkpoint follows.
    pub fn before_step(&mut self, steps: Range<u64>) {
        if steps.start + 1 >= steps.end {
            self.announce_end();
        }
    }

    fn announce_end(&mut self) {
        if std::mem::replace(&mut self.is_ending, true) {
            return;
        }
        if self.recipe.checkpoint.is_on() {
            handle_signals(&self.world, self.signals, INTERRUPTED_AT_END);
        }
        if let Some(announce) = self.on_last_step.take() {
            announce();
        }
    }

    /// Saves if a checkpoint is due, or if a rank received a signal that ends the run; in the
    /// second case the run ends with [`TrainError::Interrupted`].
    pub fn after_step(
        &mut self,
        num_steps: u64,
        learner: &mut Learner,
        cursor: impl FnOnce() -> Result<Cursor, CommError>,
        step_log: &mut StepLog,
    ) -> Result<(), TrainError> {
        if !self.recipe.checkpoint.is_on() {
            return Ok(());
        }
        self.collect(Duration::ZERO, step_log)?;
        let is_due = self.recipe.is_due_every(self.recipe.checkpoint.every, num_steps);
        if num_steps < self.agreements.next_step && !is_due {
            return Ok(());
        }
        let decision = self.agree(num_steps, is_due)?;
        if decision == CONTINUE {
            return Ok(());
        }
        self.save(num_steps, learner, &cursor()?, step_log)?;
        if decision == SAVE {
            return Ok(());
        }
        self.collect(self.timeout(), step_log)?;
        // Rank 0 reaches the barrier only after the commit.
        self.comm.barrier()?;
        let folder = self.store.folder(num_steps).display().to_string();
        let is_interrupt = decision == SAVE_ON_INTERRUPT;
        Err(TrainError::Interrupted { step: num_steps, folder, is_interrupt })
    }

    /// Waits for the checkpoint in flight, after the last step.
    pub fn finish(&mut self, step_log: &mut StepLog) -> Result<(), TrainError> {
        // A target loss may end the run before its last step.
        self.announce_end();
        self.collect(self.timeout(), step_log)
    }

    /// Saves the end of a run whose ranks keep private state, which only checkpoints hold.
    pub fn at_end(
        &mut self,
        learner: &mut Learner,
        cursor: &Cursor,
        step_log: &mut StepLog,
    ) -> Result<(), TrainError> {
        // Ranks that do not train are gone by then, together with the state that they held.
        let is_here = self.recipe.run.workers == self.recipe.num_ranks();
        let has_more = self.recipe.has_extra_state() && is_here;
        if !has_more || !self.recipe.run.save_optimizer {
            return Ok(());
        }
        self.save(cursor.next_step, learner, cursor, step_log)?;
        self.finish(step_log)?;
        // No rank exits before the commit.
        Ok(self.comm.barrier()?)
    }

    /// Agrees on the decision of all ranks after a step, and on the step of the next agreement.
    fn agree(&mut self, num_steps: u64, is_due: bool) -> Result<u32, TrainError> {
        let is_first = self.comm.group_rank() == 0;
        let is_overdue =
            is_first && self.interval().is_some_and(|seconds| self.since_last() >= seconds);
        let processes = self.world.processes();
        let decision = if processes.is_interrupt_requested() {
            SAVE_ON_INTERRUPT
        } else if processes.is_termination_requested() {
            SAVE_ON_TERMINATION
        } else if is_due || is_overdue {
            SAVE
        } else {
            CONTINUE
        };
        let began = self.world.clock().now();
        let pause = if is_first { self.steps_to_agreement(num_steps, began) } else { 0 };
        let mut agreed = [decision, pause];
        self.comm.all_reduce(&mut agreed, Reduction::Max)?;
        let seconds = self.world.clock().since(began).as_secs_f64();
        self.agreements = Agreements {
            next_step: num_steps + u64::from(agreed[1]),
            last: (num_steps, self.world.clock().now()),
            seconds: self.agreements.seconds.min(seconds),
        };
        Ok(agreed[0])
    }

    /// Steps from this agreement to the next.
    fn steps_to_agreement(&self, num_steps: u64, now: Duration) -> u32 {
        if self.recipe.checkpoint.interval != Interval::Bounded || self.comm.group_size() == 1 {
            return 1;
        }
        let Agreements { last: (step, at), seconds, .. } = self.agreements;
        let elapsed = now.saturating_sub(at).as_secs_f64();
        let step_seconds = elapsed / num_steps.saturating_sub(step).max(1) as f64;
        agreement_steps(step_seconds, Some(seconds).filter(|seconds| seconds.is_finite()))
    }

    fn since_last(&self) -> f64 {
        self.world.clock().since(self.last).as_secs_f64()
    }

    /// Seconds between two checkpoints, if they follow a clock.
    fn interval(&self) -> Option<f64> {
        match self.recipe.checkpoint.interval {
            Interval::Never => None,
            Interval::Every(seconds) => Some(seconds.0),
            Interval::Bounded => {
                let guess = self.state_bytes as f64 / UNMEASURED_BYTES_PER_SECOND;
                // A write in the background slows the steps by less than its duration.
                let write = self.write_seconds.unwrap_or(guess);
                Some(interval::bounded(self.stall_seconds + write))
            }
            Interval::Auto => {
                let guess = self.snapshot.num_bytes() as f64 / UNMEASURED_BYTES_PER_SECOND;
                let write = self.write_seconds.unwrap_or(guess).max(0.01);
                let expected = self.recipe.checkpoint.mtbf.0;
                let mtbf = observed_mtbf(expected, self.run_seconds(), self.num_failures);
                Some(interval::daly(write, mtbf).max(1.0))
            }
        }
    }

    /// Duration of the run over all saved attempts.
    fn run_seconds(&self) -> f64 {
        self.seconds_before + self.world.clock().since(self.began).as_secs_f64()
    }

    /// Timeout for a checkpoint in flight.
    fn timeout(&self) -> Duration {
        self.recipe.run.deadline().max(MIN_TIMEOUT)
    }

    /// Copies this rank's state and starts writing it.
    fn save(
        &mut self,
        num_steps: u64,
        learner: &mut Learner,
        cursor: &Cursor,
        step_log: &mut StepLog,
    ) -> Result<(), TrainError> {
        let began = self.world.clock().now();
        self.collect(self.timeout(), step_log)?;
        let writer = match self.writer.clone() {
            Some(writer) => writer,
            None => self.take_over().map_err(|error| match error {
                TrainError::Folder(error) => unsaved(num_steps, &error).into(),
                error => error,
            })?,
        };
        let position = self.position(num_steps, learner, cursor)?;
        take(&self.recipe, &mut self.snapshot, learner)?;
        let is_first = self.comm.group_rank() == 0;
        if is_first {
            self.snapshot.set_losses(&step_log.losses);
        }
        let commit = is_first.then(|| Commit {
            position,
            timeout: self.timeout(),
            keep: self.recipe.checkpoint.keep,
        });
        self.start(writer, num_steps, commit, began)?;
        if !self.recipe.checkpoint.background {
            self.collect(self.timeout(), step_log)?;
        }
        self.last = self.world.clock().now();
        step_log.trace_checkpoint(num_steps, began);
        let stall_seconds = self.world.clock().since(began).as_secs_f64();
        if let Some(pending) = &mut self.pending {
            pending.stall_seconds = Some(stall_seconds);
        }
        Ok(())
    }

    /// Starts the writer thread.
    fn start(
        &mut self,
        writer: Writer,
        step: u64,
        commit: Option<Commit>,
        began: Duration,
    ) -> Result<(), TrainError> {
        let (snapshot, finished) = (std::mem::take(&mut self.snapshot), Arc::new(Mutex::new(None)));
        let (num_ranks, world) = (self.comm.group_size(), self.world.clone());
        let outcome_slot = Arc::clone(&finished);
        let rate = self.recipe.emulate.disk_bandwidth;
        let body = move || {
            let began = world.clock().now();
            let written = writer.write(step, &snapshot);
            if rate.0 > 0.0 {
                let least = Duration::from_secs_f64(snapshot.num_bytes() as f64 / rate.0);
                world.clock().sleep(least.saturating_sub(world.clock().since(began)));
            }
            let result = match (written, commit) {
                (Ok(()), Some(commit)) => writer.commit(num_ranks, commit),
                (Ok(()), None) => Ok(()),
                (Err(error), commit) => {
                    if commit.is_some() {
                        writer.abandon(step, num_ranks);
                    }
                    Err(error)
                }
            };
            let write_seconds = world.clock().since(began).as_secs_f64();
            let outcome = FinishedWrite { snapshot, result, write_seconds };
            *outcome_slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        };
        let thread = self.world.threads().spawn("checkpoint", Box::new(body));
        let thread = thread.map_err(|error| unsaved(step, &error))?;
        self.pending = Some(PendingWrite { thread, finished, step, began, stall_seconds: None });
        Ok(())
    }

    /// Collects a finished checkpoint, waiting up to `timeout` for it.
    fn collect(&mut self, timeout: Duration, step_log: &mut StepLog) -> Result<(), TrainError> {
        let Some(pending) = self.pending.take() else { return Ok(()) };
        if !pending.thread.finished_within(timeout) {
            if timeout.is_zero() {
                self.pending = Some(pending);
                return Ok(());
            }
            let reason = format!("it took longer than {} s", timeout.as_secs());
            return Err(unsaved(pending.step, &reason).into());
        }
        let finished = pending.finished.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(FinishedWrite { snapshot, result, write_seconds }) = finished else {
            return Err(unsaved(pending.step, &"its thread panicked").into());
        };
        result?;
        self.write_seconds = Some(write_seconds);
        // Training that waits for the write has stalled until now.
        let until_now = self.world.clock().since(pending.began).as_secs_f64();
        let stall_seconds = pending.stall_seconds.unwrap_or(until_now);
        self.stall_seconds = stall_seconds;
        let bytes = snapshot.num_bytes();
        self.snapshot = snapshot;
        step_log.record_checkpoint(
            pending.step,
            bytes,
            stall_seconds,
            write_seconds,
            self.interval(),
        );
        Ok(())
    }

    /// Takes the store over from older attempts of the run.
    fn take_over(&mut self) -> Result<Writer, TrainError> {
        let position = self.comm.group_rank();
        let mut generation = [0];
        if position == 0 {
            generation[0] = self.store.take_over().map_err(|error| match error {
                CheckpointError::File(error) => TrainError::Folder(error),
                error => error.into(),
            })?;
        }
        self.comm.broadcast(&mut generation, 0)?;
        let is_packed = self.recipe.checkpoint.compression == Compression::Zstd;
        let writer = self.store.writer(generation[0], position).packing(is_packed);
        self.writer = Some(writer.clone());
        Ok(writer)
    }

    fn position(
        &self,
        step: u64,
        learner: &Learner,
        cursor: &Cursor,
    ) -> Result<Position, TrainError> {
        Ok(Position {
            step,
            corpus: cursor.corpus.clone().unwrap_or_default(),
            data_positions: cursor.positions.clone(),
            num_skipped: learner.stability.num_skipped,
            scaling: learner.scaling(),
            seconds: self.run_seconds(),
            recipe: self.recipe.to_toml(),
            recipe_hash: self.recipe.hash(),
            kernel_class: learner.kernel_class.clone(),
            product_algorithms: learner.product_algorithms()?,
            program: format!("lockstep {}", env!("CARGO_PKG_VERSION")),
            workers: self.comm.group_size(),
        })
    }
}

impl Drop for CheckpointSaver {
    fn drop(&mut self) {
        // Give a write or removal that is almost done a moment to finish.
        if let Some(pending) = self.pending.take() {
            pending.thread.finished_within(SHUTDOWN_GRACE);
        }
    }
}

/// Defers the signals that end the run, so that it can save first; `line` follows Ctrl-C.
fn handle_signals(world: &World, signals: SaveSignals, line: &'static str) {
    match signals {
        SaveSignals::None => {}
        SaveSignals::Termination => world.processes().defer_termination(true),
        SaveSignals::TerminationAndInterrupt { repeat } => {
            world.processes().defer_termination(true);
            let effect = Interrupts::Defer { line, repeat };
            world.processes().handle_interrupts(effect);
        }
    }
}

/// Bytes of this rank's weights and optimizer state, without weights that are frozen in four bits:
/// checkpoints have none.
fn state_bytes(learner: &Learner) -> u64 {
    let held = learner.replica.footprint(&learner.optimizer);
    let frozen = learner.replica.blueprint().frozen_tensors();
    let frozen: usize = frozen.map(|(_, tensor)| tensor.num_bytes()).sum();
    ((held.weights + held.optimizer) * size_of::<f32>()).saturating_sub(frozen) as u64
}

/// Steps between two agreements of bounded checkpoints, from the duration of a step and of an
/// agreement.
fn agreement_steps(step_seconds: f64, agreement_seconds: Option<f64>) -> u32 {
    let cost = agreement_seconds.unwrap_or(0.0) / MAX_AGREEMENT_SHARE;
    let pause = cost.clamp(MIN_AGREEMENT_PAUSE, MAX_AGREEMENT_PAUSE);
    // The cast saturates, also where no time has passed.
    ((pause / step_seconds) as u32).clamp(1, MAX_AGREEMENT_STEPS)
}

/// Copies this rank's weights and optimizer state.
fn take(recipe: &Recipe, snapshot: &mut Snapshot, learner: &mut Learner) -> Result<(), TrainError> {
    snapshot.clear();
    // Of averaged weights the checkpoint holds the averages, and the others as state.
    learner.replica.swap_own_averages(&mut learner.optimizer)?;
    // With per-worker weights, the checkpoint holds their mean.
    learner.replica.install_mean_weights()?;
    worker_state::save(recipe, snapshot, learner);
    stragglers::save(snapshot, &mut learner.replica)?;
    let is_shared = !recipe.has_local_state();
    let Learner { replica, optimizer, .. } = learner;
    replica.fetch_remote_state(optimizer.state_names(), |state| {
        snapshot.add(&state.name, &[state.len], state.first, state.values);
        Ok::<_, TrainError>(())
    })?;
    replica.visit_checkpoint_pieces(optimizer, |piece| {
        match piece.kind {
            None => snapshot.add(&piece.param.name, &piece.param.shape, piece.first, piece.values),
            Some(_) if !is_shared => {}
            Some(kind) => {
                let name = format!("{}.{kind}", piece.param.name);
                snapshot.add(&name, &[piece.len], piece.first, piece.values);
            }
        }
        Ok::<_, TrainError>(())
    })?;
    replica.restore_own_weights()?;
    Ok(replica.swap_own_averages(optimizer)?)
}

fn unsaved(step: u64, reason: &impl ToString) -> CheckpointError {
    let newest = "earlier checkpoints are intact".to_owned();
    CheckpointError::NotSaved { step, reason: reason.to_string(), newest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreements_are_a_tenth_of_a_second_apart_and_rarer_on_slow_links() {
        assert_eq!(agreement_steps(0.5, None), 1, "a step lasts longer than the pause");
        assert_eq!(agreement_steps(0.001, Some(1e-5)), 100);
        assert_eq!(agreement_steps(0.001, Some(1e-3)), 500, "a thousandth of a second each");
        assert_eq!(agreement_steps(0.001, Some(10.0)), 2000, "the pause is bounded");
        assert_eq!(agreement_steps(0.0, Some(0.0)), MAX_AGREEMENT_STEPS);
    }
}
