//! Numbers in labels and reports, with three significant digits.

/// A number with three significant digits.
pub fn digits(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value:.0}");
    }
    let scientific = format!("{value:.2e}");
    let rounded: f64 = scientific.parse().unwrap_or(value);
    // Nine decimals would leave nothing of it.
    if rounded.abs() < 1e-6 {
        return scientific;
    }
    let magnitude = rounded.abs().log10().floor() as i32;
    let decimals = usize::try_from(2 - magnitude).unwrap_or(0).min(9);
    format!("{rounded:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_significant_whatever_the_size() {
        let all = [0.0, 0.001_234_5, 0.999_9, 1.234_5, 12.345, 123.45, 1234.5, 9.996];
        let expected = ["0", "0.00123", "1.00", "1.23", "12.3", "123", "1230", "10.0"];
        assert_eq!(all.map(digits), expected);
        assert_eq!(digits(-0.5), "-0.500");
        assert_eq!(digits(1.234e-10), "1.23e-10");
    }
}
