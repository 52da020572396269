//! Checks that the compiler and clippy cannot make, as text scans over the repository.
//!
//! The tree is read once into memory; each check is a pure function from that tree to findings,
//! so that a test can hand it a tree of three lines. All findings are printed together.
//!
//! *Layout*
//! - `vocabulary`: the words of the field, `xtask/tidy/vocabulary.txt`.
//! - `circles`: files of a crate that use each other in a circle.
//! - `colours`: every colour is in the palette of `plot`.
//! - `commits`: the length of commit subjects.
//! - `edges`: which crate may depend on which, and the workspace lints in every member.
//! - `lexer`: splits Rust text into code and comments, so that scans do not trip over strings.
//! - `lengths`: files, functions and lines.
//! - `source`: module docs, work left undone, tests that do not run.
//! - `links`: Markdown links between files of the repository.
//! - `generated`: reference pages that a command prints.

mod circles;
mod colours;
mod commits;
mod edges;
mod generated;
mod lengths;
mod lexer;
mod links;
mod source;
mod vocabulary;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::shell;

/// Folders of the root that hold no source of ours.
const SKIPPED: &[&str] = &["target", "runs"];

/// File names, or ends of names, whose text some check reads.
const READ: &[&str] = &[".rs", ".css", ".js", ".html", ".md", ".toml", ".py", ".sh", ".ci/run"];

/// One broken rule and where it is broken.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    rule: String,
}

impl Finding {
    fn new(path: &str, line: usize, rule: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule: rule.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.rule)
    }
}

/// The repository as text: paths relative to the root, with `/` between their parts.
#[derive(Default)]
struct Tree {
    /// Every file and folder, for links.
    paths: BTreeSet<String>,
    /// The text of the files some check reads.
    texts: BTreeMap<String, String>,
}

impl Tree {
    fn texts_ending(&self, end: &str) -> impl Iterator<Item = (&str, &str)> {
        self.texts
            .iter()
            .filter(move |(path, _)| path.ends_with(end))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }
}

/// Runs every check and fails with all findings at once.
pub(crate) fn run() -> Result<()> {
    let mut tree = Tree::default();
    read_folder(&shell::root(), "", &mut tree)?;
    let mut findings = Vec::new();
    let checks = [
        edges::check,
        circles::check,
        colours::check,
        lengths::check,
        source::check,
        vocabulary::check,
        links::check,
    ];
    for check in checks {
        findings.extend(check(&tree));
    }
    findings.extend(commits::check());
    findings.extend(generated::check(&tree)?);
    findings.sort();
    for finding in &findings {
        shell::say(&finding.to_string());
    }
    if !findings.is_empty() {
        bail!("tidy found {} broken rules", findings.len());
    }
    shell::say(&format!("tidy: {} files read, no broken rule", tree.texts.len()));
    Ok(())
}

/// Walks the disk rather than asking git, so that an unpacked archive can be checked too.
#[expect(clippy::disallowed_methods, reason = "a chore reads the tree it checks from the disk")]
fn read_folder(root: &Path, folder: &str, tree: &mut Tree) -> Result<()> {
    let on_disk = root.join(folder);
    let entries = std::fs::read_dir(&on_disk)
        .with_context(|| format!("cannot list {}", on_disk.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", on_disk.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == ".git" || (folder.is_empty() && SKIPPED.contains(&name.as_str())) {
            continue;
        }
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        if entry.file_type()?.is_dir() {
            read_folder(root, &path, tree)?;
        } else if READ.iter().any(|end| path.ends_with(end)) {
            let text = std::fs::read_to_string(entry.path())
                .with_context(|| format!("cannot read {path}"))?;
            tree.texts.insert(path.clone(), text);
        }
        tree.paths.insert(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of a few files, with the folders above them.
    pub(super) fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        for (path, text) in files {
            for (cut, _) in path.match_indices('/') {
                tree.paths.insert(path[..cut].to_owned());
            }
            tree.paths.insert((*path).to_owned());
            tree.texts.insert((*path).to_owned(), (*text).to_owned());
        }
        tree
    }

    #[test]
    fn the_walk_finds_this_file_and_leaves_out_build_outputs() {
        let mut tree = Tree::default();
        read_folder(&shell::root(), "", &mut tree).unwrap();
        assert!(tree.texts["xtask/src/tidy.rs"].contains("mod edges;"));
        assert!(tree.paths.contains("xtask/src"));
        assert!(!tree.paths.iter().any(|path| path.starts_with("target/")));
    }

    #[test]
    fn a_finding_reads_as_path_line_rule() {
        assert_eq!(Finding::new("a/b.rs", 7, "too long").to_string(), "a/b.rs:7: too long");
    }
}
