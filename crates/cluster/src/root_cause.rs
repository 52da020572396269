//! Finds the worker that caused a failure.
//!
//! When one worker fails, the others lose a peer and fail as well, often earlier. Their messages
//! ("rank 1 left") do not name the cause. The root cause is the first worker that blames anything
//! but a peer, or the first failure if all blame peers.

use lockstep_config::Blame;
use lockstep_platform::Exit;
use std::path::PathBuf;

/// Exit code of a worker that SIGTERM ended.
pub(crate) const TERMINATED: i32 = 128 + 15;

/// Exit code of a worker that blames a peer.
const PEER: i32 = Blame::Peer(0).exit_code() as i32;

/// Exit of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerExit {
    /// Rank of the worker.
    pub rank: usize,
    /// Exit status.
    pub exit: Exit,
    /// Whether the launcher killed it because another worker failed.
    pub killed_by_launcher: bool,
    /// Whether it was lost and a replica continued.
    pub is_replaced: bool,
    /// Error lines of the worker, without `error: `.
    pub lines: Vec<String>,
}

/// Failure of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFailure {
    /// Worker that caused it.
    pub rank: usize,
    /// Exit code of the run.
    pub exit_code: u8,
    /// Workers that were killed by a signal of another process, or did not exit after the others
    /// had found a peer lost.
    pub lost: Vec<usize>,
    /// Description; every line names the rank.
    pub text: String,
    /// Additional error lines of other workers.
    pub others: Vec<(usize, String)>,
    /// Run folder, if a worker created it and the launcher knows.
    pub run_dir: Option<PathBuf>,
}

impl std::fmt::Display for RunFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for RunFailure {}

/// Finds the root cause in the exits of all workers, in order; `None` if all succeeded.
pub fn find_root_cause(exits: &[WorkerExit]) -> Option<RunFailure> {
    let is_failure = |end: &&WorkerExit| {
        !end.killed_by_launcher && !end.is_replaced && end.exit != Exit::Code(0)
    };
    let failed = || exits.iter().filter(is_failure);
    let culprit = failed().find(|end| end.exit != Exit::Code(PEER)).or_else(|| failed().next())?;
    let rank = culprit.rank;
    let exit_code = match culprit.exit {
        // A worker killed by a signal is a lost peer.
        Exit::Signal(_) => Blame::Peer(rank).exit_code(),
        Exit::Code(code) => u8::try_from(code).unwrap_or(101),
    };
    let mut others = Vec::new();
    // After an error of the user the consequences for other workers are noise.
    if exit_code != Blame::User.exit_code() {
        for end in exits.iter().filter(|end| end.rank != rank) {
            let new_lines = end.lines.iter().filter(|line| !culprit.lines.contains(line));
            others.extend(new_lines.map(|line| (end.rank, line.clone())));
        }
    }
    let was_killed = |end: &&WorkerExit| matches!(end.exit, Exit::Signal(_));
    let mut lost: Vec<usize> = failed().filter(was_killed).map(|end| end.rank).collect();
    if lost.is_empty() && exit_code == Blame::Peer(0).exit_code() {
        // All others found a peer lost and exited. One that had to be killed is that peer: it was
        // frozen, or its host could not be reached.
        let absent = exits.iter().filter(|end| end.killed_by_launcher);
        lost = absent.map(|end| end.rank).collect();
    }
    let text = describe(culprit);
    Some(RunFailure { rank, exit_code, lost, text, others, run_dir: None })
}

