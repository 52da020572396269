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
        Self { code, text: text.into(), next: None }
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
        for line in self.text.lines() {
            // A closed standard error leaves only the exit code.
            let _ = writeln!(std::io::stderr(), "error: {line}");
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
        Self::with_code(failure.exit_code, failure.text)
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
