//! Buffers of a compressed exchange while a call transfers them.

use half::{bf16, f16};
use lockstep_comm::{Comm, CommError, Reduction};

/// Values of a bucket in the format of the wire.
pub(super) enum Wire {
    /// Values that ranks sum.
    F32(Vec<f32>),
    /// Rounded values that ranks sum.
    Bf16(Vec<bf16>),
    /// Rounded values that ranks sum.
    F16(Vec<f16>),
    /// This rank's message, and those of all ranks.
    Messages { own: Vec<u8>, all: Vec<u8> },
}

impl Wire {
    /// Makes the call: sums values, or gathers messages.
    pub(super) fn transfer(&mut self, comm: &Comm) -> Result<(), CommError> {
        match self {
            Self::F32(values) => comm.all_reduce(values, Reduction::Sum),
            Self::Bf16(values) => comm.all_reduce(values, Reduction::Sum),
            Self::F16(values) => comm.all_reduce(values, Reduction::Sum),
            Self::Messages { own, all } => {
                all.resize(own.len() * comm.group_size(), 0);
                comm.all_gather(own, all)
            }
        }
    }

    /// Bytes held.
    pub(super) fn num_bytes(&self) -> usize {
        match self {
            Self::F32(values) => size_of_val(values.as_slice()),
            Self::Bf16(values) => size_of_val(values.as_slice()),
            Self::F16(values) => size_of_val(values.as_slice()),
            Self::Messages { own, all } => own.len() + all.len(),
        }
    }

    /// # Panics
    /// If they are not of this format.
    pub(super) fn f32_mut(&mut self) -> &mut Vec<f32> {
        let Self::F32(values) = self else { unreachable!("the stage sums single precision") };
        values
    }
}
