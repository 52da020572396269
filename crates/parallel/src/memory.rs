//! Flat buffers of `f32`, where the other workers of the host can reach them if that helps.
//!
//! What workers exchange is allocated in the arena they share, so that nothing is copied on its
//! way; where no memory is shared, or nobody is there to share it with, it is ordinary memory.

use lockstep_comm::{ArenaBuffer, Comm, CommError};
use std::ops::{Deref, DerefMut};

/// A buffer of fixed length.
#[derive(Debug)]
pub enum Floats {
    /// In the arena.
    Shared(ArenaBuffer<f32>),
    /// Of this worker only.
    Private(Vec<f32>),
}

impl Floats {
    /// `len` zeros that take part in calls on `comm`.
    pub fn exchanged(comm: &Comm, len: usize) -> Result<Self, CommError> {
        if comm.num_members() > 1 && comm.shares_memory() {
            Ok(Self::Shared(comm.allocate(len)?))
        } else {
            Ok(Self::private(len))
        }
    }

    /// `len` zeros that nobody else looks at.
    pub fn private(len: usize) -> Self {
        Self::Private(vec![0.0; len])
    }
}

impl Default for Floats {
    /// What is left in a place whose buffer is in a call.
    fn default() -> Self {
        Self::Private(Vec::new())
    }
}

impl Deref for Floats {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        match self {
            Self::Shared(buffer) => buffer,
            Self::Private(buffer) => buffer,
        }
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Shared(buffer) => buffer,
            Self::Private(buffer) => buffer,
        }
    }
}
