//! Another `lockstep` command as a subprocess, with its error output captured.

use crate::failure::Failure;
use lockstep_platform::{Exit, JoinHandle, Process, ProcessCommand, ProcessOutput, World};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time that the error output may take to arrive after the exit.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Largest error output that is kept; the end of it has the reason of a failure.
const MAX_STDERR_BYTES: usize = 64 << 10;

/// A running subprocess. Dropping it kills the process.
pub(crate) struct Subprocess {
    process: Box<dyn Process>,
    stderr: Arc<Mutex<Vec<u8>>>,
    reader: Box<dyn JoinHandle>,
}

impl Subprocess {
    /// Starts this program with these arguments and variables. A thread reads its error output,
    /// because a full pipe blocks the writer.
    pub(crate) fn start(
        world: &World,
        arguments: Vec<OsString>,
        environment: Vec<(String, String)>,
    ) -> Result<Self, Failure> {
        let bug = |error: &dyn ToString| Failure::bug(error.to_string());
        let program = world.processes().own_program().map_err(|error| bug(&error))?;
        let command = ProcessCommand { program, arguments, environment, shares_stdout: false };
        let mut process = world.processes().spawn(&command).map_err(|error| bug(&error))?;
        let output = process.take_stderr().expect("it is taken once");
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let buffer = Arc::clone(&stderr);
        let body = Box::new(move || read_stderr(output, &buffer));
        let reader = world.threads().spawn("stderr-reader", body).map_err(|error| bug(&error))?;
        Ok(Self { process, stderr, reader })
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// How it ended, if it has; does not block.
    pub(crate) fn try_wait(&mut self) -> Result<Option<Exit>, Failure> {
        self.process.try_wait().map_err(|error| Failure::bug(error.to_string()))
    }

    /// Exit code and error message of a failed process.
    pub(crate) fn error_message(&mut self, exit: Exit) -> (u8, String) {
        self.reader.finished_within(DRAIN_TIMEOUT);
        let stderr = self.stderr.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let stderr = String::from_utf8_lossy(&stderr);
        let lines: Vec<_> =
            stderr.lines().filter_map(|line| line.strip_prefix("error: ")).collect();
        let text =
            if lines.is_empty() { format!("the run ended with {exit}") } else { lines.join("\n") };
        let code = match exit {
            Exit::Code(code) => u8::try_from(code).unwrap_or(101),
            Exit::Signal(_) => 3,
        };
        (code, text)
    }
}

fn read_stderr(mut output: Box<dyn ProcessOutput>, stderr: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    loop {
        match output.read(&mut buffer, DRAIN_TIMEOUT) {
            Ok(0) => return,
            Ok(count) => {
                let mut stderr = stderr.lock().unwrap_or_else(PoisonError::into_inner);
                stderr.extend_from_slice(&buffer[..count]);
                let surplus = stderr.len().saturating_sub(MAX_STDERR_BYTES);
                stderr.drain(..surplus);
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
