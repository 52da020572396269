//! Reduction kernels: several sources, one order of additions, several targets, one pass.
//!
//! A direct all-reduce is memory-bound, so a kernel reads every source once and writes every target
//! once: for two ranks, two loads and two stores per element. The order of the additions is the
//! tree that the schedule states, for every instruction set, so the bits of a sum do not depend on
//! where or how it is computed.
//!
//! - `order`: the tree as a list of steps
//! - `vector`: sixteen elements of a type
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

/// Dispatches on a run-time element type: the first expression for floating point, the second for
/// integers.
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

/// A reduction of windows of equal length.
pub(crate) struct Job<'a> {
    /// The operation.
    pub(crate) reduction: Reduction,
    /// Divisor of the result, for means.
    pub(crate) divide_by: Option<usize>,
    /// Order of the sources.
    pub(crate) order: &'a Order,
    /// Memory to read.
    pub(crate) sources: &'a [Source<'a, u8>],
    /// Memory to write; may be among the sources.
    pub(crate) targets: &'a [Target<'a, u8>],
}

/// Runs a reduction of elements of a run-time type.
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
