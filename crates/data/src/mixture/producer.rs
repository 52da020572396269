//! Threads that fill the batches of a mixture.
//!
//! A thread owns some leaves of the worker and fills their sequences, step after step. Portions
//! circulate through bounded queues, so a fast thread waits. Leaves do not depend on each other, so
//! neither do the tokens on the number of threads. A thread closes its queue on every exit, also on
//! a panic, and it ends when its queue of used portions is closed.

use std::sync::Arc;
use std::time::Duration;

use lockstep_config::{BatchPlan, Documents, Recipe};
use lockstep_platform::{JoinHandle, Queue, RecvError, World};

use super::Mixture;
use super::leaf::LeafStreams;
use super::position::{StreamPosition, num_numbers};
use super::reader::Share;
use crate::batch::Batch;
use crate::error::DataError;
use crate::loader::Fill;

/// Portions of a thread: one in use, one finished, one being filled.
const NUM_PORTIONS: usize = 3;

/// Timeout of a portion: a stream that resumes deep in a large file first reads up to there.
pub(crate) const STALL: Duration = Duration::from_mins(10);

/// Sequences of a thread's leaves in one step.
struct Portion {
    step: u64,
    inputs: Vec<u32>,
    targets: Vec<u32>,
    /// As [`Batch::documents`].
    documents: Vec<u32>,
    /// Positions of the thread's streams, one leaf after another.
    positions: Vec<u64>,
}

/// Starts the threads of a worker with these leaves at a position of the run, which is empty at its
/// start. Returns the function that assembles their batches.
pub(crate) fn fill(
    mixture: &Mixture,
    recipe: &Recipe,
    leaves: &[bool],
    (first_step, positions): (u64, &[u64]),
    world: &World,
) -> Result<Fill, DataError> {
    let positions = match (first_step, positions) {
        (0, []) => vec![0; num_numbers(recipe)],
        (_, positions) if positions.len() == num_numbers(recipe) => positions.to_vec(),
        _ => return Err(DataError::OtherPosition { name: mixture.name() }),
    };
    let own: Vec<usize> = (0..leaves.len()).filter(|&leaf| leaves[leaf]).collect();
    let num_threads = recipe.data.mixture.tokenizer_threads.min(own.len());
    let num_sources = mixture.sources.len();
    let start = |thread: usize| {
        let own = own.iter().skip(thread).step_by(num_threads);
        let streams = own.map(|&leaf| {
            let share = Share { leaf, num_leaves: leaves.len() };
            LeafStreams::at(mixture, recipe.train.seed, share, &positions)
        });
        TokenizerThread::start(thread, streams.collect(), recipe, first_step, world)
    };
    let threads = (0..num_threads).map(start).collect::<Result<Vec<_>, _>>()?;
    let (plan, context) = (recipe.batch_plan(), recipe.model.context);
    let per_leaf = num_sources * StreamPosition::LEN;
    let num_leaves = leaves.len();
    Ok(Box::new(move |step, batch: &mut Batch| {
        batch.begin(step, &plan);
        let len = plan.at(step).batch / num_leaves * context;
        batch.positions.resize(positions.len(), 0);
        for thread in &threads {
            let portion = thread.recv(step)?;
            for (index, &leaf) in thread.leaves.iter().enumerate() {
                let (from, to) = (index * len..(index + 1) * len, leaf * len..(leaf + 1) * len);
                batch.inputs[to.clone()].copy_from_slice(&portion.inputs[from.clone()]);
                batch.targets[to.clone()].copy_from_slice(&portion.targets[from.clone()]);
                if let Some(documents) = batch.documents.get_mut(to) {
                    documents.copy_from_slice(&portion.documents[from]);
                }
                let from = index * per_leaf..(index + 1) * per_leaf;
                let to = leaf * per_leaf..(leaf + 1) * per_leaf;
                batch.positions[to].copy_from_slice(&portion.positions[from]);
            }
            thread.give_back(portion);
        }
        Ok(())
    }))
}

/// Thread with its leaves.
struct TokenizerThread {
    leaves: Vec<usize>,
    made: Arc<Queue<Result<Portion, DataError>>>,
    spare: Arc<Queue<Portion>>,
    thread: Option<Box<dyn JoinHandle>>,
}

