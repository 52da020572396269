//! Of all workers that failed, the one that caused it.
//!
//! When one worker fails, the others lose a peer and fail too, and often are the first to be
//! noticed. Their words ("rank 1 left") are true and tell nothing about the cause. So the culprit
//! is the first that blames anything but a peer; only where all blame peers it is the first of all.

use lockstep_config::Blame;
use lockstep_platform::Exit;

/// The exit code of a worker that blames a peer, whichever one.
const PEER: i32 = Blame::Peer(0).exit_code() as i32;

/// A worker that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which.
    pub rank: usize,
    /// How.
    pub exit: Exit,
    /// Whether it was ended here, because another had failed.
    pub by_us: bool,
    /// Whether it was lost and another went on in its place.
    pub is_replaced: bool,
    /// What it said about it, a line each, without `error: `.
    pub lines: Vec<String>,
}

/// A run that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFailure {
    /// The worker that caused it.
    pub rank: usize,
    /// What the run's exit code is.
    pub exit_code: u8,
    /// The workers that were ended by a signal of somebody else's, so that nothing of theirs is
    /// left.
    pub lost: Vec<usize>,
    /// What happened, a line each; every line names the rank.
    pub text: String,
    /// What other workers said about it, where that adds anything.
    pub others: Vec<(usize, String)>,
}

impl std::fmt::Display for RunFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for RunFailure {}

/// Judges a run by how its workers ended, in the order in which they did; nothing if all is well.
pub fn verdict(ended: &[Ended]) -> Option<RunFailure> {
    let is_failure = |end: &&Ended| !end.by_us && !end.is_replaced && end.exit != Exit::Code(0);
    let failed = || ended.iter().filter(is_failure);
    let culprit = failed().find(|end| end.exit != Exit::Code(PEER)).or_else(|| failed().next())?;
    let rank = culprit.rank;
    let exit_code = match culprit.exit {
        // What ends a run by a signal is the loss of a worker.
        Exit::Signal(_) => Blame::Peer(rank).exit_code(),
        Exit::Code(code) => u8::try_from(code).unwrap_or(101),
    };
    let mut others = Vec::new();
    // Whoever must change the command has no use for what its failure did to the rest.
    if exit_code != Blame::User.exit_code() {
        for end in ended.iter().filter(|end| end.rank != rank) {
            let news = end.lines.iter().filter(|line| !culprit.lines.contains(line));
            others.extend(news.map(|line| (end.rank, line.clone())));
        }
    }
    let lost = failed().filter(|end| matches!(end.exit, Exit::Signal(_)));
    let lost = lost.map(|end| end.rank).collect();
    Some(RunFailure { rank, exit_code, lost, text: words(culprit), others })
}

/// What happened to the culprit.
fn words(culprit: &Ended) -> String {
    let rank = culprit.rank;
    if !culprit.lines.is_empty() {
        let lines: Vec<_> =
            culprit.lines.iter().map(|line| format!("rank {rank}: {line}")).collect();
        return lines.join("\n");
    }
    match culprit.exit {
        Exit::Signal(_) => format!("rank {rank} was killed by {}", culprit.exit),
        Exit::Code(101) => format!("rank {rank} stopped at a bug; its lines above say where"),
        Exit::Code(_) => format!("rank {rank} ended with {}", culprit.exit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(rank: usize, exit: Exit, lines: &[&str]) -> Ended {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        Ended { rank, exit, by_us: false, is_replaced: false, lines }
    }

    fn told(ended: &[Ended]) -> (u8, String) {
        let failure = verdict(ended).expect("it failed");
        (failure.exit_code, failure.text)
    }

    #[test]
    fn all_is_well_when_every_worker_says_so() {
        assert_eq!(verdict(&[end(1, Exit::Code(0), &[]), end(0, Exit::Code(0), &[])]), None);
    }

    #[test]
    fn a_cause_wins_over_its_consequences_whoever_was_noticed_first() {
        let lost = end(0, Exit::Code(3), &["rank 1 left"]);
        let full = end(1, Exit::Code(4), &["cannot write: no space left"]);
        let expected = (4, "rank 1: cannot write: no space left".to_owned());
        assert_eq!(told(&[lost.clone(), full.clone()]), expected);
        assert_eq!(told(&[full.clone(), lost.clone()]), expected);
        let failure = verdict(&[lost, full]).expect("it failed");
        assert_eq!(failure.others, [(0, "rank 1 left".to_owned())]);
    }

    #[test]
    fn where_all_blame_peers_the_first_is_heard() {
        let ends =
            [end(2, Exit::Code(3), &["waited for rank 1"]), end(0, Exit::Code(3), &["gone"])];
        assert_eq!(told(&ends), (3, "rank 2: waited for rank 1".to_owned()));
    }

    #[test]
    fn a_killed_worker_is_told_with_its_signal() {
        let ends = [end(0, Exit::Code(3), &["rank 1 left"]), end(1, Exit::Signal(9), &[])];
        assert_eq!(told(&ends), (3, "rank 1 was killed by signal 9 (SIGKILL)".to_owned()));
        assert_eq!(verdict(&ends).expect("it failed").lost, [1]);
        assert!(verdict(&ends[..1]).expect("it failed").lost.is_empty());
    }

    #[test]
    fn a_worker_that_was_ended_because_of_another_is_not_the_cause() {
        let mut ended = end(1, Exit::Signal(9), &[]);
        ended.by_us = true;
        let ends = [end(0, Exit::Code(3), &["rank 1 does not come"]), ended];
        assert_eq!(told(&ends), (3, "rank 0: rank 1 does not come".to_owned()));
    }

    #[test]
    fn a_worker_that_another_stands_in_for_is_not_missed() {
        let mut lost = end(2, Exit::Signal(9), &[]);
        lost.is_replaced = true;
        assert_eq!(verdict(&[lost.clone(), end(0, Exit::Code(0), &[])]), None);
        let ends = [lost, end(3, Exit::Signal(9), &[])];
        assert_eq!(told(&ends), (3, "rank 3 was killed by signal 9 (SIGKILL)".to_owned()));
    }

    #[test]
    fn a_mistake_of_the_person_is_told_once() {
        let words = &["no such file"];
        let ends = [end(1, Exit::Code(2), words), end(0, Exit::Code(2), words)];
        assert!(verdict(&ends).expect("it failed").others.is_empty());
        assert_eq!(told(&ends), (2, "rank 1: no such file".to_owned()));
    }

    #[test]
    fn what_the_culprit_has_said_is_told_once() {
        let saved = &["ended on request after step 4"];
        let mut ends = vec![end(1, Exit::Code(143), saved), end(0, Exit::Code(143), saved)];
        assert!(verdict(&ends).expect("it failed").others.is_empty());
        ends.push(end(3, Exit::Code(3), &["rank 1 left"]));
        let others = verdict(&ends).expect("it failed").others;
        assert_eq!(others, [(3, "rank 1 left".to_owned())]);
    }

    #[test]
    fn a_bug_points_at_what_it_printed() {
        let (code, text) = told(&[end(1, Exit::Code(101), &[])]);
        assert_eq!(
            (code, text.as_str()),
            (101, "rank 1 stopped at a bug; its lines above say where")
        );
        assert_eq!(
            told(&[end(1, Exit::Code(77), &[])]),
            (77, "rank 1 ended with exit code 77".into())
        );
    }
}
