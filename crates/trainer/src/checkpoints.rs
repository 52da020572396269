//! Saves a run as it goes, so that losing a worker costs only time.
//!
//! Between two steps each worker copies what it keeps ([`Replica::visit_own`]) and goes on; a
//! thread writes the copy, and the first worker's makes a checkpoint of all parts. At most one is
//! on its way: a second one waits for it. Whether to save now is decided by all together, with one
//! number after every step, since a clock or a signal speaks to one worker only.
//!
//! [`Replica::visit_own`]: lockstep_parallel::Replica::visit_own

use crate::device::kernel_class;
use crate::journal::Journal;
use crate::saved::{Learner, Start};
use crate::train::Life;
use crate::{TrainError, rounds, servers, uneven};
use lockstep_checkpoint::CheckpointError;
use lockstep_checkpoint::pace::observed_mtbf;
use lockstep_checkpoint::sharded::{Commit, Position, Snapshot, Store, Writer};
use lockstep_comm::{Comm, Reduction};
use lockstep_config::{Compression, Interval, Recipe, interval};
use lockstep_data::Cursor;
use lockstep_platform::{FileKind, JoinHandle, World};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long the parts of other workers may take, where `run.deadline` is shorter.
const LEAST_PATIENCE: Duration = Duration::from_mins(10);

/// How long a run that ends early waits for a checkpoint that is on its way.
const LAST_MOMENT: Duration = Duration::from_millis(300);

/// Bytes a second that a disk is thought to take before it was measured.
const UNMEASURED_BYTES_PER_SECOND: f64 = 2e8;

/// What workers agree on after a step; the largest wish is done.
const GO_ON: u32 = 0;
const SAVE: u32 = 1;
const SAVE_AND_LEAVE: u32 = 2;

/// Where a recipe keeps its checkpoints.
pub fn dir_of(recipe: &Recipe, run_dir: &Path) -> PathBuf {
    match recipe.checkpoint.dir.as_str() {
        "" => run_dir.join("checkpoints"),
        dir => PathBuf::from(dir),
    }
}

/// See the module's text.
pub struct Saver {
    recipe: Recipe,
    world: World,
    comm: Comm,
    store: Store,
    /// Nothing until the first checkpoint, unless there are some already.
    writer: Option<Writer>,
    flight: Option<Flight>,
    room: Snapshot,
    /// When the last one was taken, or the run began here.
    last: Duration,
    /// When this worker began, and how long the run had taken before.
    began: Duration,
    seconds_before: f64,
    write_seconds: Option<f64>,
    num_failures: u64,
}

/// A checkpoint on its way.
struct Flight {
    thread: Box<dyn JoinHandle>,
    landed: Arc<Mutex<Option<Landed>>>,
    step: u64,
    stall_seconds: f64,
}

struct Landed {
    room: Snapshot,
    result: Result<(), CheckpointError>,
    write_seconds: f64,
}

impl Saver {
    /// Gets ready to save a run whose folder is `run_dir`. All workers do so together; where there
    /// are checkpoints already, no older life of the run can add to them from here on.
    pub fn open(
        recipe: &Recipe,
        world: &World,
        comm: &Comm,
        run_dir: &Path,
        start: &Start,
        life: &Life,
    ) -> Result<Self, TrainError> {
        let now = world.clock().now();
        let mut saver = Self {
            recipe: recipe.clone(),
            world: world.clone(),
            comm: comm.clone(),
            store: Store::new(world, &dir_of(recipe, run_dir)),
            writer: None,
            flight: None,
            room: Snapshot::default(),
            last: now,
            began: now,
            seconds_before: start.seconds,
            write_seconds: None,
            num_failures: life.restarts,
        };
        if recipe.checkpoint.is_on() {
            world.processes().defer_termination(true);
            let there = world.files().metadata(saver.store.dir());
            // A folder of its own choice may be a mistake, which is better found now.
            let is_named = !recipe.checkpoint.dir.is_empty();
            let mut begins = [u32::from(is_named || there == Some(FileKind::Directory))];
            comm.broadcast(&mut begins, 0)?;
            if begins[0] == 1 {
                saver.take_over()?;
            }
        }
        Ok(saver)
    }

