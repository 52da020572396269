//! An error as the person at the terminal sees it: plain lines and an exit code by blame.

use lockstep_cluster::{ClusterError, RunFailure};
use lockstep_comm::bench::BenchError;
use lockstep_config::{Blame, ConfigErrors};
use lockstep_data::DataError;
use lockstep_platform::FileError;
use lockstep_trainer::TrainError;
use std::io::Write;
use std::process::ExitCode;

/// The exit code of a run that ended on request (SIGTERM), as shells tell it, after it saved.
const ON_REQUEST: u8 = 128 + 15;

/// What ends a command.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    /// The person at the terminal must change something.
    pub(crate) fn user(text: impl Into<String>) -> Self {
        Self::new(Blame::User, text)
    }

    /// The reader of our output went away, which is its right: `lockstep config | head`.
    pub(crate) fn closed_pipe() -> Self {
        Self { code: 0, text: String::new() }
    }

    pub(crate) fn new(blame: Blame, text: impl Into<String>) -> Self {
        Self { code: blame.exit_code(), text: text.into() }
    }

    /// The program itself is wrong.
    pub(crate) fn bug(text: impl Into<String>) -> Self {
        Self { code: 101, text: text.into() }
    }

    /// Another process of ours ended with this code.
    pub(crate) fn with_code(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// The same, said of one worker.
    pub(crate) fn of_rank(self, rank: usize) -> Self {
        let lines: Vec<_> = self.text.lines().map(|line| format!("rank {rank}: {line}")).collect();
        Self { text: lines.join("\n"), ..self }
    }

    /// What would be printed.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Prints the lines and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        for line in self.text.lines() {
            // Nobody is left to tell when standard error is closed too.
            let _ = writeln!(std::io::stderr(), "error: {line}");
        }
        ExitCode::from(self.code)
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        match error {
            TrainError::Interrupted { .. } => Self::with_code(ON_REQUEST, error.to_string()),
            _ => Self::new(error.blame(), error.to_string()),
        }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        let blame = error.blame();
        // The whole chain on one line: what failed, and the system's words.
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        Self::new(blame, text)
    }
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Self {
        Self::new(error.blame(), error.to_string())
    }
}

impl From<RunFailure> for Failure {
    fn from(failure: RunFailure) -> Self {
        Self { code: failure.exit_code, text: failure.text }
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
