//! Rules for the text of a source file: it opens with its own explanation, names an owner for
//! every note of work left, and leaves no code or test that only pretends to be there.

use super::circles::without_tests;
use super::lexer::{is_word, mask};
use super::{Finding, Tree};

/// Words that mark work left undone; in a comment each needs an owner in parentheses.
const NOTES: &[&str] = &["TODO", "FIXME"];

/// Macros that compile in place of code that is not written. Clippy knows the first already, but
/// lints can be lifted in a file and this cannot. (Split, so that no scan finds this table.)
const PLACEHOLDERS: &[&str] = &[concat!("todo", "!"), concat!("unimplemented", "!")];

/// Module docs, notes and pretenders, over every file whose comments we can read.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts_ending(".rs") {
        let masked = mask(text);
        findings.extend(module_doc(path, text));
        findings.extend(notes(path, &masked.comments));
        findings.extend(pretenders(path, &masked.code));
        findings.extend(detected_isa(path, &masked.code));
        findings.extend(skipped_examples(path, &masked.comments));
    }
    for end in [".toml", ".py", ".sh", ".ci/run"] {
        for (path, text) in tree.texts_ending(end) {
            findings.extend(notes(path, text));
        }
    }
    findings
}

/// A file under `src` opens with `//!`: its reader learns the technique before the code.
fn module_doc(path: &str, text: &str) -> Option<Finding> {
    let in_src = path.starts_with("src/") || path.contains("/src/");
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("");
    let teaches = first.trim_start().strip_prefix("//!").is_some_and(|doc| !doc.trim().is_empty());
    (in_src && !teaches).then(|| Finding::new(path, 1, "the file does not open with a `//!` doc"))
}

fn notes(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for note in NOTES {
            for (at, _) in line.match_indices(note) {
                let before = line[..at].chars().next_back();
                let after = &line[at + note.len()..];
                let is_note = !before.is_some_and(is_word) && !after.starts_with(is_word);
                if is_note && !has_owner(after) {
                    let rule = format!("{note} without an owner; write {note}(name)");
                    findings.push(Finding::new(path, index + 1, rule));
                }
            }
        }
    }
    findings
}

/// Whether the text after a note starts with a name in parentheses.
fn has_owner(after: &str) -> bool {
    let Some((name, _)) = after.strip_prefix('(').and_then(|rest| rest.split_once(')')) else {
        return false;
    };
    !name.trim().is_empty()
}

fn pretenders(path: &str, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in code.lines().enumerate() {
        let compact: String = line.split_whitespace().collect();
        for placeholder in PLACEHOLDERS {
            if compact.match_indices(placeholder).any(|(at, _)| {
                let before = compact[..at].chars().next_back();
                !before.is_some_and(is_word)
            }) {
                let rule = format!("{placeholder} stands where code should");
                findings.push(Finding::new(path, index + 1, rule));
            }
        }
        let attribute = concat!("#[", "ignore");
        let conditional = compact.contains("cfg_attr(") && compact.contains(",ignore");
        if compact.contains(attribute) || conditional {
            findings.push(Finding::new(path, index + 1, "an ignored test does not test"));
        }
    }
    findings
}

/// Compression takes its instruction set from the `Cpu` of the run. No result depends on it, so
/// that no other test would notice a detected one.
fn detected_isa(path: &str, code: &str) -> Option<Finding> {
    let is_compression = path.starts_with("crates/parallel/src/compress");
    let code = without_tests(code);
    let line = code.lines().position(|line| line.contains("Isa::detect"))?;
    is_compression
        .then(|| Finding::new(path, line + 1, "take the instruction set of the run's Cpu"))
}