    /// Saves where it is time to, or where somebody asked this process to end; then the run ends.
    pub fn after_step(
        &mut self,
        num_steps: u64,
        learner: &mut Learner,
        cursor: impl FnOnce() -> Cursor,
        journal: &mut Journal,
    ) -> Result<(), TrainError> {
        if !self.recipe.checkpoint.is_on() {
            return Ok(());
        }
        self.land(Duration::ZERO, journal)?;
        let wish = self.agree(num_steps)?;
        if wish == GO_ON {
            return Ok(());
        }
        self.save(num_steps, learner, &cursor(), journal)?;
        if wish == SAVE {
            return Ok(());
        }
        self.land(self.patience(), journal)?;
        // The first worker's word is that all of it is on the disk.
        self.comm.barrier()?;
        let folder = self.store.folder(num_steps).display().to_string();
        Err(TrainError::Interrupted { step: num_steps, folder })
    }

    /// Waits for a checkpoint that is still on its way.
    pub fn finish(&mut self, journal: &mut Journal) -> Result<(), TrainError> {
        self.land(self.patience(), journal)
    }

    /// Saves the end of a run where its result is not all that going on takes: what each worker
    /// keeps for itself has its place in checkpoints only.
    pub fn at_end(
        &mut self,
        learner: &mut Learner,
        cursor: &Cursor,
        journal: &mut Journal,
    ) -> Result<(), TrainError> {
        // Servers are gone by then, and with them what they kept.
        let has_more = self.recipe.keeps_more() && self.recipe.num_servers() == 0;
        if !has_more || !self.recipe.run.save_optimizer {
            return Ok(());
        }
        self.save(cursor.next_step, learner, cursor, journal)?;
        self.finish(journal)?;
        // Nobody leaves before all of it is on the disk.
        Ok(self.comm.barrier()?)
    }

    /// What all workers do after a step.
    fn agree(&self, num_steps: u64) -> Result<u32, TrainError> {
        let is_due = self.recipe.is_due_every(self.recipe.checkpoint.every, num_steps);
        let is_late = self.comm.group_rank() == 0
            && self.interval().is_some_and(|seconds| self.since_last() >= seconds);
        let mut wish = [if self.world.processes().is_termination_asked() {
            SAVE_AND_LEAVE
        } else if is_due || is_late {
            SAVE
        } else {
            GO_ON
        }];
        self.comm.all_reduce(&mut wish, Reduction::Max)?;
        Ok(wish[0])
    }

    fn since_last(&self) -> f64 {
        self.world.clock().since(self.last).as_secs_f64()
    }

    /// Seconds between two checkpoints, where they go by the clock.
    fn interval(&self) -> Option<f64> {
        match self.recipe.checkpoint.interval {
            Interval::Never => None,
            Interval::Every(seconds) => Some(seconds.0),
            Interval::Auto => {
                let guess = self.room.num_bytes() as f64 / UNMEASURED_BYTES_PER_SECOND;
                let write = self.write_seconds.unwrap_or(guess).max(0.01);
                let expected = self.recipe.checkpoint.mtbf.0;
                let mtbf = observed_mtbf(expected, self.run_seconds(), self.num_failures);
                Some(interval::daly(write, mtbf).max(1.0))
            }
        }
    }

    /// How long the run has taken, in all its lives that were saved.
    fn run_seconds(&self) -> f64 {
        self.seconds_before + self.world.clock().since(self.began).as_secs_f64()
    }

    fn patience(&self) -> Duration {
        self.recipe.run.deadline().max(LEAST_PATIENCE)
    }

    /// Copies what this worker keeps and starts to write it.
    fn save(
        &mut self,
        num_steps: u64,
        learner: &mut Learner,
        cursor: &Cursor,
        journal: &mut Journal,
    ) -> Result<(), TrainError> {
        let began = self.world.clock().now();
        self.land(self.patience(), journal)?;
        let writer = match self.writer.clone() {
            Some(writer) => writer,
            None => self.take_over().map_err(|error| match error {
                TrainError::Folder(error) => unsaved(num_steps, &error).into(),
                error => error,
            })?,
        };
        let position = self.position(num_steps, learner, cursor);
        take(&self.recipe, &mut self.room, learner)?;
        let is_first = self.comm.group_rank() == 0;
        if is_first {
            self.room.set_losses(&journal.losses);
        }
        let commit = is_first.then(|| Commit {
            position,
            patience: self.patience(),
            keep: self.recipe.checkpoint.keep,
        });
        self.start(writer, num_steps, commit)?;
        if !self.recipe.checkpoint.background {
            self.land(self.patience(), journal)?;
        }
        self.last = self.world.clock().now();
        let stall_seconds = self.world.clock().since(began).as_secs_f64();
        if let Some(flight) = &mut self.flight {
            flight.stall_seconds = stall_seconds;
        }
        Ok(())
    }

