//! Memory of a device, and the order of its work.

use super::error::{DeviceError, Result};
use super::profile::OperationTime;
use super::view::{Buffer, Dtype, View, ViewMut};
use crate::gemm::Precision;
use std::any::Any;

/// Number of copy streams of a device.
pub const NUM_COPY_STREAMS: usize = 2;

/// A point in the order of a device's work.
#[derive(Debug)]
pub struct Event(pub(crate) Option<Box<dyn Any + Send + Sync>>);

/// Memory of a device in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Not allocated.
    pub free: usize,
    /// All of it.
    pub total: usize,
    /// The most that this device's buffers had at a time.
    pub peak: usize,
}

/// Allocations, copies and events.
pub trait Memory: Send + Sync {
    /// Name for people.
    fn name(&self) -> String;

    /// Name of the arithmetic: runs of one class give equal bits.
    fn kernel_class(&self, precision: Precision) -> String;

    /// Whether the device has products in a precision; the error says what it lacks.
    fn check_precision(&self, precision: Precision) -> Result<()>;

    /// Memory of the device; `None` where it is that of the host.
    fn memory(&self) -> Result<Option<MemoryInfo>>;

    /// Keeps a failure that could not be returned: every later operation returns it.
    fn keep_failure(&self, error: DeviceError);

    /// Allocates zeroed memory.
    fn allocate(&self, dtype: Dtype, len: usize) -> Result<Buffer>;

    /// Copies all elements; either side may be in host memory.
    fn copy(&self, from: View<'_>, to: ViewMut<'_>) -> Result<()>;

    /// Allocates host memory for [`Self::copy_async`], which alone reads and writes it. Its
    /// elements are undefined until a copy sets them.
    fn allocate_pinned(&self, dtype: Dtype, len: usize) -> Result<Buffer> {
        self.allocate(dtype, len)
    }

    /// Queues a copy between memory of this device and memory of [`Self::allocate_pinned`] on a
    /// copy stream: it starts when the work before this call is done, and runs beside the work
    /// after it. Until [`Self::wait_for_copies`] that work must not write the source, nor use the
    /// target.
    ///
    /// # Panics
    /// When there are not so many copy streams ([`NUM_COPY_STREAMS`]).
    fn copy_async(&self, copy_stream: usize, from: View<'_>, to: ViewMut<'_>) -> Result<()> {
        assert!(copy_stream < NUM_COPY_STREAMS, "copy stream {copy_stream}");
        self.copy(from, to)
    }

    /// Lets work after this call start only when the copies of a stream are done. Needed in the
    /// section of the copies ([`Self::replay`]), and only where there are some.
    fn wait_for_copies(&self, copy_stream: usize) -> Result<()> {
        assert!(copy_stream < NUM_COPY_STREAMS, "copy stream {copy_stream}");
        Ok(())
    }

    /// Copies `rows` rows of `cols` elements between buffers of this device with these distances
    /// between rows.
    fn copy_rows(
        &self,
        shape: (usize, usize),
        from: (View<'_>, usize),
        to: (ViewMut<'_>, usize),
    ) -> Result<()>;

    /// Sets every element of a buffer of floats.
    fn fill(&self, to: ViewMut<'_>, value: f32) -> Result<()>;

    /// Waits for all work.
    fn synchronize(&self) -> Result<()>;

    /// Marks the current end of the work.
    fn record(&self) -> Result<Event>;

    /// Lets work after this call start only when that before the event is done.
    fn wait(&self, event: &Event) -> Result<()>;

    /// Waits on the host until the work before the event is done.
    fn wait_on_host(&self, event: &Event) -> Result<()>;

    /// Seconds between two events, where the device measures them; waits for the second.
    fn seconds_between(&self, start: &Event, end: &Event) -> Result<Option<f64>>;

    /// Calls `body` once, which queues operations. Where the device can, those of a later call with
    /// the same key are queued at once, if they are exactly the operations and operands of an
    /// earlier call; `body` runs in any case. Buffers that `body` uses must not be released in it.
    fn replay(&self, _key: u64, body: &mut dyn FnMut()) -> Result<()> {
        body();
        Ok(())
    }

    /// Sets whether [`Self::replay`] queues operations at once, where the device can.
    fn set_replay(&self, _is_on: bool) {}

    /// Number of calls of [`Self::replay`] whose operations were queued at once.
    fn num_replays(&self) -> u64 {
        0
    }

    /// Takes what the user should know about the device, once.
    fn take_warning(&self) -> Option<String> {
        None
    }

    /// Starts to record the time of every operation, where the device can.
    fn start_profile(&self) {}

    /// Ends the record and returns the time of every operation since its start, the longest first;
    /// waits for them. Empty where the device records nothing.
    fn take_profile(&self) -> Result<Vec<OperationTime>> {
        Ok(Vec::new())
    }
}
