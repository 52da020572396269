//! Limits for the lengths of files, functions and lines.
//!
//! Functions are mostly under 70 lines and files under 600 (STYLE.md); a file is split by concept,
//! never by length, so the limits here leave room above that.
//!
//! A function is counted from the line of its `fn` to the line of its closing brace, by counting
//! braces in the masked source. Functions of tests are exempt; their files and lines are
//! not.

use super::lexer::{is_word, mask};
use super::{Finding, Tree};

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 90;
const LINE_COLUMNS_MAX: usize = 100;

/// All three limits, over every Rust file.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    tree.texts_ending(".rs").flat_map(|(path, text)| check_file(path, text)).collect()
}

fn check_file(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let num_lines = text.lines().count();
    if num_lines > FILE_LINES_MAX {
        let rule = format!("the file has {num_lines} lines; at most {FILE_LINES_MAX}");
        findings.push(Finding::new(path, 1, rule));
    }
    for (index, line) in text.lines().enumerate() {
        let num_columns = line.chars().count();
        if num_columns > LINE_COLUMNS_MAX {
            let rule = format!("the line has {num_columns} columns; at most {LINE_COLUMNS_MAX}");
            findings.push(Finding::new(path, index + 1, rule));
        }
    }
    if !is_test_file(path) {
        findings.extend(long_functions(text).into_iter().map(|function| {
            let Function { name, first_line, num_lines } = function;
            let rule = format!("fn {name} has {num_lines} lines; at most {FUNCTION_LINES_MAX}");
            Finding::new(path, first_line, rule)
        }));
    }
    findings
}

fn is_test_file(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs")
}

struct Function {
    name: String,
    first_line: usize,
    num_lines: usize,
}

/// The functions outside test modules that are longer than the limit.
fn long_functions(text: &str) -> Vec<Function> {
    let code: Vec<char> = mask(text).code.chars().collect();
    let tests = test_modules(&code);
    let line_of = |at: usize| 1 + code[..at].iter().filter(|&&c| c == '\n').count();
    let mut found = Vec::new();
    for at in occurrences(&code, "fn") {
        let after = code[at + 2..].iter().skip_while(|c| c.is_whitespace());
        let name: String = after.take_while(|&&c| is_word(c)).collect();
        // `fn(usize) -> f32` is a type and has no name; a trait's declaration has no body.
        let Some(end) = body_end(&code, at).filter(|_| !name.is_empty()) else { continue };
        let num_lines = 1 + code[at..end].iter().filter(|&&c| c == '\n').count();
        if num_lines > FUNCTION_LINES_MAX && !tests.iter().any(|module| module.contains(&at)) {
            found.push(Function { name, first_line: line_of(at), num_lines });
        }
    }
    found
}

/// Where the modules under `#[cfg(test)]` lie.
fn test_modules(code: &[char]) -> Vec<std::ops::Range<usize>> {
    occurrences(code, "cfg")
        .filter(|&at| {
            let condition: String = code[at..].iter().take_while(|&&c| c != ']').collect();
            condition == "cfg(test)" || condition.starts_with("cfg(all(test,")
        })
        // The attribute's own bracket is open here: begin after it.
        .filter_map(|at| {
            let start = at + code[at..].iter().position(|&c| c == ']')? + 1;
            Some(start..body_end(code, start)?)
        })
        .collect()
}

/// The places where `word` stands alone.
fn occurrences<'a>(code: &'a [char], word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let letters: Vec<char> = word.chars().collect();
    let len = letters.len();
    let alone = move |at: usize| {
        let before = at.checked_sub(1).map(|before| code[before]);
        let after = code.get(at + len).copied();
        // A raw identifier such as `r#fn` is a name.
        code[at..].starts_with(&letters)
            && !before.is_some_and(|c| is_word(c) || c == '#')
            && !after.is_some_and(is_word)
    };
    (0..code.len()).filter(move |&at| alone(at))
}

