//! Starts the workers of a run as processes of this host, and stays until the last has ended.
//!
//! The launcher computes nothing. It gives each worker its place and the run's secret, which is new
//! for every run, by the environment, passes its words on, and watches for ends. When one worker
//! fails the others get a few seconds to notice and to say so, since their words may name a cause;
//! then they are ended. Everything that a worker has is gone with its process: memory, sockets and
//! locks have no names that could stay behind.
//!
//! The other way round: workers are tied to the launcher
//! ([`follow_launcher`](crate::role::follow_launcher)), so whatever ends the launcher, an interrupt
//! from the keyboard or a kill that it cannot even notice, ends them too, at once. That is why it
//! has no handlers for signals: its own end, by the signal and with the status that tells of it, is
//! all that is needed.

use crate::ClusterError;
use crate::relay::Relay;
use crate::role::{LAUNCHER, TERMINAL};
use crate::verdict::{Ended, RunFailure, verdict};
use lockstep_comm::rendezvous::{MEETING_POINT, Ticket};
use lockstep_platform::{
    Deadline, Exit, JoinHandle, Process, ProcessCommand, ProcessOutput, Signal, World,
};
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long the other workers have to end by themselves after the first failure.
const GRACE: Duration = Duration::from_secs(3);

/// Longest time between two looks at the workers.
const LOOK: Duration = Duration::from_millis(100);

/// The same, when a worker has closed its standard error and will end any moment.
const LOOK_CLOSELY: Duration = Duration::from_millis(1);

/// How long the last words of workers that have ended may take to arrive.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The arguments of every worker, without the program's name; the program is this one.
    pub arguments: Vec<OsString>,
    /// How many.
    pub num_workers: usize,
    /// What they are told besides, as variables of their environment.
    pub told: Vec<(&'static str, String)>,
    /// Whether a person watches `out`, so that progress may be rewritten in place.
    pub is_terminal: bool,
}

/// Starts the workers and waits for all of them; `out` gets their standard error, rank 0 keeps the
/// standard output. The inner result is that of the run.
///
/// Call it on the main thread: workers end when the thread that started them does.
pub fn launch(
    world: &World,
    launch: &Launch,
    out: Box<dyn Write + Send>,
) -> Result<Result<(), RunFailure>, ClusterError> {
    let relay = Relay::new(out, launch.num_workers);
    let mut watch = Watch::start(world, launch, &relay)?;
    let ended = watch.wait_for_all()?;
    watch.wait_for_words();
    relay.close();
    let ended: Vec<Ended> =
        ended.into_iter().map(|end| Ended { lines: relay.errors(end.rank), ..end }).collect();
    let Some(failure) = verdict(&ended) else { return Ok(Ok(())) };
    for (rank, line) in &failure.others {
        relay.line(*rank, format!("error: {line}").as_bytes());
    }
    Ok(Err(failure))
}

/// The workers that were started.
struct Watch {
    world: World,
    /// Nothing once it has ended.
    workers: Vec<Option<Box<dyn Process>>>,
    voices: Vec<Box<dyn JoinHandle>>,
    /// Rings when a worker closes its standard error, which is nearly always its end.
    closed: Arc<dyn Signal>,
    num_closed: Arc<AtomicUsize>,
}

impl Watch {
    fn start(world: &World, launch: &Launch, relay: &Relay) -> Result<Self, ClusterError> {
        let meeting = Meeting { master: free_port(world)?, ticket: Ticket::new(world) };
        let mut watch = Self {
            world: Arc::clone(world),
            workers: Vec::new(),
            voices: Vec::new(),
            closed: world.threads().signal(),
            num_closed: Arc::default(),
        };
        // On an error the workers that were started go with the value.
        for rank in 0..launch.num_workers {
            let command = command(world, launch, rank, &meeting)?;
            let mut worker = world.processes().spawn(&command)?;
            let output = worker.take_stderr().expect("it was not taken before");
            watch.workers.push(Some(worker));
            let voice = watch.listen(rank, output, relay)?;
            watch.voices.push(voice);
        }
        Ok(watch)
    }

