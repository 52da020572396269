//! When two results count as equal: one table, two classes, no numbers in tests.
//!
//! *Exact* holds wherever both sides do the same additions in the same order; it compares bits.
//! *Close* holds where the order or the precision differs. Errors of single elements mislead: a
//! gradient that is zero but for rounding has no digit right. So the largest difference over a
//! tensor is measured by the tensor's largest expected element. A sum of n rounded terms wanders
//! off like a random walk, hence the square root of the reduction length in the bound.

use lockstep_config::Dtype;
use std::fmt;

/// How closely two results must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// The same bits: the same arithmetic in the same order.
    Exact,
    /// The same numbers but for rounding in this type, over sums of up to this many terms.
    Close(Dtype, usize),
}

/// The table: a type, the relative error of rounding to it once, and how many such errors a whole
/// model adds up beside those of its longest sum.
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
    /// When the lengths differ: that is no question of rounding.
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
        // An error that is not a number, or a scale of zero with any error, is beyond every bound.
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

    /// Compares two tensors and stops the test at a mismatch, in words.
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

/// The distance between two numbers; anything that is not finite is infinitely far from all else.
fn difference<N: Number>(a: N, b: N) -> f64 {
    let difference = (a.value() - b.value()).abs();
    if difference.is_finite() { difference } else { f64::INFINITY }
}

/// What a failed comparison says.
#[derive(Clone, Debug, PartialEq)]
pub struct Mismatch {
    /// The tensor's name.
    pub tensor: String,
    /// The element.
    pub index: usize,
    /// Its value.
    pub found: f64,
    /// What it should be.
    pub expected: f64,
    /// How many representable numbers lie between them, counting one end.
    pub ulps: u64,
    /// The type of which these are the steps.
    pub type_name: &'static str,
    /// The difference as a share of the tensor's largest expected element.
    pub relative_error: f64,
    /// The share that would have been allowed.
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

/// A type of number that results come in.
pub trait Number: Copy {
    /// The value, exactly.
    fn value(self) -> f64;

    /// Steps from one representable number to the next between the two; 0 for the same bits only,
    /// so that zero and minus zero are one step apart.
    fn ulps_to(self, other: Self) -> u64;
}

impl Number for f32 {
    fn value(self) -> f64 {
        f64::from(self)
    }

    fn ulps_to(self, other: Self) -> u64 {
        // Negative numbers count downwards from minus zero, which comes right before zero.
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
    fn close_is_measured_by_the_largest_element() {
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
    fn what_is_not_a_number_never_agrees_closely() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mismatch = CLOSE.compare("g", &[1.0, bad], &[1.0, 2.0]).unwrap_err();
            assert_eq!(mismatch.index, 1);
            assert!(CLOSE.compare("g", &[1.0, 2.0], &[1.0, bad]).is_err());
        }
        assert!(CLOSE.compare("g", &[1e-30f32], &[0.0]).is_err(), "zero has no rounding");
    }

    #[test]
    fn a_mismatch_tells_the_tensor_the_place_the_values_and_the_ulps() {
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
