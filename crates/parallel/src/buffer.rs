//! Flat buffers, in shared memory where other ranks of the host can read them.
//!
//! Buffers of collectives are allocated in the arena that the ranks of a host share, so that
//! collectives copy nothing; without shared memory, or in a group of one, they are ordinary memory.
//! [`Floats`] are on the accelerator of the rank, if it has one, and collectives use their copy.

use lockstep_comm::{ArenaBuffer, Comm, CommError, Element};
use lockstep_tensor::device::{Device, DualBuffer, HostCopy};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A buffer of fixed length in host memory.
#[derive(Debug)]
pub enum Buffer<T: Element> {
    /// In the shared arena.
    Shared(ArenaBuffer<T>),
    /// In private memory.
    Private(Vec<T>),
}

/// Buffer of weights, gradients or activations.
pub type Floats = DualBuffer<Buffer<f32>>;

/// `len` zeros for blocks, and for collectives on `comm`.
pub fn exchanged(
    accelerator: Option<&Arc<dyn Device>>,
    comm: &Comm,
    len: usize,
) -> Result<Floats, CommError> {
    if accelerator.is_some() && !is_shared(comm) {
        // A copy in private memory is allocated when it is used.
        return Ok(Floats::zeros(accelerator, len)?);
    }
    Ok(Floats::zeros_in(accelerator, Buffer::exchanged(comm, len)?)?)
}

/// Whether ranks of the group can read each other's buffers.
fn is_shared(comm: &Comm) -> bool {
    comm.group_size() > 1 && comm.shares_memory()
}

impl<T: Element> Buffer<T> {
    /// `len` zeros for collectives on `comm`.
    pub fn exchanged(comm: &Comm, len: usize) -> Result<Self, CommError> {
        if is_shared(comm) { Ok(Self::Shared(comm.allocate(len)?)) } else { Ok(Self::private(len)) }
    }

    /// `len` zeros in private memory.
    pub fn private(len: usize) -> Self {
        Self::Private(vec![T::from_small(0); len])
    }
}

impl HostCopy for Buffer<f32> {
    fn zeros(len: usize) -> Self {
        Self::private(len)
    }
}

impl<T: Element> Default for Buffer<T> {
    /// An empty buffer, in place of one that is lent to a call.
    fn default() -> Self {
        Self::Private(Vec::new())
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Self::Shared(buffer) => buffer,
            Self::Private(buffer) => buffer,
        }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Shared(buffer) => buffer,
            Self::Private(buffer) => buffer,
        }
    }
}
