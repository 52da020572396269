//! Generated reference pages equal what would be generated now.

use anyhow::Result;

use super::{Finding, Tree};
use crate::reference;

/// Makes each page again and compares.
pub(super) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    Ok(compare(tree, &reference::pages()?))
}

fn compare(tree: &Tree, pages: &[(&str, String)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, made) in pages {
        let written = tree.texts.get(*path).map_or("", String::as_str);
        if let Some(line) = first_difference(written, made) {
            findings.push(Finding::new(path, line, "stale; run cargo xtask reference"));
        }
    }
    findings
}

/// The first line that differs, counted from one; a missing last line counts too.
fn first_difference(written: &str, made: &str) -> Option<usize> {
    if written == made {
        return None;
    }
    let same = written.lines().zip(made.lines()).take_while(|(a, b)| a == b).count();
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
    fn stale_and_missing_pages_are_found() {
        let tree = tree(&[("a.md", "one\n"), ("b.md", "two\n")]);
        let pages = [("a.md", "one\n".to_owned()), ("b.md", "2\n".to_owned())];
        assert_eq!(compare(&tree, &pages).len(), 1);
        assert_eq!(compare(&tree, &[("c.md", "x\n".to_owned())]).len(), 1);
    }
}
