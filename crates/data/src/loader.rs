//! Background loader: prepares batches one step ahead of the model.
//!
//! Two batches (more for a data server) circulate between the trainer and one thread through
//! bounded queues: while the trainer uses one, the thread fills the other. Memory is allocated once
//! per batch, a fast thread cannot run ahead, and the wait in [`Loader::next_batch`] is exactly the
//! exposed data loading time.
//!
//! The thread closes its queue on every exit, also on a panic, so the trainer gets an error instead
//! of waiting.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockstep_config::Recipe;
use lockstep_platform::{JoinHandle, Queue, RecvError, ThreadError, World};

use crate::batch::{Batch, BatchShape, MicrobatchFilter};
use crate::corpus::Corpus;
use crate::cursor::Cursor;
use crate::error::DataError;
use crate::sample_order::SampleOrder;

/// One batch for the trainer, one for the thread.
const NUM_BATCHES: usize = 2;

/// Timeout for a batch, which normally takes less than a millisecond.
const STALL: Duration = Duration::from_mins(1);

/// Fills the batch of a step.
pub(crate) type Fill = Box<dyn FnMut(u64, &mut Batch) -> Result<(), DataError> + Send>;

/// Returns the batches of a run in order.
pub struct Loader {
    made: Arc<Queue<Result<Batch, DataError>>>,
    spare: Arc<Queue<Batch>>,
    current: Option<Batch>,
    thread: Option<Box<dyn JoinHandle>>,
    world: World,
    text: TextName,
    stall: Duration,
    next_step: u64,
    /// Positions of the streams of a mixture after the current batch.
    positions: Vec<u64>,
    last_wait: Duration,
    /// Emulated least time of a batch in nanoseconds, which the thread reads.
    least_nanos: Arc<AtomicU64>,
}

/// Name and fingerprint of the corpus.
#[derive(Debug, Clone)]
pub(crate) struct TextName {
    pub(crate) name: String,
    pub(crate) fingerprint: String,
}

impl TextName {
    pub(crate) fn of(corpus: &Corpus) -> Self {
        Self { name: corpus.name().to_owned(), fingerprint: corpus.fingerprint() }
    }
}

impl Loader {
    /// Starts a loader of whole batches at `cursor`. The cursor of another loader continues exactly
    /// where that one stopped.
    pub fn open(
        recipe: &Recipe,
        world: &World,
        corpus: Arc<Corpus>,
        cursor: Cursor,
    ) -> Result<Self, DataError> {
        let shape = BatchShape::largest(recipe);
        corpus.require(shape.context)?;
        let leaves = vec![true; recipe.num_leaves()];
        let order = SampleOrder::of(recipe, corpus.name(), corpus.train(), &leaves)?;
        let text = TextName::of(&corpus);
        let fill = move |step, batch: &mut Batch| {
            batch.fill(step, &order, corpus.train(), MicrobatchFilter::Leaves(&leaves))
        };
        Self::start(shape, world, text, cursor, NUM_BATCHES, STALL, Box::new(fill))
    }

    /// Starts a loader with `num_batches` buffers that `fill` fills, each within `stall`.
    pub(crate) fn start(
        shape: BatchShape,
        world: &World,
        text: TextName,
        cursor: Cursor,
        num_batches: usize,
        stall: Duration,
        fill: Fill,
    ) -> Result<Self, DataError> {
        let positions = cursor.positions.clone();
        let next_step = cursor.step_in(&text.name, &text.fingerprint)?;
        let made = Arc::new(Queue::new(world, num_batches));
        let spare = Arc::new(Queue::new(world, num_batches));
        for _ in 0..num_batches {
            let sent = spare.send(Batch::allocate(shape), Duration::ZERO);
            assert!(sent.is_ok(), "a new queue has room for all batches");
        }
        let least_nanos = Arc::new(AtomicU64::new(0));
        let producer = Producer {
            made: Arc::clone(&made),
            spare: Arc::clone(&spare),
            world: Arc::clone(world),
            least_nanos: Arc::clone(&least_nanos),
            next_step,
            fill,
        };
        let thread = world.threads().spawn("batches", Box::new(move || producer.run()))?;
        Ok(Self {
            made,
            spare,
            current: None,
            thread: Some(thread),
            world: Arc::clone(world),
            text,
            stall,
            next_step,
            positions,
            last_wait: Duration::ZERO,
            least_nanos,
        })
    }

    /// Starts a loader whose batches are filled from memory.
    pub(crate) fn from_memory(
        shape: BatchShape,
        world: &World,
        text: TextName,
        cursor: Cursor,
        fill: Fill,
    ) -> Result<Self, DataError> {
        Self::start(shape, world, text, cursor, NUM_BATCHES, STALL, fill)
    }

