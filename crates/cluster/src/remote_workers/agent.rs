//! Agent: starts a worker on a host that the launcher cannot reach.

use super::protocol::{Message, MessageReader, send};
use crate::ClusterError;
use crate::rendezvous::{RENDEZVOUS_ADDR, RUN, TICKET, Ticket, open_session};
use crate::role::{LAUNCHER, RESTARTS, RUN_DIR, SAVES};
use lockstep_platform::{JoinHandle, Process, ProcessCommand, ProcessOutput, Stream, World};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Timeout of connecting to the launcher.
const JOIN_TIMEOUT: Duration = Duration::from_mins(10);

/// Poll interval of the worker.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Time to read the remaining output of a worker that has exited.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Environment variables that a launcher may set for a worker on this host.
const ALLOWED_VARIABLES: [&str; 10] = [
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    RENDEZVOUS_ADDR,
    TICKET,
    RUN,
    RESTARTS,
    RUN_DIR,
    SAVES,
];

/// Offers a worker to the run whose launcher listens at `addr` and returns the exit code of the
/// run. `arguments` are those of the worker; the launcher receives its standard error.
///
/// Call it on the main thread: workers end when the thread that started them ends.
pub fn offer_worker(
    world: &World,
    addr: &str,
    ticket: &Ticket,
    arguments: &[OsString],
) -> Result<u8, ClusterError> {
    let stream = open_session(world, addr, ticket, JOIN_TIMEOUT)?;
    let gone = |reason: String| ClusterError::LauncherGone { addr: addr.to_owned(), reason };
    let writer = stream.try_clone().map_err(|error| gone(error.to_string()))?;
    let writer = Arc::new(Mutex::new(writer));
    let mut reader = MessageReader::new(stream);
    let mut worker: Option<Worker> = None;
    loop {
        let message = reader.next(POLL_INTERVAL).map_err(|error| gone(error.to_string()))?;
        match message {
            Some((attempt, Message::Start(variables))) => {
                // A worker of an earlier attempt ends here.
                drop(worker.take());
                worker = Some(Worker::start(world, &writer, attempt, variables, arguments)?);
            }
            Some((_, Message::Done(code))) => return Ok(code),
            Some((attempt, command)) => {
                let own = worker.as_mut().filter(|worker| worker.attempt == attempt);
                match (own, command) {
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
            own.output_thread.finished_within(OUTPUT_TIMEOUT);
            send_shared(&writer, own.attempt, &Message::Exited(exit))
                .map_err(|error| gone(error.to_string()))?;
            worker = None;
        }
    }
}

/// Sending half of the session, shared by threads.
type Writer = Arc<Mutex<Box<dyn Stream>>>;

fn send_shared(writer: &Writer, attempt: u64, message: &Message) -> std::io::Result<()> {
    send(writer.lock().unwrap_or_else(PoisonError::into_inner).as_mut(), attempt, message)
}

/// Worker of this agent; dropping it kills the process.
struct Worker {
    attempt: u64,
    process: Box<dyn Process>,
    output_thread: Box<dyn JoinHandle>,
}

impl Worker {
    fn start(
        world: &World,
        writer: &Writer,
        attempt: u64,
        variables: Vec<(String, String)>,
        arguments: &[OsString],
    ) -> Result<Self, ClusterError> {
        let mut environment: Vec<_> = variables
            .into_iter()
            .filter(|(name, _)| ALLOWED_VARIABLES.contains(&name.as_str()))
            .collect();
        environment.push((LAUNCHER.to_owned(), world.processes().own_id().to_string()));
        let is_first = environment.iter().any(|(name, rank)| name == "RANK" && rank == "0");
        let command = ProcessCommand {
            program: world.processes().own_program()?,
            arguments: arguments.to_vec(),
            environment,
            shares_stdout: is_first,
        };
        let mut process = world.processes().spawn(&command)?;
        let output = process.take_stderr().expect("standard error is taken once");
        let writer = Arc::clone(writer);
        let forward = Box::new(move || forward_output(output, &writer, attempt));
        let output_thread = world.threads().spawn("remote-output", forward)?;
        Ok(Self { attempt, process, output_thread })
    }
}

/// Forwards the output of a worker until it closes.
fn forward_output(mut output: Box<dyn ProcessOutput>, writer: &Writer, attempt: u64) {
    let mut buffer = [0; 4096];
    loop {
        match output.read(&mut buffer, OUTPUT_TIMEOUT) {
            Ok(0) => return,
            Ok(count) => {
                // The main thread detects a lost session.
                if send_shared(writer, attempt, &Message::Output(buffer[..count].to_vec())).is_err()
                {
                    return;
                }
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