/// The place of the brace that closes the first body after `start`; nothing if `;` comes first.
/// A `;` inside brackets, as in `[f32; 16]`, does not end a signature.
fn body_end(code: &[char], start: usize) -> Option<usize> {
    let mut brackets = 0_usize;
    let mut braces = 0_usize;
    for (offset, c) in code[start..].iter().enumerate() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            ';' if brackets == 0 && braces == 0 => return None,
            '{' => braces += 1,
            '}' if braces <= 1 => return Some(start + offset),
            '}' => braces -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function of exactly `num_lines` lines.
    fn function(name: &str, num_lines: usize) -> String {
        format!("fn {name}(x: [f32; 4]) {{\n{}}}\n", "    work();\n".repeat(num_lines - 2))
    }

    fn found(path: &str, text: &str) -> Vec<(usize, String)> {
        check_file(path, text).into_iter().map(|finding| (finding.line, finding.rule)).collect()
    }

    #[test]
    fn a_function_at_the_limit_passes_and_one_line_more_does_not() {
        assert_eq!(found("src/a.rs", &function("fits", 90)), []);
        let text = format!("//! Doc.\n\n{}", function("long", 91));
        assert_eq!(found("src/a.rs", &text), [(3, "fn long has 91 lines; at most 90".to_owned())]);
    }

    #[test]
    fn braces_in_strings_and_comments_do_not_end_a_function() {
        let body = "    a(\"}\"); // }\n    b('}');\n".repeat(FUNCTION_LINES_MAX / 2);
        assert_eq!(found("src/a.rs", &format!("fn f() {{\n{body}}}\n")).len(), 1);
    }

    #[test]
    fn short_functions_do_not_add_up() {
        let text = function("one", 40) + &function("two", 40);
        assert_eq!(found("src/a.rs", &text), []);
    }

    #[test]
    fn declarations_types_and_raw_names_are_no_functions() {
        let tail = "    work();\n".repeat(FUNCTION_LINES_MAX + 10);
        for head in ["fn f(x: [u8; 4]);", "type F = fn(u8) -> u8;", "r#fn();", "let fnord = 1;"] {
            let text = format!("{head}\nstatic S: X = {{\n{tail}}};\n");
            assert_eq!(found("src/a.rs", &text), [], "{head}");
        }
    }

    #[test]
    fn a_long_method_inside_nested_items_is_found() {
        let text =
            format!("mod a {{\nimpl B {{\n{}}}\n}}\n", function("deep", FUNCTION_LINES_MAX + 1));
        assert_eq!(found("src/a.rs", &text).len(), 1);
    }

    #[test]
    fn test_modules_and_test_files_may_have_long_functions() {
        let long = function("story", FUNCTION_LINES_MAX + 20);
        let module = format!("#[cfg(test)]\nmod tests {{\n{long}}}\n");
        assert_eq!(found("src/a.rs", &module), []);
        assert_eq!(found("crates/a/tests/props.rs", &long), []);
        // The exemption ends with the module, and a test-only import opens none.
        assert_eq!(found("src/a.rs", &(module + &long)).len(), 1);
        assert_eq!(found("src/a.rs", &format!("#[cfg(test)]\nuse b;\n{long}")).len(), 1);
        assert_eq!(found("src/a.rs", &format!("#[cfg(not(test))]\nmod m {{\n{long}}}")).len(), 1);
    }

    #[test]
    fn files_and_lines_have_limits_in_tests_too() {
        let path = "crates/a/tests/props.rs";
        assert_eq!(found(path, &"x\n".repeat(800)), []);
        assert_eq!(found(path, &"x\n".repeat(801)).len(), 1);
        assert_eq!(found(path, &"é".repeat(100)), []);
        let rule = "the line has 101 columns; at most 100".to_owned();
        assert_eq!(found(path, &format!("\n{}", "é".repeat(101))), [(2, rule)]);
    }
}
