//! The guest's end: starts a worker where the launcher cannot.

use super::line::{Ear, Message, send};
use crate::ClusterError;
use crate::rendezvous::{MEETING_POINT, RUN, TICKET, Ticket, visit};
use crate::role::{LAUNCHER, RESTARTS, RUN_DIR};
use lockstep_platform::{JoinHandle, Process, ProcessCommand, ProcessOutput, Stream, World};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long the launcher is looked for.
const JOINING: Duration = Duration::from_mins(10);

/// Between two looks at the worker.
const LOOK: Duration = Duration::from_millis(10);

/// How long the last words of a worker may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a launcher may tell a worker here, beside what the command says itself.
const TOLD: [&str; 9] = [
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    MEETING_POINT,
    TICKET,
    RUN,
    RESTARTS,
    RUN_DIR,
];

/// Offers a worker to the run whose launcher listens at `addr`, until the run is over; tells its
/// exit code. `arguments` are those of the worker, and what it says on its standard error is heard
/// by the launcher.
///
/// Call it on the main thread: workers end when the thread that started them does.
pub fn serve(
    world: &World,
    addr: &str,
    ticket: &Ticket,
    arguments: &[OsString],
) -> Result<u8, ClusterError> {
    let stream = visit(world, addr, ticket, JOINING)?;
    let gone = |reason: String| ClusterError::LauncherGone { addr: addr.to_owned(), reason };
    let line = stream.try_clone().map_err(|error| gone(error.to_string()))?;
    let line = Arc::new(Mutex::new(line));
    let mut ear = Ear::new(stream);
    let mut worker: Option<Worker> = None;
    loop {
        let heard = ear.next(LOOK).map_err(|error| gone(error.to_string()))?;
        match heard {
            Some((life, Message::Start(variables))) => {
                // One that was still there has no place any more.
                drop(worker.take());
                worker = Some(Worker::start(world, &line, life, variables, arguments)?);
            }
            Some((_, Message::Done(code))) => return Ok(code),
            Some((life, order)) => {
                let own = worker.as_mut().filter(|worker| worker.life == life);
                match (own, order) {
                    (Some(worker), Message::Terminate) => worker.process.terminate(),
                    (Some(worker), Message::Kill) => worker.process.kill(),
                    _ => {}
                }
            }
            None => {}
        }
        if let Some(own) = &mut worker
            && let Some(exit) = own.process.try_wait()?
        {
            own.voice.finished_within(LAST_WORDS);
            tell(&line, own.life, &Message::Ended(exit))
                .map_err(|error| gone(error.to_string()))?;
            worker = None;
        }
    }
}

/// The launcher's end of the line, for whoever has something to say.
type Line = Arc<Mutex<Box<dyn Stream>>>;

fn tell(line: &Line, life: u64, message: &Message) -> std::io::Result<()> {
    send(line.lock().unwrap_or_else(PoisonError::into_inner).as_mut(), life, message)
}

/// A worker that was started here; dropped, it is ended.
struct Worker {
    life: u64,
    process: Box<dyn Process>,
    voice: Box<dyn JoinHandle>,
}

impl Worker {
    fn start(
        world: &World,
        line: &Line,
        life: u64,
        variables: Vec<(String, String)>,
        arguments: &[OsString],
    ) -> Result<Self, ClusterError> {
        let mut environment: Vec<_> =
            variables.into_iter().filter(|(name, _)| TOLD.contains(&name.as_str())).collect();
        environment.push((LAUNCHER.to_owned(), world.processes().own_id().to_string()));
        let is_first = environment.iter().any(|(name, rank)| name == "RANK" && rank == "0");
        let command = ProcessCommand {
            program: world.processes().own_program()?,
            arguments: arguments.to_vec(),
            environment,
            shares_stdout: is_first,
        };
        let mut process = world.processes().spawn(&command)?;
        let output = process.take_stderr().expect("it was not taken before");
        let line = Arc::clone(line);
        let listen = Box::new(move || pass_on(output, &line, life));
        let voice = world.threads().spawn("guest-voice", listen)?;
        Ok(Self { life, process, voice })
    }
}

/// Passes a worker's words on until it has no more.
fn pass_on(mut output: Box<dyn ProcessOutput>, line: &Line, life: u64) {
    let mut buffer = [0; 4096];
    loop {
        match output.read(&mut buffer, LAST_WORDS) {
            Ok(0) => return,
            Ok(count) => {
                // The main thread finds out when nobody listens any more.
                if tell(line, life, &Message::Words(buffer[..count].to_vec())).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
