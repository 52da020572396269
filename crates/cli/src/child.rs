//! Another command of ours as a process, such as `lockstep train` as a person would type it.

use crate::failure::Failure;
use lockstep_platform::{Exit, JoinHandle, Process, ProcessCommand, ProcessOutput, World};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long the last words may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The most that is kept of what it says; the end of it tells why it failed.
const MAX_WORDS: usize = 64 << 10;

/// See the module's text. Dropped, it is killed.
pub(crate) struct Child {
    process: Box<dyn Process>,
    words: Arc<Mutex<Vec<u8>>>,
    voice: Box<dyn JoinHandle>,
}

impl Child {
    /// Starts this program with these arguments and variables. A thread hears what it says, since a
    /// pipe that nobody reads stops who writes to it.
    pub(crate) fn start(
        world: &World,
        arguments: Vec<OsString>,
        environment: Vec<(String, String)>,
    ) -> Result<Self, Failure> {
        let bug = |error: &dyn ToString| Failure::bug(error.to_string());
        let program = world.processes().own_program().map_err(|error| bug(&error))?;
        let command = ProcessCommand { program, arguments, environment, shares_stdout: false };
        let mut process = world.processes().spawn(&command).map_err(|error| bug(&error))?;
        let output = process.take_stderr().expect("it was not taken before");
        let words = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&words);
        let body = Box::new(move || listen(output, &heard));
        let voice = world.threads().spawn("child-voice", body).map_err(|error| bug(&error))?;
        Ok(Self { process, words, voice })
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// How it ended, if it has; does not wait.
    pub(crate) fn try_wait(&mut self) -> Result<Option<Exit>, Failure> {
        self.process.try_wait().map_err(|error| Failure::bug(error.to_string()))
    }

    /// Why it failed, in its own words and with its own code, after it has ended.
    pub(crate) fn last_words(&mut self, exit: Exit) -> (u8, String) {
        self.voice.finished_within(LAST_WORDS);
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let words = String::from_utf8_lossy(&words);
        let lines: Vec<_> = words.lines().filter_map(|line| line.strip_prefix("error: ")).collect();
        let text =
            if lines.is_empty() { format!("the run ended with {exit}") } else { lines.join("\n") };
        let code = match exit {
            Exit::Code(code) => u8::try_from(code).unwrap_or(101),
            Exit::Signal(_) => 3,
        };
        (code, text)
    }
}

fn listen(mut output: Box<dyn ProcessOutput>, heard: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    loop {
        match output.read(&mut buffer, LAST_WORDS) {
            Ok(0) => return,
            Ok(count) => {
                let mut words = heard.lock().unwrap_or_else(PoisonError::into_inner);
                words.extend_from_slice(&buffer[..count]);
                let surplus = words.len().saturating_sub(MAX_WORDS);
                words.drain(..surplus);
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
