//! Checks of numbers to every digit that is given.

/// Asserts that a number rounds to the expected digits.
pub(crate) fn assert_digits(name: &str, found: f64, expected: &str) {
    let digits = expected.split_once('.').map_or(0, |(_, digits)| digits.len());
    assert_eq!(format!("{found:.digits$}"), expected, "{name}");
}

/// Asserts that an expression rounds to the expected digits; a name is optional.
macro_rules! check {
    ($name:literal, $found:expr, $expected:expr $(,)?) => {
        $crate::common::assert_digits(concat!($name, ": ", stringify!($found)), $found, $expected)
    };
    ($found:expr, $expected:expr $(,)?) => {
        $crate::common::assert_digits(stringify!($found), $found, $expected)
    };
}
pub(crate) use check;
