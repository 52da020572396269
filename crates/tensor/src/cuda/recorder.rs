//! Recorder of a profile: two events around each kernel, product and copy.
//!
//! Events are read at the end of the profile, so recording waits for nothing. Without a profile an
//! operation costs one more branch.

use super::driver::{Context, CudaEvent};
use crate::device::error::Result;
use crate::device::profile::{Operation, OperationTime, merge_times};
use std::mem::take;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Recorder of a device's operations.
pub(super) struct Recorder {
    context: Arc<Context>,
    is_on: AtomicBool,
    /// Bytes of the next kernel, where its caller counts them; else zero.
    bytes: AtomicU64,
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    spans: Vec<Span>,
    /// Events of earlier profiles.
    free: Vec<CudaEvent>,
}

/// One call, between its events.
struct Span {
    operation: Operation,
    bytes: Option<u64>,
    events: [CudaEvent; 2],
}

impl Recorder {
    pub(super) fn new(context: &Arc<Context>) -> Self {
        let context = Arc::clone(context);
        let (is_on, bytes) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { context, is_on, bytes, record: Mutex::default() }
    }

    /// Starts a profile.
    pub(super) fn start(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Whether a profile is recorded.
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Ends the profile, and waits for its operations.
    pub(super) fn take(&self) -> Result<Vec<OperationTime>> {
        self.is_on.store(false, Ordering::Relaxed);
        self.context.synchronize()?;
        let mut record = self.lock();
        let mut times = Vec::with_capacity(record.spans.len());
        for Span { operation, bytes, events: [start, end] } in take(&mut record.spans) {
            times.push(OperationTime { operation, calls: 1, seconds: start.until(&end)?, bytes });
            record.free.extend([start, end]);
        }
        Ok(merge_times(times))
    }

    /// Tells the fewest bytes that the next kernel can read and write: the floor of its time.
    pub(super) fn moves(&self, bytes: usize) {
        self.bytes.store(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes that a caller has counted for the kernel that is launched now.
    pub(super) fn take_bytes(&self) -> Option<u64> {
        Some(self.bytes.swap(0, Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// Calls `queue`, which queues an operation in the active context, and records it in a profile.
    pub(super) fn around<T>(
        &self,
        operation: impl FnOnce() -> (Operation, Option<u64>),
        queue: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if !self.is_on() {
            return queue();
        }
        // The lock is not held while `queue` runs: a download waits for the device there.
        let [start, end] = [self.event()?, self.event()?];
        start.record()?;
        let queued = queue()?;
        end.record()?;
        let ((operation, bytes), events) = (operation(), [start, end]);
        self.lock().spans.push(Span { operation, bytes, events });
        Ok(queued)
    }

    fn event(&self) -> Result<CudaEvent> {
        let free = self.lock().free.pop();
        free.map_or_else(|| CudaEvent::new(&self.context, 0), Ok)
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("no owner of the lock panics")
    }
}
