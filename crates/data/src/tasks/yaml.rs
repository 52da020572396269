//! YAML files as plain values, with the types that PyYAML gives to plain words (YAML 1.1).
//!
//! Aliases and custom tags are refused: an alias can make a short file arbitrarily large, and the
//! one tag of task files, `!function`, names Python code.

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

/// Most mappings and lists inside one another.
const MAX_DEPTH: usize = 32;

/// A value of a YAML file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Yaml {
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<Self>),
    /// Entries in the order of the file.
    Map(Vec<(String, Self)>),
}

impl Yaml {
    /// Text of a value.
    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value as a document of a data file has it.
    pub(super) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Integer(value) => (*value).into(),
            Self::Float(value) => (*value).into(),
            Self::Text(text) => text.as_str().into(),
            Self::List(items) => items.iter().map(Self::to_json).collect(),
            Self::Map(entries) => {
                entries.iter().map(|(key, value)| (key.clone(), value.to_json())).collect()
            }
        }
    }
}

/// Parses a file of one document.
pub(super) fn parse(text: &str) -> Result<Yaml, String> {
    let mut loader = Loader { parser: Parser::new_from_str(text), line: 1 };
    loop {
        match loader.next()? {
            Event::StreamStart | Event::DocumentStart(_) | Event::Nothing => {}
            Event::StreamEnd => return Ok(Yaml::Null),
            event => {
                let value = loader.value(event, 0)?;
                return match (loader.next()?, loader.next()?) {
                    (Event::DocumentEnd, Event::StreamEnd) => Ok(value),
                    _ => Err(loader.at("a second document begins; keep one")),
                };
            }
        }
    }
}

struct Loader<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    line: usize,
}

