//! JSON Lines: one object per line, with the text in one field.
//!
//! Other fields are skipped while parsing. `null` and the empty string are documents without text
//! and are dropped. A line without the field is an error, because the field name is usually wrong.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::error::DocumentError;
use super::input::Input;
use super::pieces::Whole;
use super::text::strip_mark;
use crate::error::DataError;

/// File name suffixes of JSON Lines, without compression.
const ENDINGS: [&str; 3] = [".jsonl", ".ndjson", ".json"];

/// Maximum length of a line.
const LINE_BYTES: usize = 64 << 20;

/// Buffer capacity kept after an unusually long line.
const RETAINED_BYTES: usize = 1 << 20;

/// Whether a file of this lower-case name is read as JSON Lines.
pub(super) fn is_json_lines(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Reader of a JSON Lines file.
pub(crate) struct JsonLinesFile {
    input: Input,
    /// Field of the text; none if a document is the whole line.
    field: Option<String>,
    line: Vec<u8>,
    num_lines: u64,
    /// Start of the current line.
    offset: u64,
}

impl JsonLinesFile {
    pub(crate) fn new(input: Input, field: String) -> Self {
        Self { field: Some(field), ..Self::rows(input) }
    }

    /// Reader whose documents are whole lines.
    pub(crate) fn rows(input: Input) -> Self {
        Self { input, field: None, line: Vec::new(), num_lines: 0, offset: 0 }
    }

    /// Reads the next line; false at the end of the file.
    fn read_line(&mut self) -> Result<bool, DataError> {
        self.offset += self.line.len() as u64;
        self.line.clear();
        self.line.shrink_to(RETAINED_BYTES);
        let num_read = self.input.read_line(LINE_BYTES + 1, &mut self.line)?;
        self.num_lines += 1;
        if num_read > LINE_BYTES {
            let (path, line) = (self.input.path().to_owned(), self.num_lines);
            let limit_bytes = LINE_BYTES as u64;
            return Err(DocumentError::LongLine { path, line, limit_bytes }.into());
        }
        if self.num_lines == 1 {
            self.offset += strip_mark(&mut self.line, &self.input)? as u64;
        }
        Ok(num_read > 0)
    }

    /// Reads up to the next line that is not blank; false at the end of the file.
    fn next_row(&mut self) -> Result<bool, DataError> {
        while self.read_line()? {
            if !self.line.iter().all(u8::is_ascii_whitespace) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Text of the field in the current line; none for null.
    fn text(&self) -> Result<Option<String>, DataError> {
        let (path, line) = (|| self.input.path().to_owned(), self.num_lines);
        let text = std::str::from_utf8(&self.line).map_err(|error| DataError::NotUtf8 {
            path: path(),
            offset_bytes: self.offset as usize + error.valid_up_to(),
        })?;
        let Some(field) = &self.field else { return Ok(Some(text.to_owned())) };
        let mut parser = serde_json::Deserializer::from_str(text);
        let found = FieldVisitor(field).deserialize(&mut parser);
        let found = found.and_then(|found| parser.end().map(|()| found)).map_err(|error| {
            DocumentError::NotJson { path: path(), line, reason: reason(&error) }
        })?;
        let field = field.clone();
        let found = match found {
            Found::Field(Value::String(text)) => return Ok(Some(text)),
            Found::Field(Value::Null) => return Ok(None),
            Found::Field(other) => kind(&other),
            Found::Nothing(found) => {
                return Err(DocumentError::NoField { path: path(), line, field, found }.into());
            }
        };
        Err(DocumentError::NotText { path: path(), line, field, found }.into())
    }
}

impl Whole for JsonLinesFile {
    fn next_whole(&mut self, text: &mut String) -> Result<bool, DataError> {
        let has_row = self.next_row()?;
        if has_row {
            *text = self.text()?.unwrap_or_default();
        }
        Ok(has_row)
    }

    fn skip(&mut self, count: u64) -> Result<u64, DataError> {
        for skipped in 0..count {
            if !self.next_row()? {
                return Ok(skipped);
            }
        }
        Ok(count)
    }

    fn position_bytes(&self) -> u64 {
        self.input.position_bytes()
    }

    fn place(&self) -> String {
        format!("line {}", self.num_lines)
    }
}

/// Result of parsing a line.
enum Found {
    Field(Value),
    /// The field is missing; names of the present fields.
    Nothing(Vec<String>),
}

/// Deserializes one field of an object.
struct FieldVisitor<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for FieldVisitor<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FieldVisitor<'_> {
    type Value = Found;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object on each line")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Found, M::Error> {
        let mut value = None;
        let mut names = Vec::new();
        while let Some(name) = map.next_key::<Name<'de>>()? {
            if name.0 == self.0 {
                value = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
                if value.is_none() {
                    names.push(name.0);
                }
            }
        }
        let names = || names.into_iter().map(Cow::into_owned).collect();
        Ok(value.map_or_else(|| Found::Nothing(names()), Found::Field))
    }
}

/// Name, borrowed from the line if it has no escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The parser counts lines of its input, which is a single line.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let message = text.split(" at line ").next().unwrap_or_default();
    format!("{message} at column {}", error.column())
}
