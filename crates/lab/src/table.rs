//! The result of an experiment: rows of typed columns, with the spread over seeds.

use crate::card::{Column, Unit};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::fmt::Write;

/// A value of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// In the base unit; infinite for what never happens.
    Number(f64),
    /// A word.
    Word(String),
}

/// One row as an experiment gives it.
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
    fn from(word: &str) -> Self {
        Self::Word(word.to_owned())
    }
}

impl From<String> for Cell {
    fn from(word: String) -> Self {
        Self::Word(word)
    }
}

/// A row from values of different types.
#[macro_export]
macro_rules! row {
    ($($cell:expr),* $(,)?) => { vec![$($crate::Cell::from($cell)),*] };
}

/// Rows with the swept parameters in front.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Swept parameters first, then the columns of the experiment.
    pub columns: Vec<Column>,
    /// How many of them were swept.
    pub num_swept: usize,
    /// Means over the seeds.
    pub rows: Vec<Row>,
    /// Half the width of the 95 % confidence interval of each mean; 0 where all seeds agree.
    pub spread: Vec<Vec<f64>>,
}

impl Table {
    /// One without rows, whose first columns were swept.
    pub fn new(columns: Vec<Column>, num_swept: usize) -> Self {
        Self { columns, num_swept, rows: Vec::new(), spread: Vec::new() }
    }

    /// Where a column stands.
    pub fn index(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|known| known.name == column)
    }

    /// The numbers of a column; not a number where there is a word.
    pub fn numbers(&self, column: &str) -> Vec<f64> {
        let index = self.index(column).unwrap_or_else(|| panic!("no column {column}"));
        let number = |row: &Row| match row[index] {
            Cell::Number(number) => number,
            Cell::Word(_) => f64::NAN,
        };
        self.rows.iter().map(number).collect()
    }

    /// A column as it is printed.
    pub fn words(&self, column: &str) -> Vec<String> {
        let index = self.index(column).unwrap_or_else(|| panic!("no column {column}"));
        self.rows.iter().map(|row| self.show(index, &row[index])).collect()
    }

    /// The row with the least (or most, by the sign) of a column, if any row has a number there.
    pub fn best(&self, column: &str, sign: f64) -> Option<usize> {
        let numbers = self.numbers(column);
        let ranked = numbers.iter().enumerate().filter(|(_, number)| number.is_finite());
        ranked.min_by(|a, b| (sign * a.1).total_cmp(&(sign * b.1))).map(|(row, _)| row)
    }

    fn show(&self, column: usize, cell: &Cell) -> String {
        match cell {
            Cell::Word(word) => word.clone(),
            Cell::Number(number) => self.columns[column].unit.show(*number),
        }
    }

    fn has_spread(&self, column: usize) -> bool {
        self.spread.iter().any(|row| row[column] > 0.0)
    }

    /// Rows as they are printed, with ± where seeds differ.
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

    /// For a terminal: aligned columns.
    pub fn text(&self) -> String {
        let mut lines = vec![self.columns.iter().map(|column| column.name.to_owned()).collect()];
        lines.extend(self.cells());
        aligned(&lines)
    }

    /// As comma-separated values, in base units.
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
            Self::Word(word) if word.contains([',', '"']) => {
                format!("\"{}\"", word.replace('"', "\"\""))
            }
            Self::Word(word) => word.clone(),
        }
    }
}

/// Columns of equal width, two spaces apart, numbers to the right.
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

/// One row in JSON: names to values, `null` for what never happens.
struct JsonRow<'a> {
    table: &'a Table,
    row: usize,
}

impl Serialize for JsonRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (index, column) in self.table.columns.iter().enumerate() {
            match &self.table.rows[self.row][index] {
                Cell::Word(word) => map.serialize_entry(column.name, word)?,
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