impl<'a> Loader<'a> {
    fn next(&mut self) -> Result<Event<'a>, String> {
        match self.parser.next() {
            Some(Ok((event, span))) => {
                self.line = span.start.line();
                Ok(event)
            }
            Some(Err(error)) => Err(format!("{} (line {})", error.info(), error.marker().line())),
            None => Ok(Event::StreamEnd),
        }
    }

    fn at(&self, problem: &str) -> String {
        format!("{problem} (line {})", self.line)
    }

    fn value(&mut self, event: Event<'a>, depth: usize) -> Result<Yaml, String> {
        if depth > MAX_DEPTH {
            return Err(self.at("values are nested too deeply"));
        }
        match event {
            Event::Scalar(text, style, _, tag) => {
                let is_text = self.is_text(tag.as_deref())?;
                let is_plain = style == ScalarStyle::Plain && !is_text;
                Ok(if is_plain { plain(&text) } else { Yaml::Text(text.into_owned()) })
            }
            Event::SequenceStart(_, tag) => {
                self.is_text(tag.as_deref())?;
                let mut items = Vec::new();
                loop {
                    match self.next()? {
                        Event::SequenceEnd => return Ok(Yaml::List(items)),
                        event => items.push(self.value(event, depth + 1)?),
                    }
                }
            }
            Event::MappingStart(_, tag) => {
                self.is_text(tag.as_deref())?;
                self.map(depth)
            }
            Event::Alias(_) => Err(self.at("aliases are not supported; repeat the value")),
            _ => Err(self.at("a value is missing")),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Yaml, String> {
        let mut entries: Vec<(String, Yaml)> = Vec::new();
        loop {
            let key = match self.next()? {
                Event::MappingEnd => return Ok(Yaml::Map(entries)),
                Event::Scalar(key, ..) => key.into_owned(),
                _ => return Err(self.at("a key is not a word")),
            };
            let event = self.next()?;
            let value = self.value(event, depth + 1)?;
            match entries.iter_mut().find(|(other, _)| *other == key) {
                // As PyYAML, the last one counts.
                Some((_, old)) => *old = value,
                None => entries.push((key, value)),
            }
        }
    }

    /// Whether a tag makes a plain word a text.
    fn is_text(&self, tag: Option<&Tag>) -> Result<bool, String> {
        match tag {
            None => Ok(false),
            Some(tag) if tag.is_yaml_core_schema() => Ok(tag.suffix == "str"),
            Some(tag) if tag.suffix == "function" => Err(self.at(
                "!function runs Python code; apply it to the data, and name the fields that it \
                 makes in templates",
            )),
            Some(tag) => Err(self.at(&format!("the tag {}{} is unknown", tag.handle, tag.suffix))),
        }
    }
}

/// A word without quotes.
fn plain(text: &str) -> Yaml {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Yaml::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Yaml::Bool(true);
        }
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Yaml::Bool(false);
        }
        _ => {}
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_number = digits.starts_with(|first: char| first.is_ascii_digit())
        || digits.starts_with('.') && digits.len() > 1;
    if !is_number || !digits.bytes().all(|byte| b"0123456789_.eE+-".contains(&byte)) {
        return Yaml::Text(text.to_owned());
    }
    let number = text.replace('_', "");
    let has_leading_zero = digits.len() > 1 && digits.starts_with('0');
    if let (Ok(integer), false) = (number.parse(), has_leading_zero) {
        return Yaml::Integer(integer);
    }
    // PyYAML takes a number with a point only.
    match number.parse() {
        Ok(float) if number.contains('.') => Yaml::Float(float),
        _ => Yaml::Text(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Yaml {
        Yaml::Text(text.to_owned())
    }

    #[test]
    fn values_have_the_types_of_pyyaml() {
        let file = "# a task\n\
            task: arc\n\
            version: 1.0\n\
            count: 12\n\
            split: null\n\
            none:\n\
            answers: [no, \"no\", 'it''s', 1e3, -4]\n\
            prompt: \"Question: {{q}}\\nAnswer:\"\n\
            joined: \"a\\n\\\n  b\"\n\
            block: |\n  one\n  two\n\
            folded: >-\n  one\n  two\n\
            list:\n  - metric: acc\n    higher_is_better: true\n  - x\n\
            tagged: !!str 12\n";
        let Yaml::Map(entries) = parse(file).unwrap() else { panic!("a mapping") };
        let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[..4], ["task", "version", "count", "split"]);
        let values: Vec<&Yaml> = entries.iter().map(|(_, value)| value).collect();
        let metric = vec![
            ("metric".to_owned(), text("acc")),
            ("higher_is_better".to_owned(), Yaml::Bool(true)),
        ];
        let answers =
            vec![Yaml::Bool(false), text("no"), text("it's"), text("1e3"), Yaml::Integer(-4)];
        let expected = [
            text("arc"),
            Yaml::Float(1.0),
            Yaml::Integer(12),
            Yaml::Null,
            Yaml::Null,
            Yaml::List(answers),
            text("Question: {{q}}\nAnswer:"),
            text("a\nb"),
            text("one\ntwo\n"),
            text("one two"),
            Yaml::List(vec![Yaml::Map(metric), text("x")]),
            text("12"),
        ];
        assert_eq!(values, expected.iter().collect::<Vec<_>>());
        assert_eq!(parse("").unwrap(), Yaml::Null);
    }

    #[test]
    fn broken_and_hostile_files_are_refused_with_their_line() {
        let bomb = "a: &a [x, x]\nb: [*a, *a]\n";
        let deep = format!("{}{}", "[".repeat(40), "]".repeat(40));
        for (file, problem) in [
            (bomb, "aliases"),
            ("a: !function utils.f\n", "Python code"),
            ("a: !other x\n", "unknown"),
            ("a: [1, 2\nb: 3\n", "line"),
            ("a: 1\n---\nb: 2\n", "second document"),
            ("? [1]\n: 2\n", "not a word"),
            (deep.as_str(), "too deeply"),
        ] {
            let error = parse(file).unwrap_err();
            assert!(error.contains(problem) && error.contains("line"), "{file}: {error}");
        }
    }
}