impl TokenizerThread {
    fn start(
        index: usize,
        streams: Vec<LeafStreams>,
        recipe: &Recipe,
        first_step: u64,
        world: &World,
    ) -> Result<Self, DataError> {
        let (plan, context) = (recipe.batch_plan(), recipe.model.context);
        let num_leaves = recipe.num_leaves();
        let made = Arc::new(Queue::new(world, NUM_PORTIONS));
        let spare = Arc::new(Queue::new(world, NUM_PORTIONS));
        for _ in 0..NUM_PORTIONS {
            let num_tokens = plan.max_batch() / num_leaves * context * streams.len();
            let (inputs, targets) = (vec![0; num_tokens], vec![0; num_tokens]);
            let has_documents = recipe.data.documents == Documents::Masked;
            let documents = vec![0; if has_documents { num_tokens } else { 0 }];
            let portion = Portion { step: 0, inputs, targets, documents, positions: Vec::new() };
            let sent = spare.send(portion, Duration::ZERO);
            assert!(sent.is_ok(), "a new queue has room for all portions");
        }
        let leaves = streams.iter().map(|streams| streams.leaf).collect();
        let producer = Producer {
            made: Arc::clone(&made),
            spare: Arc::clone(&spare),
            streams,
            plan,
            context,
            num_leaves,
            next_step: first_step,
        };
        let name = format!("tokenize-{index}");
        let thread = world.threads().spawn(&name, Box::new(move || producer.run()))?;
        Ok(Self { leaves, made, spare, thread: Some(thread) })
    }

    /// Portion of a step.
    fn recv(&self, step: u64) -> Result<Portion, DataError> {
        match self.made.recv(STALL) {
            Ok(portion) => {
                let portion = portion?;
                assert_eq!(portion.step, step, "portions come in the order of their steps");
                Ok(portion)
            }
            Err(RecvError::Closed) => Err(DataError::Ended),
            Err(RecvError::TimedOut) => {
                Err(DataError::Stalled { step, waited_seconds: STALL.as_secs() })
            }
        }
    }

    fn give_back(&self, portion: Portion) {
        // This fails only if the thread has ended, which the next portion reports.
        let _ = self.spare.send(portion, Duration::ZERO);
    }
}

impl Drop for TokenizerThread {
    fn drop(&mut self) {
        self.spare.close();
        self.made.close();
        // The thread ends after its current sequence; a panic was reported with its portion.
        if let Some(thread) = self.thread.take()
            && thread.finished_within(STALL)
        {
            let _ = thread.join();
        }
    }
}

/// Work of a thread.
struct Producer {
    made: Arc<Queue<Result<Portion, DataError>>>,
    spare: Arc<Queue<Portion>>,
    streams: Vec<LeafStreams>,
    plan: BatchPlan,
    context: usize,
    num_leaves: usize,
    next_step: u64,
}

impl Producer {
    /// Fills spare portions until the queue is closed or a source fails.
    fn run(mut self) {
        while let Some(mut portion) = self.next_spare() {
            let filled = self.fill(&mut portion);
            let has_failed = filled.is_err();
            // The queue has room for all portions, so this never waits.
            let sent = self.made.send(filled.map(|()| portion), Duration::ZERO);
            if has_failed || sent.is_err() {
                return;
            }
            self.next_step += 1;
        }
    }

    fn fill(&mut self, portion: &mut Portion) -> Result<(), DataError> {
        let stage = self.plan.at(self.next_step);
        let per_leaf = stage.batch / self.num_leaves;
        let first_number = stage.first_sample_of(self.next_step) / self.num_leaves as u64;
        portion.step = self.next_step;
        portion.positions.clear();
        let sequences = portion.inputs.chunks_exact_mut(self.context);
        let mut sequences = sequences.zip(portion.targets.chunks_exact_mut(self.context));
        let mut documents = portion.documents.chunks_exact_mut(self.context);
        for streams in &mut self.streams {
            for number in first_number..first_number + per_leaf as u64 {
                let sequence = sequences.next().expect("room for the largest batch");
                streams.fill(number, sequence, documents.next())?;
            }
            portion.positions.extend(streams.positions());
        }
        Ok(())
    }

    /// Next spare portion. A training step may take any time, so only each single wait is bounded.
    fn next_spare(&self) -> Option<Portion> {
        loop {
            match self.spare.recv(STALL) {
                Ok(portion) => return Some(portion),
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
