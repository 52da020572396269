//! A run that the drill watches: `lockstep train` as a person would type it.

use crate::failure::Failure;
use lockstep_platform::{Exit, JoinHandle, Process, ProcessCommand, ProcessOutput, World};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Between two looks at the run.
const LOOK: Duration = Duration::from_millis(5);

/// How long the last words may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The most that is kept of what it says; the end of it tells why it failed.
const MAX_WORDS: usize = 64 << 10;

/// The options of the drill itself, which have a value.
const OWN: &[&str] = &["--kills", "--gone", "--seed", "--out"];

/// See the module's text.
pub(super) struct Child {
    process: Box<dyn Process>,
    words: Arc<Mutex<Vec<u8>>>,
    voice: Box<dyn JoinHandle>,
}

impl Child {
    /// Starts `lockstep train` with the recipe of this command, with more settings and into this
    /// folder. A thread hears what it says, since a pipe that nobody reads stops who writes to it.
    pub(super) fn start(world: &World, dir: &Path, sets: &[String]) -> Result<Self, Failure> {
        let bug = |error: &dyn ToString| Failure::bug(error.to_string());
        let mut arguments = typed();
        let dir = format!("run.dir={}", dir.display());
        for set in sets.iter().chain([&dir]) {
            arguments.extend(["--set".into(), set.into()]);
        }
        let program = world.processes().own_program().map_err(|error| bug(&error))?;
        let command =
            ProcessCommand { program, arguments, environment: Vec::new(), shares_stdout: false };
        let mut process = world.processes().spawn(&command).map_err(|error| bug(&error))?;
        let output = process.take_stderr().expect("it was not taken before");
        let words = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&words);
        let body = Box::new(move || listen(output, &heard));
        let voice = world.threads().spawn("drill-voice", body).map_err(|error| bug(&error))?;
        Ok(Self { process, words, voice })
    }

    /// Its number.
    pub(super) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits for it, looking around meanwhile. A run that failed ends the drill with its own words
    /// and code.
    pub(super) fn wait(mut self, world: &World, mut look: impl FnMut()) -> Result<(), Failure> {
        let exit = loop {
            let ended = self.process.try_wait();
            if let Some(exit) = ended.map_err(|error| Failure::bug(error.to_string()))? {
                break exit;
            }
            look();
            world.clock().sleep(LOOK);
        };
        if exit == Exit::Code(0) {
            return Ok(());
        }
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
        Err(Failure::with_code(code, text))
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

/// What was typed, without what is the drill's own.
fn typed() -> Vec<OsString> {
    let mut typed: Vec<OsString> = vec!["train".into(), "--quiet".into()];
    let mut rest = std::env::args_os().skip(2);
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy().into_owned();
        let name = text.split('=').next().unwrap_or_default();
        match name {
            _ if OWN.contains(&name) && name == text => drop(rest.next()),
            "--json" | "--quiet" => {}
            _ if OWN.contains(&name) => {}
            _ => typed.push(argument),
        }
    }
    typed
}
