//! Markdown links between files of the repository lead somewhere.
//!
//! Checked are inline links and images, reference definitions and the `src` and `href` of HTML.
//! Addresses of other hosts are left alone: a check must not depend on another server. A
//! fragment must be a heading of the page it points into.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Finding, Tree};

/// Every relative link of every page.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = unlisted(tree);
    for (path, text) in tree.texts_ending(".md") {
        for (line, target) in links(text) {
            if let Some(reason) = broken(tree, path, &target) {
                findings.push(Finding::new(path, line, format!("link to {target}: {reason}")));
            }
        }
    }
    findings
}

/// Pages of the book that its table of contents does not list: mdBook would leave them out.
fn unlisted(tree: &Tree) -> Vec<Finding> {
    const BOOK: &str = "docs/book/";
    let Some(summary) = tree.texts.get("docs/book/SUMMARY.md") else { return Vec::new() };
    let listed: BTreeSet<String> = links(summary).into_iter().map(|(_, target)| target).collect();
    let pages = tree.texts_ending(".md").filter_map(|(path, _)| path.strip_prefix(BOOK));
    pages
        .filter(|page| *page != "SUMMARY.md" && !listed.contains(*page))
        .map(|page| Finding::new(&format!("{BOOK}{page}"), 1, "not listed in SUMMARY.md"))
        .collect()
}

/// Why a link leads nowhere, if it does.
fn broken(tree: &Tree, page: &str, target: &str) -> Option<String> {
    let elsewhere = ["http://", "https://", "mailto:"];
    if elsewhere.iter().any(|scheme| target.starts_with(scheme)) {
        return None;
    }
    let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
    let resolved = if file.is_empty() { Some(page.to_owned()) } else { resolve(page, file) };
    let Some(file) = resolved else { return Some("leaves the repository".to_owned()) };
    if !file.is_empty() && !tree.paths.contains(&file) {
        return Some(format!("no file {file}"));
    }
    let is_page = Path::new(&file).extension().is_some_and(|extension| extension == "md");
    let text = tree.texts.get(&file).filter(|_| is_page && !fragment.is_empty())?;
    (!headings(text).contains(fragment)).then(|| format!("no heading #{fragment} in {file}"))
}

/// The path a link means, from the folder of its page; the root is the empty path. Nothing for a
/// link that climbs above the root: what lies there is on this machine only.
fn resolve(page: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    if link.starts_with('/') {
        parts.clear();
    }
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.is_empty() => return None,
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The targets of a page with their lines, leaving out what stands in code.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, prose) in prose_lines(text) {
        let mut add = |target: &str| {
            let target = target.trim().trim_start_matches('<');
            let target = target.split([' ', '>']).next().unwrap_or("");
            if !target.is_empty() {
                found.push((line, target.to_owned()));
            }
        };
        for (open, close) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
            for (at, _) in prose.match_indices(open) {
                let rest = &prose[at + open.len()..];
                add(rest.split(close).next().unwrap_or(""));
            }
        }
        let definition = prose.trim_start().strip_prefix('[').and_then(|p| p.split_once("]: "));
        if let Some((_, target)) = definition {
            add(target);
        }
    }
    found
}

/// The lines outside fenced code, with the contents of code spans taken out.
fn prose_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut fence: Option<&str> = None;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        let marker = ["```", "~~~"].into_iter().find(|marker| trimmed.starts_with(marker));
        match (fence, marker) {
            (None, None) => {
                // Every second part between backticks is code.
                let prose: Vec<&str> = line.split('`').step_by(2).collect();
                lines.push((index + 1, prose.join("``")));
            }
            (None, Some(_)) => fence = marker,
            (Some(open), Some(close)) if open == close => fence = None,
            (Some(_), _) => {}
        }
    }
    lines
}

/// The fragments of a page's headings: lower case, hyphens for blanks, punctuation dropped.
/// A heading that comes again gets a number.
fn headings(text: &str) -> BTreeSet<String> {
    let outside_code: BTreeSet<usize> = prose_lines(text).into_iter().map(|(l, _)| l).collect();
    let mut slugs = BTreeSet::new();
    for (index, line) in text.lines().enumerate() {
        if !line.starts_with('#') || !outside_code.contains(&(index + 1)) {
            continue;
        }
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let slug: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        let free = std::iter::once(slug.clone()).chain(numbered).find(|s| !slugs.contains(s));
        slugs.extend(free);
    }
    slugs
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    /// The rules broken by a page at `docs/page.md` beside a few files it may link to.
    fn broken_links(page: &str) -> Vec<String> {
        let files = [
            ("README.md", "# Lockstep\n## Quick start: 60 s\n## Notes\n## Notes\n"),
            ("crates/a/src/lib.rs", "//! A.\n"),
            ("docs/page.md", page),
        ];
        check(&tree(&files)).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn links_to_files_and_folders_resolve_from_the_page() {
        let page = "[a](../README.md) [b](../crates/a) ![c](/README.md \"title\") [d](page.md)\n\
                    [e]: ../README.md\n<img src=\"../README.md\"> [root](..)\n";
        assert_eq!(broken_links(page), [] as [&str; 0]);
    }

    #[test]
    fn a_link_to_nothing_is_found_in_every_spelling() {
        for page in ["[a](no.md)", "![a](<no.md>)", "[a]: no.md", "<a href=\"no.md\">x</a>"] {
            assert_eq!(broken_links(page), ["link to no.md: no file docs/no.md"], "{page}");
        }
        let outside = broken_links("[a](../../shared/x.md)");
        assert_eq!(outside, ["link to ../../shared/x.md: leaves the repository"]);
    }

    #[test]
    fn every_page_of_the_book_is_listed() {
        let files = [
            ("docs/book/SUMMARY.md", "- [A](guide/a.md)\n"),
            ("docs/book/guide/a.md", "# A\n"),
            ("docs/book/guide/b.md", "# B\n"),
        ];
        let found = check(&tree(&files));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].path, "docs/book/guide/b.md");
    }

    #[test]
    fn fragments_must_be_headings() {
        let good =
            "# Here\n[a](#here) [b](../README.md#quick-start-60-s) [c](../README.md#notes-1)";
        assert_eq!(broken_links(good), [] as [&str; 0]);
        let bad = "[a](#there) [b](../README.md#notes-2)";
        assert_eq!(broken_links(bad).len(), 2);
        // A line of a source file is no heading and is not checked.
        assert_eq!(broken_links("[a](../crates/a/src/lib.rs#L1)"), [] as [&str; 0]);
    }

    #[test]
    fn code_and_other_hosts_are_left_alone() {
        let page =
            "`[a](no.md)` [b](https://example.org/no.md)\n```\n[c](no.md)\n```\n~~~\n```\n~~~\n";
        assert_eq!(broken_links(page), [] as [&str; 0]);
        let after_fence = "```\n# no heading\n```\n[c](#no-heading)";
        assert_eq!(broken_links(after_fence).len(), 1);
    }
}
