//! Memory, copies and events on a CUDA device.

use super::Cuda;
use super::commands::{Command, Direction};
use super::driver::{CudaEvent, DeviceMemory, PinnedMemory};
use super::fp8;
use super::launch::launch;
use super::programs::{Program, Source};
use super::staging::Staging;
use crate::device::error::{DeviceError, Result};
use crate::device::memory::{Event, Memory, MemoryInfo, NUM_COPY_STREAMS};
use crate::device::operands::check_rows;
use crate::device::profile::{Operation, OperationTime, Transfer};
use crate::device::view::{Buffer, Dtype, Place, View, ViewMut};
use crate::gemm::Precision;
use std::sync::atomic::Ordering;

impl Cuda {
    /// Copies memory of this device to the host, and waits for it.
    ///
    /// # Safety
    /// `bytes` must be writable at `to`, and at `from` be memory of this device.
    pub(super) unsafe fn download(&self, from: u64, to: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller guarantees both sides.
        self.staged(1, bytes, |staging| unsafe { staging.download(from, to, bytes) })
    }

    /// Calls `body` with the pinned memory of a direction. A failure releases it, which waits for
    /// its transfers, so that none of them meets a later use.
    fn staged(
        &self,
        direction: usize,
        bytes: usize,
        body: impl FnOnce(&mut Staging) -> Result<()>,
    ) -> Result<()> {
        self.interrupt()?;
        self.context.activate()?;
        let mut place = self.staging[direction].lock().expect("no copy panics");
        let mut staging = place.take().map_or_else(|| Staging::new(&self.context), Ok)?;
        let direction = [Transfer::ToDevice, Transfer::ToHost][direction];
        self.recorder
            .around(|| (Operation::Copy(direction), Some(bytes as u64)), || body(&mut staging))?;
        *place = Some(staging);
        Ok(())
    }
}

/// Name of the arithmetic of devices with a compute capability.
pub(super) fn class_name(precision: Precision, (major, minor): (i32, i32)) -> String {
    format!("{precision}-cuda-sm{major}{minor}")
}

impl Memory for Cuda {
    fn name(&self) -> String {
        format!("{} (cuda:{})", self.name, self.context.index)
    }

    fn kernel_class(&self, precision: Precision) -> String {
        class_name(precision, self.capability)
    }

    fn check_precision(&self, precision: Precision) -> Result<()> {
        fp8::check(precision, self.capability, self.blas.version)
    }

    fn memory(&self) -> Result<Option<MemoryInfo>> {
        self.context.memory_info().map(Some)
    }

    fn keep_failure(&self, error: DeviceError) {
        self.context.keep_failure(error);
    }

    fn allocate(&self, dtype: Dtype, len: usize) -> Result<Buffer> {
        let memory = DeviceMemory::new(&self.context, len * dtype.size())?;
        Ok(Buffer::new(Box::new(memory), dtype, len))
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>) -> Result<()> {
        assert_eq!(from.len(), to.len(), "as many elements on both sides");
        assert_eq!(from.dtype(), to.dtype(), "one type on both sides");
        if from.is_empty() {
            return Ok(());
        }
        let (bytes, dtype) = (from.num_bytes(), from.dtype());
        match (from.place(), to.as_view().place()) {
            (Place::Host, Place::Host) => {
                // SAFETY: both sides are host memory of this size; the target is borrowed alone.
                unsafe { std::ptr::copy_nonoverlapping(from.address(), to.address(), bytes) };
                Ok(())
            }
            (Place::Host, Place::Cuda(_)) => {
                let target = self.write(&to, dtype)?;
                // SAFETY: both sides have this size.
                self.staged(0, bytes, |staging| unsafe {
                    staging.upload(from.address(), target, bytes)
                })
            }
            (Place::Cuda(_), Place::Host) => {
                let source = self.read(&from, dtype)?;
                // SAFETY: both sides have this size.
                unsafe { self.download(source, to.address(), bytes) }
            }
            (Place::Cuda(_), Place::Cuda(_)) => {
                let (source, target) = (self.read(&from, dtype)?, self.write(&to, dtype)?);
                let operation = || (Operation::Copy(Transfer::Inside), Some(2 * bytes as u64));
                let copy = Command::Copy { from: source, to: target, bytes };
                // SAFETY: both sides have this size, on this device.
                unsafe { self.submit(copy, operation) }
            }
            (Place::Pinned, _) | (_, Place::Pinned) => {
                let reason = "pinned memory is copied beside the work only".to_owned();
                Err(DeviceError::Unsupported { operation: "copy", reason })
            }
        }
    }

    fn allocate_pinned(&self, dtype: Dtype, len: usize) -> Result<Buffer> {
        let memory = PinnedMemory::new(&self.context, (len * dtype.size()).max(1))?;
        Ok(Buffer::new(Box::new(memory), dtype, len))
    }

