//! Spans of collective calls that run in the background of a sampled step.
//!
//! The spans of tasks say when a call was issued and how long the rank waited for it; these say
//! when it ran. The thread that runs the calls records them into memory that exists since the
//! start.

use lockstep_platform::World;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most calls between two looks at them; further ones are not recorded.
const MAX_CALLS: usize = 4096;

/// Times of one call, on the clock of its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSpan {
    /// Bucket of the call.
    pub bucket: u32,
    /// Time at which the rank issued it.
    pub issued: Duration,
    /// Time at which it began to run.
    pub start: Duration,
    /// Time at which it had ended.
    pub end: Duration,
}

/// Recorder of a rank's background calls; the threads of the rank share it.
#[derive(Clone)]
pub(crate) struct CallSpans(Arc<Shared>);

struct Shared {
    world: World,
    is_on: AtomicBool,
    calls: Mutex<Vec<CallSpan>>,
}

/// A call that was issued and is recorded.
pub(crate) struct IssuedCall {
    spans: CallSpans,
    bucket: u32,
    issued: Duration,
}

impl CallSpans {
    /// A recorder with its memory, switched off.
    pub(crate) fn new(world: &World) -> Self {
        let calls = Mutex::new(Vec::with_capacity(MAX_CALLS));
        let (world, is_on) = (Arc::clone(world), AtomicBool::new(false));
        Self(Arc::new(Shared { world, is_on, calls }))
    }

    /// Sets whether calls that are issued from now on are recorded.
    pub(crate) fn set_on(&self, is_on: bool) {
        self.0.is_on.store(is_on, Ordering::Relaxed);
    }

    /// The call that is issued now, if it is to be recorded.
    pub(crate) fn issue(&self, bucket: usize) -> Option<IssuedCall> {
        let issued = || self.0.world.clock().now();
        let bucket = u32::try_from(bucket).unwrap_or(u32::MAX);
        let is_on = self.0.is_on.load(Ordering::Relaxed);
        is_on.then(|| IssuedCall { spans: self.clone(), bucket, issued: issued() })
    }

    /// Takes the calls that have ended.
    pub(crate) fn take(&self, mut visit: impl FnMut(CallSpan)) {
        for call in self.lock().drain(..) {
            visit(call);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<CallSpan>> {
        // A push within the capacity cannot panic, so a poisoned lock is sound.
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl IssuedCall {
    /// Runs the call and records when.
    pub(crate) fn run<R>(self, call: impl FnOnce() -> R) -> R {
        let Self { spans, bucket, issued } = self;
        let start = spans.0.world.clock().now();
        let result = call();
        let end = spans.0.world.clock().now();
        let mut calls = spans.lock();
        if calls.len() < MAX_CALLS {
            calls.push(CallSpan { bucket, issued, start, end });
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(spans: &CallSpans) -> Vec<CallSpan> {
        let mut found = Vec::new();
        spans.take(|call| found.push(call));
        found
    }

    #[test]
    fn calls_of_a_sampled_step_are_recorded_up_to_the_bound() {
        let spans = CallSpans::new(&lockstep_platform::real());
        assert!(spans.issue(3).is_none());
        spans.set_on(true);
        let issued = spans.issue(3).expect("it is on");
        spans.set_on(false);
        assert_eq!(issued.run(|| 7), 7, "an issued call is recorded whenever it runs");
        let [call] = taken(&spans)[..] else { panic!("one call") };
        assert!(call.bucket == 3 && call.issued <= call.start && call.start <= call.end);
        assert_eq!(taken(&spans), []);
        spans.set_on(true);
        for bucket in 0..MAX_CALLS + 2 {
            spans.issue(bucket).expect("it is on").run(|| ());
        }
        assert_eq!(taken(&spans).len(), MAX_CALLS);
    }
}
