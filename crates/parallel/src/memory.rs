//! Flat buffers, where the other workers of the host can reach them if that helps.
//!
//! What workers exchange is allocated in the arena they share, so that nothing is copied on its
//! way; where no memory is shared, or nobody is there to share it with, it is ordinary memory.

use lockstep_comm::{ArenaBuffer, Comm, CommError, Element};
use std::ops::{Deref, DerefMut};

/// A buffer of fixed length.
#[derive(Debug)]
pub enum Buffer<T: Element> {
    /// In the arena.
    Shared(ArenaBuffer<T>),
    /// Of this worker only.
    Private(Vec<T>),
}

/// What weights, gradients and activations are kept in.
pub type Floats = Buffer<f32>;

impl<T: Element> Buffer<T> {
    /// `len` zeros that take part in calls on `comm`.
    pub fn exchanged(comm: &Comm, len: usize) -> Result<Self, CommError> {
        if comm.group_size() > 1 && comm.shares_memory() {
            Ok(Self::Shared(comm.allocate(len)?))
        } else {
            Ok(Self::private(len))
        }
    }

    /// `len` zeros that nobody else looks at.
    pub fn private(len: usize) -> Self {
        Self::Private(vec![T::from_small(0); len])
    }
}

impl<T: Element> Default for Buffer<T> {
    /// What is left in a place whose buffer is in a call.
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
