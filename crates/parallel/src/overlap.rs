//! Overlap of communication and computation: calls start as soon as their data is ready and are
//! awaited when their result is needed.
//!
//! The time that a rank *waits* is the exposed communication; the rest is hidden behind forward and
//! backward. With overlap off every call is synchronous and fully exposed, which is the baseline of
//! the gain.

use crate::buffer::{self, Floats};
use crate::call_spans::CallSpans;
use lockstep_comm::{Comm, CommError, Handle, Label};
use lockstep_platform::World;
use lockstep_tensor::device::Device;
use lockstep_tensor::gemm::Precision;
use std::sync::Arc;
use std::time::Duration;

/// Starts calls on a group and measures exposed communication.
pub struct Overlap {
    comm: Comm,
    control: Comm,
    world: World,
    is_on: bool,
    exposed: Duration,
    /// Current step, for error reports.
    step: u64,
    /// Precision of gradients on the wire.
    wire: Precision,
    /// Accelerator of the buffers.
    accelerator: Option<Arc<dyn Device>>,
    /// Recorder of background calls, if there is one.
    calls: Option<CallSpans>,
}

/// A started call, with its buffers.
pub enum Pending<B> {
    /// Finished.
    Done(B),
    /// Possibly still running.
    Running(Handle<B>),
}

impl Overlap {
    /// Gradients and parameters use `comm`; the few numbers that steer a run use `control`, a group
    /// of the same ranks: they must not wait for calls in flight, and their bytes do not count as
    /// the model's. In a group of one every call finishes at once.
    pub fn new(comm: Comm, control: Comm, world: World, is_on: bool) -> Self {
        let is_on = is_on && comm.group_size() > 1;
        let (exposed, wire) = (Duration::ZERO, Precision::F32);
        Self { comm, control, world, is_on, exposed, step: 0, wire, accelerator: None, calls: None }
    }

    /// Puts buffers on an accelerator; calls use their copies in host memory.
    pub fn computing_on(self, accelerator: Option<Arc<dyn Device>>) -> Self {
        Self { accelerator, ..self }
    }

    /// Accelerator of the buffers.
    pub fn accelerator(&self) -> Option<&Arc<dyn Device>> {
        self.accelerator.as_ref()
    }

    /// Zeros for blocks, and for calls on the group.
    pub fn exchanged(&self, len: usize) -> Result<Floats, CommError> {
        buffer::exchanged(self.accelerator.as_ref(), &self.comm, len)
    }

    /// Zeros for blocks.
    pub fn private(&self, len: usize) -> Result<Floats, CommError> {
        Ok(Floats::zeros(self.accelerator.as_ref(), len)?)
    }

    /// Sets the wire precision of gradients; see [`crate::wire_precision`].
    pub fn carrying(self, wire: Precision) -> Self {
        Self { wire, ..self }
    }

    /// Precision of gradients on the wire.
    pub fn wire(&self) -> Precision {
        self.wire
    }

    /// Group of gradients and parameters.
    pub fn comm(&self) -> &Comm {
        &self.comm
    }

    /// Group of the control values.
    pub fn control(&self) -> &Comm {
        &self.control
    }

    /// Records the calls that run in the background while recording is on.
    pub fn record_calls(&mut self) {
        self.calls = Some(CallSpans::new(&self.world));
    }

    /// Recorder of background calls.
    pub(crate) fn calls(&self) -> Option<&CallSpans> {
        self.calls.as_ref()
    }

    /// Sets the current step, so that a failed call is reported with its step and bucket.
    pub fn begin_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Starts calls on the buffers of a bucket.
    pub fn start<B: Send + 'static>(
        &mut self,
        bucket: usize,
        buffers: B,
        run: impl FnOnce(&Comm, &mut B) -> Result<(), CommError> + Send + 'static,
    ) -> Result<Pending<B>, CommError> {
        let comm = self.comm.clone();
        self.start_on(&comm, bucket, buffers, run)
    }

    /// Starts calls of another group on the buffers of a bucket.
    pub fn start_on<B: Send + 'static>(
        &mut self,
        comm: &Comm,
        bucket: usize,
        mut buffers: B,
        run: impl FnOnce(&Comm, &mut B) -> Result<(), CommError> + Send + 'static,
    ) -> Result<Pending<B>, CommError> {
        let comm = comm.about(Label::bucket(bucket, self.step));
        if self.is_on {
            let issued = self.calls.as_ref().and_then(|calls| calls.issue(bucket));
            return Ok(Pending::Running(comm.start(
                buffers,
                move |comm, buffers| match issued {
                    Some(issued) => issued.run(|| run(comm, buffers)),
                    None => run(comm, buffers),
                },
            )?));
        }
        let start = self.world.clock().now();
        run(&comm, &mut buffers)?;
        self.exposed += self.world.clock().since(start);
        Ok(Pending::Done(buffers))
    }

    /// Waits for a call and returns its buffers.
    pub fn finish<B>(&mut self, pending: Pending<B>) -> Result<B, CommError> {
        match pending {
            Pending::Done(buffers) => Ok(buffers),
            Pending::Running(handle) => {
                let start = self.world.clock().now();
                let buffers = handle.finish();
                self.exposed += self.world.clock().since(start);
                buffers
            }
        }
    }

    /// Runs a call on the control group and waits for it.
    pub fn call<R>(
        &mut self,
        run: impl FnOnce(&Comm) -> Result<R, CommError>,
    ) -> Result<R, CommError> {
        let control = self.control.clone();
        self.call_on(&control, run)
    }

    /// Runs a call on another group and waits for it.
    pub fn call_on<R>(
        &mut self,
        comm: &Comm,
        run: impl FnOnce(&Comm) -> Result<R, CommError>,
    ) -> Result<R, CommError> {
        let start = self.world.clock().now();
        let result = run(&comm.about(Label::step(self.step)));
        self.exposed += self.world.clock().since(start);
        result
    }

    /// Exposed communication time since [`Self::take_exposed`].
    pub fn exposed(&self) -> Duration {
        self.exposed
    }

    /// Adds time waited outside this type.
    pub fn add_exposed(&mut self, waited: Duration) {
        self.exposed += waited;
    }

    /// Replaces the group by another of the same ranks.
    pub fn replace_comm(&mut self, comm: Comm) -> Comm {
        std::mem::replace(&mut self.comm, comm)
    }

    /// Exposed communication time since the last call.
    pub fn take_exposed(&mut self) -> Duration {
        std::mem::take(&mut self.exposed)
    }
}
