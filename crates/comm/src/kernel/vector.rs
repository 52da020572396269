//! Vectors of sixteen elements.
//!
//! For `f32` that is a vector of the instruction set `S`; for the other types an array, whose loops
//! the compiler vectorizes with the instruction set of the kernel they are inlined into. They are
//! plain loops because closures are not always inlined: `array::from_fn` was a call per sixteen
//! `f16`, without vector instructions.

use half::{bf16, f16};
use lockstep_tensor::simd::{Simd, VECTOR_LEN};

use crate::element::{Element, Reduction};

/// Sixteen elements.
pub(super) type Group<T> = [T; VECTOR_LEN];

/// Operations of kernels on sixteen elements under the instruction set `S`.
pub(super) trait Vector<S>: Element {
    /// Sixteen elements in registers.
    type V: Copy;
    fn load(s: S, group: Group<Self>) -> Self::V;
    fn store(s: S, vector: Self::V) -> Group<Self>;
    fn combine(s: S, reduction: Reduction, a: Self::V, b: Self::V) -> Self::V;
    fn divide_all(s: S, a: Self::V, by: usize) -> Self::V;
}

impl<S: Simd> Vector<S> for f32 {
    type V = S::V;

    #[inline(always)]
    fn load(s: S, group: Group<Self>) -> S::V {
        s.load(&group)
    }
    #[inline(always)]
    fn store(s: S, vector: S::V) -> Group<Self> {
        s.to_array(vector)
    }
    #[inline(always)]
    fn combine(s: S, reduction: Reduction, a: S::V, b: S::V) -> S::V {
        match reduction {
            Reduction::Sum | Reduction::Mean => s.add(a, b),
            Reduction::Max => s.max(a, b),
            Reduction::Min => s.min(a, b),
        }
    }
    #[inline(always)]
    fn divide_all(s: S, a: S::V, by: usize) -> S::V {
        s.div(a, s.splat(by as Self))
    }
}

macro_rules! array_vector {
    ($($t:ty),*) => { $(
        impl<S> Vector<S> for $t {
            type V = Group<$t>;

            #[inline(always)]
            fn load(_: S, group: Group<Self>) -> Group<Self> {
                group
            }
            #[inline(always)]
            fn store(_: S, vector: Group<Self>) -> Group<Self> {
                vector
            }
            #[inline(always)]
            fn combine(_: S, reduction: Reduction, a: Group<Self>, b: Group<Self>) -> Group<Self> {
                let mut result = a;
                match reduction {
                    Reduction::Sum | Reduction::Mean => {
                        for i in 0..VECTOR_LEN {
                            result[i] = Element::add(a[i], b[i]);
                        }
                    }
                    Reduction::Max => {
                        for i in 0..VECTOR_LEN {
                            result[i] = Element::max(a[i], b[i]);
                        }
                    }
                    Reduction::Min => {
                        for i in 0..VECTOR_LEN {
                            result[i] = Element::min(a[i], b[i]);
                        }
                    }
                }
                result
            }
            #[inline(always)]
            fn divide_all(_: S, a: Group<Self>, by: usize) -> Group<Self> {
                let mut result = a;
                for x in &mut result {
                    *x = Element::divide(*x, by);
                }
                result
            }
        }
    )* };
}
array_vector!(f64, bf16, f16, i8, i16, i32, i64, u8, u16, u32, u64);
