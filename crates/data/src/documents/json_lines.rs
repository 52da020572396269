//! JSON Lines: an object a line, the text in one of its fields.
//!
//! A line is parsed without building what is not needed: other fields are skipped as they are
//! read. `null` and the empty text are documents without text, which nobody sees; a line without
//! the field is an error, because it is most often the name of the field that is wrong.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::error::DocumentError;
use super::input::Input;
use super::pieces::Whole;
use super::text::strip_mark;
use crate::error::DataError;

/// Names that JSON Lines go by, with or without compression.
const ENDINGS: [&str; 3] = [".jsonl", ".ndjson", ".json"];

/// The longest line that is read.
const LINE_BYTES: usize = 64 << 20;

/// How much memory a line of unusual length leaves behind.
const KEPT_BYTES: usize = 1 << 20;

/// Whether a file of this name, in lower case, is read as JSON Lines.
pub(super) fn is_json_lines(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// A JSON Lines file that is being read.
pub(crate) struct JsonLinesFile {
    input: Input,
    field: String,
    line: Vec<u8>,
    num_lines: u64,
    /// Where the current line begins.
    offset: u64,
}

impl JsonLinesFile {
    pub(crate) fn new(input: Input, field: String) -> Self {
        Self { input, field, line: Vec::new(), num_lines: 0, offset: 0 }
    }

    /// Reads the next line; false at the end of the file.
    fn read_line(&mut self) -> Result<bool, DataError> {
        self.offset += self.line.len() as u64;
        self.line.clear();
        self.line.shrink_to(KEPT_BYTES);
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

    /// The field's text in the current line; nothing where it is null.
    fn text(&self) -> Result<Option<String>, DataError> {
        let (path, line) = (|| self.input.path().to_owned(), self.num_lines);
        let text = std::str::from_utf8(&self.line).map_err(|error| DataError::NotUtf8 {
            path: path(),
            offset_bytes: self.offset as usize + error.valid_up_to(),
        })?;
        let mut parser = serde_json::Deserializer::from_str(text);
        let found = Wanted(&self.field).deserialize(&mut parser);
        let found = found.and_then(|found| parser.end().map(|()| found)).map_err(|error| {
            DocumentError::NotJson { path: path(), line, reason: reason(&error) }
        })?;
        let field = self.field.clone();
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
        while self.read_line()? {
            if self.line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            *text = self.text()?.unwrap_or_default();
            return Ok(true);
        }
        Ok(false)
    }

    fn position_bytes(&self) -> u64 {
        self.input.position_bytes()
    }
}

/// What one line holds.
enum Found {
    Field(Value),
    /// The field is not there; these are.
    Nothing(Vec<String>),
}

/// Looks for one field of an object.
struct Wanted<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for Wanted<'_> {
    type Value = Found;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Found, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Wanted<'_> {
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

/// A name that is borrowed from the line where it has no escapes.
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

/// The parser counts lines of what it was given, which is one.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let words = text.split(" at line ").next().unwrap_or_default();
    format!("{words} at column {}", error.column())
}
