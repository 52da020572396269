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
//! all that is needed. The one exception is a run that is saved as it goes and is asked to end
//! (SIGTERM): the request is passed on, and the workers save what they have.
//!
//! A run that failed may have another life, if the [supervisor](crate::supervisor) says so: all
//! workers are started again, with a new secret, so that none of the life before can come in. An
//! elastic run goes on with fewer where one is gone. When it can be tried again the workers are
//! asked to end, by the same request; they save at the end of a step, and a larger life goes on.
//! Workers of other hosts come as [guests](crate::guests).

use crate::ClusterError;
use crate::guests::Guests;
use crate::membership::{Membership, Order};
use crate::relay::Relay;
use crate::rendezvous::{MEETING_POINT, Ticket};
use crate::role::{LAUNCHER, RESTARTS, RUN_DIR, TERMINAL};
use crate::roster::Terms;
use crate::supervisor::{Next, Supervisor};
use crate::verdict::{Ended, RunFailure, verdict};
use lockstep_platform::{
    Deadline, JoinHandle, Process, ProcessCommand, ProcessOutput, Signal, World,
};
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

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
    /// What they are told besides, as variables of their environment.
    pub told: Vec<(&'static str, String)>,
    /// Whether a person watches `out`, so that progress may be rewritten in place.
    pub is_terminal: bool,
    /// How many, and what may be done about those that are lost.
    pub terms: Terms,
    /// Ranks that stand in for each other: of each list all but one may be lost, and the run goes
    /// on.
    pub stand_ins: Vec<Vec<usize>>,
    /// The folder of the run, where all of its lives must know it.
    pub run_dir: Option<PathBuf>,
    /// Whether a request to end is passed on to the workers, which then save what they have.
    pub passes_requests_on: bool,
}

/// Starts the workers and waits for all of them, in as many lives as it takes; `out` gets their
/// standard error, rank 0 keeps the standard output. The inner result is that of the run.
///
/// Call it on the main thread: workers end when the thread that started them does.
pub fn launch(
    world: &World,
    launch: &Launch,
    mut guests: Option<Guests>,
    out: Box<dyn Write + Send>,
) -> Result<Result<(), RunFailure>, ClusterError> {
    let relay = Relay::new(out, launch.terms.max_workers());
    let outcome = all_lives(world, launch, &mut guests, &relay);
    let exit_code = match &outcome {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => failure.exit_code,
        Err(error) => error.blame().exit_code(),
    };
    if let Some(guests) = &guests {
        guests.dismiss(exit_code);
    }
    outcome
}

fn all_lives(
    world: &World,
    launch: &Launch,
    guests: &mut Option<Guests>,
    relay: &Relay,
) -> Result<Result<(), RunFailure>, ClusterError> {
    let terms = launch.terms.clone();
    let mut supervisor = match guests {
        Some(guests) => Supervisor::with_guests(terms, guests.num_local()),
        None => Supervisor::new(terms),
    };
    world.processes().defer_termination(launch.passes_requests_on);
    world.processes().accept_retry_requests();
    loop {
        let began = world.clock().now();
        let (outcome, is_resizing) = one_life(world, launch, &mut supervisor, guests, relay)?;
        let Err(failure) = outcome else { return Ok(Ok(())) };
        let (now, size) = (world.clock().now(), supervisor.roster().seated().len());
        let is_asked = world.processes().is_termination_requested();
        if is_resizing && !is_asked && supervisor.resized(now, &failure) {
            let more = supervisor.roster().seated().len();
            relay.say(&format!("more workers can be started: going on with {more}, not {size}"));
            relay.forget();
            continue;
        }
        let lasted = now.saturating_sub(began);
        let next = if is_asked { Next::GiveUp } else { supervisor.after(now, &failure, lasted) };
        for (rank, line) in &failure.others {
            relay.line(*rank, format!("error: {line}").as_bytes());
        }
        let Next::Restart { pause } = next else { return Ok(Err(failure)) };
        let step = what_follows(launch, &supervisor, size);
        for line in failure.text.lines() {
            relay.say(&format!("warning: {line}; {step}"));
        }
        relay.forget();
        world.clock().sleep(pause);
    }
}

/// How the next life differs from one with so many workers.
fn what_follows(launch: &Launch, supervisor: &Supervisor, size: usize) -> String {
    let next = supervisor.roster().seated().len();
    if next != size {
        return format!("it is gone for now: going on with {next} workers, not {size}");
    }
    if supervisor.roster().is_elastic() {
        return "starting all workers again".to_owned();
    }
    let (number, all) = (supervisor.lives_before(), launch.terms.restarts);
    format!("starting all workers again ({number} of {all})")
}

