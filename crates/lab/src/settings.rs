//! Parameter values of an experiment, parsed and printed with units.

use crate::description::{Description, Domain, Param, Unit};
use crate::error::LabError;
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use serde::Serialize;
use std::collections::BTreeMap;

/// Value of a parameter.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// In the base unit.
    Number(f64),
    /// One of several names.
    Text(String),
}

/// Values of all parameters.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Settings {
    values: BTreeMap<&'static str, Value>,
}

impl Settings {
    /// Default values.
    pub fn defaults(description: &Description) -> Self {
        let value = |param: &Param| match param.domain {
            Domain::Range { default, .. } => Value::Number(default),
            Domain::Choice(of) => Value::Text(of[0].to_owned()),
        };
        Self { values: description.params.iter().map(|param| (param.key, value(param))).collect() }
    }

    /// Sets a parameter.
    pub fn set(&mut self, key: &'static str, value: Value) {
        self.values.insert(key, value);
    }

    /// Parses `key=value` and sets it.
    pub fn assign(&mut self, description: &Description, text: &str) -> Result<(), LabError> {
        let (param, value) = split_pair(description, text)?;
        self.set(param.key, parse_value(param, value)?);
        Ok(())
    }

    /// Value by name.
    ///
    /// # Panics
    /// If the experiment has no such parameter.
    pub fn value(&self, key: &str) -> &Value {
        self.values.get(key).unwrap_or_else(|| panic!("unknown parameter {key}"))
    }

    /// Value of a numeric parameter.
    pub fn number(&self, key: &str) -> f64 {
        match self.value(key) {
            Value::Number(number) => *number,
            Value::Text(text) => panic!("{key} is the text {text}"),
        }
    }

    /// Value of a count.
    pub fn count(&self, key: &str) -> usize {
        self.number(key) as usize
    }

    /// Value of a duration.
    pub fn seconds(&self, key: &str) -> Seconds {
        Seconds(self.number(key))
    }

    /// Value in bytes.
    pub fn bytes(&self, key: &str) -> Bytes {
        Bytes(self.number(key) as u64)
    }

    /// Value of a bandwidth.
    pub fn bandwidth(&self, key: &str) -> BytesPerSecond {
        BytesPerSecond(self.number(key))
    }

    /// Value of a choice.
    pub fn choice(&self, key: &str) -> &str {
        match self.value(key) {
            Value::Text(text) => text,
            Value::Number(number) => panic!("{key} is the number {number}"),
        }
    }
}

/// Splits `key=value` into the parameter and the text of its value.
fn split_pair<'a>(
    description: &Description,
    text: &'a str,
) -> Result<(&'static Param, &'a str), LabError> {
    let Some((key, value)) = text.split_once('=') else {
        let example = format!("{}={}", description.sweep.0, description.sweep.1[0]);
        return Err(LabError::NotAPair { text: text.to_owned(), example });
    };
    let key = key.trim();
    description
        .param(key)
        .map(|param| (param, value.trim()))
        .ok_or_else(|| LabError::no_param(description, key))
}

/// Parses `key=a,b,c`.
pub fn sweep(
    description: &Description,
    text: &str,
) -> Result<(&'static str, Vec<Value>), LabError> {
    let (param, values) = split_pair(description, text)?;
    let values = values.split(',').map(|value| parse_value(param, value.trim()));
    Ok((param.key, values.collect::<Result<_, _>>()?))
}

fn parse_value(param: &Param, text: &str) -> Result<Value, LabError> {
    let invalid = || LabError::bad_value(param, text);
    match param.domain {
        Domain::Choice(of) if of.contains(&text) => Ok(Value::Text(text.to_owned())),
        Domain::Choice(_) => Err(invalid()),
        Domain::Range { min, max, .. } => {
            let number = param.unit.parse(text).ok_or_else(invalid)?;
            let is_whole = param.unit != Unit::Count || number.fract() == 0.0;
            let is_inside = (min..=max).contains(&number) && is_whole;
            if is_inside { Ok(Value::Number(number)) } else { Err(invalid()) }
        }
    }
}

/// Units of durations; longer names first.
const DURATIONS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("ms", 1e-3),
    ("min", 60.0),
    ("h", 3600.0),
    ("d", 86400.0),
    ("s", 1.0),
];

/// Units of bandwidths.
const BANDWIDTHS: [(&str, f64); 7] = [
    ("Gb/s", 0.125e9),
    ("Gbit/s", 0.125e9),
    ("TB/s", 1e12),
    ("GB/s", 1e9),
    ("MB/s", 1e6),
    ("kB/s", 1e3),
    ("B/s", 1.0),
];

impl Unit {
    /// Parses a number with or without its unit.
    fn parse(self, text: &str) -> Option<f64> {
        let plain = || text.parse::<f64>().ok().filter(|number| number.is_finite());
        let scaled = |units: &[(&str, f64)]| {
            let (name, factor) = units.iter().find(|(name, _)| text.ends_with(name))?;
            let number = text.strip_suffix(name)?.trim().parse::<f64>().ok()?;
            number.is_finite().then_some(number * factor)
        };
        match self {
            Self::Seconds => plain().or_else(|| scaled(&DURATIONS)),
            Self::BytesPerSecond => plain().or_else(|| scaled(&BANDWIDTHS)),
            Self::Bytes => plain().or_else(|| text.parse::<Bytes>().ok().map(|b| b.0 as f64)),
            Self::Share => plain().or_else(|| scaled(&[("%", 0.01)])),
            _ => plain(),
        }
    }

    /// Formats a number with its unit.
    pub fn show(self, number: f64) -> String {
        if !number.is_finite() {
            return if number.is_nan() { "-" } else { "never" }.to_owned();
        }
        match self {
            Self::Seconds => Seconds(number).to_string(),
            Self::Bytes => decimal_bytes(number),
            Self::BytesPerSecond => BytesPerSecond(number).to_string(),
            Self::Share => format!("{:.1} %", 100.0 * number),
            Self::Times => format!("{}x", short(number)),
            Self::Count if number.fract() == 0.0 => format!("{number:.0}"),
            Self::Count | Self::Number | Self::Text => short(number),
        }
    }
}

/// Bytes in SI units.
fn decimal_bytes(number: f64) -> String {
    let names = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut power = 0;
    let mut scaled = number;
    while scaled.abs() >= 999.5 && power + 1 < names.len() {
        (scaled, power) = (scaled / 1000.0, power + 1);
    }
    format!("{} {}", short(scaled), names[power])
}

/// Formats a number with about four digits.
fn short(number: f64) -> String {
    let size = number.abs();
    if size != 0.0 && !(1e-3..1e6).contains(&size) {
        let text = format!("{number:.2e}");
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{power}", digits.trim_end_matches('0').trim_end_matches('.'));
    }
    let digits = match size {
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    let text = format!("{number:.digits$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}
