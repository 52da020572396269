//! Communication beside computation: calls are started as soon as their data is there, and waited
//! for when their result is needed.
//!
//! What is measured is the time that a worker *waits*, the exposed communication: the rest was
//! hidden behind forward and backward. Switched off, every call is made at once and all of it is
//! exposed, which is what the gain is held against.

use lockstep_comm::{Comm, CommError, Handle, Label};
use lockstep_platform::World;
use lockstep_tensor::gemm::Precision;
use std::time::Duration;

/// Starts calls on a group and keeps the time that was waited for them.
pub struct Overlap {
    comm: Comm,
    control: Comm,
    world: World,
    is_on: bool,
    exposed: Duration,
    /// The step at work, for reports.
    step: u64,
    /// What gradients travel in.
    wire: Precision,
}

/// A call that was started, with the buffers that are in it.
pub enum Pending<B> {
    /// It is over.
    Done(B),
    /// It may still be running.
    Running(Handle<B>),
}

impl Overlap {
    /// For gradients and parameters that travel on `comm`, and the few numbers that steer a run
    /// on `control`, a group of the same workers: they must not wait for what is in flight, and
    /// what they weigh is not counted as the model's. Alone there is nothing to wait for, and
    /// every call is over at once.
    pub fn new(comm: Comm, control: Comm, world: World, is_on: bool) -> Self {
        let is_on = is_on && comm.group_size() > 1;
        Self { comm, control, world, is_on, exposed: Duration::ZERO, step: 0, wire: Precision::F32 }
    }

    /// The same with gradients that travel in another type; see [`crate::wire`].
    pub fn carrying(self, wire: Precision) -> Self {
        Self { wire, ..self }
    }

    /// What gradients travel in.
    pub fn wire(&self) -> Precision {
        self.wire
    }

    /// The group that gradients and parameters travel on.
    pub fn comm(&self) -> &Comm {
        &self.comm
    }

    /// The group of the few numbers that steer a run.
    pub fn control(&self) -> &Comm {
        &self.control
    }

    /// Says which step is at work, so that a call that fails can be told by its step and bucket.
    pub fn begin_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Starts calls on the buffers of a bucket.
    pub fn start<B: Send + 'static>(
        &mut self,
        bucket: usize,
        mut buffers: B,
        run: impl FnOnce(&Comm, &mut B) -> Result<(), CommError> + Send + 'static,
    ) -> Result<Pending<B>, CommError> {
        let comm = self.comm.about(Label::bucket(bucket, self.step));
        if self.is_on {
            return Ok(Pending::Running(comm.start(buffers, run)?));
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

    /// Makes a call on the group of control that is needed at once.
    pub fn call<R>(
        &mut self,
        run: impl FnOnce(&Comm) -> Result<R, CommError>,
    ) -> Result<R, CommError> {
        let start = self.world.clock().now();
        let result = run(&self.control.about(Label::step(self.step)));
        self.exposed += self.world.clock().since(start);
        result
    }

    /// The time waited since [`Self::take_exposed`].
    pub fn exposed(&self) -> Duration {
        self.exposed
    }

    /// Counts time that was waited elsewhere.
    pub fn add_exposed(&mut self, waited: Duration) {
        self.exposed += waited;
    }

    /// Goes over to another group of the same workers.
    pub fn replace_comm(&mut self, comm: Comm) -> Comm {
        std::mem::replace(&mut self.comm, comm)
    }

    /// The time waited since this was asked last.
    pub fn take_exposed(&mut self) -> Duration {
        std::mem::take(&mut self.exposed)
    }
}
