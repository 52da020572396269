//! Quantities that cannot be mixed up.
//!
//! A number of bytes, a duration and an amount of arithmetic are different types, and only the
//! operations that make sense exist: bytes divided by seconds is a rate, bytes plus seconds does
//! not compile. Printing uses the unit a person would choose.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul};
use std::str::FromStr;

/// An amount of memory or traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Bytes(pub u64);

/// A number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tokens(pub u64);

/// A duration.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Seconds(pub f64);

/// An amount of floating-point arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Flops(pub f64);

/// A speed of transport.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct BytesPerSecond(pub f64);

/// Amounts add up and are scaled by plain numbers of the same representation.
macro_rules! amount {
    ($unit:ident($number:ty)) => {
        impl Add for $unit {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl AddAssign for $unit {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sum for $unit {
            fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
                amounts.fold(Self::default(), Add::add)
            }
        }

        impl Mul<$number> for $unit {
            type Output = Self;
            fn mul(self, factor: $number) -> Self {
                Self(self.0 * factor)
            }
        }
    };
}

amount!(Bytes(u64));
amount!(Tokens(u64));
amount!(Seconds(f64));
amount!(Flops(f64));

impl Div<Seconds> for Bytes {
    type Output = BytesPerSecond;
    fn div(self, time: Seconds) -> BytesPerSecond {
        BytesPerSecond(self.0 as f64 / time.0)
    }
}

impl Div<BytesPerSecond> for Bytes {
    type Output = Seconds;
    fn div(self, speed: BytesPerSecond) -> Seconds {
        Seconds(self.0 as f64 / speed.0)
    }
}

impl Div for Seconds {
    type Output = f64;
    fn div(self, other: Self) -> f64 {
        self.0 / other.0
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        scaled(f, self.0 as f64, 1024.0, &NAMES)
    }
}

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"])
    }
}

impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] =
            ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP"];
        scaled(f, self.0, 1000.0, &NAMES)
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(
            f,
            self.0 as f64,
            1000.0,
            &["tokens", "k tokens", "M tokens", "B tokens", "T tokens"],
        )
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0;
        if !seconds.is_finite() || seconds.abs() < 100.0 {
            // The step from one unit to the next is up here, since seconds shrink by thousands.
            return match seconds.abs() {
                size if size > 0.0 && size < 1e-3 => scaled(f, seconds * 1e6, 1e12, &["us"]),
                size if size > 0.0 && size < 1.0 => scaled(f, seconds * 1e3, 1e12, &["ms"]),
                _ => scaled(f, seconds, f64::INFINITY, &["s"]),
            };
        }
        let sign = if seconds < 0.0 { "-" } else { "" };
        let whole = seconds.abs().round() as u64;
        let (minutes, hours) = (whole / 60, whole / 3600);
        match (hours / 24, hours, minutes) {
            (0, 0, _) => write!(f, "{sign}{minutes} min {:02} s", whole % 60),
            (0, ..) => write!(f, "{sign}{hours} h {:02} min", minutes % 60),
            (days, ..) => write!(f, "{sign}{days} d {:02} h", hours % 24),
        }
    }
}

/// Prints a number in the largest unit that leaves at least one; three digits are plenty.
fn scaled(f: &mut fmt::Formatter<'_>, number: f64, step: f64, names: &[&str]) -> fmt::Result {
    let mut number = number;
    let mut index = 0;
    // Compare what will be shown: 1023.9 KiB would otherwise print as "1024 KiB".
    while number.is_finite() && shown(number).abs() >= step && index + 1 < names.len() {
        number /= step;
        index += 1;
    }
    let digits = match shown(number).abs() {
        size if size >= 100.0 || size.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    write!(f, "{number:.digits$} {}", names[index])
}

/// The number rounded to the digits that `scaled` prints.
fn shown(number: f64) -> f64 {
    match number.abs() {
        size if size >= 100.0 => number.round(),
        size if size >= 10.0 => (number * 10.0).round() / 10.0,
        _ => (number * 100.0).round() / 100.0,
    }
}

/// A text that is not an amount of bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a number of bytes; try 4096, 4KiB or 1.5 GB")]
pub struct ParseBytesError {
    /// The text as it was given.
    pub text: String,
}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    /// Reads "4096", "4MiB", "1 KiB", "1.5 GB": binary units have an i, decimal ones have none.
    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        let failure = || ParseBytesError { text: text.to_owned() };
        let trimmed = text.trim();
        let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(end);
        let factor: u64 = match unit.trim() {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            "TiB" => 1 << 40,
            "kB" | "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            _ => return Err(failure()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Self).ok_or_else(failure);
        }
        let bytes = number.parse::<f64>().map_err(|_| failure())? * factor as f64;
        // Half a byte is a mistake, and beyond 2^53 a fraction no longer says what it means.
        let exact = bytes.fract() == 0.0 && bytes < 9.0e15;
        if exact { Ok(Self(bytes as u64)) } else { Err(failure()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_print_in_binary_units() {
        let shown = |bytes| Bytes(bytes).to_string();
        assert_eq!(shown(0), "0 B");
        assert_eq!(shown(1023), "1023 B");
        assert_eq!(shown(1024), "1 KiB");
        assert_eq!(shown(1536), "1.50 KiB");
        assert_eq!(shown((1 << 20) - 1), "1 MiB");
        assert_eq!(shown(4 << 20), "4 MiB");
        assert_eq!(shown(u64::MAX), "16 EiB");
    }

    #[test]
    fn other_quantities_print_in_the_unit_a_person_would_choose() {
        assert_eq!(Seconds(0.0).to_string(), "0 s");
        assert_eq!(Seconds(0.000_012_5).to_string(), "12.5 us");
        assert_eq!(Seconds(0.25).to_string(), "250 ms");
        assert_eq!(Seconds(12.345).to_string(), "12.3 s");
        assert_eq!(Seconds(200.0).to_string(), "3 min 20 s");
        assert_eq!(Seconds(7_500.0).to_string(), "2 h 05 min");
        assert_eq!(Seconds(90_000.0).to_string(), "1 d 01 h");
        assert_eq!(Seconds(-200.0).to_string(), "-3 min 20 s");
        assert_eq!(Seconds(f64::NAN).to_string(), "NaN s");
        assert_eq!(Flops(3.14e9).to_string(), "3.14 GFLOP");
        assert_eq!(Tokens(4096).to_string(), "4.10 k tokens");
        assert_eq!(BytesPerSecond(12.5e9).to_string(), "12.5 GB/s");
        assert_eq!(BytesPerSecond(f64::INFINITY).to_string(), "inf B/s");
    }

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
    }

    #[test]
    fn bytes_are_read_with_and_without_units() {
        let read = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0);
        assert_eq!(read("4MiB"), Ok(4 << 20));
        assert_eq!(read("1 KiB"), Ok(1024));
        assert_eq!(read(" 12 "), Ok(12));
        assert_eq!(read("1.5GB"), Ok(1_500_000_000));
        assert_eq!(read("0.5KiB"), Ok(512));
        assert_eq!(read("18446744073709551615"), Ok(u64::MAX));
        for wrong in ["", "KiB", "4 parsecs", "-1", "1.5", "1e3", "99999999999TiB", "1.2.3 MB"] {
            assert_eq!(
                read(wrong).unwrap_err().to_string(),
                format!("{wrong:?} is not a number of bytes; try 4096, 4KiB or 1.5 GB")
            );
        }
    }
}
