//! Rows of the reference tables as tests: each is named by its part and number, and must come out
//! to every digit that is given.

/// Holds a row to its value. `value` is the right one: where the source prints another, the row
/// says so in a comment.
pub(crate) fn row(name: &str, found: f64, value: &str) {
    let digits = value.split_once('.').map_or(0, |(_, digits)| digits.len());
    assert_eq!(format!("{found:.digits$}"), value, "row {name}");
}