    /// Writes beside training.
    fn start(
        &mut self,
        writer: Writer,
        step: u64,
        commit: Option<Commit>,
    ) -> Result<(), TrainError> {
        let (room, landed) = (std::mem::take(&mut self.room), Arc::new(Mutex::new(None)));
        let (num_ranks, world) = (self.comm.group_size(), self.world.clone());
        let there = Arc::clone(&landed);
        let body = move || {
            let began = world.clock().now();
            let result = match (writer.write(step, &room), commit) {
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
            let outcome = Landed { room, result, write_seconds };
            *there.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        };
        let thread = self.world.threads().spawn("checkpoint", Box::new(body));
        let thread = thread.map_err(|error| unsaved(step, &error))?;
        self.flight = Some(Flight { thread, landed, step, stall_seconds: 0.0 });
        Ok(())
    }

    /// Takes note of a checkpoint that is on the disk, waiting up to `patience` for it.
    fn land(&mut self, patience: Duration, journal: &mut Journal) -> Result<(), TrainError> {
        let Some(flight) = self.flight.take() else { return Ok(()) };
        if !flight.thread.finished_within(patience) {
            if patience.is_zero() {
                self.flight = Some(flight);
                return Ok(());
            }
            let reason = format!("it took longer than {} s", patience.as_secs());
            return Err(unsaved(flight.step, &reason).into());
        }
        let landed = flight.landed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Landed { room, result, write_seconds }) = landed else {
            return Err(unsaved(flight.step, &"its thread panicked").into());
        };
        result?;
        self.write_seconds = Some(write_seconds);
        let bytes = room.num_bytes();
        self.room = room;
        let Flight { step, stall_seconds, .. } = flight;
        journal.saved(step, bytes, stall_seconds, write_seconds, self.interval());
        Ok(())
    }

    /// Becomes the only life of the run that writes checkpoints.
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

    fn position(&self, step: u64, learner: &Learner, cursor: &Cursor) -> Position {
        Position {
            step,
            corpus: cursor.corpus.clone().unwrap_or_default(),
            num_skipped: learner.num_skipped,
            scaling: learner.scaling(),
            seconds: self.run_seconds(),
            recipe: self.recipe.to_toml(),
            recipe_hash: self.recipe.hash(),
            kernel_class: kernel_class(&self.recipe).to_owned(),
            program: format!("lockstep {}", env!("CARGO_PKG_VERSION")),
            workers: self.comm.group_size(),
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        // A run that ends early gives what is nearly on the disk, or nearly removed, a moment.
        if let Some(flight) = self.flight.take() {
            flight.thread.finished_within(LAST_MOMENT);
        }
        if self.recipe.checkpoint.is_on() {
            self.world.processes().defer_termination(false);
        }
    }
}

/// Copies what this worker keeps of the model and of its optimizer.
fn take(recipe: &Recipe, room: &mut Snapshot, learner: &mut Learner) -> Result<(), TrainError> {
    room.clear();
    // Where workers have weights of their own, the mean is what others know the run by.
    learner.replica.show_mean()?;
    rounds::save(recipe, room, learner);
    uneven::save(room, &mut learner.replica)?;
    servers::save(room, learner)?;
    let is_shared = !recipe.has_own_state();
    let Learner { replica, optimizer, .. } = learner;
    replica.visit_own(optimizer, |piece| {
        match piece.kind {
            None => room.add(&piece.param.name, &piece.param.shape, piece.first, piece.values),
            Some(_) if !is_shared => {}
            Some(kind) => {
                let name = format!("{}.{kind}", piece.param.name);
                room.add(&name, &[piece.param.tensor_len()], piece.first, piece.values);
            }
        }
        Ok::<_, TrainError>(())
    })?;
    Ok(replica.hide_mean()?)
}

fn unsaved(step: u64, reason: &impl ToString) -> CheckpointError {
    let newest = "older ones are as they were".to_owned();
    CheckpointError::Unsaved { step, reason: reason.to_string(), newest }
}
