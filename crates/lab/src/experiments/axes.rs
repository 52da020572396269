//! Parts of findings that follow from the axes of a table: the swept parameters, if there are any.
//!
//! A study sweeps the default parameter, another one, several, or none. Findings name points and
//! ranges only by swept parameters, and compare points only where there are several.

use crate::table::{Cell, Table};
use std::ops::Range;

/// Text of a cell.
pub(crate) fn cell(table: &Table, column: &str, row: usize) -> String {
    table.texts(column).get(row).cloned().unwrap_or_default()
}

/// Swept parameters of a row with their values; empty where nothing is swept.
pub(crate) fn place(table: &Table, row: usize) -> String {
    let swept = table.columns[..table.num_swept].iter();
    let pair = |name: &str| format!("{name} = {}", cell(table, name, row));
    swept.map(|column| pair(column.name)).collect::<Vec<_>>().join(", ")
}

/// Opening of a sentence about a row, such as `At workers = 8, `; empty where nothing is swept.
pub(crate) fn at(table: &Table, row: usize) -> String {
    if table.num_swept == 0 { String::new() } else { format!("At {}, ", place(table, row)) }
}

/// Opening of a sentence about the best row, such as `workers = 8 is fastest: `; empty where there
/// is only one point.
pub(crate) fn best_is(table: &Table, row: usize, superlative: &str) -> String {
    if points(table).len() < 2 {
        return String::new();
    }
    format!("{} is {superlative}: ", place(table, row))
}

/// Rows of each point.
pub(crate) fn points(table: &Table) -> Vec<Range<usize>> {
    let swept = |row: usize| &table.rows[row][..table.num_swept];
    let starts: Vec<usize> =
        (0..table.rows.len()).filter(|row| *row == 0 || swept(*row) != swept(row - 1)).collect();
    let ends = starts.iter().skip(1).copied().chain([table.rows.len()]);
    starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
}

/// First row of each point.
pub(crate) fn each_point(table: &Table) -> Vec<usize> {
    points(table).into_iter().map(|rows| rows.start).collect()
}

/// Rows of the last point; of an empty table, none.
pub(crate) fn last_point(table: &Table) -> Range<usize> {
    points(table).pop().unwrap_or(0..0)
}

/// Index of the last row.
pub(crate) fn last(table: &Table) -> usize {
    table.rows.len().saturating_sub(1)
}

/// Rows with a text in a column, one for each point that has it.
pub(crate) fn rows_with(table: &Table, column: &str, text: &str) -> Vec<usize> {
    let texts = table.texts(column);
    let find = |mut rows: Range<usize>| rows.find(|row| texts[*row] == text);
    points(table).into_iter().filter_map(find).collect()
}

/// Row of the last point with a text in a column, or the last row.
pub(crate) fn last_with(table: &Table, column: &str, text: &str) -> usize {
    rows_with(table, column, text).pop().unwrap_or_else(|| last(table))
}

/// Row with the smallest number of a column in a range.
pub(crate) fn lowest(table: &Table, column: &str, rows: Range<usize>) -> usize {
    let numbers = table.numbers(column);
    let first = rows.start;
    rows.min_by(|a, b| numbers[*a].total_cmp(&numbers[*b])).unwrap_or(first)
}

/// Sentence on the names in one column with the lowest number of another, by points.
pub(crate) fn winners(table: &Table, names: &str, column: &str) -> String {
    let (texts, numbers) = (table.texts(names), table.numbers(column));
    let best = points(table).into_iter().map(|rows| lowest(table, column, rows));
    let best: Vec<usize> = best.filter(|row| numbers[*row].is_finite()).collect();
    let mut parts: Vec<String> = Vec::new();
    for (index, &row) in best.iter().enumerate() {
        if best[..index].iter().any(|other| texts[*other] == texts[row]) {
            continue;
        }
        let name = &texts[row];
        let extent = extent(table, &best, |other| texts[other] == *name).unwrap_or_default();
        let is = if parts.is_empty() { " is fastest" } else { "" };
        parts.push(format!("{name}{is}{extent}"));
    }
    if parts.is_empty() { "The target is never reached".to_owned() } else { parts.join(", ") }
}

/// Values of a column at two rows with their places, such as `2 at workers = 1, 9 at workers = 8`;
/// one value where the rows are equal.
pub(crate) fn across(table: &Table, column: &str, first: usize, end: usize) -> String {
    let value = |row| format!("{} at {}", cell(table, column, row), place(table, row));
    match (table.num_swept, first == end) {
        (0, _) => cell(table, column, end),
        (_, true) => value(end),
        _ => format!("{}, {}", value(first), value(end)),
    }
}

/// Most points that a sentence names.
const MAX_NAMED: usize = 4;