    fn copy_async(&self, copy_stream: usize, from: View<'_>, to: ViewMut<'_>) -> Result<()> {
        assert!(copy_stream < NUM_COPY_STREAMS, "copy stream {copy_stream}");
        assert_eq!(from.len(), to.len(), "as many elements on both sides");
        assert_eq!(from.dtype(), to.dtype(), "one type on both sides");
        if from.is_empty() {
            return Ok(());
        }
        let (bytes, dtype) = (from.num_bytes(), from.dtype());
        let (direction, device, host) = match (from.place(), to.as_view().place()) {
            (Place::Pinned, _) => (Direction::ToDevice, self.write(&to, dtype)?, from.address()),
            (_, Place::Pinned) => {
                (Direction::ToHost, self.read(&from, dtype)?, to.address().cast_const())
            }
            _ => {
                let reason = "neither side is pinned memory".to_owned();
                return Err(DeviceError::Unsupported { operation: "copy beside the work", reason });
            }
        };
        let host = host.expose_provenance();
        let copy = Command::CopyAsync { copy_stream, direction, device, host, bytes };
        // SAFETY: both sides have this size. Memory is released after all copies, and the host has
        // no slice of pinned memory.
        unsafe { self.submit_async(copy) }
    }

    fn wait_for_copies(&self, copy_stream: usize) -> Result<()> {
        assert!(copy_stream < NUM_COPY_STREAMS, "copy stream {copy_stream}");
        // SAFETY: a wait has no operands.
        unsafe { self.submit_async(Command::WaitForCopies { copy_stream }) }
    }

    fn copy_rows(
        &self,
        (rows, cols): (usize, usize),
        (from, from_stride): (View<'_>, usize),
        (to, to_stride): (ViewMut<'_>, usize),
    ) -> Result<()> {
        check_rows(from.len(), rows, cols, from_stride);
        check_rows(to.len(), rows, cols, to_stride);
        if rows * cols == 0 {
            return Ok(());
        }
        let (dtype, size) = (from.dtype(), from.dtype().size());
        let from = (self.read(&from, dtype)?, from_stride * size);
        let to = (self.write(&to, dtype)?, to_stride * size);
        let copy = Command::CopyRows { from, to, width: cols * size, rows };
        let bytes = Some(2 * (rows * cols * size) as u64);
        // SAFETY: the rows are inside both operands, which were checked.
        unsafe { self.submit(copy, || (Operation::Copy(Transfer::Rows), bytes)) }
    }

    fn fill(&self, to: ViewMut<'_>, value: f32) -> Result<()> {
        let (program, n) = (Program::new(Source::Pointwise, to.dtype()), to.len() as u64);
        let x = self.write(&to, to.dtype())?;
        if value.to_bits() == 0 && n > 0 {
            // SAFETY: the target has these bytes on this device.
            return unsafe { self.set_bytes(to.dtype(), x, 0, to.as_view().num_bytes()) };
        }
        launch!(self, program, "fill", self.over(to.len()), x, n, value)
    }

    fn synchronize(&self) -> Result<()> {
        self.interrupt()?;
        self.context.synchronize()
    }

    fn record(&self) -> Result<Event> {
        self.interrupt()?;
        let event = CudaEvent::new(&self.context, 0)?;
        event.record()?;
        Ok(Event(Some(Box::new(event))))
    }

    fn wait(&self, event: &Event) -> Result<()> {
        let Some(event) = of_cuda(event) else { return Ok(()) };
        self.interrupt()?;
        self.context.activate()?;
        // SAFETY: both handles are valid.
        let code =
            unsafe { (self.context.driver.stream_wait)(self.context.stream, event.handle, 0) };
        self.context.check("cuStreamWaitEvent", code)
    }

    fn wait_on_host(&self, event: &Event) -> Result<()> {
        let Some(event) = of_cuda(event) else { return Ok(()) };
        self.context.activate()?;
        event.synchronize()
    }

    fn seconds_between(&self, start: &Event, end: &Event) -> Result<Option<f64>> {
        let (Some(first), Some(second)) = (of_cuda(start), of_cuda(end)) else { return Ok(None) };
        self.wait_on_host(end)?;
        first.until(second).map(Some)
    }

    fn replay(&self, key: u64, body: &mut dyn FnMut()) -> Result<()> {
        self.run_section(key, body)
    }

    fn set_replay(&self, is_on: bool) {
        self.lock_replay().set(is_on);
    }

    fn num_replays(&self) -> u64 {
        self.num_launches.load(Ordering::Relaxed)
    }

    fn take_warning(&self) -> Option<String> {
        self.warning.lock().expect("no owner of the lock panics").take()
    }

    fn start_profile(&self) {
        self.recorder.start();
    }

    fn take_profile(&self) -> Result<Vec<OperationTime>> {
        self.recorder.take()
    }
}

/// The event of a CUDA device; those of a CPU are always done.
fn of_cuda(event: &Event) -> Option<&CudaEvent> {
    event.0.as_ref()?.downcast_ref()
}
