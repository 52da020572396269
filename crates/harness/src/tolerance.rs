//! Exact and approximate equality of results: one table of bounds, no bounds in tests.
//!
//! *Exact* applies where both sides do the same additions in the same order; it compares bits.
//! *Close* applies where the order or the precision differs. Relative errors of single elements
//! mislead: a gradient that is zero up to rounding has no correct digit. The largest difference
//! over a tensor is therefore divided by the tensor's largest expected element. The error of a sum
//! of n rounded terms grows like a random walk, hence the square root of the reduction length.

use lockstep_config::Dtype;
use std::fmt;

/// Required agreement of two results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// Equal bits: the same arithmetic in the same order.
    Exact,
    /// Equal up to rounding in this type, over sums of up to this many terms.
    Close(Dtype, usize),
}

/// Bounds: a type, its unit roundoff, and the number of rounding errors that a whole model
/// accumulates besides those of its longest sum.
const CLOSE: &[(Dtype, f64, f64)] = &[(Dtype::F32, F32_UNIT_ROUNDOFF, 4.0)];

/// Half the distance from 1 to the next `f32`.
const F32_UNIT_ROUNDOFF: f64 = f32::EPSILON as f64 / 2.0;

impl Tolerance {
    /// The largest allowed difference, as a share of the largest expected element.
    pub fn bound(self) -> f64 {
        match self {
            Self::Exact => 0.0,
            Self::Close(dtype, reduction_len) => {
                let row = CLOSE.iter().find(|(known, ..)| *known == dtype);
                let (_, unit_roundoff, depth) = row.expect("every type has a row");
                depth * unit_roundoff * (reduction_len as f64).sqrt()
            }
        }
    }

    /// Compares two tensors; the first difference (Exact) or the largest (Close) is the mismatch.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn compare<N: Number>(
        self,
        tensor: &str,
        found: &[N],
        expected: &[N],
    ) -> Result<(), Mismatch> {
        assert_eq!(found.len(), expected.len(), "elements of {tensor}");
        let pairs = || found.iter().copied().zip(expected.iter().copied()).enumerate();
        let (index, error) = match self {
            Self::Exact => match pairs().find(|(_, (a, b))| a.ulps_to(*b) != 0) {
                None => return Ok(()),
                Some((index, (a, b))) => (index, difference(a, b)),
            },
            Self::Close(..) => {
                let errors = pairs().map(|(index, (a, b))| (index, difference(a, b)));
                match errors.max_by(|(_, a), (_, b)| a.total_cmp(b)) {
                    None => return Ok(()),
                    Some(largest) => largest,
                }
            }
        };
        let scale = expected.iter().map(|b| b.value().abs()).fold(0.0, f64::max);
        // A NaN error, or any error at scale zero, exceeds every bound.
        if self != Self::Exact && error.is_finite() && error <= self.bound() * scale {
            return Ok(());
        }
        Err(Mismatch {
            tensor: tensor.to_owned(),
            index,
            found: found[index].value(),
            expected: expected[index].value(),
            ulps: found[index].ulps_to(expected[index]),
            type_name: std::any::type_name::<N>(),
            relative_error: error / scale,
            bound: self.bound(),
        })
    }

    /// Compares two tensors and panics with a description at a mismatch.
    ///
    /// # Panics
    /// When they do not agree.
    #[track_caller]
    pub fn assert<N: Number>(self, tensor: &str, found: &[N], expected: &[N]) {
        if let Err(mismatch) = self.compare(tensor, found, expected) {
            panic!("{mismatch}");
        }
    }
}

/// Absolute difference of two numbers; infinite if it is not finite.
fn difference<N: Number>(a: N, b: N) -> f64 {
    let difference = (a.value() - b.value()).abs();
    if difference.is_finite() { difference } else { f64::INFINITY }
}

