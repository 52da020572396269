//! Python in chat templates: string methods, and `json.dumps` as the filter `tojson`.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// Nesting of values that is still written as JSON.
const MAX_DEPTH: usize = 128;

/// Methods of strings, lists and objects.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let text = value.as_str();
    let affix = args.first().and_then(Value::as_str);
    match (text, name, affix) {
        (Some(text), "removeprefix", Some(prefix)) => {
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        (Some(text), "removesuffix", Some(suffix)) => {
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        (Some(text), "rsplit", Some(separator)) => {
            let limit = args.get(1).and_then(|limit| usize::try_from(limit.clone()).ok());
            let limit = limit.map_or(usize::MAX, |limit| limit.saturating_add(1));
            let mut parts: Vec<_> = text.rsplitn(limit, separator).map(Value::from).collect();
            parts.reverse();
            Ok(parts.into())
        }
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "a filter of minijinja owns its arguments")]
/// `json.dumps` with `ensure_ascii = False`, as `transformers` defines the filter.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let is_sorted: Option<bool> = options.get("sort_keys")?;
    let separators: Option<Value> = options.get("separators")?;
    let _ensure_ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let separator = |index: usize| {
        let separator = separators.as_ref()?.get_item(&Value::from(index)).ok()?;
        separator.as_str().map(str::to_owned)
    };
    let item = if indent.is_some() { "," } else { ", " };
    let style = Style {
        indent,
        is_sorted: is_sorted.unwrap_or(false),
        item: separator(0).unwrap_or_else(|| item.to_owned()),
        key: separator(1).unwrap_or_else(|| ": ".to_owned()),
    };
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(out)
}

struct Style {
    indent: Option<usize>,
    is_sorted: bool,
    item: String,
    key: String,
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "is nested too deeply for JSON"));
        }
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(&value.to_string())),
            ValueKind::String => write_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.is_sorted {
                    keys.sort();
                }
                let entry = |key: &Value, out: &mut String| {
                    write_text(&key.to_string(), out);
                    out.push_str(&self.key);
                    self.write(&value.get_item(key)?, depth + 1, out)
                };
                self.write_items(['{', '}'], &keys, depth, out, entry)?;
            }
            _ => {
                let items: Vec<Value> = value.try_iter()?.collect();
                let item = |item: &Value, out: &mut String| self.write(item, depth + 1, out);
                self.write_items(['[', ']'], &items, depth, out, item)?;
            }
        }
        Ok(())
    }

    fn write_items(
        &self,
        [open, close]: [char; 2],
        items: &[Value],
        depth: usize,
        out: &mut String,
        write_item: impl Fn(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let (Some(indent), false) = (self.indent, items.is_empty()) {
                let indent = indent.saturating_mul(depth).min(1 << 10);
                out.extend(['\n'].into_iter().chain(std::iter::repeat_n(' ', indent)));
            }
        };
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.item);
            }
            line(depth + 1, out);
            write_item(item, out)?;
        }
        line(depth, out);
        out.push(close);
        Ok(())
    }
}

/// Python writes large and small numbers with a signed exponent of two digits.
fn number(text: &str) -> String {
    match text.parse::<f64>() {
        Ok(value) if text.contains(['.', 'e']) && value.is_finite() && value != 0.0 => {
            let exponent = value.abs().log10().floor() as i32;
            if (-4..16).contains(&exponent) {
                return text.to_owned();
            }
            let scientific = format!("{value:e}");
            let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
            let exponent: i32 = exponent.parse().unwrap_or(0);
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => text.to_owned(),
    }
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => {
                let _ = write!(out, "\\u{:04x}", control as u32);
            }
            other => out.push(other),
        }
    }
    out.push('"');
}