    /// Passes a worker's words on, on a thread of its own.
    fn listen(
        &self,
        rank: usize,
        mut output: Box<dyn ProcessOutput>,
        relay: &Relay,
    ) -> Result<Box<dyn JoinHandle>, ClusterError> {
        let mut voice = relay.voice(rank);
        let (closed, num_closed) = (Arc::clone(&self.closed), Arc::clone(&self.num_closed));
        let body = move || {
            let mut buffer = vec![0; 16 << 10];
            loop {
                match output.read(&mut buffer, LAST_WORDS) {
                    Ok(0) => break,
                    Ok(count) => voice.hear(&buffer[..count]),
                    Err(error) if error.kind() == ErrorKind::TimedOut => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            voice.finish();
            num_closed.fetch_add(1, Ordering::Release);
            closed.notify_all();
        };
        Ok(self.world.threads().spawn(&format!("voice-{rank}"), Box::new(body))?)
    }

    /// Every end, in the order in which they came.
    fn wait_for_all(&mut self) -> Result<Vec<Ended>, ClusterError> {
        let mut ended: Vec<Ended> = Vec::new();
        let mut patience: Option<Deadline> = None;
        let mut by_us = false;
        while ended.len() < self.workers.len() {
            let seen = self.closed.epoch();
            let before = ended.len();
            for rank in 0..self.workers.len() {
                let Some(worker) = &mut self.workers[rank] else { continue };
                let Some(exit) = worker.try_wait()? else { continue };
                self.workers[rank] = None;
                ended.push(Ended { rank, exit, by_us, lines: Vec::new() });
            }
            if ended[before..].iter().any(|end| end.exit != Exit::Code(0)) {
                patience.get_or_insert_with(|| Deadline::after(self.world.clock(), GRACE));
            }
            if !by_us && patience.is_some_and(|grace| grace.has_passed(self.world.clock())) {
                by_us = true;
                self.workers.iter_mut().flatten().for_each(|worker| worker.kill());
            }
            if ended.len() == before {
                let is_close = by_us || self.num_closed.load(Ordering::Acquire) > ended.len();
                self.closed.wait(seen, if is_close { LOOK_CLOSELY } else { LOOK });
            }
        }
        Ok(ended)
    }

    /// Lets the voices finish; one that does not is left alone, since its worker has ended.
    fn wait_for_words(&self) {
        let deadline = Deadline::after(self.world.clock(), LAST_WORDS);
        for voice in &self.voices {
            voice.finished_within(deadline.remaining(self.world.clock()));
        }
    }
}

/// Where workers meet, and what lets them in.
struct Meeting {
    master: (String, String),
    ticket: Ticket,
}

/// One worker's command: this program again, with a place in the environment.
fn command(
    world: &World,
    launch: &Launch,
    rank: usize,
    meeting: &Meeting,
) -> Result<ProcessCommand, ClusterError> {
    let num_workers = launch.num_workers.to_string();
    let mut environment = vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", num_workers.clone()),
        ("LOCAL_RANK", rank.to_string()),
        ("LOCAL_WORLD_SIZE", num_workers),
        ("MASTER_ADDR", meeting.master.0.clone()),
        ("MASTER_PORT", meeting.master.1.clone()),
        (MEETING_POINT, String::new()),
        (LAUNCHER, world.processes().own_id().to_string()),
    ];
    environment.extend(meeting.ticket.to_env());
    environment.extend(launch.told.iter().cloned());
    if launch.is_terminal {
        environment.push((TERMINAL, "1".to_owned()));
    }
    Ok(ProcessCommand {
        program: world.processes().own_program()?,
        arguments: launch.arguments.clone(),
        environment: environment
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        shares_stdout: rank == 0,
    })
}

/// An address on this host, and a port that was free a moment ago.
fn free_port(world: &World) -> Result<(String, String), ClusterError> {
    let addr = world.net().listen("127.0.0.1:0")?.local_addr();
    let (host, port) = addr.rsplit_once(':').expect("an address has a port");
    Ok((host.to_owned(), port.to_owned()))
}