/// Description of a failed comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// Name of the tensor.
    pub tensor: String,
    /// Index of the element.
    pub index: usize,
    /// Value found.
    pub found: f64,
    /// Value expected.
    pub expected: f64,
    /// Distance in units in the last place.
    pub ulps: u64,
    /// Type of the units in the last place.
    pub type_name: &'static str,
    /// Difference divided by the tensor's largest expected element.
    pub relative_error: f64,
    /// Largest allowed relative error.
    pub bound: f64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensor, index, found, expected, ulps, type_name, relative_error, bound } = self;
        write!(
            f,
            "{tensor}[{index}] is {found:e}, expected {expected:e}: {ulps} ulps of {type_name} \
             apart, {relative_error:.2e} of the largest element where {bound:.2e} is allowed"
        )
    }
}

/// Element type of compared results.
pub trait Number: Copy {
    /// The exact value.
    fn value(self) -> f64;

    /// Distance in units in the last place; 0 for equal bits only, so that zero and minus zero are
    /// one apart.
    fn ulps_to(self, other: Self) -> u64;
}

impl Number for f32 {
    fn value(self) -> f64 {
        f64::from(self)
    }

    fn ulps_to(self, other: Self) -> u64 {
        // Negative numbers count downwards from minus zero, which precedes zero.
        let place = |bits: u32| if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        u64::from(place(self.to_bits()).abs_diff(place(other.to_bits())))
    }
}

impl Number for f64 {
    fn value(self) -> f64 {
        self
    }

    fn ulps_to(self, other: Self) -> u64 {
        let place = |bits: u64| if bits >> 63 == 0 { bits | 1 << 63 } else { !bits };
        place(self.to_bits()).abs_diff(place(other.to_bits()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSE: Tolerance = Tolerance::Close(Dtype::F32, 256);

    #[test]
    fn exact_means_bits() {
        let same = [1.0f32, -0.0, f32::NAN];
        assert_eq!(Tolerance::Exact.compare("w", &same, &same).map_err(|m| m.to_string()), Ok(()));
        let mismatch = Tolerance::Exact.compare("w", &[0.0f32, 0.0], &[0.0, -0.0]).unwrap_err();
        assert_eq!((mismatch.index, mismatch.ulps), (1, 1));
        assert!(Tolerance::Exact.compare("w", &[1.0f32], &[1.0f32.next_up()]).is_err());
    }

    #[test]
    fn close_is_relative_to_the_largest_element() {
        let expected = [100.0f32, 0.0];
        assert!(CLOSE.compare("g", &[100.0, 1e-5], &expected).is_ok());
        let mismatch = CLOSE.compare("g", &[100.0, 1e-2], &expected).unwrap_err();
        assert_eq!(mismatch.index, 1);
        assert_eq!(CLOSE.compare::<f32>("g", &[], &[]), Ok(()));
    }

    #[test]
    fn longer_sums_may_err_more() {
        let bound = |len| Tolerance::Close(Dtype::F32, len).bound();
        assert!(bound(1) < 1e-6 && bound(1) > f64::from(f32::EPSILON));
        assert!((bound(400) / bound(100) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn non_finite_numbers_are_never_close() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mismatch = CLOSE.compare("g", &[1.0, bad], &[1.0, 2.0]).unwrap_err();
            assert_eq!(mismatch.index, 1);
            assert!(CLOSE.compare("g", &[1.0, 2.0], &[1.0, bad]).is_err());
        }
        assert!(CLOSE.compare("g", &[1e-30f32], &[0.0]).is_err(), "zero has no rounding");
    }

    #[test]
    fn a_mismatch_names_tensor_index_values_and_ulps() {
        let mismatch = Tolerance::Exact.compare("lm_head", &[2.0f32, 1.5], &[2.0, 1.0]);
        let text = mismatch.unwrap_err().to_string();
        for part in ["lm_head[1]", "1.5e0", "1e0", "4194304 ulps of f32"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn ulps_count_the_numbers_between() {
        assert_eq!(1.0f32.ulps_to(1.0f32.next_up()), 1);
        assert_eq!((-1.0f64).ulps_to((-1.0f64).next_down()), 1);
        assert_eq!(f32::from_bits(1).ulps_to(-f32::from_bits(1)), 3);
    }
}
