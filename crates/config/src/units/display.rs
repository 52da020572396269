//! Display of quantities: three significant digits, in the most readable unit.

use super::{
    Bits, Bytes, BytesPerSecond, Dollars, Flops, FlopsPerSecond, Seconds, Tokens, TokensPerSecond,
};
use std::fmt;

/// Prints a quantity in the largest of its units, each of which is `step` times the one before.
macro_rules! scaled_units {
    ($($unit:ident, $step:literal: $($name:literal)+;)+) => {$(
        impl fmt::Display for $unit {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                scaled(f, self.0 as f64, $step, &[$($name),+])
            }
        }
    )+};
}

scaled_units! {
    Bytes, 1024.0: "B" "KiB" "MiB" "GiB" "TiB" "PiB" "EiB";
    BytesPerSecond, 1000.0: "B/s" "kB/s" "MB/s" "GB/s" "TB/s" "PB/s";
    Bits, 1000.0: "bit" "kbit" "Mbit" "Gbit" "Tbit" "Pbit" "Ebit";
    Flops, 1000.0: "FLOP" "kFLOP" "MFLOP" "GFLOP" "TFLOP" "PFLOP" "EFLOP" "ZFLOP";
    FlopsPerSecond, 1000.0: "FLOP/s" "kFLOP/s" "MFLOP/s" "GFLOP/s" "TFLOP/s" "PFLOP/s" "EFLOP/s";
    Tokens, 1000.0: "tokens" "k tokens" "M tokens" "B tokens" "T tokens";
    TokensPerSecond, 1000.0: "tokens/s" "k tokens/s" "M tokens/s" "B tokens/s";
}

impl fmt::Display for Dollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, sum) = if self.0 < 0.0 { ("-", -self.0) } else { ("", self.0) };
        if sum < 1000.0 {
            return write!(f, "{sign}${sum:.2}");
        }
        // Thousands of dollars have three digits as well.
        let (sum, unit) = match sum {
            sum if sum < 999_500.0 => (sum / 1e3, "k"),
            sum if sum < 999_500_000.0 => (sum / 1e6, "M"),
            sum => (sum / 1e9, "B"),
        };
        let digits = usize::from(sum < 100.0);
        write!(f, "{sign}${sum:.digits$}{unit}")
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0;
        if !seconds.is_finite() || seconds.abs() < 100.0 {
            // Units below a second are chosen here, since `scaled` only grows.
            return match seconds.abs() {
                size if size > 0.0 && size < 1e-3 => scaled(f, seconds * 1e6, 1e12, &["µs"]),
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

/// Prints a number with three digits in the largest unit in which it is at least one.
fn scaled(f: &mut fmt::Formatter<'_>, number: f64, step: f64, names: &[&str]) -> fmt::Result {
    let mut number = number;
    let mut index = 0;
    // Compares the rounded number, since 1023.9 KiB would otherwise print as "1024 KiB".
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
    fn other_quantities_print_in_readable_units() {
        assert_eq!(Seconds(0.0).to_string(), "0 s");
        assert_eq!(Seconds(0.000_012_5).to_string(), "12.5 µs");
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
        assert_eq!(FlopsPerSecond(312e12).to_string(), "312 TFLOP/s");
        assert_eq!(TokensPerSecond(1830.0).to_string(), "1.83 k tokens/s");
        assert_eq!(Bits(100_000_000_000).to_string(), "100 Gbit");
        assert_eq!(BytesPerSecond(f64::INFINITY).to_string(), "inf B/s");
    }

    #[test]
    fn money_prints_in_cents_thousands_and_millions() {
        let shown = |dollars| Dollars(dollars).to_string();
        assert_eq!(shown(0.375), "$0.38");
        assert_eq!(shown(999.0), "$999.00");
        assert_eq!(shown(1250.0), "$1.2k");
        assert_eq!(shown(999_600.0), "$1.0M");
        assert_eq!(shown(2_211_840.0), "$2.2M");
        assert_eq!(shown(-5e9), "-$5.0B");
    }
}
