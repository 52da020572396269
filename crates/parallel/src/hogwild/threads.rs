//! Threads of a run: each trains on its own micro-batches of every batch at its own speed.
//!
//! They synchronize only for evaluations, checkpoints and the end. The run reports the steps of the
//! first thread, which is the worker's own.

use super::SharedWeights;
use crate::figures::StrategyFigures;
use crate::sync_strategy::{
    ReadState, SyncStrategy, TrainingHost, TrainingThread, record_staleness,
};
use lockstep_platform::{JoinHandle, ThreadError, World};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Strategy of a worker with threads.
pub(crate) struct ThreadPool<T: TrainingThread> {
    threads: Option<Threads<T>>,
    staleness: Vec<BTreeMap<u64, u64>>,
}

/// All threads of the worker.
struct Threads<T: TrainingThread> {
    shared: Arc<SharedWeights>,
    /// The worker's own thread.
    own: T,
    /// Background threads, and their handles while they run.
    others: Vec<Arc<Mutex<BackgroundThread<T>>>>,
    handles: Vec<Box<dyn JoinHandle>>,
}

/// A background thread, which reports only its staleness and its error.
struct BackgroundThread<T: TrainingThread> {
    training: T,
    found: Result<(), T::Error>,
}

impl<T: TrainingThread> ThreadPool<T> {
    /// Without threads until the run begins.
    pub(crate) fn new() -> Self {
        Self { threads: None, staleness: Vec::new() }
    }
}

impl<H: TrainingHost> SyncStrategy<H> for ThreadPool<H::Thread> {
    fn begin(
        &mut self,
        host: &mut H,
        steps: Range<u64>,
        _read: Option<&ReadState<'_, H::Error>>,
    ) -> Result<(), H::Error> {
        let shared = Arc::new(SharedWeights::new(host.replica())?);
        let host = &*host;
        let training = |thread, first_step| {
            let replica =
                shared.replica_of_thread(host.recipe(), thread, host.cpu(), host.world())?;
            host.thread(replica, thread, first_step)
        };
        let other = |thread| {
            let (training, found) = (training(thread, Some(steps.start))?, Ok(()));
            Ok(Arc::new(Mutex::new(BackgroundThread { training, found })))
        };
        let others = (1..host.recipe().sync.threads).map(other).collect::<Result<_, H::Error>>()?;
        let (own, handles) = (training(0, None)?, Vec::new());
        self.threads = Some(Threads { own, others, handles, shared: Arc::clone(&shared) });
        Ok(())
    }

    fn step(&mut self, host: &mut H, steps: Range<u64>) -> Result<(), H::Error> {
        let threads = self.threads.as_mut().expect("the run has begun");
        let is_over = |host: &H, num_steps| host.is_due(num_steps, steps.end);
        if threads.handles.is_empty() {
            let end = (steps.start + 1..=steps.end).find(|step| is_over(host, *step));
            threads.spawn(host.world(), steps.start..end.unwrap_or(steps.end))?;
        }
        host.take_step_of(&mut threads.own, steps.start)?;
        if is_over(host, steps.start + 1) {
            threads.join()?;
            threads.shared.show(host.replica())?;
            self.staleness = threads.staleness();
            record_staleness(host, steps.start + 1, &self.staleness);
        }
        Ok(())
    }

    fn prepare_checkpoint(&mut self, host: &mut H, num_steps: u64) -> Result<bool, H::Error> {
        Ok(host.is_due(num_steps, host.recipe().train.steps))
    }

    fn finish(&mut self, _host: &mut H) -> Result<(), H::Error> {
        Ok(())
    }

    fn add_figures(&self, figures: &mut StrategyFigures) {
        figures.staleness_by_rank = Some(self.staleness.clone()).filter(|found| !found.is_empty());
    }
}

impl<T: TrainingThread> Threads<T> {
    /// Runs `steps` on all background threads.
    fn spawn(&mut self, world: &World, steps: Range<u64>) -> Result<(), ThreadError> {
        for other in &self.others {
            let (other, steps) = (Arc::clone(other), steps.clone());
            let body = move || other.lock().expect("only this thread locks it").run(steps);
            let handle = world.threads().spawn("hogwild", Box::new(body));
            self.handles.push(handle?);
        }
        Ok(())
    }

    /// Waits for the background threads.
    fn join(&mut self) -> Result<(), T::Error> {
        for handle in self.handles.drain(..) {
            handle.join().unwrap_or_else(|panicked| panic!("{panicked}"));
        }
        for other in &self.others {
            let mut other = other.lock().expect("its thread has ended");
            std::mem::replace(&mut other.found, Ok(()))?;
        }
        Ok(())
    }

    /// Staleness histogram of each thread: number of steps by missed updates.
    fn staleness(&self) -> Vec<BTreeMap<u64, u64>> {
        let of = |training: &T| training.replica().staleness().cloned().unwrap_or_default();
        let others = self.others.iter();
        let others = others.map(|it| of(&it.lock().expect("its thread has ended").training));
        [of(&self.own)].into_iter().chain(others).collect()
    }
}

impl<T: TrainingThread> BackgroundThread<T> {
    fn run(&mut self, mut steps: Range<u64>) {
        self.found = steps.try_for_each(|step| self.training.take_step(step));
    }
}
