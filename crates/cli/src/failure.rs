//! Errors of a command: plain lines on standard error and an exit code by blame.

use lockstep_bench::BenchError;
use lockstep_cluster::rendezvous::RendezvousError;
use lockstep_cluster::{ClusterError, RunFailure};
use lockstep_config::{Blame, ConfigErrors};
use lockstep_data::DataError;
use lockstep_platform::{EXIT_ON_INTERRUPT, FileError};
use lockstep_sweep::SweepError;
use lockstep_trainer::TrainError;
use std::error::Error;
use std::io::Write;
use std::process::ExitCode;

/// Exit code of a run that saved a checkpoint and ended on SIGTERM, as shells report it.
const EXIT_ON_TERMINATION: u8 = 128 + 15;

/// The error that ends a command.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    text: String,
    /// Last line: the command that continues from here.
    next: Option<String>,
    /// Whether the lines are no error: the run ended on request.
    is_notice: bool,
}

impl Failure {
    /// An error in the command or its input.
    pub(crate) fn user(text: impl Into<String>) -> Self {
        Self::new(Blame::User, text)
    }

    /// The reader of standard output closed the pipe, as in `lockstep config | head`.
    pub(crate) fn closed_pipe() -> Self {
        Self::with_code(0, String::new())
    }

    pub(crate) fn new(blame: Blame, text: impl Into<String>) -> Self {
        Self::with_code(blame.exit_code(), text)
    }

    /// A bug of this program.
    pub(crate) fn bug(text: impl Into<String>) -> Self {
        Self::with_code(101, text)
    }

    /// A subprocess failed with this exit code.
    pub(crate) fn with_code(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), next: None, is_notice: false }
    }

    /// Prefixes every line with a rank.
    pub(crate) fn of_rank(self, rank: usize) -> Self {
        let lines: Vec<_> = self.text.lines().map(|line| format!("rank {rank}: {line}")).collect();
        Self { text: lines.join("\n"), ..self }
    }

    /// Adds the last line.
    pub(crate) fn with_next(self, next: Option<String>) -> Self {
        Self { next, ..self }
    }

    /// Reports the end of a run on request as a notice. Workers report it as an error to their
    /// launcher, which holds errors back.
    pub(crate) fn into_notice(self) -> Self {
        Self { is_notice: self.is_on_request(), ..self }
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// Whether a signal ended the run, which has saved a checkpoint.
    pub(crate) fn is_on_request(&self) -> bool {
        [EXIT_ON_TERMINATION, EXIT_ON_INTERRUPT].contains(&self.code)
    }

    /// The lines.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Prints the lines and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let prefix = if self.is_notice { "" } else { "error: " };
        for line in self.text.lines() {
            // A closed standard error leaves only the exit code.
            let _ = writeln!(std::io::stderr(), "{prefix}{line}");
        }
        if let Some(line) = &self.next {
            let _ = writeln!(std::io::stderr(), "{line}");
        }
        ExitCode::from(self.code)
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        match error {
            TrainError::Interrupted { is_interrupt, .. } => {
                let code = if is_interrupt { EXIT_ON_INTERRUPT } else { EXIT_ON_TERMINATION };
                Self::with_code(code, error.to_string())
            }
            _ => Self::new(error.blame(), error.to_string()),
        }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        Self::new(error.blame(), chain(&error))
    }
}

impl From<RendezvousError> for Failure {
    fn from(error: RendezvousError) -> Self {
        Self::new(error.blame(), chain(&error))
    }
}

/// An error and its sources on one line: what failed, and the system's message.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Self {
        Self::new(error.blame(), error.to_string())
    }
}

impl From<RunFailure> for Failure {
    fn from(failure: RunFailure) -> Self {
        let found = Self::with_code(failure.exit_code, failure.text);
        if !found.is_on_request() {
            return found;
        }
        // All ranks saved after the same step; which one reported first says nothing.
        let prefix = format!("rank {}: ", failure.rank);
        let lines = found.text.lines().map(|line| line.strip_prefix(&prefix).unwrap_or(line));
        let text = lines.collect::<Vec<_>>().join("\n");
        Self { text, ..found }
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Self {
        Self::new(error.blame(), error.to_string())
    }
}

impl From<ConfigErrors> for Failure {
    fn from(errors: ConfigErrors) -> Self {
        Self::user(errors.to_string())
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self::new(Blame::Storage, error.to_string())
    }
}

impl From<SweepError> for Failure {
    fn from(error: SweepError) -> Self {
        Self::new(error.blame(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_rank_1(exit_code: u8, line: &str) -> Failure {
        let text = format!("rank 1: {line}");
        let (lost, others) = (Vec::new(), Vec::new());
        RunFailure { rank: 1, exit_code, lost, text, others, run_dir: None }.into()
    }

    #[test]
    fn a_stop_on_request_is_a_notice_of_the_run_and_other_failures_are_errors_of_a_rank() {
        let line = "ended on request after step 4, saved in runs/0001/checkpoints/step-00000004";
        for code in [EXIT_ON_INTERRUPT, EXIT_ON_TERMINATION] {
            let stopped = of_rank_1(code, line).into_notice();
            assert_eq!((stopped.text(), stopped.is_notice), (line, true));
            assert_eq!(stopped.code(), code);
        }
        let failed = of_rank_1(4, "the disk is full").into_notice();
        assert_eq!((failed.text(), failed.is_notice), ("rank 1: the disk is full", false));
    }
}
