//! Values of keys: raw values as written, and accepted values.
//!
//! [`RawValue`] is any TOML value with the text it was written as, so that errors can quote it.
//! [`Value`] is an accepted value. It prints as TOML on one line, so that a printed recipe can be
//! parsed again.

use std::borrow::Cow;
use std::fmt;

use serde::{Serialize, Serializer};
use toml::Spanned;
use toml::de::{DeInteger, DeValue};

/// An accepted value of a key.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// An integer.
    Integer(i64),
    /// A finite number.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// Text or the name of a choice.
    Text(String),
    /// Values of one type.
    List(Vec<Self>),
    /// Named values; optional ones may be missing.
    Table(Vec<(&'static str, Self)>),
}

impl Value {
    /// The integer of a key whose type is an integer; anything else is a bug in the table.
    pub(crate) fn as_integer(&self) -> i64 {
        let Self::Integer(integer) = self else { panic!("{self} passed as an integer") };
        *integer
    }

    /// The number of a key whose type is a float; anything else is a bug in the table.
    pub(crate) fn as_float(&self) -> f64 {
        let Self::Float(float) = self else { panic!("{self} passed as a float") };
        *float
    }

    /// The boolean of a key whose type is a boolean; anything else is a bug in the table.
    pub(crate) fn as_bool(&self) -> bool {
        let Self::Bool(flag) = self else { panic!("{self} passed as a boolean") };
        *flag
    }

    /// The text of a key whose type is text or a choice; anything else is a bug in the table.
    pub(crate) fn as_text(&self) -> &str {
        let Self::Text(text) = self else { panic!("{self} passed as text") };
        text
    }

    /// The values of a key whose type is a list; anything else is a bug in the table.
    pub(crate) fn as_list(&self) -> &[Self] {
        let Self::List(values) = self else { panic!("{self} passed as a list") };
        values
    }

    /// A cell of a value whose type is a table, if it was given; a value that is no table is a bug
    /// in the table of keys.
    pub(crate) fn cell(&self, name: &str) -> Option<&Self> {
        let Self::Table(cells) = self else { panic!("{self} passed as a table") };
        cells.iter().find(|(cell, _)| *cell == name).map(|(_, v)| v)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(integer) => write!(f, "{integer}"),
            // The debug form keeps the point ("1.0") and is the shortest that parses equal.
            Self::Float(float) => write!(f, "{float:?}"),
            Self::Bool(flag) => write!(f, "{flag}"),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::List(values) => {
                let values: Vec<String> = values.iter().map(Self::to_string).collect();
                write!(f, "[{}]", values.join(", "))
            }
            Self::Table(cells) => {
                let cell = |(name, value): &(&str, Self)| format!("{name} = {value}");
                let cells: Vec<String> = cells.iter().map(cell).collect();
                write!(f, "{{ {} }}", cells.join(", "))
            }
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Integer(integer) => serializer.serialize_i64(*integer),
            Self::Float(float) => serializer.serialize_f64(*float),
            Self::Bool(flag) => serializer.serialize_bool(*flag),
            Self::Text(text) => serializer.serialize_str(text),
            Self::List(values) => serializer.collect_seq(values),
            Self::Table(cells) => serializer.collect_map(cells.iter().map(|(name, v)| (name, v))),
        }
    }
}

/// The content of a raw value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Content {
    /// Wider than any key, so that a huge number is reported as out of range.
    Integer(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    Date,
    List(Vec<RawValue>),
    Table(Vec<(String, RawValue)>),
}

