//! A slice as groups of sixteen elements, the last one possibly shorter.
//!
//! A loop over groups treats body and tail alike: the tail is loaded with zeros behind it, goes
//! through the same operations, and only its own elements are stored. A sum over groups must
//! therefore be unaffected by zeros.

use crate::simd::{Simd, VECTOR_LEN};

/// Number of groups of a slice.
#[inline(always)]
pub(crate) fn num_groups(x: &[f32]) -> usize {
    x.len().div_ceil(VECTOR_LEN)
}

/// Loads group `i` of `x`; missing elements are zero.
#[inline(always)]
pub(crate) fn load<S: Simd>(s: S, x: &[f32], i: usize) -> S::V {
    let (groups, tail) = x.as_chunks::<VECTOR_LEN>();
    match groups.get(i) {
        Some(group) => s.load(group),
        None => s.load_partial(tail),
    }
}

/// Stores group `i` of `x`; elements behind its end are dropped.
#[inline(always)]
pub(crate) fn store<S: Simd>(s: S, v: S::V, x: &mut [f32], i: usize) {
    let (groups, tail) = x.as_chunks_mut::<VECTOR_LEN>();
    match groups.get_mut(i) {
        Some(group) => s.store(v, group),
        None => s.store_partial(v, tail),
    }
}
