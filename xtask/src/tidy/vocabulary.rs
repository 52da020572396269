//! The vocabulary: words, names, phrases and openings of doc comments that the field's own terms
//! replace. The list is `xtask/tidy/vocabulary.txt`; its head describes the scopes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::lexer::{Masked, is_word, mask};
use super::{Finding, Tree};

const LIST: &str = include_str!("../../tidy/vocabulary.txt");

/// Files that quote the banned words on purpose, or record history.
const EXEMPT: &[&str] =
    &["CHANGELOG.md", "crates/config/src/renamed_keys.rs", "xtask/src/tidy/vocabulary.rs"];

/// Checks the names and the text of every source file, manifest, script and document.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let list = List::parse(LIST);
    let mut findings = Vec::new();
    for (path, text) in &tree.texts {
        if EXEMPT.contains(&path.as_str()) {
            continue;
        }
        findings.extend(file_name(&list, path));
        if Path::new(path).extension().is_some_and(|extension| extension == "rs") {
            let masked = mask(text);
            findings.extend(names(&list, path, &masked.code));
            findings.extend(prose(&list, path, &masked.comments));
            findings.extend(prose(&list, path, &masked.literals));
            findings.extend(doc_openings(&list, path, &masked));
        } else {
            findings.extend(prose(&list, path, text));
        }
    }
    findings
}

/// The rules of the list by scope; each banned entry maps to its replacement.
#[derive(Default)]
struct List {
    text: BTreeMap<String, String>,
    name: BTreeMap<String, String>,
    phrase: BTreeMap<String, String>,
    doc: BTreeMap<String, String>,
    allow: BTreeSet<String>,
    /// Words that one file may use: pairs of word and path.
    allow_in: BTreeSet<(String, String)>,
}

impl List {
    fn parse(source: &str) -> Self {
        let mut list = Self::default();
        for line in source.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (scope, rule) = line.split_once(' ').expect("a rule has a scope");
            let (entry, replacement) = rule.split_once(" -> ").unwrap_or((rule, ""));
            let entry_text = entry.to_owned();
            let map = match scope {
                "text" => &mut list.text,
                "name" => &mut list.name,
                "phrase" => &mut list.phrase,
                "doc" => &mut list.doc,
                "allow" => {
                    match entry.split_once(" in ") {
                        Some((word, path)) => list.allow_in.insert((word.into(), path.into())),
                        None => list.allow.insert(entry_text),
                    };
                    continue;
                }
                _ => panic!("vocabulary.txt: unknown scope {scope}"),
            };
            map.insert(entry_text, replacement.to_owned());
        }
        list
    }

    /// The replacement for a banned part of `identifier`, with that part.
    fn banned_part(&self, identifier: &str) -> Option<(String, &str)> {
        if self.allow.contains(identifier) {
            return None;
        }
        parts(identifier).into_iter().find_map(|part| {
            let replacement = self.text.get(&part).or_else(|| self.name.get(&part))?;
            Some((part, replacement.as_str()))
        })
    }
}

/// The lower-case words of a `snake_case` or `CamelCase` identifier.
fn parts(identifier: &str) -> Vec<String> {
    let chars: Vec<char> = identifier.chars().collect();
    let mut parts = vec![String::new()];
    for (at, &c) in chars.iter().enumerate() {
        let after_lower = at > 0 && !chars[at - 1].is_uppercase() && chars[at - 1] != '_';
        let before_lower = chars.get(at + 1).is_some_and(|next| next.is_lowercase());
        if c == '_' || (c.is_uppercase() && (after_lower || before_lower)) {
            parts.push(String::new());
        }
        if c != '_' {
            parts.last_mut().expect("never empty").extend(c.to_lowercase());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Every identifier of a text with its line, counted from one.
fn identifiers(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(index, line)| {
        line.split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(move |w| (index + 1, w))
    })
}

fn file_name(list: &List, path: &str) -> Option<Finding> {
    let stem = Path::new(path).file_stem()?.to_str()?.replace(['-', '.'], "_");
    let (part, replacement) = list.banned_part(&stem)?;
    Some(Finding::new(path, 1, format!("file name with `{part}`; use {replacement}")))
}

fn names(list: &List, path: &str, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, word) in identifiers(code) {
        if let Some((part, replacement)) = list.banned_part(word) {
            let rule = format!("name `{word}` with `{part}`; use {replacement}");
            findings.push(Finding::new(path, line, rule));
        }
    }
    findings
}

/// Banned words, names quoted in prose, and phrases, which may run over a line break.
fn prose(list: &List, path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, word) in identifiers(text) {
        let banned = if word.contains('_') {
            list.banned_part(word).map(|(_, replacement)| replacement)
        } else {
            list.text.get(&word.to_lowercase()).map(String::as_str)
        };
        let allowed = (word.to_lowercase(), path.to_owned());
        if let Some(replacement) = banned.filter(|_| !list.allow_in.contains(&allowed)) {
            findings.push(Finding::new(path, line, format!("`{word}`; use {replacement}")));
        }
    }
    let (flat, lines) = flatten(text);
    for (phrase, replacement) in &list.phrase {
        for (at, _) in flat.match_indices(phrase.as_str()) {
            let rule = format!("`{phrase}`; use {replacement}");
            findings.push(Finding::new(path, lines[at], rule));
        }
    }
    findings.extend(private_rows(&flat).map(|at| {
        Finding::new(path, lines[at], "the row of a private table; cite a public source")
    }));
    findings
}

