//! Reads structs and enums with their doc comments from formatted Rust source, line by line.

use anyhow::{Context, Result};

/// A struct, or a variant of an enum.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Item {
    pub(super) name: String,
    pub(super) doc: String,
    /// Whether it derives `Serialize`.
    pub(super) is_serialized: bool,
    pub(super) fields: Vec<Field>,
}

/// A named field.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) ty: String,
    pub(super) doc: String,
    /// Whether its own fields appear in its place.
    pub(super) is_flattened: bool,
}

/// The item whose declaration is `head`, such as `struct Manifest`.
pub(super) fn item(text: &str, head: &str) -> Result<Item> {
    let name = head.split(' ').next_back().unwrap_or(head);
    let found = structs(text)?.into_iter().find(|item| item.name == name);
    found.with_context(|| format!("no {head}"))
}

/// Every public struct with named fields.
pub(super) fn structs(text: &str) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    let mut pending = Pending::default();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let head = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {"));
        if let Some(name) = head {
            let is_serialized = pending.attributes.contains("Serialize");
            let doc = pending.take();
            let fields = fields(&mut lines, "    ")?;
            items.push(Item { name: name.to_owned(), doc, is_serialized, fields });
        } else {
            pending.read(line);
        }
    }
    Ok(items)
}

/// The variants of a public enum.
pub(super) fn variants(text: &str, head: &str) -> Result<Vec<Item>> {
    let mut lines = text.lines();
    let head = format!("pub {head} {{");
    lines.find(|line| *line == head).with_context(|| format!("no {head}"))?;
    let mut variants = Vec::new();
    let mut pending = Pending::default();
    while let Some(line) = lines.next() {
        if line == "}" {
            break;
        }
        let text = line.trim();
        if text.starts_with("///") || text.starts_with("#[") || text.is_empty() {
            pending.read(text);
            continue;
        }
        let name: String = text.chars().take_while(|c| c.is_alphanumeric()).collect();
        let doc = pending.take();
        let fields = if text.ends_with('{') { fields(&mut lines, "        ")? } else { Vec::new() };
        variants.push(Item { name, doc, is_serialized: true, fields });
    }
    Ok(variants)
}

/// Fields up to the closing brace of their item; `indent` is theirs.
fn fields<'a>(lines: &mut impl Iterator<Item = &'a str>, indent: &str) -> Result<Vec<Field>> {
    let mut fields = Vec::new();
    let mut pending = Pending::default();
    for line in lines {
        let Some(text) = line.strip_prefix(indent) else { break };
        if text.starts_with("///") || text.starts_with("#[") || text.is_empty() {
            pending.read(text);
            continue;
        }
        let declaration = text.strip_prefix("pub ").unwrap_or(text);
        let declaration = declaration.strip_prefix("pub(crate) ").unwrap_or(declaration);
        let (name, ty) = declaration
            .trim_end_matches(',')
            .split_once(": ")
            .with_context(|| format!("cannot read the field `{text}`"))?;
        let is_flattened = pending.attributes.contains("flatten");
        let doc = pending.take();
        fields.push(Field { name: name.to_owned(), ty: ty.to_owned(), doc, is_flattened });
    }
    Ok(fields)
}

/// The doc comment and attributes in front of what comes next.
#[derive(Default)]
struct Pending {
    doc: String,
    attributes: String,
}

impl Pending {
    fn read(&mut self, line: &str) {
        if let Some(text) = line.trim().strip_prefix("///") {
            if !self.doc.is_empty() {
                self.doc.push(' ');
            }
            // A table's cell is one line, and a link between items leads nowhere in a book.
            let text = text.trim().replace("[`", "`").replace("`]", "`").replace('|', "\\|");
            self.doc.push_str(&text);
        } else if line.starts_with("#[") {
            self.attributes.push_str(line);
        } else {
            *self = Self::default();
        }
    }

    fn take(&mut self) -> String {
        std::mem::take(self).doc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
/// A thing.
#[derive(Serialize)]
pub struct Thing {
    /// Its number,
    /// counted from one.
    pub number: u64,
    #[serde(flatten)]
    pub rest: Rest,
}

/// Kinds of it.
pub enum Kind {
    /// Nothing.
    None,
    /// Some.
    Some {
        /// How much.
        amount: f64,
    },
    /// Of a rank.
    Rank(usize),
}
";

    #[test]
    fn structs_have_their_fields_and_sentences() {
        let item = item(TEXT, "struct Thing").unwrap();
        assert_eq!((item.doc.as_str(), item.is_serialized), ("A thing.", true));
        assert_eq!(item.fields[0].doc, "Its number, counted from one.");
        assert_eq!(item.fields[0].ty, "u64");
        assert!(item.fields[1].is_flattened && !item.fields[0].is_flattened);
    }

    #[test]
    fn variants_have_their_fields_and_sentences() {
        let found = variants(TEXT, "enum Kind").unwrap();
        let names: Vec<&str> = found.iter().map(|item| item.name.as_str()).collect();
        assert_eq!(names, ["None", "Some", "Rank"]);
        assert_eq!(found[1].fields[0].name, "amount");
        assert!(variants(TEXT, "enum Other").is_err());
    }
}
