//! Other processes of this host: starting them, hearing them, and never leaving one behind.
//!
//! A started process belongs to the value that stands for it: when the value goes, the process is
//! ended and its remains are collected. That does not help when this process itself is killed, so
//! a process that was started says at once whom it belongs to ([`Processes::end_with`]), and the
//! system ends it together with its owner.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::reason;

/// A source of processes.
pub trait Processes: Send + Sync {
    /// Starts a process. It reads nothing, and what it writes to standard error comes here.
    ///
    /// The system may take the end of the thread that called this for the end of the owner, so
    /// call it on a thread that stays.
    fn spawn(&self, command: &ProcessCommand) -> Result<Box<dyn Process>, ProcessError>;

    /// The program that this process runs.
    fn own_program(&self) -> Result<PathBuf, ProcessError>;

    /// This process's number.
    fn own_id(&self) -> u32;

    /// From now on this process is ended when the one that started it ends. `owner` is the number
    /// of that process as it was told; false when it has ended already, and then it is up to the
    /// caller to end.
    fn end_with(&self, owner: u32) -> bool;

    /// A handle that says when the process with this number has ended, which need not be one that
    /// was started here. The handle stands for that process for ever, also when its number is
    /// given to another. `None` where there is no such process, or no such handle.
    fn watch(&self, id: u32) -> Option<Box<dyn ProcessWatch>>;

    /// Ends the process with this number at once (SIGKILL); false where there is none.
    fn kill(&self, id: u32) -> bool;

    /// What the process with this number does; `None` where there is none or nobody knows.
    fn state(&self, id: u32) -> Option<ProcessState>;

    /// Whether a request to end (SIGTERM) is only taken note of from now on, instead of ending this
    /// process at once.
    fn defer_termination(&self, is_deferred: bool);

    /// Whether somebody asked this process to end while that was deferred.
    fn is_termination_asked(&self) -> bool;

    /// Takes note of requests to try again what was given up for now (SIGUSR1) from now on, instead
    /// of ending this process.
    fn accept_recalls(&self);

    /// Whether there was such a request since this was last asked.
    fn take_recall(&self) -> bool;

    /// Lets an interrupt from the keyboard end this process, even if it was started with such
    /// interrupts ignored, as shells do with commands in the background of a script.
    fn accept_interrupts(&self);
}

/// What to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessCommand {
    /// The program's file.
    pub program: PathBuf,
    /// Its arguments, without its own name.
    pub arguments: Vec<OsString>,
    /// Variables beside those of this process, or instead of them.
    pub environment: Vec<(String, String)>,
    /// Whether it writes to the standard output of this process; otherwise that goes nowhere.
    pub shares_stdout: bool,
}

/// A process that was started; dropped, it is killed.
pub trait Process: Send {
    /// Its number.
    fn id(&self) -> u32;

    /// Its standard error; given once.
    fn take_stderr(&mut self) -> Option<Box<dyn ProcessOutput>>;

    /// How it ended, if it has; does not wait.
    fn try_wait(&mut self) -> Result<Option<Exit>, ProcessError>;

    /// Ends it, whatever it does. Nothing happens if it has ended.
    fn kill(&mut self);

    /// Asks it to end (SIGTERM). Nothing happens if it has ended.
    fn terminate(&mut self);
}

/// A process that is watched.
pub trait ProcessWatch: Send {
    /// Whether it has ended; does not wait.
    fn has_ended(&self) -> bool;
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// It runs, or waits for something.
    Alive,
    /// It was stopped by a signal or a debugger and goes on when it is told to.
    Stopped,
    /// It has ended.
    Ended,
}

/// What a process writes.
pub trait ProcessOutput: Send {
    /// Reads what has come, waiting up to `timeout` for it; [`io::ErrorKind::TimedOut`] if nothing
    /// has, and 0 bytes once nobody can write any more.
    fn read(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize>;
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By a signal with this number.
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

/// The signals that end processes in practice.
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

/// A process that could not be started or asked about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} {program}: {reason}")]
pub struct ProcessError {
    action: &'static str,
    program: String,
    reason: String,
}

impl ProcessError {
    /// Puts the attempt and the program beside the system's error.
    pub fn new(action: &'static str, program: &str, error: &io::Error) -> Self {
        Self { action, program: program.to_owned(), reason: reason::of(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_by_its_number_and_its_name() {
        assert_eq!(Exit::Code(2).to_string(), "exit code 2");
        assert_eq!(Exit::Signal(9).to_string(), "signal 9 (SIGKILL)");
        assert_eq!(Exit::Signal(40).to_string(), "signal 40");
    }
}