/// Places of citations such as `row a` and a letter with a number, of tables no reader has.
fn private_rows(flat: &str) -> impl Iterator<Item = usize> {
    flat.match_indices("row ").filter_map(|(at, row)| {
        let mut words = flat[at + row.len()..].split_whitespace();
        let is_table = words.next()?.chars().all(char::is_alphabetic);
        let mut number = words.next()?.chars();
        let is_row = number.next() == Some('o') && number.next()?.is_ascii_digit();
        (is_table && is_row).then_some(at)
    })
}

/// The words of a text in lower case, separated by single blanks, without comment markers; and
/// the line of each byte.
fn flatten(text: &str) -> (String, Vec<usize>) {
    let mut flat = String::new();
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start().trim_start_matches(['/', '!']);
        for word in line.split_whitespace() {
            flat.push_str(&word.to_lowercase());
            flat.push(' ');
            lines.resize(flat.len(), index + 1);
        }
    }
    (flat, lines)
}

/// The first line of each doc comment against the openings of the list.
fn doc_openings(list: &List, path: &str, masked: &Masked) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut previous_is_doc = false;
    for (index, line) in masked.comments.lines().enumerate() {
        let line = line.trim_start();
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        if let Some(text) = doc.filter(|_| !previous_is_doc) {
            let text = text.trim_start();
            for (opening, replacement) in &list.doc {
                let rest = text.strip_prefix(opening.as_str());
                if rest.is_some_and(|rest| !rest.starts_with(is_word)) {
                    let rule = format!("doc comment opens with `{opening}`; {replacement}");
                    findings.push(Finding::new(path, index + 1, rule));
                }
            }
        }
        previous_is_doc = doc.is_some();
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        check(&tree(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn identifiers_split_into_their_parts() {
        assert_eq!(parts("run_lanes"), ["run", "lanes"]);
        assert_eq!(parts("LaneShape"), ["lane", "shape"]);
        assert_eq!(parts("MAX_LANES"), ["max", "lanes"]);
        assert_eq!(parts("TcpLink2"), ["tcp", "link2"]);
    }

    #[test]
    fn banned_terms_are_found_in_names_comments_strings_and_pages() {
        for text in [
            "fn run_lanes() {}\n",
            "struct LaneShape;\n",
            "// a lane of it\n",
            "const A: &str = \"one lane\";\n",
        ] {
            assert_eq!(found("crates/a/src/a.rs", text), [1], "{text}");
        }
        assert_eq!(found("docs/a.md", "x\n\nEvery lane of it.\n"), [3]);
        assert_eq!(found("crates/a/src/lane.rs", "//! Text.\n"), [1]);
    }

    #[test]
    fn names_are_stricter_than_sentences() {
        assert_eq!(found("crates/a/src/a.rs", "// There is a way out.\n"), [] as [usize; 0]);
        assert_eq!(found("crates/a/src/a.rs", "fn best_way() {}\n"), [1]);
        assert_eq!(found("crates/a/src/a.rs", "// The `best_way` of it.\n"), [1]);
        assert_eq!(found("crates/a/src/a.rs", "use std::sync::LazyLock;\n"), [] as [usize; 0]);
        assert_eq!(found("crates/a/src/a.rs", "// planes and wildcards\n"), [] as [usize; 0]);
    }

    #[test]
    fn phrases_are_found_over_line_breaks() {
        let text = "/// Time that sticks\n/// out of it.\n";
        assert_eq!(found("crates/a/src/a.rs", text).len(), 1);
    }

    #[test]
    fn rows_of_private_tables_are_found() {
        // Written in two parts, so that no scan finds this table.
        let cited = concat!("row b ", "O12d");
        for text in
            [format!("// As in {cited}.\n"), format!("const A: &str = \"{cited}: {{x}}\";\n")]
        {
            assert_eq!(found("crates/a/src/a.rs", &text), [1], "{text}");
        }
        assert_eq!(found("docs/a.md", &format!("x\n{cited}\n")), [2]);
        assert_eq!(found("docs/a.md", "A row of offsets, row o of it, row 1.\n"), [] as [usize; 0]);
    }

    #[test]
    fn doc_comments_must_not_open_with_a_banned_phrase() {
        assert_eq!(found("crates/a/src/a.rs", "/// The same for f64.\nfn a() {}\n"), [1]);
        assert_eq!(
            found("crates/a/src/a.rs", "/// Sums.\n/// What is summed: x.\n"),
            [] as [usize; 0]
        );
        assert_eq!(found("crates/a/src/a.rs", "/// Whatever.\n"), [] as [usize; 0]);
        assert_eq!(found("crates/a/src/a.rs", "//! What it is.\n"), [1]);
    }
}
