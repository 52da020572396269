//! What an experiment says about itself: its question, formula, parameters, columns and picture.
//!
//! A card is data. Help, lists, checks of values, tables and pictures of all experiments are made
//! from their cards, so an experiment is only its card and its arithmetic.

use serde::Serialize;
use std::fmt::{self, Write};

/// What a number counts. Values are always in the base unit: seconds, bytes, fractions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Things.
    Count,
    /// A plain number.
    Number,
    /// Durations.
    Seconds,
    /// Memory or traffic.
    Bytes,
    /// Bytes a second.
    BytesPerSecond,
    /// A fraction of one.
    Share,
    /// How many times as much.
    Times,
    /// A word.
    Word,
}

/// The values that a parameter can take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Domain {
    /// Numbers from the first to the last.
    Range {
        /// The smallest.
        min: f64,
        /// The largest.
        max: f64,
        /// What it is when nobody says.
        default: f64,
    },
    /// One of these words; the first when nobody says.
    Choice(&'static [&'static str]),
}

/// Something about an experiment that can be set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Param {
    /// How it is called on the command line.
    pub key: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// Its values.
    pub domain: Domain,
    /// What it means, in a few words.
    pub meaning: &'static str,
}

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Column {
    /// Its name, also in JSON and CSV.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// What it means, in a few words; the axis of a picture says this.
    pub meaning: &'static str,
}

/// What is drawn. How follows from the table: lines over numbers, bars over words, and a field of
/// shades where two parameters are swept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Picture {
    /// The parameter or column along the horizontal axis.
    pub x: &'static str,
    /// The columns that are drawn; of bars and shades the first.
    pub y: &'static [&'static str],
    /// The column of words whose values are lines of their own, if there is one.
    pub series: Option<&'static str>,
    /// Whether the horizontal axis goes by powers.
    pub log_x: bool,
    /// Whether the vertical axis does.
    pub log_y: bool,
    /// What the vertical axis is called, where no single column says it.
    pub y_name: Option<&'static str>,
}

/// An experiment in words and data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Card {
    /// How it is called on the command line.
    pub name: &'static str,
    /// One line for the list.
    pub title: &'static str,
    /// What it answers.
    pub question: &'static str,
    /// The closed form.
    pub formula: &'static str,
    /// What to look at.
    pub look: &'static str,
    /// What surprises people.
    pub surprise: &'static str,
    /// What can be set.
    pub params: &'static [Param],
    /// The parameter that is swept when nobody says, and its values.
    pub sweep: (&'static str, &'static [f64]),
    /// What every run gives.
    pub columns: &'static [Column],
    /// How it is drawn.
    pub picture: Picture,
}

impl Param {
    /// A number of things.
    pub const fn count(
        key: &'static str,
        default: f64,
        (min, max): (f64, f64),
        meaning: &'static str,
    ) -> Self {
        Self { key, unit: Unit::Count, domain: Domain::Range { min, max, default }, meaning }
    }

    /// A number with a unit.
    pub const fn number(
        key: &'static str,
        unit: Unit,
        default: f64,
        (min, max): (f64, f64),
        meaning: &'static str,
    ) -> Self {
        Self { key, unit, domain: Domain::Range { min, max, default }, meaning }
    }

    /// One of several words.
    pub const fn choice(
        key: &'static str,
        of: &'static [&'static str],
        meaning: &'static str,
    ) -> Self {
        Self { key, unit: Unit::Word, domain: Domain::Choice(of), meaning }
    }
}

impl Column {
    /// A column.
    pub const fn new(name: &'static str, unit: Unit, meaning: &'static str) -> Self {
        Self { name, unit, meaning }
    }
}

impl Picture {
    /// Lines of some columns over a parameter.
    pub const fn lines(x: &'static str, y: &'static [&'static str]) -> Self {
        Self { x, y, series: None, log_x: false, log_y: false, y_name: None }
    }

    /// With a line for each word of a column.
    pub const fn by(self, series: &'static str) -> Self {
        Self { series: Some(series), ..self }
    }

    /// With a name for the vertical axis.
    pub const fn named(self, y_name: &'static str) -> Self {
        Self { y_name: Some(y_name), ..self }
    }

    /// With axes that go by powers.
    pub const fn log(self, log_x: bool, log_y: bool) -> Self {
        Self { log_x, log_y, ..self }
    }
}

impl Card {
    /// The parameter of this name.
    pub fn param(&self, key: &str) -> Option<&'static Param> {
        self.params.iter().find(|param| param.key == key)
    }

    /// The page of help.
    pub fn help(&self) -> String {
        let mut text = format!("{}\n\nQuestion: {}\n", self.title, self.question);
        for (heading, words) in [
            ("Formula", self.formula),
            ("Look at", self.look),
            ("What surprises people", self.surprise),
        ] {
            let _ = writeln!(text, "{heading}: {words}");
        }
        text += "\nParameters (--param key=value, --sweep key=a,b,c):\n";
        let width = self.params.iter().map(|param| param.key.len()).max().unwrap_or(0);
        for param in self.params {
            let values = param.values();
            let _ = writeln!(text, "  {:<width$}  {} ({values})", param.key, param.meaning);
        }
        let (key, values) = self.sweep;
        let unit = self.param(key).map_or(Unit::Number, |param| param.unit);
        let values: Vec<String> = values.iter().map(|value| unit.show(*value)).collect();
        let _ = writeln!(text, "\nSwept by default: {key} = {}\n\nColumns:", values.join(", "));
        let width = self.columns.iter().map(|column| column.name.len()).max().unwrap_or(0);
        for column in self.columns {
            let Column { name, unit, meaning } = column;
            let _ = writeln!(text, "  {name:<width$}  {meaning} [{unit}]");
        }
        text
    }
}

impl Param {
    /// Its default and its limits.
    fn values(&self) -> String {
        match self.domain {
            Domain::Choice(of) => format!("{}; {}", of[0], of.join(", ")),
            Domain::Range { min, max, default } => {
                let show = |value| self.unit.show(value);
                format!("{}; {} to {}", show(default), show(min), show(max))
            }
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Count => "count",
            Self::Number => "number",
            Self::Seconds => "s",
            Self::Bytes => "bytes",
            Self::BytesPerSecond => "bytes/s",
            Self::Share => "fraction",
            Self::Times => "times",
            Self::Word => "word",
        })
    }
}
