//! Threads of the operating system; each event count has a condition variable.

use std::any::Any;
use std::num::NonZero;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::{JoinHandle, Signal, ThreadError, Threads, error_text};

pub(crate) struct RealThreads;

impl Threads for RealThreads {
    fn spawn(
        &self,
        name: &str,
        body: Box<dyn FnOnce() + Send + 'static>,
    ) -> Result<Box<dyn JoinHandle>, ThreadError> {
        let ended = Arc::new(RealSignal::default());
        let on_exit = NotifyOnDrop(Arc::clone(&ended));
        let run = move || {
            // Dropped last, also when the body panics.
            let _on_exit = on_exit;
            body();
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run).map_err(|error| {
            ThreadError::Spawn { name: name.to_owned(), reason: error_text::of(&error) }
        })?;
        Ok(Box::new(RealJoinHandle { name: name.to_owned(), thread, ended }))
    }

    fn available(&self) -> usize {
        thread::available_parallelism().map_or(1, NonZero::get)
    }

    fn pin_to_core(&self, index: usize) -> bool {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
        let Ok(allowed) = sched_getaffinity(None) else { return false };
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
        if cores.is_empty() {
            return false;
        }
        let mut one = CpuSet::new();
        one.set(cores[index % cores.len()]);
        sched_setaffinity(None, &one).is_ok()
    }

    fn signal(&self) -> Arc<dyn Signal> {
        Arc::new(RealSignal::default())
    }
}

struct RealJoinHandle {
    name: String,
    thread: thread::JoinHandle<()>,
    /// Leaves epoch 0 when the body has ended.
    ended: Arc<RealSignal>,
}

impl JoinHandle for RealJoinHandle {
    fn join(self: Box<Self>) -> Result<(), ThreadError> {
        let Self { name, thread, ended: _ } = *self;
        thread
            .join()
            .map_err(|panic| ThreadError::Panicked { name, message: panic_message(panic.as_ref()) })
    }

    fn finished_within(&self, timeout: Duration) -> bool {
        self.ended.wait(0, timeout)
    }
}

struct NotifyOnDrop(Arc<RealSignal>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_all();
    }
}

/// Message of a panic; panics usually carry text.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
        .to_owned()
}

#[derive(Default)]
struct RealSignal {
    epoch: Mutex<u64>,
    changed: Condvar,
}

impl RealSignal {
    fn lock(&self) -> MutexGuard<'_, u64> {
        // A counter is sound after any panic.
        self.epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Signal for RealSignal {
    fn epoch(&self) -> u64 {
        *self.lock()
    }

    fn notify_all(&self) {
        *self.lock() += 1;
        self.changed.notify_all();
    }

    fn wait(&self, last_epoch: u64, timeout: Duration) -> bool {
        let waited =
            self.changed.wait_timeout_while(self.lock(), timeout, |epoch| *epoch == last_epoch);
        let (epoch, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *epoch != last_epoch
    }
}
