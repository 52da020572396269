//! Description of an experiment as data: question, formula, parameters, columns and chart.
//!
//! Help, lists, validation of values, tables and charts derive from the description, so an
//! experiment is its description and its arithmetic.

use serde::Serialize;
use std::fmt::{self, Write};

/// Unit of a value. Values are always in the base unit: seconds, bytes, fractions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A count.
    Count,
    /// A dimensionless number.
    Number,
    /// A duration.
    Seconds,
    /// Memory or message size.
    Bytes,
    /// Bandwidth.
    BytesPerSecond,
    /// A fraction of one.
    Share,
    /// A ratio, such as a speed-up.
    Times,
    /// Text.
    Text,
}

/// Allowed values of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Domain {
    /// Numbers from `min` to `max`.
    Range {
        /// Minimum.
        min: f64,
        /// Maximum.
        max: f64,
        /// Default.
        default: f64,
    },
    /// One of several names; the first is the default.
    Choice(&'static [&'static str]),
}

/// A parameter of an experiment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Param {
    /// Name on the command line.
    pub key: &'static str,
    /// Unit.
    pub unit: Unit,
    /// Allowed values.
    pub domain: Domain,
    /// Short explanation.
    pub meaning: &'static str,
}

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Column {
    /// Name, also in JSON and CSV.
    pub name: &'static str,
    /// Unit.
    pub unit: Unit,
    /// Short explanation; label of the axis in a chart.
    pub meaning: &'static str,
}

/// Columns of a chart. The table decides the form: lines over numbers, bars over names, a heat map
/// where two parameters are swept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChartSpec {
    /// Parameter or column of the horizontal axis.
    pub x: &'static str,
    /// Columns of the vertical axis; bars and heat maps show the first.
    pub y: &'static [&'static str],
    /// Text column with one line per value, if there is one.
    pub series: Option<&'static str>,
    /// Whether the horizontal axis is logarithmic.
    pub log_x: bool,
    /// Whether the vertical axis is logarithmic.
    pub log_y: bool,
    /// Label of the vertical axis, where several columns share it.
    pub y_name: Option<&'static str>,
}

/// Description of an experiment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Description {
    /// Name on the command line.
    pub name: &'static str,
    /// Line of the list.
    pub title: &'static str,
    /// Question that it answers.
    pub question: &'static str,
    /// Closed form.
    pub formula: &'static str,
    /// Results to look at.
    pub look: &'static str,
    /// Common surprises.
    pub surprise: &'static str,
    /// Parameters.
    pub params: &'static [Param],
    /// Parameter of the default sweep, and its values.
    pub sweep: (&'static str, &'static [f64]),
    /// Columns of the result.
    pub columns: &'static [Column],
    /// Chart.
    pub chart: ChartSpec,
}

impl Param {
    /// A count.
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

    /// One of several names.
    pub const fn choice(
        key: &'static str,
        of: &'static [&'static str],
        meaning: &'static str,
    ) -> Self {
        Self { key, unit: Unit::Text, domain: Domain::Choice(of), meaning }
    }
}

impl Column {
    /// A column with name, unit and explanation.
    pub const fn new(name: &'static str, unit: Unit, meaning: &'static str) -> Self {
        Self { name, unit, meaning }
    }
}

impl ChartSpec {
    /// Lines of columns over a parameter.
    pub const fn lines(x: &'static str, y: &'static [&'static str]) -> Self {
        Self { x, y, series: None, log_x: false, log_y: false, y_name: None }
    }

    /// Adds one line per value of a text column.
    pub const fn by(self, series: &'static str) -> Self {
        Self { series: Some(series), ..self }
    }

    /// Labels the vertical axis.
    pub const fn named(self, y_name: &'static str) -> Self {
        Self { y_name: Some(y_name), ..self }
    }

    /// Makes axes logarithmic.
    pub const fn log(self, log_x: bool, log_y: bool) -> Self {
        Self { log_x, log_y, ..self }
    }
}

impl Description {
    /// Parameter by name.
    pub fn param(&self, key: &str) -> Option<&'static Param> {
        self.params.iter().find(|param| param.key == key)
    }

    /// Text of `--explain`.
    pub fn help(&self) -> String {
        let mut text = format!("{}\n\nQuestion: {}\n", self.title, self.question);
        for (heading, paragraph) in
            [("Formula", self.formula), ("Look at", self.look), ("Common surprises", self.surprise)]
        {
            let _ = writeln!(text, "{heading}: {paragraph}");
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
    /// Default and limits.
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
            Self::Text => "text",
        })
    }
}