/// Description of the failure.
fn describe(culprit: &WorkerExit) -> String {
    let rank = culprit.rank;
    if !culprit.lines.is_empty() {
        let lines: Vec<_> =
            culprit.lines.iter().map(|line| format!("rank {rank}: {line}")).collect();
        return lines.join("\n");
    }
    match culprit.exit {
        Exit::Signal(_) => format!("rank {rank} was killed by {}", culprit.exit),
        Exit::Code(TERMINATED) => format!("rank {rank} ended on request"),
        Exit::Code(101) => format!("rank {rank} stopped at a bug; its lines above say where"),
        Exit::Code(_) => format!("rank {rank} exits with {}", culprit.exit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(rank: usize, exit: Exit, lines: &[&str]) -> WorkerExit {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        WorkerExit { rank, exit, killed_by_launcher: false, is_replaced: false, lines }
    }

    fn exit_and_text(exits: &[WorkerExit]) -> (u8, String) {
        let failure = find_root_cause(exits).expect("it failed");
        (failure.exit_code, failure.text)
    }

    #[test]
    fn a_run_succeeds_if_every_worker_does() {
        assert_eq!(
            find_root_cause(&[end(1, Exit::Code(0), &[]), end(0, Exit::Code(0), &[])]),
            None
        );
    }

    #[test]
    fn a_cause_wins_over_its_consequences_in_any_order() {
        let lost = end(0, Exit::Code(3), &["rank 1 left"]);
        let full = end(1, Exit::Code(4), &["cannot write: no space left"]);
        let expected = (4, "rank 1: cannot write: no space left".to_owned());
        assert_eq!(exit_and_text(&[lost.clone(), full.clone()]), expected);
        assert_eq!(exit_and_text(&[full.clone(), lost.clone()]), expected);
        let failure = find_root_cause(&[lost, full]).expect("it failed");
        assert_eq!(failure.others, [(0, "rank 1 left".to_owned())]);
    }

    #[test]
    fn if_all_blame_peers_the_first_failure_wins() {
        let ends =
            [end(2, Exit::Code(3), &["waited for rank 1"]), end(0, Exit::Code(3), &["gone"])];
        assert_eq!(exit_and_text(&ends), (3, "rank 2: waited for rank 1".to_owned()));
    }

    #[test]
    fn a_killed_worker_is_reported_with_its_signal() {
        let ends = [end(0, Exit::Code(3), &["rank 1 left"]), end(1, Exit::Signal(9), &[])];
        assert_eq!(exit_and_text(&ends), (3, "rank 1 was killed by signal 9 (SIGKILL)".to_owned()));
        assert_eq!(find_root_cause(&ends).expect("it failed").lost, [1]);
        assert!(find_root_cause(&ends[..1]).expect("it failed").lost.is_empty());
    }

    #[test]
    fn a_worker_that_the_launcher_killed_is_not_the_cause() {
        let mut killed = end(1, Exit::Signal(9), &[]);
        killed.killed_by_launcher = true;
        let ends = [end(0, Exit::Code(3), &["rank 1 does not come"]), killed.clone()];
        assert_eq!(exit_and_text(&ends), (3, "rank 0: rank 1 does not come".to_owned()));
        assert_eq!(find_root_cause(&ends).expect("it failed").lost, [1], "it did not exit");
        let ends = [end(0, Exit::Code(4), &["cannot write: no space left"]), killed];
        assert!(find_root_cause(&ends).expect("it failed").lost.is_empty(), "it had no time");
    }

    #[test]
    fn a_lost_worker_with_a_replica_is_no_failure() {
        let mut lost = end(2, Exit::Signal(9), &[]);
        lost.is_replaced = true;
        assert_eq!(find_root_cause(&[lost.clone(), end(0, Exit::Code(0), &[])]), None);
        let ends = [lost, end(3, Exit::Signal(9), &[])];
        assert_eq!(exit_and_text(&ends), (3, "rank 3 was killed by signal 9 (SIGKILL)".to_owned()));
    }

    #[test]
    fn an_error_of_the_user_is_reported_once() {
        let lines = &["no such file"];
        let ends = [end(1, Exit::Code(2), lines), end(0, Exit::Code(2), lines)];
        assert!(find_root_cause(&ends).expect("it failed").others.is_empty());
        assert_eq!(exit_and_text(&ends), (2, "rank 1: no such file".to_owned()));
    }

    #[test]
    fn repeated_error_lines_are_reported_once() {
        let saved = &["exits on request after step 4"];
        let mut ends = vec![end(1, Exit::Code(143), saved), end(0, Exit::Code(143), saved)];
        assert!(find_root_cause(&ends).expect("it failed").others.is_empty());
        ends.push(end(3, Exit::Code(3), &["rank 1 left"]));
        let others = find_root_cause(&ends).expect("it failed").others;
        assert_eq!(others, [(3, "rank 1 left".to_owned())]);
    }

    #[test]
    fn a_bug_refers_to_the_lines_above() {
        let (code, text) = exit_and_text(&[end(1, Exit::Code(101), &[])]);
        assert_eq!(
            (code, text.as_str()),
            (101, "rank 1 stopped at a bug; its lines above say where")
        );
        assert_eq!(
            exit_and_text(&[end(1, Exit::Code(77), &[])]),
            (77, "rank 1 exits with exit code 77".into())
        );
    }
}