/// Points at which a condition holds, of rows with one for each point, with a leading space:
/// ` from workers = 64 on` or ` up to workers = 8` along one axis of numbers, else the points
/// themselves or their number. Empty where nothing is swept, `None` where it holds nowhere.
pub(crate) fn extent(
    table: &Table,
    rows: &[usize],
    holds: impl Fn(usize) -> bool,
) -> Option<String> {
    let mut rows = rows.to_vec();
    let number = |row: usize| match table.rows[row].first() {
        Some(Cell::Number(number)) => *number,
        _ => f64::NAN,
    };
    let is_ordered = table.num_swept == 1 && rows.iter().all(|row| !number(*row).is_nan());
    if is_ordered {
        rows.sort_by(|a, b| number(*a).total_cmp(&number(*b)));
    }
    let held: Vec<usize> = rows.iter().copied().filter(|row| holds(*row)).collect();
    let (&first, &end) = held.first().zip(held.last())?;
    if table.num_swept == 0 {
        return Some(String::new());
    }
    let num_points = rows.len();
    let from = rows.iter().position(|row| *row == first).unwrap_or(0);
    let is_range = is_ordered && held.len() > 1 && rows[from..].starts_with(&held);
    Some(match held.len() {
        _ if held.len() == num_points && num_points > 1 => " at every point".to_owned(),
        _ if is_range && from + held.len() == num_points => {
            format!(" from {} on", place(table, first))
        }
        _ if is_range && from == 0 => format!(" up to {}", place(table, end)),
        _ if is_range => format!(" from {} to {}", place(table, first), place(table, end)),
        1 => format!(" at {}", place(table, first)),
        2..=MAX_NAMED => {
            let places: Vec<String> = held.iter().map(|row| place(table, *row)).collect();
            format!(" at {}", places.join("; "))
        }
        num_held => format!(" at {num_held} of {num_points} points"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::{Column, Unit};
    use crate::row;

    fn table(num_swept: usize, rows: Vec<Vec<Cell>>) -> Table {
        let names = ["workers", "latency"][..num_swept].iter().chain(&["graph", "seconds"]);
        let unit = |name: &str| if name == "graph" { Unit::Text } else { Unit::Number };
        let columns = names.map(|&name| Column::new(name, unit(name), "")).collect();
        let spread = rows.iter().map(|row| vec![0.0; row.len()]).collect();
        Table { rows, spread, ..Table::new(columns, num_swept) }
    }

    #[test]
    fn places_name_the_swept_parameters_only() {
        let none = table(0, vec![row!["ring", 1.0], row!["torus", 2.0]]);
        assert_eq!((place(&none, 0), at(&none, 1)), (String::new(), String::new()));
        assert_eq!(best_is(&none, 0, "best"), "");
        assert_eq!(across(&none, "seconds", 0, 1), "2");
        assert_eq!(points(&none), vec![std::ops::Range { start: 0, end: 2 }]);
        let two = table(2, vec![row![2.0, 1.0, "ring", 1.0], row![4.0, 1.0, "ring", 2.0]]);
        assert_eq!(at(&two, 1), "At workers = 4, latency = 1, ");
        assert_eq!(best_is(&two, 0, "best"), "workers = 2, latency = 1 is best: ");
        assert_eq!(points(&two), [0..1, 1..2]);
        assert_eq!(last_with(&two, "graph", "ring"), 1);
    }

    #[test]
    fn extents_follow_the_axis() {
        let over = |workers: &[f64]| {
            table(1, workers.iter().map(|&n| row![n, "ring", n]).collect::<Vec<_>>())
        };
        let sorted = over(&[1.0, 2.0, 4.0, 8.0]);
        let rows = [0, 1, 2, 3];
        let extent = |table: &Table, low: f64, high: f64| {
            let seconds = table.numbers("seconds");
            extent(table, &rows, |row| (low..=high).contains(&seconds[row]))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(extent(&sorted, 3.0, 9.0), some(" from workers = 4 on"));
        assert_eq!(extent(&sorted, 0.0, 3.0), some(" up to workers = 2"));
        assert_eq!(extent(&sorted, 2.0, 4.0), some(" from workers = 2 to workers = 4"));
        assert_eq!(extent(&sorted, 2.0, 2.0), some(" at workers = 2"));
        assert_eq!(extent(&sorted, 0.0, 9.0), some(" at every point"));
        assert_eq!(extent(&sorted, 9.0, 9.0), None);
        // The order of the values on the command line does not matter.
        assert_eq!(extent(&over(&[8.0, 1.0, 4.0, 2.0]), 3.0, 9.0), some(" from workers = 4 on"));
        // Names have no order.
        let names = ["a", "b", "c", "d"].map(|name| row![name, "ring", 1.0]);
        let mut names = table(1, names.to_vec());
        names.rows[3][2] = Cell::Number(9.0);
        names.rows[2][2] = Cell::Number(9.0);
        assert_eq!(extent(&names, 3.0, 9.0), some(" at workers = c; workers = d"));
    }
}
