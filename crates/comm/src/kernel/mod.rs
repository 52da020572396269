//! The arithmetic of reductions: several sources, one order, several targets, one sweep.
//!
//! A direct all-reduce is bound by memory, so a kernel reads every source once and writes every
//! target once: for two ranks, two loads and two stores an element. The order of the additions is
//! the tree that the schedule states, whatever the instruction set, so the result is the same to
//! the bit wherever and however the sum is computed.
//!
//! - `order`: the tree as steps
//! - `vector`: the elements of a type, sixteen at a time
//! - `sweep`: the loops

mod order;
mod sweep;
mod vector;

use half::{bf16, f16};
use lockstep_platform::{Source, Target};
use lockstep_tensor::Isa;
use lockstep_tensor::simd::dispatch;

use crate::element::{Dtype, Reduction};
pub(crate) use order::Order;
use sweep::{Divide, Sweep};

/// Runs one of two expressions with a type parameter for a type that is known at run time: the
/// first for floating point, the second for integers.
macro_rules! with_type {
    ($dtype:expr, $T:ident => $float:expr, $integer:expr) => {
        match $dtype {
            Dtype::F32 => with_type!(@ $T, f32, $float),
            Dtype::F64 => with_type!(@ $T, f64, $float),
            Dtype::Bf16 => with_type!(@ $T, bf16, $float),
            Dtype::F16 => with_type!(@ $T, f16, $float),
            Dtype::I8 => with_type!(@ $T, i8, $integer),
            Dtype::I16 => with_type!(@ $T, i16, $integer),
            Dtype::I32 => with_type!(@ $T, i32, $integer),
            Dtype::I64 => with_type!(@ $T, i64, $integer),
            Dtype::U8 => with_type!(@ $T, u8, $integer),
            Dtype::U16 => with_type!(@ $T, u16, $integer),
            Dtype::U32 => with_type!(@ $T, u32, $integer),
            Dtype::U64 => with_type!(@ $T, u64, $integer),
        }
    };
    (@ $T:ident, $type:ty, $body:expr) => {{
        type $T = $type;
        $body
    }};
}

/// A reduction of whole windows, which all have the same length.
pub(crate) struct Job<'a> {
    /// What becomes of two values.
    pub(crate) reduction: Reduction,
    /// What the result is divided by before it is stored.
    pub(crate) divide_by: Option<usize>,
    /// Which sources, in which order.
    pub(crate) order: &'a Order,
    /// What is read.
    pub(crate) sources: &'a [Source<'a, u8>],
    /// What is written; may be among the sources.
    pub(crate) targets: &'a [Target<'a, u8>],
}

/// Runs a reduction of elements of a type.
pub(crate) fn reduce(isa: Isa, dtype: Dtype, job: &Job<'_>) {
    with_type!(dtype, T =>
        dispatch(isa, Sweep::<T>::new(job)),
        Sweep::<T>::new(job).run_portable());
}

/// Divides every element of a window.
pub(crate) fn divide(isa: Isa, dtype: Dtype, window: Target<'_, u8>, by: usize) {
    with_type!(dtype, T =>
        dispatch(isa, Divide::<T>::new(window, by)),
        Divide::<T>::new(window, by).run_portable());
}

#[cfg(test)]
mod tests;