    /// Starts a loader whose batches are filled from streams, each within `stall`.
    pub(crate) fn from_streams(
        shape: BatchShape,
        world: &World,
        text: TextName,
        cursor: Cursor,
        stall: Duration,
        fill: Fill,
    ) -> Result<Self, DataError> {
        Self::start(shape, world, text, cursor, NUM_BATCHES, stall, fill)
    }

    /// Emulates a slow source: from now on the thread takes at least this time for a batch.
    pub fn emulate_batch_time(&self, least: Duration) {
        let nanos = u64::try_from(least.as_nanos()).unwrap_or(u64::MAX);
        self.least_nanos.store(nanos, Ordering::Relaxed);
    }

    /// Next batch, valid until the next call.
    pub fn next_batch(&mut self) -> Result<&Batch, DataError> {
        if let Some(used) = self.current.take() {
            // This fails only if the thread has ended, which the queue below reports.
            let _ = self.spare.send(used, Duration::ZERO);
        }
        let start = self.world.clock().now();
        let received = self.made.recv(self.stall);
        self.last_wait = self.world.clock().now().saturating_sub(start);
        let batch = match received {
            Ok(made) => made?,
            Err(RecvError::Closed) => return Err(self.why_the_thread_ended()),
            Err(RecvError::TimedOut) => {
                let waited_seconds = self.stall.as_secs();
                return Err(DataError::Stalled { step: self.next_step, waited_seconds });
            }
        };
        assert_eq!(batch.step, self.next_step, "batches come in the order of their steps");
        self.next_step += 1;
        self.positions.clone_from(&batch.positions);
        Ok(self.current.insert(batch))
    }

    /// Wait of the last [`Loader::next_batch`] for its data.
    pub fn wait_seconds(&self) -> f64 {
        self.last_wait.as_secs_f64()
    }

    /// Position after the last returned batch; a loader opened with it continues from there. Of a
    /// mixture it has the positions of this worker's streams only, and 0 for the others.
    pub fn cursor(&self) -> Cursor {
        Cursor {
            next_step: self.next_step,
            corpus: Some(self.text.fingerprint.clone()),
            positions: self.positions.clone(),
        }
    }

    /// Positions of the streams of a mixture, as in [`Self::cursor`].
    pub fn positions(&self) -> &[u64] {
        &self.positions
    }

    fn why_the_thread_ended(&mut self) -> DataError {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(error)) => error.into(),
            Some(Ok(())) | None => DataError::Ended,
        }
    }
}

impl From<ThreadError> for DataError {
    fn from(error: ThreadError) -> Self {
        match error {
            ThreadError::Spawn { reason, .. } => Self::NoThread { reason },
            ThreadError::Panicked { message, .. } => Self::Panicked { message },
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.spare.close();
        self.made.close();
        // The thread ends after its current batch. A panic was either reported by `next_batch` or
        // concerns a batch that is no longer needed.
        if let Some(thread) = self.thread.take()
            && thread.finished_within(self.stall)
        {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loader({}, next step {})", self.text.name, self.next_step)
    }
}

/// Background thread.
struct Producer {
    made: Arc<Queue<Result<Batch, DataError>>>,
    spare: Arc<Queue<Batch>>,
    world: World,
    least_nanos: Arc<AtomicU64>,
    next_step: u64,
    fill: Fill,
}

impl Producer {
    /// Fills spare batches until the loader is dropped or a batch fails.
    fn run(mut self) {
        while let Some(mut batch) = self.next_spare() {
            let began = self.world.clock().now();
            let filled = (self.fill)(self.next_step, &mut batch);
            batch.cut_segments();
            let least = Duration::from_nanos(self.least_nanos.load(Ordering::Relaxed));
            self.world.clock().sleep(least.saturating_sub(self.world.clock().since(began)));
            let failed = filled.is_err();
            // The queue has room for all batches, so this never waits.
            let sent = self.made.send(filled.map(|()| batch), Duration::ZERO);
            if failed || sent.is_err() {
                return;
            }
            self.next_step += 1;
        }
    }

    /// Next spare batch. A training step may take any time, so only each single wait is bounded.
    fn next_spare(&self) -> Option<Batch> {
        loop {
            match self.spare.recv(STALL) {
                Ok(batch) => return Some(batch),
                Err(RecvError::Closed) => return None,
                Err(RecvError::TimedOut) => {}
            }
        }
    }
}

/// Closes the queue on every exit, including a panic.
impl Drop for Producer {
    fn drop(&mut self) {
        self.made.close();
    }
}

#[cfg(test)]
mod tests;
