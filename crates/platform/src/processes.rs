//! Child processes of this host: start, output and termination.
//!
//! Dropping the handle of a child process kills and reaps it. In case this process is killed
//! itself, a child binds its lifetime to its parent at once ([`Processes::end_with`]), and the
//! system ends it together with the parent.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::error_text;

/// Factory of processes.
pub trait Processes: Send + Sync {
    /// Starts a process without standard input, with its standard error piped to this process.
    ///
    /// The system may take the end of the calling thread for the end of the parent, so call it on a
    /// long-lived thread.
    fn spawn(&self, command: &ProcessCommand) -> Result<Box<dyn Process>, ProcessError>;

    /// Program file of this process.
    fn own_program(&self) -> Result<PathBuf, ProcessError>;

    /// Process id of this process.
    fn own_id(&self) -> u32;

    /// Ends this process when its parent ends. `owner` is the expected parent's id; false if that
    /// process has ended already, and then the caller must end.
    fn end_with(&self, owner: u32) -> bool;

    /// Handle that reports the end of the process with this id, which need not be a child. It
    /// refers to the same process even after its id is reused. `None` if there is no such process
    /// or the system has no such handles.
    fn watch(&self, id: u32) -> Option<Box<dyn ProcessWatch>>;

    /// Kills a process (SIGKILL); false if it does not exist.
    fn kill(&self, id: u32) -> bool;

    /// State of a process; `None` if it does not exist or is unknown.
    fn state(&self, id: u32) -> Option<ProcessState>;

    /// Defers termination (SIGTERM): the signal is recorded instead of ending this process.
    fn defer_termination(&self, is_deferred: bool);

    /// Whether a termination signal arrived while deferred.
    fn is_termination_requested(&self) -> bool;

    /// Records SIGUSR1, the request to retry what was given up, instead of ending this process.
    fn accept_retry_requests(&self);

    /// Whether such a request arrived since the last call.
    fn take_retry_request(&self) -> bool;

    /// Lets SIGINT end this process, even if it was started with SIGINT ignored, as shells do for
    /// background commands of a script.
    fn accept_interrupts(&self) {
        self.handle_interrupts(Interrupts::End);
    }

    /// Sets the effect of SIGINT on this process.
    fn handle_interrupts(&self, effect: Interrupts);

    /// Whether SIGINT arrived while it was deferred.
    fn is_interrupt_requested(&self) -> bool;

    /// Whether SIGINT arrived while it was deferred; forgets it, so that the next one is again the
    /// first.
    fn take_interrupt(&self) -> bool;
}

/// Exit code of a process that SIGINT ended, as shells report it.
pub const EXIT_ON_INTERRUPT: u8 = 128 + 2;

/// Effect of SIGINT, which a terminal sends to every process of a command on Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupts {
    /// Ends the process.
    End,
    /// Prints a line on standard error and ends the process.
    Explain(&'static str),
    /// None, in a process whose parent decides.
    Ignore,
    /// Prints a line and records the signal, so that the process can save before it ends.
    Defer {
        /// Line on standard error.
        line: &'static str,
        /// A further signal ends the process at once with [`EXIT_ON_INTERRUPT`], unless it arrives
        /// within this time: launchers and `timeout` send what the terminal sent already.
        repeat: Duration,
    },
}

/// Command of a child process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessCommand {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments, without the program name.
    pub arguments: Vec<OsString>,
    /// Environment variables to add or override.
    pub environment: Vec<(String, String)>,
    /// Whether it shares this process's standard output; otherwise its output is discarded.
    pub shares_stdout: bool,
}

/// A child process; killed on drop.
pub trait Process: Send {
    /// Process id.
    fn id(&self) -> u32;

    /// Standard error; available once.
    fn take_stderr(&mut self) -> Option<Box<dyn ProcessOutput>>;

    /// Exit status, if the process has ended; does not wait.
    fn try_wait(&mut self) -> Result<Option<Exit>, ProcessError>;

    /// Kills the process; no effect after its end.
    fn kill(&mut self);

    /// Terminates the process (SIGTERM); no effect after its end.
    fn terminate(&mut self);
}

/// A watched process.
pub trait ProcessWatch: Send {
    /// Whether it has ended; does not wait.
    fn has_ended(&self) -> bool;
}

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// Running or waiting.
    Alive,
    /// Stopped by a signal or a debugger.
    Stopped,
    /// Ended.
    Ended,
}

/// Output pipe of a process.
pub trait ProcessOutput: Send {
    /// Reads available output within `timeout`; [`io::ErrorKind::TimedOut`] if there is none, 0
    /// bytes after all writers have closed it.
    fn read(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize>;
}

/// Exit status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Exit with a code.
    Code(i32),
    /// End by a signal.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(number) => match signal_name(*number) {
                Some(name) => write!(f, "signal {number} ({name})"),
                None => write!(f, "signal {number}"),
            },
        }
    }
}

/// Names of the signals that end processes in practice.
fn signal_name(number: i32) -> Option<&'static str> {
    Some(match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        31 => "SIGSYS",
        _ => return None,
    })
}

/// A failed process operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} {program}: {reason}")]
pub struct ProcessError {
    action: &'static str,
    program: String,
    reason: String,
}

impl ProcessError {
    /// Adds the operation and the program to a system error.
    pub fn new(action: &'static str, program: &str, error: &io::Error) -> Self {
        Self { action, program: program.to_owned(), reason: error_text::of(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_prints_its_number_and_signal_name() {
        assert_eq!(Exit::Code(2).to_string(), "exit code 2");
        assert_eq!(Exit::Signal(9).to_string(), "signal 9 (SIGKILL)");
        assert_eq!(Exit::Signal(40).to_string(), "signal 40");
    }
}
