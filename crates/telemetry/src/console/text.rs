//! Formatting of numbers and durations, without allocation; untrusted text and long lines.

use std::fmt::{self, Write as _};

/// A count with thousands separators: `3,145,728`.
pub(super) struct Thousands(pub(super) u64);

impl fmt::Display for Thousands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut divisor = 1;
        while self.0 / divisor >= 1000 {
            divisor *= 1000;
        }
        write!(f, "{}", self.0 / divisor)?;
        while divisor > 1 {
            divisor /= 1000;
            write!(f, ",{:03}", self.0 / divisor % 1000)?;
        }
        Ok(())
    }
}

/// A rate with about three digits: `950`, `12.3k`, `1.20M`.
pub(super) struct Rate(pub(super) f64);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            rate if rate < 9_999.5 => write!(f, "{rate:.0}"),
            rate if rate < 999_950.0 => write!(f, "{:.1}k", rate / 1e3),
            rate => write!(f, "{:.2}M", rate / 1e6),
        }
    }
}

/// A duration in its two largest units: `0.4s`, `42s`, `3m 05s`, `2h 07m`, `3d 04h`.
pub(super) struct Duration(pub(super) f64);

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.0.is_finite() {
            return f.write_str("unknown");
        }
        if (0.05..9.95).contains(&self.0) {
            return write!(f, "{:.1}s", self.0);
        }
        // Rounded first, so that 59.7 s prints as one minute and not as 60 s.
        let seconds = self.0.max(0.0).round() as u64;
        let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
        match (minutes, hours, days) {
            (0, _, _) => write!(f, "{seconds}s"),
            (_, 0, _) => write!(f, "{minutes}m {:02}s", seconds % 60),
            (_, _, 0) => write!(f, "{hours}h {:02}m", minutes % 60),
            _ => write!(f, "{days}d {:02}h", hours % 24),
        }
    }
}

/// A number with three significant digits, in scientific notation far from one: `0.523`, `1.23e6`.
pub(super) struct Significant(pub(super) f64);

impl fmt::Display for Significant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.abs() {
            size if size == 0.0 || !size.is_finite() => write!(f, "{}", self.0),
            size if size < 9.995e-4 => write!(f, "{:.2e}", self.0),
            size if size < 0.9995 => write!(f, "{:.3}", self.0),
            size if size < 9.995 => write!(f, "{:.2}", self.0),
            size if size < 99.95 => write!(f, "{:.1}", self.0),
            size if size < 999.5 => write!(f, "{:.0}", self.0),
            _ => write!(f, "{:.2e}", self.0),
        }
    }
}

/// Untrusted text, such as generated samples, without characters that could change the terminal:
/// control characters and those that reorder the text are replaced.
pub struct Sanitized<'a>(pub &'a str);

impl fmt::Display for Sanitized<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            let is_unsafe = match character {
                '\n' | '\t' => false,
                '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
                _ => character.is_control(),
            };
            f.write_char(if is_unsafe { char::REPLACEMENT_CHARACTER } else { character })?;
        }
        Ok(())
    }
}

/// Splits a line between words, so that each part fits into `columns`; parts after the first are
/// indented. A word that is longer, such as a path or a hash, stays whole.
pub fn wrap(line: &str, columns: usize, indent: usize) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let (mut width, mut has_word) = (0, false);
    for (index, word) in line.split(' ').enumerate() {
        let len = word.chars().count();
        if has_word && !word.is_empty() && width + 1 + len > columns {
            part.truncate(part.trim_end_matches(' ').len());
            parts.push(std::mem::replace(&mut part, " ".repeat(indent)));
            width = indent;
        } else if index > 0 {
            part.push(' ');
            width += 1;
        }
        part.push_str(word);
        width += len;
        has_word |= !word.is_empty();
    }
    parts.push(part);
    parts
}

/// Number of decimal digits of a count.
pub(super) fn num_digits(count: u64) -> usize {
    count.checked_ilog10().map_or(1, |log| log as usize + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_have_separators() {
        let cases = [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (3_145_728, "3,145,728"),
            (1_000_000_005, "1,000,000,005"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ];
        for (count, expected) in cases {
            assert_eq!(Thousands(count).to_string(), expected);
        }
    }

    #[test]
    fn rates_keep_three_digits() {
        for (rate, expected) in [
            (0.0, "0"),
            (950.4, "950"),
            (9_999.4, "9999"),
            (9_999.6, "10.0k"),
            (12_340.0, "12.3k"),
            (999_960.0, "1.00M"),
            (1_200_000.0, "1.20M"),
        ] {
            assert_eq!(Rate(rate).to_string(), expected);
        }
    }

    #[test]
    fn times_show_their_two_largest_units() {
        for (seconds, expected) in [
            (0.0, "0s"),
            (-1.0, "0s"),
            (0.4, "0.4s"),
            (9.96, "10s"),
            (59.4, "59s"),
            (59.7, "1m 00s"),
            (185.0, "3m 05s"),
            (3599.6, "1h 00m"),
            (7620.0, "2h 07m"),
            (86_400.0 * 3.0 + 3600.0 * 4.0, "3d 04h"),
            (f64::INFINITY, "unknown"),
            (f64::NAN, "unknown"),
        ] {
            assert_eq!(Duration(seconds).to_string(), expected);
        }
    }

    #[test]
    fn control_characters_of_a_sample_do_not_reach_the_terminal() {
        assert_eq!(Sanitized("a\x1b[2Jb\r\n\tc").to_string(), "a\u{fffd}[2Jb\u{fffd}\n\tc");
        assert_eq!(
            Sanitized("\u{9b}1m \u{202e}x \u{7f}é").to_string(),
            "\u{fffd}1m \u{fffd}x \u{fffd}é"
        );
    }

    #[test]
    fn three_digits_are_significant() {
        for (value, expected) in [
            (0.0, "0"),
            (0.5, "0.500"),
            (0.999_6, "1.00"),
            (9.996, "10.0"),
            (123.4, "123"),
            (999.6, "1.00e3"),
            (-2.5, "-2.50"),
            (1.5e-5, "1.50e-5"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(Significant(value).to_string(), expected);
        }
    }

    #[test]
    fn lines_are_split_at_spaces() {
        let text = "speed   12 tokens/s, median step 3 ms";
        assert_eq!(wrap(text, 80, 4), [text], "inner spaces stay");
        assert_eq!(wrap(text, 20, 4), ["speed   12 tokens/s,", "    median step 3 ms"]);
        assert_eq!(wrap("  a0123456789 b", 6, 2), ["  a0123456789", "  b"], "no word is cut");
        assert_eq!(wrap("", 6, 2), [""]);
        for columns in 0..60 {
            let parts = wrap(text, columns, 2);
            let joined = parts.join(" ");
            assert_eq!(
                joined.split_whitespace().collect::<Vec<_>>(),
                text.split_whitespace().collect::<Vec<_>>()
            );
            for part in parts {
                let is_word = part.split_whitespace().count() == 1;
                assert!(part.chars().count() <= columns || is_word, "{columns}: {part:?}");
            }
        }
    }

    #[test]
    fn digits_are_counted() {
        for (count, digits) in [(0, 1), (9, 1), (10, 2), (400, 3)] {
            assert_eq!(num_digits(count), digits);
        }
    }
}
