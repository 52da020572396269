//! Point-to-point messages between pipeline stages: activations forward, gradients backward.
//!
//! A send does not block the stage: the data is copied into one of a few buffers and sent in the
//! background, and only when all buffers are in flight does the stage wait for the oldest. A
//! receive waits for its message. The tag of a message is its stage boundary and direction, and
//! messages with one tag arrive in order; [`lockstep_schedule::pipeline::verify`] proves that so
//! few buffers cannot deadlock.

use lockstep_comm::{Comm, CommError, Counters, Handle, Label};
use lockstep_platform::World;
use lockstep_schedule::pipeline::NUM_SEND_BUFFERS;
use std::collections::VecDeque;
use std::time::Duration;

/// A rank's connection to the other ranks of its pipeline.
pub struct Link {
    comm: Comm,
    world: World,
    in_flight: VecDeque<Handle<Vec<f32>>>,
    free: Vec<Vec<f32>>,
    len: usize,
    /// Current step, for error reports.
    step: u64,
    exposed: Duration,
}

/// Direction of a message across a stage boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// An activation, to the next stage.
    Forward,
    /// A gradient, to the previous stage.
    Backward,
}

/// Identity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageMessage {
    /// Stage in front of the boundary.
    pub boundary: usize,
    /// Direction.
    pub direction: Direction,
    /// Micro-batch.
    pub microbatch: usize,
}

impl Link {
    /// A link on the pipeline group, for messages of up to `len` elements.
    pub fn new(comm: Comm, world: World, len: usize) -> Self {
        let free = (0..Self::num_buffers(comm.group_size())).map(|_| Vec::with_capacity(len));
        Self {
            free: free.collect(),
            in_flight: VecDeque::with_capacity(NUM_SEND_BUFFERS),
            comm,
            world,
            len,
            step: 0,
            exposed: Duration::ZERO,
        }
    }

    const fn num_buffers(num_devices: usize) -> usize {
        if num_devices > 1 { NUM_SEND_BUFFERS } else { 0 }
    }

    /// Number of elements that a pipeline rank needs for messages of `len` elements.
    pub const fn planned_len(num_devices: usize, len: usize) -> usize {
        Self::num_buffers(num_devices) * len
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        Self::planned_len(self.comm.group_size(), self.len)
    }

    /// Sets the current step.
    pub fn begin_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Starts a send to a pipeline rank.
    pub fn send(
        &mut self,
        to: usize,
        message: StageMessage,
        data: &[f32],
    ) -> Result<(), CommError> {
        assert!(data.len() <= self.len, "the buffers are for this");
        let mut buffer = match self.free.pop() {
            Some(buffer) => buffer,
            None => self.finish_oldest()?,
        };
        buffer.clear();
        buffer.extend_from_slice(data);
        let comm = self.about(message);
        let handle = comm.start_send::<f32, _>(buffer, to, message.tag())?;
        self.in_flight.push_back(handle);
        Ok(())
    }

    /// Receives from a pipeline rank.
    pub fn recv(
        &mut self,
        from: usize,
        message: StageMessage,
        data: &mut [f32],
    ) -> Result<(), CommError> {
        let comm = self.about(message);
        self.timed(|_| comm.recv(data, from, message.tag()))
    }

    /// Waits for all sends.
    pub fn settle(&mut self) -> Result<(), CommError> {
        while !self.in_flight.is_empty() {
            let buffer = self.finish_oldest()?;
            self.free.push(buffer);
        }
        Ok(())
    }

    /// Calls, and bytes sent and received.
    pub fn counters(&self) -> Counters {
        self.comm.counters()
    }

    /// Exposed communication time since [`Self::take_exposed`].
    pub const fn exposed(&self) -> Duration {
        self.exposed
    }

    /// Exposed communication time since the last call.
    pub fn take_exposed(&mut self) -> Duration {
        std::mem::take(&mut self.exposed)
    }

    /// Runs a call on the pipeline group and waits for it.
    pub fn call<R>(
        &mut self,
        run: impl FnOnce(&Comm) -> Result<R, CommError>,
    ) -> Result<R, CommError> {
        let comm = self.comm.about(Label::step(self.step));
        self.timed(|_| run(&comm))
    }

    fn about(&self, message: StageMessage) -> Comm {
        self.comm.about(Label::microbatch(message.microbatch, self.step))
    }

    fn finish_oldest(&mut self) -> Result<Vec<f32>, CommError> {
        let oldest = self.in_flight.pop_front().expect("a buffer is free or in flight");
        self.timed(|_| oldest.finish())
    }

    fn timed<R>(&mut self, run: impl FnOnce(&Self) -> R) -> R {
        let start = self.world.clock().now();
        let result = run(self);
        self.exposed += self.world.clock().since(start);
        result
    }
}

impl StageMessage {
    /// Tag of all messages across a boundary in one direction.
    fn tag(self) -> u64 {
        2 * self.boundary as u64 + u64::from(self.direction == Direction::Backward)
    }
}
