//! Parsing of byte amounts in settings and on command lines.

use super::Bytes;
use std::str::FromStr;

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
        // A fraction of a byte is an error, and beyond 2^53 a float is not exact.
        let exact = bytes.fract() == 0.0 && bytes < 9.0e15;
        if exact { Ok(Self(bytes as u64)) } else { Err(failure()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
