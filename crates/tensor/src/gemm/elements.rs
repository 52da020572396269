//! What an operand is stored as, and what it is rounded to before it is multiplied.
//!
//! The two are apart: weights may lie in memory as `f32` masters or as the bf16 that came over the
//! network, and a product in bf16 rounds the former and takes the latter as it is. Both happen
//! while the operand is packed, so there is no pass over memory for it.

use crate::simd::{VECTOR_LEN, Simd, widen_bf16};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::fmt;

/// What products compute in; sums are always `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Operands as they are.
    F32,
    /// Operands rounded to bf16; on the CPU's matrix units where it has them, with the same bits
    /// where it has not.
    Bf16,
    /// Operands rounded to `f16`, widened again and multiplied as `f32`.
    F16,
}

impl Precision {
    /// The arithmetic by name: runs of one class give the same bits on every machine.
    ///
    /// bf16 has one class, not one for each kind of CPU: without matrix units the same operations
    /// are done in the same order by the vector units.
    pub fn kernel_class(self) -> &'static str {
        match self {
            Self::F32 => "f32-fma",
            Self::Bf16 => "bf16-amx",
            Self::F16 => "f16-fma",
        }
    }

    /// Whether a product over `k` that is added to its target is one number before it is, as if it
    /// had been stored and added afterwards.
    pub const fn fuses(self, k: usize) -> bool {
        match self {
            Self::F32 | Self::F16 => k <= super::K_BLOCK,
            Self::Bf16 => k <= super::tiles::STEP,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

/// The elements of a matrix as they lie in memory.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// Four bytes each.
    F32(&'a [f32]),
    /// The upper two bytes of an `f32` each.
    Bf16(&'a [bf16]),
    /// IEEE half precision.
    F16(&'a [f16]),
}

/// Runs `$body` with `$x` as the slice of whichever type the elements have.
macro_rules! of_any_type {
    ($elements:expr, $x:ident => $body:expr) => {
        match $elements {
            $crate::gemm::Elements::F32($x) => $body,
            $crate::gemm::Elements::Bf16($x) => $body,
            $crate::gemm::Elements::F16($x) => $body,
        }
    };
}
pub(crate) use of_any_type;

impl Elements<'_> {
    /// How many there are.
    pub fn len(&self) -> usize {
        of_any_type!(self, x => x.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them, widened.
    pub fn get(&self, index: usize) -> f32 {
        match self {
            Self::F32(x) => x[index],
            Self::Bf16(x) => x[index].to_f32(),
            Self::F16(x) => x[index].to_f32(),
        }
    }

    /// Where element `index` would be, for hints only.
    pub(super) fn address(&self, index: usize) -> *const f32 {
        of_any_type!(self, x => x.as_ptr().wrapping_add(index).cast())
    }
}

/// A type that operands can be stored as.
pub(crate) trait Element: Copy {
    /// Sixteen of them, widened.
    fn load<S: Simd>(s: S, x: &[Self; VECTOR_LEN]) -> S::V;
    /// Up to sixteen; missing lanes are zero.
    fn load_partial<S: Simd>(s: S, x: &[Self]) -> S::V;
    /// The elements themselves, if they are `f32` and need no conversion.
    #[inline(always)]
    fn as_f32(_x: &[Self]) -> Option<&[f32]> {
        None
    }
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; VECTOR_LEN]) -> S::V {
        s.load(x)
    }
    #[inline(always)]
    fn load_partial<S: Simd>(s: S, x: &[Self]) -> S::V {
        s.load_partial(x)
    }
    #[inline(always)]
    fn as_f32(x: &[Self]) -> Option<&[f32]> {
        Some(x)
    }
}

/// Up to sixteen two-byte floats by their bits, with zeros behind them.
#[inline(always)]
fn bits<T>(x: &[T]) -> [u16; VECTOR_LEN]
where
    [T]: HalfFloatSliceExt,
{
    let mut lanes = [0; VECTOR_LEN];
    let x = x.reinterpret_cast();
    lanes[..x.len()].copy_from_slice(x);
    lanes
}

impl Element for bf16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; VECTOR_LEN]) -> S::V {
        let x = x.reinterpret_cast().first_chunk().expect("as many");
        let [v, _] = widen_bf16(s, s.load_u16(x));
        v
    }
    #[inline(always)]
    fn load_partial<S: Simd>(s: S, x: &[Self]) -> S::V {
        let [v, _] = widen_bf16(s, s.load_u16(&bits(x)));
        v
    }
}

impl Element for f16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; VECTOR_LEN]) -> S::V {
        s.load_f16(x.reinterpret_cast().first_chunk().expect("as many"))
    }
    #[inline(always)]
    fn load_partial<S: Simd>(s: S, x: &[Self]) -> S::V {
        s.load_f16(&bits(x))
    }
}

/// Rounds to the nearest `f16` and widens again.
#[inline(always)]
pub(crate) fn through_f16<S: Simd>(s: S, v: S::V) -> S::V {
    let mut bits = [0; VECTOR_LEN];
    s.store_f16(v, &mut bits);
    s.load_f16(&bits)
}
