//! Values as Python writes them (`str` and `repr`), and lists of literals as Python reads them.
//!
//! A template that prints a list, as `{{choices.text}}`, gives Python's notation of it, and
//! lm-evaluation-harness reads that back with `ast.literal_eval`.

use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

use minijinja::Value;
use minijinja::value::ValueKind;

/// Most lists inside one another that are written.
const MAX_DEPTH: usize = 64;

/// `str(value)`.
pub(super) fn write_str(value: &Value, out: &mut String) {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None => write_repr(value, 0, out),
    }
}

/// `repr(value)`.
fn write_repr(value: &Value, depth: usize, out: &mut String) {
    if depth > MAX_DEPTH {
        return out.push_str("...");
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::String => write_quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Map => {
            let entry = |key: Value, out: &mut String| {
                write_repr(&key, depth + 1, out);
                out.push_str(": ");
                write_repr(&value.get_item(&key).unwrap_or_default(), depth + 1, out);
            };
            write_items(['{', '}'], value, out, entry);
        }
        ValueKind::Seq | ValueKind::Iterable => {
            write_items(['[', ']'], value, out, |item, out| write_repr(&item, depth + 1, out));
        }
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

fn write_items(
    [open, close]: [char; 2],
    value: &Value,
    out: &mut String,
    mut write_item: impl FnMut(Value, &mut String),
) {
    out.push(open);
    for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write_item(item, out);
    }
    out.push(close);
}

/// A text in quotes: single ones, unless only those are inside.
fn write_quoted(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if char == quote => out.extend(['\\', quote]),
            _ if char.is_control() && (char as u32) < 0x100 => {
                let _ = write!(out, "\\x{:02x}", char as u32);
            }
            _ => out.push(char),
        }
    }
    out.push(quote);
}

/// A literal of Python.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    Text(String),
    Integer(i64),
    /// A number with a fraction, `None`, `True` or `False`.
    Other,
}

/// Reads a list or tuple of literals; `None` where the text is something else.
pub(super) fn parse_list(text: &str) -> Option<Vec<Literal>> {
    let mut chars = text.trim().chars().peekable();
    let close = match chars.next()? {
        '[' => ']',
        '(' => ')',
        _ => return None,
    };
    let mut items = Vec::new();
    loop {
        skip_spaces(&mut chars);
        match chars.peek()? {
            end if *end == close => {
                chars.next();
                return chars.next().is_none().then_some(items);
            }
            '\'' | '"' => items.push(Literal::Text(parse_text(&mut chars)?)),
            _ => items.push(parse_word(&mut chars)?),
        }
        skip_spaces(&mut chars);
        if *chars.peek()? == ',' {
            chars.next();
        } else if *chars.peek()? != close {
            return None;
        }
    }
}

fn skip_spaces(chars: &mut Peekable<Chars<'_>>) {
    while chars.next_if(|char| char.is_whitespace()).is_some() {}
}

/// A text in quotes.
fn parse_text(chars: &mut Peekable<Chars<'_>>) -> Option<String> {
    let quote = chars.next()?;
    let mut text = String::new();
    loop {
        match chars.next()? {
            end if end == quote => return Some(text),
            '\\' => match chars.next()? {
                'n' => text.push('\n'),
                'r' => text.push('\r'),
                't' => text.push('\t'),
                'x' => text.push(parse_code(chars, 2)?),
                'u' => text.push(parse_code(chars, 4)?),
                'U' => text.push(parse_code(chars, 8)?),
                same @ ('\\' | '\'' | '"') => text.push(same),
                other => text.extend(['\\', other]),
            },
            char => text.push(char),
        }
    }
}

fn parse_code(chars: &mut Peekable<Chars<'_>>, num_digits: usize) -> Option<char> {
    let mut code = 0u32;
    for _ in 0..num_digits {
        code = code.checked_mul(16)? + chars.next()?.to_digit(16)?;
    }
    char::from_u32(code)
}

/// A number, or a word of the language.
fn parse_word(chars: &mut Peekable<Chars<'_>>) -> Option<Literal> {
    let mut word = String::new();
    let is_part = |char: &char| char.is_alphanumeric() || ['+', '-', '.', '_'].contains(char);
    while let Some(char) = chars.next_if(is_part) {
        word.push(char);
    }
    if let Ok(integer) = word.parse() {
        return Some(Literal::Integer(integer));
    }
    let is_known = ["None", "True", "False"].contains(&word.as_str());
    (is_known || word.parse::<f64>().is_ok()).then_some(Literal::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(json: &str) -> String {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        let mut out = String::new();
        write_str(&Value::from(minijinja::value::Serde(&value)), &mut out);
        out
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        // str() of the values that Python's json.loads reads.
        for (json, python) in [
            ("\"it's\"", "it's"),
            ("[\"it's\", \"a\\\"b\", \"'\\\"\"]", r#"["it's", 'a"b', '\'"']"#),
            ("[1, 2.5, 3.0, true, null]", "[1, 2.5, 3.0, True, None]"),
            (r#"["a\\b\n\tc\u0001é"]"#, r"['a\\b\n\tc\x01é']"),
            (r#"{"a": [], "b": {"c": "d"}}"#, "{'a': [], 'b': {'c': 'd'}}"),
            ("true", "True"),
            ("null", "None"),
            ("-7", "-7"),
        ] {
            assert_eq!(written(json), python);
        }
    }

    #[test]
    fn lists_are_read_as_python_reads_them() {
        let texts = |texts: &[&str]| {
            let text = |text: &&str| Literal::Text((*text).to_owned());
            Some(texts.iter().map(text).collect::<Vec<_>>())
        };
        assert_eq!(parse_list("['a', \"it's\", ]"), texts(&["a", "it's"]));
        assert_eq!(parse_list(r"('\x41\n\\', '\'é\u00e9')"), texts(&["A\n\\", "'éé"]));
        assert_eq!(parse_list("[]"), texts(&[]));
        let numbers = vec![Literal::Integer(1), Literal::Integer(-2), Literal::Other];
        assert_eq!(parse_list(" [1, -2, 1.5] "), Some(numbers));
        for broken in ["", "a", "['a'", "['a' 'b']", "[a]", "['a'] x", "['\\x4']", "[,]"] {
            assert_eq!(parse_list(broken), None, "{broken}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let choices = ["plain", "it's \"both\"", "tab\tand\nline", "back\\slash", "é 日本", ""];
        let json = serde_json::to_string(&choices).unwrap();
        let read = parse_list(&written(&json)).unwrap();
        let expected: Vec<_> = choices.iter().map(|text| Literal::Text((*text).into())).collect();
        assert_eq!(read, expected);
    }
}
