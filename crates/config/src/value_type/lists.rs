//! Lists, and tables with typed cells.
//!
//! A list of tables is `[[section.key]]` in a file and a list of inline tables on a command line.
//! An invalid part is reported by its place in the value, so that the message shows only the part.

use super::{Refusal, ValueType};
use crate::nearest::nearest;
use crate::value::{RawValue, Value};

/// One entry of a table.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) name: &'static str,
    pub(crate) value_type: ValueType,
    pub(crate) is_required: bool,
}

/// Accepts every value of a list.
pub(super) fn list(of: &ValueType, max: usize, values: &[RawValue]) -> Result<Value, Refusal> {
    if values.len() > max {
        let rule = format!("has {} entries, and the maximum is {max}", values.len());
        return Err(Refusal { rule, fix: None, part: None });
    }
    let accept = |(index, value): (usize, &RawValue)| {
        of.accept(value).map_err(|refusal| inside(&format!("[{index}]"), value, refusal))
    };
    values.iter().enumerate().map(accept).collect::<Result<_, _>>().map(Value::List)
}

/// Accepts every cell of a table, in the order of the declaration.
pub(super) fn table(cells: &[Cell], given: &[(String, RawValue)]) -> Result<Value, Refusal> {
    let names = || cells.iter().map(|cell| cell.name);
    if let Some((name, value)) = given.iter().find(|(name, _)| names().all(|cell| cell != name)) {
        let rule = format!("is not one of {}", names().collect::<Vec<_>>().join(", "));
        let fix = nearest(name, names()).map(str::to_owned);
        return Err(inside(&format!(".{name}"), value, Refusal { rule, fix, part: None }));
    }
    let mut accepted = Vec::new();
    for cell in cells {
        match given.iter().find(|(name, _)| name == cell.name) {
            Some((name, value)) => {
                let value = cell
                    .value_type
                    .accept(value)
                    .map_err(|refusal| inside(&format!(".{name}"), value, refusal))?;
                accepted.push((cell.name, value));
            }
            None if cell.is_required => {
                let rule = format!("has no {}", cell.name);
                return Err(Refusal { rule, fix: None, part: None });
            }
            None => {}
        }
    }
    Ok(Value::Table(accepted))
}

/// The cells and their types, for the reference.
pub(super) fn allowed(cells: &[Cell]) -> String {
    let cell = |cell: &Cell| {
        let optional = if cell.is_required { "" } else { "optional, " };
        format!("`{}` ({optional}{})", cell.name, cell.value_type.allowed())
    };
    format!("table of {}", cells.iter().map(cell).collect::<Vec<_>>().join(", "))
}

/// The refusal of a part, with its place in the whole.
fn inside(place: &str, given: &RawValue, refusal: Refusal) -> Refusal {
    let (inner, written) = refusal.part.unwrap_or_else(|| (String::new(), given.written.clone()));
    Refusal { part: Some((format!("{place}{inner}"), written)), ..refusal }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn cell(name: &'static str, value_type: ValueType, is_required: bool) -> Cell {
        Cell { name, value_type, is_required }
    }

    const PAIRS: ValueType = ValueType::List {
        of: &ValueType::Table(&[
            cell("name", ValueType::Text { may_be_empty: false }, true),
            cell("count", ValueType::Integer { min: 1, max: 9 }, false),
        ]),
        max: 2,
    };

    /// The printed value, or place, text and rule of the refusal.
    fn accept(argument: &str) -> Result<String, String> {
        match PAIRS.accept(&RawValue::from_argument(argument)) {
            Ok(value) => Ok(value.to_string()),
            Err(Refusal { rule, fix, part }) => {
                let (place, written) = part.unwrap_or_default();
                let fix = fix.map_or(String::new(), |fix| format!("; try {fix}"));
                Err(format!("{place} = {written} {rule}{fix}"))
            }
        }
    }

    #[test]
    fn tables_are_accepted_in_the_order_of_their_declaration() {
        assert_eq!(accept("[]"), Ok("[]".into()));
        let printed = r#"[{ name = "a", count = 2 }, { name = "b" }]"#;
        assert_eq!(accept(r#"[{count = 2, name = "a"}, {name = "b"}]"#), Ok(printed.into()));
    }

    #[test]
    fn an_invalid_part_is_refused_by_its_place() {
        let cases = [
            (r#"[{name = "a", count = 0}]"#, "[0].count = 0 must be between 1 and 9; try 1"),
            (r#"[{name = "a"}, {count = 1}]"#, "[1] = {count = 1} has no name"),
            (r#"[{nam = "a"}]"#, r#"[0].nam = "a" is not one of name, count; try name"#),
            ("[3]", "[0] = 3 is an integer where a table in braces is needed"),
            ("3", " =  is an integer where a list in brackets is needed"),
        ];
        for (argument, refusal) in cases {
            assert_eq!(accept(argument), Err(refusal.into()), "{argument}");
        }
        let three = r#"[{name = "a"}, {name = "b"}, {name = "c"}]"#;
        assert_eq!(accept(three), Err(" =  has 3 entries, and the maximum is 2".into()));
    }

    #[test]
    fn allowed_values_are_described_by_cell() {
        let expected = "list of at most 2: table of `name` (text, not empty), `count` (optional, \
                     integer from 1 to 9)";
        assert_eq!(PAIRS.allowed(), expected);
    }
}
