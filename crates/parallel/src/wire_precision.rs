//! Gradients in two-byte floats on the wire.
//!
//! Every sum of the reduction tree, the leaves included, is rounded to the wire type, also where it
//! stays on one rank, because another layout would send it. Two rounded sums are widened, added in
//! `f32` and rounded again, by `comm` on the wire and by the trees here. So sending loses nothing
//! more, and all layouts have the bits of one rank.
//!
//! Sums stay `f32` in memory; the buffer that is sent is a copy of half the size.

use crate::buffer::Buffer;
use half::{bf16, f16};
use lockstep_comm::{Comm, CommError, Element, Reduction};
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::{Cpu, convert, reduce};

/// Rounded sums in a buffer of their own.
#[derive(Debug)]
pub enum RoundedBuffer {
    /// `bf16`.
    Bf16(Buffer<bf16>),
    /// IEEE half precision.
    F16(Buffer<f16>),
}

impl RoundedBuffer {
    /// Buffer of `len` numbers; `None` with an `f32` wire.
    pub fn new(wire: Precision, comm: &Comm, len: usize) -> Result<Option<Self>, CommError> {
        Ok(match wire {
            Precision::F32 => None,
            Precision::Bf16 => Some(Self::Bf16(exchanged(comm, len)?)),
            Precision::F16 => Some(Self::F16(exchanged(comm, len)?)),
            Precision::Fp8 => unreachable!("gradients are not sent in fp8"),
        })
    }

    /// Memory of `len` numbers in `f32` elements.
    pub const fn num_floats(len: usize) -> usize {
        len.div_ceil(2)
    }

    /// Memory of this buffer in `f32` elements.
    pub fn held(&self) -> usize {
        Self::num_floats(match self {
            Self::Bf16(buffer) => buffer.len(),
            Self::F16(buffer) => buffer.len(),
        })
    }

    /// Rounds numbers into the front of the buffer.
    pub fn round(&mut self, cpu: &Cpu, from: &[f32]) {
        match self {
            Self::Bf16(buffer) => convert::to_bf16(cpu, from, &mut buffer[..from.len()]),
            Self::F16(buffer) => convert::to_f16(cpu, from, &mut buffer[..from.len()]),
        };
    }

    /// Widens numbers from the front of the buffer.
    pub fn widen(&self, cpu: &Cpu, to: &mut [f32]) {
        match self {
            Self::Bf16(buffer) => convert::from_bf16(cpu, &buffer[..to.len()], to),
            Self::F16(buffer) => convert::from_f16(cpu, &buffer[..to.len()], to),
        }
    }

    /// All-reduces the first `len` numbers.
    pub fn all_reduce(&mut self, comm: &Comm, len: usize) -> Result<(), CommError> {
        match self {
            Self::Bf16(buffer) => comm.all_reduce(&mut buffer[..len], Reduction::Sum),
            Self::F16(buffer) => comm.all_reduce(&mut buffer[..len], Reduction::Sum),
        }
    }

    /// Reduce-scatters the first `len` numbers.
    pub fn reduce_scatter(
        &mut self,
        comm: &Comm,
        len: usize,
        parts: &[usize],
    ) -> Result<(), CommError> {
        let sum = Reduction::Sum;
        match self {
            Self::Bf16(buffer) => comm.reduce_scatter_parts(&mut buffer[..len], parts, sum),
            Self::F16(buffer) => comm.reduce_scatter_parts(&mut buffer[..len], parts, sum),
        }
    }

    /// Exchanges numbers as in [`Comm::all_to_all_parts`], into `incoming`.
    pub fn all_to_all(
        &self,
        comm: &Comm,
        (num_sent, num_received): (usize, usize),
        lens: &[usize],
        incoming: &mut Self,
    ) -> Result<(), CommError> {
        match (self, incoming) {
            (Self::Bf16(from), Self::Bf16(to)) => {
                comm.all_to_all_parts(&from[..num_sent], lens, &mut to[..num_received])
            }
            (Self::F16(from), Self::F16(to)) => {
                comm.all_to_all_parts(&from[..num_sent], lens, &mut to[..num_received])
            }
            _ => unreachable!("both buffers have the wire type"),
        }
    }
}

/// A buffer for collectives, empty if `len` is zero.
fn exchanged<T: Element>(comm: &Comm, len: usize) -> Result<Buffer<T>, CommError> {
    if len == 0 { Ok(Buffer::default()) } else { Buffer::exchanged(comm, len) }
}

/// Rounds in place.
pub(crate) fn round(cpu: &Cpu, wire: Precision, sum: &mut [f32]) {
    if wire != Precision::F32 {
        convert::scale(cpu, sum, 1.0, wire);
    }
}

/// `left = left + right`, rounded.
pub(crate) fn add(cpu: &Cpu, wire: Precision, left: &mut [f32], right: &[f32]) {
    reduce::add_assign(cpu, left, right);
    round(cpu, wire, left);
}