impl Content {
    /// Name of the type, as in "is ... where an integer is needed".
    pub(crate) const fn type_name(&self) -> &'static str {
        match self {
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::Text(_) => "text",
            Self::Date => "a date",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

/// A value as written by the user.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RawValue {
    pub(crate) content: Content,
    /// Its text on one line of bounded length, for messages.
    pub(crate) written: String,
}

impl RawValue {
    /// From a parsed TOML value and its document.
    pub(crate) fn from_toml(value: &Spanned<DeValue<'_>>, document: &str) -> Self {
        let content = match value.get_ref() {
            DeValue::String(text) => return Self::text(text),
            DeValue::Integer(integer) => Content::Integer(wide_integer(integer)),
            // A float too large for f64 parses as infinite, which every key refuses.
            DeValue::Float(float) => Content::Float(float.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(flag) => Content::Bool(*flag),
            DeValue::Datetime(_) => Content::Date,
            DeValue::Array(values) => {
                Content::List(values.iter().map(|value| Self::from_toml(value, document)).collect())
            }
            DeValue::Table(table) => {
                // The parser sorts by name; keep the order of the text.
                let mut cells: Vec<_> = table.iter().collect();
                cells.sort_by_key(|(_, value)| value.span().start);
                let cell = |(name, value): (&Spanned<Cow<'_, str>>, _)| {
                    (name.get_ref().to_string(), Self::from_toml(value, document))
                };
                Content::Table(cells.into_iter().map(cell).collect())
            }
        };
        let written = one_line(document.get(value.span()).unwrap_or_default());
        // A table with its own header has no text to repeat.
        let written = match content {
            Content::Table(_) if !written.starts_with('{') => "{...}".to_owned(),
            Content::List(_) if !written.ends_with(']') => "[...]".to_owned(),
            _ => written,
        };
        Self { content, written }
    }

    /// Text, shown in quotes.
    pub(crate) fn text(text: &str) -> Self {
        Self { content: Content::Text(text.to_owned()), written: one_line(&quoted(text)) }
    }

    /// The value of `--set key=value`: a TOML value, or else bare text.
    pub(crate) fn from_argument(argument: &str) -> Self {
        match DeValue::parse(argument) {
            Ok(value) => Self::from_toml(&value, argument),
            Err(_) => Self::text(argument),
        }
    }
}

/// An integer of any size, saturated to 128 bits.
fn wide_integer(integer: &DeInteger<'_>) -> i128 {
    let digits = integer.as_str();
    let limit = if digits.starts_with('-') { i128::MIN } else { i128::MAX };
    i128::from_str_radix(digits, integer.radix()).unwrap_or(limit)
}

/// Text as a TOML basic string on one line.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            other if other.is_control() => {
                let code = format!("\\u{:04X}", u32::from(other));
                out.push_str(&code);
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// Longest excerpt of foreign text in a message, in characters.
const EXCERPT_CHARS: usize = 72;

/// Any text as one line of bounded length: runs of white space and control characters become one
/// space, and a long text is cut with an ellipsis.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::new();
    let pieces = text.split(|c: char| c.is_whitespace() || c.is_control());
    for piece in pieces.filter(|piece| !piece.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(piece);
        if line.len() > 4 * EXCERPT_CHARS {
            break;
        }
    }
    match line.char_indices().nth(EXCERPT_CHARS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_print_as_toml() {
        assert_eq!(Value::Integer(-3).to_string(), "-3");
        assert_eq!(Value::Float(1.0).to_string(), "1.0");
        assert_eq!(Value::Float(1e-8).to_string(), "1e-8");
        assert_eq!(Value::Bool(true).to_string(), "true");
        let table = Value::Table(vec![("a", Value::Integer(1)), ("b", Value::Text("c".into()))]);
        let list = Value::List(vec![table, Value::Table(Vec::new())]);
        assert_eq!(list.to_string(), r#"[{ a = 1, b = "c" }, {  }]"#);
        assert_eq!(Value::Text("a \"b\"\\\n\u{1}".into()).to_string(), r#""a \"b\"\\\n\u0001""#);
    }

    #[test]
    fn arguments_are_toml_values_or_bare_text() {
        let content = |argument| RawValue::from_argument(argument).content;
        assert_eq!(content("1_000"), Content::Integer(1000));
        assert_eq!(content("0x10"), Content::Integer(16));
        assert_eq!(content("3e-3"), Content::Float(3e-3));
        assert_eq!(content("true"), Content::Bool(true));
        assert_eq!(content("\"quoted\""), Content::Text("quoted".into()));
        assert_eq!(content("cosine"), Content::Text("cosine".into()));
        assert_eq!(content("my folder/a.txt"), Content::Text("my folder/a.txt".into()));
        assert_eq!(content("1\nb = 2"), Content::Text("1\nb = 2".into()));
        let numbers = |numbers: &[i128]| {
            let given =
                |n: &i128| RawValue { content: Content::Integer(*n), written: n.to_string() };
            numbers.iter().map(given).collect::<Vec<_>>()
        };
        assert_eq!(content("[1, 2]"), Content::List(numbers(&[1, 2])));
        let one = numbers(&[1]).remove(0);
        assert_eq!(content("{min = 1}"), Content::Table(vec![("min".into(), one)]));
        assert_eq!(content("1979-05-27"), Content::Date);
    }

    #[test]
    fn an_integer_too_large_for_any_key_keeps_its_sign() {
        let digits = "9".repeat(60);
        assert_eq!(RawValue::from_argument(&digits).content, Content::Integer(i128::MAX));
        assert_eq!(
            RawValue::from_argument(&format!("-{digits}")).content,
            Content::Integer(i128::MIN)
        );
    }

    #[test]
    fn excerpts_are_one_short_line() {
        assert_eq!(one_line("[1,\n   2]\u{7}"), "[1, 2]");
        let long = one_line(&"é".repeat(500));
        assert_eq!(long, format!("{}...", "é".repeat(72)));
    }
}