/// Doc examples that rustdoc does not compile: what is shown must run.
fn skipped_examples(path: &str, comments: &str) -> Vec<Finding> {
    let fence = |line: &str| {
        let text = line.trim_start().trim_start_matches(['/', '!']).trim_start();
        text.strip_prefix("```")
            .is_some_and(|info| info.split(',').any(|word| word.trim() == "ignore"))
    };
    let found = comments.lines().enumerate().filter(|(_, line)| fence(line));
    found
        .map(|(index, _)| Finding::new(path, index + 1, "an ignored example is never compiled"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        let findings = check(&tree(&[(path, text)]));
        findings.into_iter().map(|finding| (finding.line, finding.rule)).collect()
    }

    /// The findings of a source file that has its module doc, which is line 1.
    fn found_below_doc(text: &str) -> Vec<usize> {
        let findings = found("crates/a/src/a.rs", &format!("//! Doc.\n{text}"));
        findings.into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn a_source_file_opens_with_its_doc() {
        let path = "crates/a/src/a.rs";
        assert_eq!(found(path, "\n//! Teaches.\nfn a() {}\n"), []);
        for text in ["", "fn a() {}\n//! Late.\n", "// Plain.\n", "//!\nfn a() {}\n", "use b;\n"] {
            assert_eq!(found(path, text).len(), 1, "{text}");
        }
        assert_eq!(found("crates/a/tests/props.rs", "fn a() {}\n"), []);
    }

    #[test]
    fn a_note_needs_an_owner() {
        assert_eq!(found_below_doc("// TODO(ada): shorten\n"), [] as [usize; 0]);
        for text in ["// TODO: later\n", "/// TODO\n", "// TODO()\n", "/* x\nFIXME */\n"] {
            assert_eq!(found_below_doc(text).len(), 1, "{text}");
        }
        assert_eq!(found("scripts/a.py", "# TODO later\n").len(), 1);
        assert_eq!(found(".ci/run", "# TODO(ada) later\n"), []);
    }

    #[test]
    fn a_note_is_a_word_in_a_comment() {
        assert_eq!(found_below_doc("const MASTODONS: &str = \"TODO\";\n"), [] as [usize; 0]);
        assert_eq!(found_below_doc("// TODOS, AUTODOC and todo are words.\n"), [] as [usize; 0]);
    }

    #[test]
    fn placeholders_are_found_in_code_only() {
        for placeholder in PLACEHOLDERS {
            assert_eq!(found_below_doc(&format!("fn a() {{\n{placeholder}()\n}}\n")), [3]);
            assert_eq!(found_below_doc(&format!("// no {placeholder}() here\n")), [] as [usize; 0]);
            assert_eq!(found_below_doc(&format!("my_{placeholder}();\n")), [] as [usize; 0]);
        }
    }

    #[test]
    fn compression_does_not_detect_an_instruction_set() {
        let text = "//! Doc.\nfn a() {\n    b(Isa::detect());\n}\n";
        let test = "//! Doc.\n#[cfg(test)]\nmod tests {\n    b(Isa::detect());\n}\n";
        let compression = "crates/parallel/src/compress/a.rs";
        let lines = |path, text| found(path, text).into_iter().map(|(line, _)| line);
        assert_eq!(lines(compression, text).collect::<Vec<_>>(), [3]);
        assert_eq!(lines(compression, test).chain(lines("crates/a/src/a.rs", text)).count(), 0);
    }

    #[test]
    fn ignored_tests_and_examples_are_found() {
        let plain = concat!("#[test]\n#[", "ignore]\nfn a() {}\n");
        assert_eq!(found_below_doc(plain), [3]);
        let reason = concat!("#[", "ignore = \"slow\"]\nfn a() {}\n");
        assert_eq!(found_below_doc(reason), [2]);
        assert_eq!(found_below_doc("#[cfg_attr(windows, ignore)]\nfn a() {}\n"), [2]);
        assert_eq!(found_below_doc("/// ```ignore\n/// a()\n/// ```\nfn a() {}\n"), [2]);
        assert_eq!(found_below_doc("/// ```no_run\n/// a()\n/// ```\nfn a() {}\n").len(), 0);
    }
}