/// Starts the workers once and waits for all of them. Tells also whether they were asked to end so
/// that more can begin.
fn one_life(
    world: &World,
    launch: &Launch,
    supervisor: &mut Supervisor,
    guests: &mut Option<Guests>,
    relay: &Relay,
) -> Result<(Result<(), RunFailure>, bool), ClusterError> {
    let mut watch = Watch::start(world, launch, supervisor, guests.as_ref(), relay)?;
    let members = Membership::new(supervisor.lives_before(), watch.workers.len());
    let members = members.with_stand_ins(&launch.stand_ins);
    let members = watch.wait_for_all(members, supervisor, guests, relay)?;
    watch.wait_for_words();
    relay.close();
    let is_resizing = members.is_resizing();
    let with_words = |end: Ended| Ended { lines: relay.errors(end.rank), ..end };
    let ended: Vec<Ended> = members.ended().into_iter().map(with_words).collect();
    Ok((verdict(&ended).map_or(Ok(()), Err), is_resizing))
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
    fn start(
        world: &World,
        launch: &Launch,
        supervisor: &Supervisor,
        guests: Option<&Guests>,
        relay: &Relay,
    ) -> Result<Self, ClusterError> {
        let seated = supervisor.roster().seated();
        let life = supervisor.lives_before();
        let meeting = Meeting::new(world, seated.len(), guests)?;
        let mut watch = Self {
            world: Arc::clone(world),
            workers: Vec::new(),
            voices: Vec::new(),
            closed: world.threads().signal(),
            num_closed: Arc::default(),
        };
        // On an error the workers that were started go with the value.
        for (rank, slot) in seated.iter().enumerate() {
            let command = command(world, launch, life, rank, &meeting)?;
            let mut worker = match guests.and_then(|guests| guests.spawn(*slot, life, &command)) {
                Some(away) => away,
                None => world.processes().spawn(&command)?,
            };
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

    /// Waits until all have ended.
    fn wait_for_all(
        &mut self,
        mut members: Membership,
        supervisor: &mut Supervisor,
        guests: &mut Option<Guests>,
        relay: &Relay,
    ) -> Result<Membership, ClusterError> {
        let (world, life) = (Arc::clone(&self.world), supervisor.lives_before());
        while !members.is_complete() {
            let seen = self.closed.epoch();
            let before = members.num_ended();
            let now = world.clock().now();
            for rank in 0..self.workers.len() {
                let Some(worker) = &mut self.workers[rank] else { continue };
                let Some(exit) = worker.try_wait()? else { continue };
                self.workers[rank] = None;
                members.has_ended(now, life, rank, exit);
            }
            if let Some(guests) = guests {
                guests.look(supervisor.roster_mut(), &|line| relay.say(line));
            }
            if world.processes().take_retry_request() {
                supervisor.recall();
            }
            if world.processes().is_termination_requested() {
                let order = members.asked_to_end(now);
                self.carry_out(order);
            } else if supervisor.roster().can_grow(now) {
                let order = members.can_grow(now);
                self.carry_out(order);
            }
            let order = members.at(now);
            self.carry_out(order);
            if members.num_ended() == before {
                let num_closed = self.num_closed.load(Ordering::Acquire);
                let is_close = members.is_ending() || num_closed > before;
                self.closed.wait(seen, if is_close { LOOK_CLOSELY } else { LOOK });
            }
        }
        Ok(members)
    }

    fn carry_out(&mut self, order: Option<Order>) {
        for worker in self.workers.iter_mut().flatten() {
            match order {
                Some(Order::Terminate) => worker.terminate(),
                Some(Order::Kill) => worker.kill(),
                None => {}
            }
        }
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
    num_workers: usize,
    /// Where the first worker listens.
    master: (String, String),
    /// Where somebody else does, for workers of several hosts; or nothing.
    point: String,
    ticket: Ticket,
}

impl Meeting {
    fn new(
        world: &World,
        num_workers: usize,
        guests: Option<&Guests>,
    ) -> Result<Self, ClusterError> {
        let ticket = Ticket::new(world);
        let point = match guests {
            Some(guests) if num_workers > 1 => guests.meeting_point(num_workers, &ticket)?,
            _ => String::new(),
        };
        Ok(Self { num_workers, master: free_port(world)?, point, ticket })
    }
}

/// One worker's command: this program again, with a place in the environment.
fn command(
    world: &World,
    launch: &Launch,
    life: u64,
    rank: usize,
    meeting: &Meeting,
) -> Result<ProcessCommand, ClusterError> {
    let num_workers = meeting.num_workers.to_string();
    let mut environment = vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", num_workers.clone()),
        ("LOCAL_RANK", rank.to_string()),
        ("LOCAL_WORLD_SIZE", num_workers),
        ("MASTER_ADDR", meeting.master.0.clone()),
        ("MASTER_PORT", meeting.master.1.clone()),
        (MEETING_POINT, meeting.point.clone()),
        (LAUNCHER, world.processes().own_id().to_string()),
        (RESTARTS, life.to_string()),
    ];
    if let Some(dir) = &launch.run_dir {
        environment.push((RUN_DIR, dir.display().to_string()));
    }
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
