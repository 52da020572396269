//! Quantities with distinct types.
//!
//! Bytes, durations and FLOPs are different types with only the meaningful operations: bytes
//! divided by seconds is a bandwidth, bytes plus seconds does not compile. This prevents the usual
//! errors of cost estimates: bits for bytes, or FLOPs for FLOP/s. Values print in the most readable
//! unit.
//!
//! | amount | over | is |
//! |---|---|---|
//! | [`Bytes`] | [`Seconds`] | [`BytesPerSecond`]: bandwidth |
//! | [`Bytes`], [`Bits`] | [`BytesPerSecond`] | [`Seconds`] |
//! | [`Flops`] | [`Seconds`] | [`FlopsPerSecond`] |
//! | [`Flops`] | [`FlopsPerSecond`] | [`Seconds`] |
//! | [`Tokens`] | [`Seconds`] | [`TokensPerSecond`] |
//! | an amount | the same | a plain number |
//!
//! A latency is a duration in [`Seconds`] and cannot be added to a bandwidth.

mod display;
mod parse;

use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

pub use parse::ParseBytesError;

/// An amount of memory or traffic.
///
/// ```compile_fail
/// # use lockstep_config::units::{Bytes, Seconds};
/// let sum = Bytes(1) + Seconds(1.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Bytes(pub u64);

/// An amount of traffic as network people count it: eight to a byte.
///
/// ```
/// # use lockstep_config::units::{Bits, Bytes};
/// assert_eq!(Bits::from(Bytes(2)), Bits(16));
/// ```
/// ```compile_fail
/// # use lockstep_config::units::{Bits, Bytes};
/// let sum = Bytes(1) + Bits(8);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Bits(pub u64);

/// A number of tokens.
///
/// ```compile_fail
/// # use lockstep_config::units::{Bytes, Tokens};
/// let same = Tokens(1) == Bytes(1);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tokens(pub u64);

/// A duration, and so a latency too.
///
/// ```compile_fail
/// # use lockstep_config::units::{BytesPerSecond, Seconds};
/// let (latency, bandwidth) = (Seconds(1e-6), BytesPerSecond(1e9));
/// let sum = latency + bandwidth;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Seconds(pub f64);

/// An amount of floating-point arithmetic.
///
/// ```compile_fail
/// # use lockstep_config::units::{Bytes, Flops, FlopsPerSecond};
/// let seconds = Bytes(1) / FlopsPerSecond(1e12);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Flops(pub f64);

/// An amount of money.
///
/// ```compile_fail
/// # use lockstep_config::units::{Dollars, Seconds};
/// let cost = Dollars(2.0) * Seconds(3600.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Dollars(pub f64);

/// A speed of transport.
///
/// ```compile_fail
/// # use lockstep_config::units::{BytesPerSecond, Flops};
/// let seconds = Flops(1e12) / BytesPerSecond(1e9);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct BytesPerSecond(pub f64);

/// A speed of arithmetic.
///
/// ```compile_fail
/// # use lockstep_config::units::{Flops, FlopsPerSecond};
/// let peak: FlopsPerSecond = Flops(312e12);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct FlopsPerSecond(pub f64);

/// A speed of training.
///
/// ```compile_fail
/// # use lockstep_config::units::{Bytes, TokensPerSecond};
/// let seconds = Bytes(1) / TokensPerSecond(1e3);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct TokensPerSecond(pub f64);

