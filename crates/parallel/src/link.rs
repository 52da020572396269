//! Messages between the stages of a pipeline: activations go on, gradients come back.
//!
//! A send does not hold up the stage: what is sent is copied into one of a few buffers and leaves
//! in the background, and only where all of them are on their way does the stage wait for the
//! oldest. A receive waits for its message. Messages have the number of the boundary that they
//! cross and their direction as their tag, and those with one tag arrive in the order in which they
//! were sent; that nobody waits for ever, with so few buffers, is what
//! [`lockstep_schedule::pipeline::verify`] proves.

use lockstep_comm::{Comm, CommError, Handle, Label, Traffic};
use lockstep_platform::World;
use lockstep_schedule::pipeline::NUM_SEND_BUFFERS;
use std::collections::VecDeque;
use std::time::Duration;

/// One worker's wires to the other devices of its pipeline.
pub struct Link {
    comm: Comm,
    world: World,
    on_their_way: VecDeque<Handle<Vec<f32>>>,
    free: Vec<Vec<f32>>,
    len: usize,
    /// The step at work, for reports.
    step: u64,
    exposed: Duration,
}

/// Which way a message goes across a boundary between two stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// An activation, to the stage behind.
    On,
    /// A gradient, to the stage in front.
    Back,
}

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// Behind which stage the boundary lies.
    pub boundary: usize,
    /// Which way.
    pub way: Way,
    /// Of which microbatch.
    pub microbatch: usize,
}

impl Link {
    /// Wires on the group of a pipeline, for messages of up to `len` elements.
    pub fn new(comm: Comm, world: World, len: usize) -> Self {
        let free = (0..Self::num_buffers(comm.group_size())).map(|_| Vec::with_capacity(len));
        Self {
            free: free.collect(),
            on_their_way: VecDeque::with_capacity(NUM_SEND_BUFFERS),
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

    /// Number of elements that a device of a pipeline needs for messages of `len` elements.
    pub const fn planned_len(num_devices: usize, len: usize) -> usize {
        Self::num_buffers(num_devices) * len
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        Self::planned_len(self.comm.group_size(), self.len)
    }

    /// Says which step is at work.
    pub fn begin_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Starts to send to a device.
    pub fn send(&mut self, to: usize, parcel: Parcel, data: &[f32]) -> Result<(), CommError> {
        assert!(data.len() <= self.len, "the buffers are for this");
        let mut buffer = match self.free.pop() {
            Some(buffer) => buffer,
            None => self.finish_oldest()?,
        };
        buffer.clear();
        buffer.extend_from_slice(data);
        let comm = self.about(parcel);
        let handle = comm.start_send::<f32, _>(buffer, to, parcel.tag())?;
        self.on_their_way.push_back(handle);
        Ok(())
    }

    /// Receives from a device.
    pub fn recv(&mut self, from: usize, parcel: Parcel, data: &mut [f32]) -> Result<(), CommError> {
        let comm = self.about(parcel);
        self.timed(|_| comm.recv(data, from, parcel.tag()))
    }

    /// Waits until all that was sent has arrived.
    pub fn settle(&mut self) -> Result<(), CommError> {
        while !self.on_their_way.is_empty() {
            let buffer = self.finish_oldest()?;
            self.free.push(buffer);
        }
        Ok(())
    }

    /// What has passed over these wires.
    pub fn traffic(&self) -> Traffic {
        self.comm.counters().total().traffic
    }

    /// The time waited since this was asked last.
    pub fn take_exposed(&mut self) -> Duration {
        std::mem::take(&mut self.exposed)
    }

    /// Makes a call on the group, and waits for it.
    pub fn call<R>(
        &mut self,
        run: impl FnOnce(&Comm) -> Result<R, CommError>,
    ) -> Result<R, CommError> {
        let comm = self.comm.about(Label::step(self.step));
        self.timed(|_| run(&comm))
    }

    fn about(&self, parcel: Parcel) -> Comm {
        self.comm.about(Label::microbatch(parcel.microbatch, self.step))
    }

    fn finish_oldest(&mut self) -> Result<Vec<f32>, CommError> {
        let oldest = self.on_their_way.pop_front().expect("a buffer is free or on its way");
        self.timed(|_| oldest.finish())
    }

    fn timed<R>(&mut self, run: impl FnOnce(&Self) -> R) -> R {
        let start = self.world.clock().now();
        let result = run(self);
        self.exposed += self.world.clock().since(start);
        result
    }
}

impl Parcel {
    /// The same number for all messages across a boundary in one direction.
    fn tag(self) -> u64 {
        2 * self.boundary as u64 + u64::from(self.way == Way::Back)
    }
}
