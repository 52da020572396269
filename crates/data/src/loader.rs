//! Batches, made in the background one step ahead of the model.
//!
//! Two batches circulate between the trainer and one thread (more where they come from afar): while
//! the trainer computes on one, the thread fills the other, and a bounded queue in each direction
//! carries them to and fro. So memory is allocated once for each in the life of a loader, a fast
//! thread cannot run ahead, and the time that [`Loader::next_batch`] waits is exactly the time by
//! which the data was late.
//!
//! The thread closes the queue as it leaves, however it leaves: a panic inside it wakes the trainer
//! with an error instead of leaving it to wait.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockstep_config::Recipe;
use lockstep_platform::{JoinHandle, Queue, RecvError, ThreadError, World};

use crate::batch::{Batch, BatchShape};
use crate::corpus::Corpus;
use crate::cursor::Cursor;
use crate::deal::Deal;
use crate::error::DataError;

/// One batch with the trainer, one with the thread.
const NUM_BATCHES: usize = 2;

/// How long the trainer waits for a batch, which takes well under a millisecond to make.
const STALL: Duration = Duration::from_mins(1);

/// Makes the batch of a step; the thread's only work.
pub(crate) type Fill = Box<dyn FnMut(u64, &mut Batch) -> Result<(), DataError> + Send>;

/// Hands out the batches of a run in order.
pub struct Loader {
    made: Arc<Queue<Result<Batch, DataError>>>,
    spare: Arc<Queue<Batch>>,
    current: Option<Batch>,
    thread: Option<Box<dyn JoinHandle>>,
    world: World,
    text: TextName,
    stall: Duration,
    next_step: u64,
    last_wait: Duration,
}

/// What a loader says of its text.
#[derive(Debug, Clone)]
pub(crate) struct TextName {
    pub(crate) name: String,
    pub(crate) fingerprint: String,
}

impl Loader {
    /// Starts making whole batches of a corpus at `cursor`. A cursor that another loader gave
    /// continues exactly where that one stood.
    pub fn open(
        recipe: &Recipe,
        world: &World,
        corpus: Arc<Corpus>,
        cursor: Cursor,
    ) -> Result<Self, DataError> {
        let shape = BatchShape::of(recipe);
        corpus.require(shape.context)?;
        let lanes = vec![true; recipe.num_lanes()];
        let deal = Deal::of(recipe, corpus.name(), corpus.train(), &lanes)?;
        let text = TextName { name: corpus.name().to_owned(), fingerprint: corpus.fingerprint() };
        let fill = move |step, batch: &mut Batch| batch.fill(step, &deal, corpus.train(), &lanes);
        Self::start(shape, world, text, cursor, NUM_BATCHES, STALL, Box::new(fill))
    }

    /// Starts with `num_batches` that `fill` makes, each within `stall`.
    pub(crate) fn start(
        shape: BatchShape,
        world: &World,
        text: TextName,
        cursor: Cursor,
        num_batches: usize,
        stall: Duration,
        fill: Fill,
    ) -> Result<Self, DataError> {
        let next_step = cursor.step_in(&text.name, &text.fingerprint)?;
        let made = Arc::new(Queue::new(world, num_batches));
        let spare = Arc::new(Queue::new(world, num_batches));
        for _ in 0..num_batches {
            let sent = spare.send(Batch::with_room(shape), Duration::ZERO);
            assert!(sent.is_ok(), "a new queue has room for all batches");
        }
        let producer =
            Producer { made: Arc::clone(&made), spare: Arc::clone(&spare), next_step, fill };
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
            last_wait: Duration::ZERO,
        })
    }

    /// The same, on a thread that fills batches from memory.
    pub(crate) fn from_memory(
        shape: BatchShape,
        world: &World,
        text: TextName,
        cursor: Cursor,
        fill: Fill,
    ) -> Result<Self, DataError> {
        Self::start(shape, world, text, cursor, NUM_BATCHES, STALL, fill)
    }

    /// The next batch, valid until the next call.
    pub fn next_batch(&mut self) -> Result<&Batch, DataError> {
        if let Some(used) = self.current.take() {
            // This fails only when the thread has ended, and then the queue below says so.
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
        Ok(self.current.insert(batch))
    }

    /// How long the last [`Loader::next_batch`] waited for its data.
    pub fn wait_seconds(&self) -> f64 {
        self.last_wait.as_secs_f64()
    }

    /// The position after the last batch handed out: a loader opened with it gives the batches that
    /// this one would give from here on.
    pub fn cursor(&self) -> Cursor {
        Cursor { next_step: self.next_step, corpus: Some(self.text.fingerprint.clone()) }
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
        // The thread ends after the batch in its hands at the latest. A panic in it was either
        // reported by `next_batch` or concerns a batch that nobody will ask for.
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

/// The background thread's side.
struct Producer {
    made: Arc<Queue<Result<Batch, DataError>>>,
    spare: Arc<Queue<Batch>>,
    next_step: u64,
    fill: Fill,
}

impl Producer {
    /// Fills spare batches until the loader is dropped or a batch cannot be made.
    fn run(mut self) {
        while let Some(mut batch) = self.next_spare() {
            let filled = (self.fill)(self.next_step, &mut batch);
            let failed = filled.is_err();
            // There is always room for every batch that exists, so this never waits.
            let sent = self.made.send(filled.map(|()| batch), Duration::ZERO);
            if failed || sent.is_err() {
                return;
            }
            self.next_step += 1;
        }
    }

    /// A step may take the model any time, so each wait has a limit but their number has none.
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

/// Runs on every way out of the thread, a panic included.
impl Drop for Producer {
    fn drop(&mut self) {
        self.made.close();
    }
}

#[cfg(test)]
mod tests;
