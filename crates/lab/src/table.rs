//! Result table: rows of typed columns, with confidence intervals over seeds.

use crate::description::{Column, Unit};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::fmt::Write;

/// Value of a row and column.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// A number in the base unit; infinite for an event that never happens.
    Number(f64),
    /// Text.
    Text(String),
}

/// One row.
pub type Row = Vec<Cell>;

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<usize> for Cell {
    fn from(number: usize) -> Self {
        Self::Number(number as f64)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// Builds a row from values of different types.
#[macro_export]
macro_rules! row {
    ($($cell:expr),* $(,)?) => { vec![$($crate::Cell::from($cell)),*] };
}

/// A table whose first columns are the swept parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Swept parameters first, then the columns of the experiment.
    pub columns: Vec<Column>,
    /// Number of swept parameters.
    pub num_swept: usize,
    /// Means over the seeds.
    pub rows: Vec<Row>,
    /// Half-width of the 95 % confidence interval of each mean; 0 where all seeds agree.
    pub spread: Vec<Vec<f64>>,
}

impl Table {
    /// An empty table.
    pub fn new(columns: Vec<Column>, num_swept: usize) -> Self {
        Self { columns, num_swept, rows: Vec::new(), spread: Vec::new() }
    }

    /// Index of a column.
    pub fn index(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|known| known.name == column)
    }

    /// Numbers of a column; NaN for text.
    pub fn numbers(&self, column: &str) -> Vec<f64> {
        let index = self.index(column).unwrap_or_else(|| panic!("no column {column}"));
        let number = |row: &Row| match row[index] {
            Cell::Number(number) => number,
            Cell::Text(_) => f64::NAN,
        };
        self.rows.iter().map(number).collect()
    }

    /// Texts of a column, as printed.
    pub fn texts(&self, column: &str) -> Vec<String> {
        let index = self.index(column).unwrap_or_else(|| panic!("no column {column}"));
        self.rows.iter().map(|row| self.show(index, &row[index])).collect()
    }

    /// Row with the minimum of a column times `sign`, if any number is finite.
    pub fn best(&self, column: &str, sign: f64) -> Option<usize> {
        let numbers = self.numbers(column);
        let ranked = numbers.iter().enumerate().filter(|(_, number)| number.is_finite());
        ranked.min_by(|a, b| (sign * a.1).total_cmp(&(sign * b.1))).map(|(row, _)| row)
    }

    fn show(&self, column: usize, cell: &Cell) -> String {
        match cell {
            Cell::Text(text) => text.clone(),
            Cell::Number(number) => self.columns[column].unit.show(*number),
        }
    }

    fn has_spread(&self, column: usize) -> bool {
        self.spread.iter().any(|row| row[column] > 0.0)
    }

    /// Rows as printed, with ± where seeds differ.
    pub fn cells(&self) -> Vec<Vec<String>> {
        let cell = |(index, (cell, half)): (usize, (&Cell, &f64))| {
            let shown = self.show(index, cell);
            if *half > 0.0 {
                return format!("{shown} ±{}", self.columns[index].unit.show(*half));
            }
            shown
        };
        let row = |(row, spread): (&Row, &Vec<f64>)| {
            row.iter().zip(spread).enumerate().map(cell).collect()
        };
        self.rows.iter().zip(&self.spread).map(row).collect()
    }

    /// Aligned columns for a terminal.
    pub fn text(&self) -> String {
        let mut lines = vec![self.columns.iter().map(|column| column.name.to_owned()).collect()];
        lines.extend(self.cells());
        aligned(&lines)
    }

    /// Comma-separated values in base units.
    pub fn csv(&self) -> String {
        let spread: Vec<usize> = (0..self.columns.len()).filter(|c| self.has_spread(*c)).collect();
        let mut names: Vec<String> = self.columns.iter().map(|c| c.name.to_owned()).collect();
        names.extend(spread.iter().map(|c| format!("{}_ci95", self.columns[*c].name)));
        let mut text = names.join(",") + "\n";
        for (row, half) in self.rows.iter().zip(&self.spread) {
            let mut cells: Vec<String> = row.iter().map(Cell::csv).collect();
            cells.extend(spread.iter().map(|column| half[*column].to_string()));
            let _ = writeln!(text, "{}", cells.join(","));
        }
        text
    }
}

impl Cell {
    fn csv(&self) -> String {
        match self {
            Self::Number(number) if number.is_finite() => number.to_string(),
            Self::Number(_) => String::new(),
            Self::Text(text) if text.contains([',', '"']) => {
                format!("\"{}\"", text.replace('"', "\"\""))
            }
            Self::Text(text) => text.clone(),
        }
    }
}

/// Right-aligned columns, two spaces apart.
pub(crate) fn aligned(lines: &[Vec<String>]) -> String {
    let num_columns = lines.first().map_or(0, Vec::len);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<usize> = (0..num_columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, &width)| format!("{cell:>width$}"));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// One row in JSON: names to values, `null` for infinity.
struct JsonRow<'a> {
    table: &'a Table,
    row: usize,
}

impl Serialize for JsonRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (index, column) in self.table.columns.iter().enumerate() {
            match &self.table.rows[self.row][index] {
                Cell::Text(text) => map.serialize_entry(column.name, text)?,
                Cell::Number(number) if !number.is_finite() => {
                    map.serialize_entry(column.name, &None::<f64>)?;
                }
                Cell::Number(number) if column.unit == Unit::Count && number.fract() == 0.0 => {
                    map.serialize_entry(column.name, &(*number as i64))?;
                }
                Cell::Number(number) => map.serialize_entry(column.name, number)?,
            }
            if self.table.has_spread(index) {
                let half = self.table.spread[self.row][index];
                map.serialize_entry(&format!("{}_ci95", column.name), &half)?;
            }
        }
        map.end()
    }
}

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = (0..self.rows.len()).map(|row| JsonRow { table: self, row });
        serializer.collect_seq(rows)
    }
}