/// Amounts add up, and are scaled by plain numbers of the same representation.
macro_rules! amount {
    ($unit:ident($number:ty)) => {
        impl Add for $unit {
            type Output = Self;
            #[inline]
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl Sub for $unit {
            type Output = Self;
            #[inline]
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl AddAssign for $unit {
            #[inline]
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sum for $unit {
            #[inline]
            fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
                amounts.fold(Self::default(), Add::add)
            }
        }

        impl Mul<$number> for $unit {
            type Output = Self;
            #[inline]
            fn mul(self, factor: $number) -> Self {
                Self(self.0 * factor)
            }
        }
    };
}

amount!(Bytes(u64));
amount!(Bits(u64));
amount!(Tokens(u64));
amount!(Seconds(f64));
amount!(Flops(f64));
amount!(Dollars(f64));

/// An amount over a duration is a rate, and an amount over a rate is a duration.
macro_rules! rate {
    ($amount:ident, $rate:ident) => {
        impl Div<Seconds> for $amount {
            type Output = $rate;
            #[inline]
            fn div(self, time: Seconds) -> $rate {
                $rate(self.0 as f64 / time.0)
            }
        }

        impl Div<$rate> for $amount {
            type Output = Seconds;
            #[inline]
            fn div(self, speed: $rate) -> Seconds {
                Seconds(self.0 as f64 / speed.0)
            }
        }
    };
}

rate!(Bytes, BytesPerSecond);
rate!(Flops, FlopsPerSecond);
rate!(Tokens, TokensPerSecond);

/// Ratio of two amounts: a number without a unit.
macro_rules! ratio {
    ($($unit:ident),+) => {$(
        impl Div for $unit {
            type Output = f64;
            #[inline]
            fn div(self, other: Self) -> f64 {
                self.0 as f64 / other.0 as f64
            }
        }
    )+};
}

ratio!(Bytes, Tokens, Seconds, Flops, Dollars, BytesPerSecond, FlopsPerSecond);

/// A rate shared, or several of them together.
macro_rules! scaled_rate {
    ($($rate:ident),+) => {$(
        impl Mul<f64> for $rate {
            type Output = Self;
            #[inline]
            fn mul(self, factor: f64) -> Self {
                Self(self.0 * factor)
            }
        }
    )+};
}

scaled_rate!(BytesPerSecond, FlopsPerSecond);

impl From<Bytes> for Bits {
    #[inline]
    fn from(bytes: Bytes) -> Self {
        Self(bytes.0 * 8)
    }
}

impl Div<BytesPerSecond> for Bits {
    type Output = Seconds;
    #[inline]
    fn div(self, speed: BytesPerSecond) -> Seconds {
        Seconds(self.0 as f64 / 8.0 / speed.0)
    }
}

impl BytesPerSecond {
    /// The speed of a link that is sold in gigabits: 100 Gbit/s are 12.5 GB/s.
    ///
    /// ```
    /// # use lockstep_config::units::BytesPerSecond;
    /// assert_eq!(BytesPerSecond::from_gigabits(100.0), BytesPerSecond(12.5e9));
    /// ```
    #[inline]
    pub const fn from_gigabits(gigabits: f64) -> Self {
        Self(gigabits * 1e9 / 8.0)
    }
}

impl Seconds {
    /// The longer of the two.
    #[inline]
    pub const fn max(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_keeps_the_units() {
        assert_eq!(Bytes(6) / Seconds(2.0), BytesPerSecond(3.0));
        assert_eq!(Bytes(6) / BytesPerSecond(3.0), Seconds(2.0));
        assert_eq!([Bytes(1), Bytes(2)].into_iter().sum::<Bytes>() * 3, Bytes(9));
        assert!((Seconds(3.0) / Seconds(1.5) - 2.0).abs() < 1e-12);
        let mut tokens = Tokens(1);
        tokens += Tokens(2);
        assert_eq!(tokens, Tokens(3));
        assert_eq!(Flops(1.5) * 2.0 + Flops(1.0), Flops(4.0));
        assert_eq!(Flops(6.0) / FlopsPerSecond(3.0), Seconds(2.0));
        assert_eq!(Tokens(6) / Seconds(2.0), TokensPerSecond(3.0));
        assert_eq!(Bits(16) / BytesPerSecond(1.0), Seconds(2.0));
        assert_eq!(Bytes(7) - Bytes(2), Bytes(5));
        assert_eq!(Dollars(1.5) + Dollars(0.5), Dollars(2.0));
    }
}
