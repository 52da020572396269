//! Subjects of commits: at most 72 characters, since the commit that introduced the rule.

use std::process::Command;

use super::Finding;
use crate::shell;

/// The last commit before the rule.
const BEFORE: &str = "00ac47a";
const SUBJECT_MAX: usize = 72;

/// Checks every subject after the rule's first commit; an unpacked archive has none.
pub(super) fn check() -> Vec<Finding> {
    let range = format!("{BEFORE}..HEAD");
    let mut log = Command::new("git");
    log.args(["log", "--no-merges", "--format=%h %s", &range]);
    if !shell::succeeds(&mut log) {
        return Vec::new();
    }
    long_subjects(&shell::capture(&mut log).unwrap_or_default())
}

fn long_subjects(log: &str) -> Vec<Finding> {
    log.lines()
        .filter_map(|line| {
            let (commit, subject) = line.split_once(' ')?;
            let length = subject.chars().count();
            (length > SUBJECT_MAX).then(|| {
                let rule = format!("subject has {length} characters; at most {SUBJECT_MAX}");
                Finding::new(&format!("commit {commit}"), 1, rule)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_subjects_are_found() {
        let log = format!("abc comm: short\ndef {}\nfed {}\n", "x".repeat(72), "x".repeat(73));
        let found = long_subjects(&log);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "commit fed");
    }
}
