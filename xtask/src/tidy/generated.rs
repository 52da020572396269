//! Reference pages that the program prints itself are the same as the program would print now.
//!
//! A page is checked once it exists; a new one needs a row here.

use anyhow::Result;

use super::{Finding, Tree};
use crate::shell;

/// Each generated page with the arguments that make `lockstep` print it.
const PAGES: &[(&str, &str)] = &[("docs/book/reference/config.md", "config --markdown")];

/// Prints each page again and compares.
pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (path, arguments) in PAGES {
        if let Some(written) = tree.texts.get(*path) {
            let command = format!("run --quiet --package lockstep-cli -- {arguments}");
            let printed = shell::capture(&mut shell::cargo(&command))?;
            if let Some(line) = first_difference(written, &printed) {
                let rule = format!("stale; write it again: cargo {command} > {path}");
                findings.push(Finding::new(path, line, rule));
            }
        }
    }
    Ok(findings)
}

/// The first line that differs, counted from one; a missing last line counts too.
fn first_difference(written: &str, printed: &str) -> Option<usize> {
    if written == printed {
        return None;
    }
    let same = written.lines().zip(printed.lines()).take_while(|(a, b)| a == b).count();
    Some(same + 1)
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn a_difference_is_found_at_its_line() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some(2));
        assert_eq!(first_difference("a\n", "a\nb\n"), Some(2));
        assert_eq!(first_difference("a\n", "a"), Some(2));
    }

    #[test]
    fn a_page_that_does_not_exist_is_not_printed() {
        assert_eq!(check(&tree(&[])).unwrap(), []);
    }
}
