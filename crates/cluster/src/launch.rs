//! Starts worker processes on this host and waits for all of them.
//!
//! The launcher computes nothing. It passes rank, rendezvous address and a new secret to each
//! worker by the environment, relays its output and waits for its exit. When one worker fails, the
//! others have a few seconds to report and exit, since their messages may name the cause; then they
//! are killed. A worker that does not exit, such as a stopped one, does not delay the report of the
//! failure. A worker leaves nothing behind: its memory, sockets and locks have no names.
//!
//! Workers are tied to the launcher ([`follow_launcher`](crate::role::follow_launcher)): whatever
//! ends it, a keyboard interrupt or SIGKILL, ends them at once. The launcher therefore installs no
//! signal handlers, with one exception: for a run that writes checkpoints it answers SIGTERM and
//! the first SIGINT by sending SIGTERM to the workers, which write a checkpoint and exit. A
//! terminal sends SIGINT to the workers, too; they ignore it. A second SIGINT ends the launcher,
//! and with it the workers.
//!
//! After a failure the [supervisor](crate::supervisor) decides whether to restart. A restart starts
//! all workers with a new secret, so no worker of an earlier attempt can join. An elastic run
//! continues with fewer workers when one is lost. When a lost slot can be retried, the workers
//! receive SIGTERM, write a checkpoint after the step, and the next attempt has more of them.
//! Workers of other hosts join as [remote workers](crate::remote_workers).

use crate::ClusterError;
use crate::membership::{Action, Membership};
use crate::relay::{Relay, Screen};
use crate::remote_workers::RemoteWorkers;
use crate::rendezvous::{RENDEZVOUS_ADDR, Ticket};
use crate::role::{LAUNCHER, RESTARTS, RUN_DIR, SAVES, TERMINAL};
use crate::root_cause::{RunFailure, TERMINATED, WorkerExit, find_root_cause};
use crate::slot_table::RestartPolicy;
use crate::supervisor::{Next, Supervisor};
use lockstep_platform::{
    Deadline, EXIT_ON_INTERRUPT, Interrupts, JoinHandle, Process, ProcessCommand, ProcessOutput,
    Signal, World,
};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Longest time between two polls of the workers.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Poll interval after a worker closed its standard error, which precedes its exit.
const SHORT_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Time to read the remaining output of workers that have exited.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Workers to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Arguments of every worker; the program is this one.
    pub arguments: Vec<OsString>,
    /// Additional environment variables of the workers.
    pub env: Vec<(&'static str, String)>,
    /// Whether the screen is a terminal, which draws the workers' records of progress.
    pub is_terminal: bool,
    /// Numbers of workers, and the policy for lost ones.
    pub policy: RestartPolicy,
    /// Groups of replicas: the run continues while one rank of each group is left.
    pub replica_groups: Vec<Vec<usize>>,
    /// Run directory, if all attempts share one.
    pub run_dir: Option<PathBuf>,
    /// Whether the workers write a checkpoint on SIGTERM, so that SIGTERM and SIGINT are forwarded.
    pub forwards_termination: bool,
}

/// Line that follows Ctrl-C.
const INTERRUPTED: &str =
    "\ninterrupted: the workers save after this step; Ctrl-C again stops at once\n";

/// Line that follows Ctrl-C from the last step on, which is saved as the result.
const INTERRUPTED_AT_END: &str = "\ninterrupted: the run is at its last step and saves its result; \
                                  Ctrl-C again stops at once\n";

/// Time within which a further SIGINT is a repetition: `timeout` signals a command and its group.
pub const INTERRUPT_REPEAT: Duration = Duration::from_millis(200);

/// Starts the workers, restarts them as the policy allows, and waits for all. `screen` receives
/// their standard error; rank 0 keeps the standard output. The inner result is that of the run.
///
/// Call it on the main thread: workers end when the thread that started them ends.
pub fn launch(
    world: &World,
    launch: &Launch,
    mut remote: Option<RemoteWorkers>,
    screen: Box<dyn Screen>,
) -> Result<Result<(), RunFailure>, ClusterError> {
    let relay = Relay::new(screen, launch.policy.max_workers());
    let mut outcome = run_attempts(world, launch, &mut remote, &relay);
    if let Ok(Err(failure)) = &mut outcome {
        failure.run_dir = relay.run_dir();
        let is_interrupt = world.processes().is_interrupt_requested();
        if is_interrupt && i32::from(failure.exit_code) == TERMINATED {
            failure.exit_code = EXIT_ON_INTERRUPT;
        }
    }
    let exit_code = match &outcome {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => failure.exit_code,
        Err(error) => error.blame().exit_code(),
    };
    if let Some(remote) = &remote {
        remote.finish(exit_code);
    }
    outcome
}

fn run_attempts(
    world: &World,
    launch: &Launch,
    remote: &mut Option<RemoteWorkers>,
    relay: &Relay,
) -> Result<Result<(), RunFailure>, ClusterError> {
    let policy = launch.policy.clone();
    let mut supervisor = match remote {
        Some(remote) => Supervisor::with_remote_workers(policy, remote.num_local()),
        None => Supervisor::new(policy),
    };
    world.processes().defer_termination(launch.forwards_termination);
    world.processes().accept_retry_requests();
    loop {
        if launch.forwards_termination {
            defer_interrupts(world, INTERRUPTED);
        }
        let began = world.clock().now();
        let (outcome, is_resizing) = run_attempt(world, launch, &mut supervisor, remote, relay)?;
        let Err(failure) = outcome else { return Ok(Ok(())) };
        let (now, size) = (world.clock().now(), supervisor.slots().assigned().len());
        let is_over = world.processes().is_termination_requested()
            || world.processes().is_interrupt_requested();
        if is_resizing && !is_over && supervisor.resized(now, &failure) {
            let more = supervisor.slots().assigned().len();
            relay.write_line(&format!(
                "more workers can be started: resuming with {more}, not {size}"
            ));
            relay.clear_attempt();
            continue;
        }
        let lasted = now.saturating_sub(began);
        let next =
            if is_over { Next::GiveUp } else { supervisor.after_failure(now, &failure, lasted) };
        for (rank, line) in &failure.others {
            relay.line(*rank, format!("error: {line}").as_bytes());
        }
        let Next::Restart { pause } = next else { return Ok(Err(failure)) };
        let step = describe_restart(launch, &supervisor, size);
        for line in failure.text.lines() {
            relay.write_line(&format!("warning: {line}; {step}"));
        }
        relay.clear_attempt();
        world.clock().sleep(pause);
    }
}

/// Records Ctrl-C, which a line follows.
fn defer_interrupts(world: &World, line: &'static str) {
    world.processes().handle_interrupts(Interrupts::Defer { line, repeat: INTERRUPT_REPEAT });
}

/// Describes the next attempt, after one with `size` workers.
fn describe_restart(launch: &Launch, supervisor: &Supervisor, size: usize) -> String {
    let next = supervisor.slots().assigned().len();
    if next != size {
        return format!("its slot is unavailable: resuming with {next} workers, not {size}");
    }
    if supervisor.slots().is_elastic() {
        return "restarting all workers".to_owned();
    }
    let (number, all) = (supervisor.num_restarts(), launch.policy.restarts);
    format!("restarting all workers ({number} of {all})")
}

/// Runs one attempt. Also returns whether it was terminated to start a larger one.
fn run_attempt(
    world: &World,
    launch: &Launch,
    supervisor: &mut Supervisor,
    remote: &mut Option<RemoteWorkers>,
    relay: &Relay,
) -> Result<(Result<(), RunFailure>, bool), ClusterError> {
    let mut running = RunningWorkers::start(world, launch, supervisor, remote.as_ref(), relay)?;
    let members = Membership::new(supervisor.num_restarts(), running.workers.len());
    let members = members.with_replica_groups(&launch.replica_groups);
    let members = running.wait_for_all(members, supervisor, remote, relay)?;
    running.wait_for_output();
    relay.close();
    Ok((root_cause(&members, relay).map_or(Ok(()), Err), members.is_resizing()))
}

/// Root cause in the exits so far.
fn root_cause(members: &Membership, relay: &Relay) -> Option<RunFailure> {
    let with_lines = |end: &WorkerExit| WorkerExit { lines: relay.errors(end.rank), ..end.clone() };
    find_root_cause(&members.exits().iter().map(with_lines).collect::<Vec<_>>())
}

/// Reports the cause of a failure while some ranks still run.
fn report_early(failure: &RunFailure, running: &[usize], relay: &Relay) {
    let ranks: Vec<String> = running.iter().map(ToString::to_string).collect();
    let (noun, ranks) = (if running.len() == 1 { "rank" } else { "ranks" }, ranks.join(", "));
    for line in failure.text.lines() {
        relay.write_line(&format!("warning: {line}; waiting for {noun} {ranks} to exit"));
    }
}

/// Started workers.
struct RunningWorkers {
    world: World,
    /// Indexed by rank; `None` after the exit.
    workers: Vec<Option<Box<dyn Process>>>,
    output_threads: Vec<Box<dyn JoinHandle>>,
    /// Notified when a worker closes its standard error, which usually precedes its exit, and when
    /// the last step begins.
    closed: Arc<dyn Signal>,
    num_closed: Arc<AtomicUsize>,
    /// Whether Ctrl-C is recorded and its line still speaks of a checkpoint.
    announces_checkpoint: bool,
}

impl RunningWorkers {
    fn start(
        world: &World,
        launch: &Launch,
        supervisor: &Supervisor,
        remote: Option<&RemoteWorkers>,
        relay: &Relay,
    ) -> Result<Self, ClusterError> {
        let assigned = supervisor.slots().assigned();
        let attempt = supervisor.num_restarts();
        let rendezvous = Rendezvous::new(world, assigned.len(), remote)?;
        let mut running = Self {
            world: Arc::clone(world),
            workers: Vec::new(),
            output_threads: Vec::new(),
            closed: world.threads().signal(),
            num_closed: Arc::default(),
            announces_checkpoint: launch.forwards_termination,
        };
        // On an error, dropping the value kills the started workers.
        for (rank, slot) in assigned.iter().enumerate() {
            let command = command(world, launch, attempt, rank, &rendezvous)?;
            let mut worker = match remote.and_then(|remote| remote.spawn(*slot, attempt, &command))
            {
                Some(remote) => remote,
                None => world.processes().spawn(&command)?,
            };
            let output = worker.take_stderr().expect("standard error is taken once");
            running.workers.push(Some(worker));
            let thread = running.relay_output(rank, output, relay)?;
            running.output_threads.push(thread);
        }
        Ok(running)
    }

    /// Relays the output of a worker on a thread.
    fn relay_output(
        &self,
        rank: usize,
        mut output: Box<dyn ProcessOutput>,
        relay: &Relay,
    ) -> Result<Box<dyn JoinHandle>, ClusterError> {
        let (mut lines, relay) = (relay.worker_output(rank), relay.clone());
        let (closed, num_closed) = (Arc::clone(&self.closed), Arc::clone(&self.num_closed));
        let body = move || {
            let mut buffer = vec![0; 16 << 10];
            loop {
                match output.read(&mut buffer, OUTPUT_TIMEOUT) {
                    Ok(0) => break,
                    Ok(count) => {
                        lines.push(&buffer[..count]);
                        if relay.is_last_step() {
                            closed.notify_all();
                        }
                    }
                    Err(error) if error.kind() == ErrorKind::TimedOut => {}
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            lines.finish();
            num_closed.fetch_add(1, Ordering::Release);
            closed.notify_all();
        };
        Ok(self.world.threads().spawn(&format!("output-{rank}"), Box::new(body))?)
    }

    /// Waits until all workers have exited.
    fn wait_for_all(
        &mut self,
        mut members: Membership,
        supervisor: &mut Supervisor,
        remote: &mut Option<RemoteWorkers>,
        relay: &Relay,
    ) -> Result<Membership, ClusterError> {
        let (world, attempt) = (Arc::clone(&self.world), supervisor.num_restarts());
        while !members.is_complete() {
            let epoch = self.closed.epoch();
            if relay.is_last_step() && std::mem::take(&mut self.announces_checkpoint) {
                defer_interrupts(&world, INTERRUPTED_AT_END);
            }
            let before = members.num_exits();
            let now = world.clock().now();
            for rank in 0..self.workers.len() {
                let Some(worker) = &mut self.workers[rank] else { continue };
                let Some(exit) = worker.try_wait()? else { continue };
                self.workers[rank] = None;
                members.record_exit(now, attempt, rank, exit);
            }
            if let Some(remote) = remote {
                remote.poll(supervisor.slots_mut(), &|line| relay.write_line(line));
            }
            if world.processes().take_retry_request() {
                supervisor.retry_lost_slots();
            }
            if world.processes().is_interrupt_requested() {
                let action = members.request_interrupt();
                self.apply(action);
            } else if world.processes().is_termination_requested() {
                let action = members.request_termination(now);
                self.apply(action);
            } else if supervisor.slots().can_grow(now) {
                let action = members.can_grow(now);
                self.apply(action);
            }
            if let Some(running) = members.unreported(now).filter(|running| !running.is_empty())
                && let Some(failure) = root_cause(&members, relay)
            {
                report_early(&failure, &running, relay);
            }
            let action = members.poll(now);
            self.apply(action);
            if members.num_exits() == before {
                let num_closed = self.num_closed.load(Ordering::Acquire);
                let is_close = members.is_ending() || num_closed > before;
                self.closed.wait(epoch, if is_close { SHORT_POLL_INTERVAL } else { POLL_INTERVAL });
            }
        }
        Ok(members)
    }

    fn apply(&mut self, action: Option<Action>) {
        for worker in self.workers.iter_mut().flatten() {
            match action {
                Some(Action::Terminate) => worker.terminate(),
                Some(Action::Kill) => worker.kill(),
                None => {}
            }
        }
    }

    /// Waits for the output threads, whose workers have exited, within a timeout.
    fn wait_for_output(&self) {
        let deadline = Deadline::after(self.world.clock(), OUTPUT_TIMEOUT);
        for thread in &self.output_threads {
            thread.finished_within(deadline.remaining(self.world.clock()));
        }
    }
}

/// Rendezvous of one attempt.
struct Rendezvous {
    num_workers: usize,
    /// Address and port of rank 0.
    master: (String, String),
    /// Address of a standalone host, for workers of several hosts; else empty.
    host_addr: String,
    ticket: Ticket,
}

impl Rendezvous {
    fn new(
        world: &World,
        num_workers: usize,
        remote: Option<&RemoteWorkers>,
    ) -> Result<Self, ClusterError> {
        let ticket = Ticket::new(world);
        let host_addr = match remote {
            Some(remote) if num_workers > 1 => {
                remote.start_rendezvous_host(num_workers, &ticket)?
            }
            _ => String::new(),
        };
        Ok(Self { num_workers, master: free_port(world)?, host_addr, ticket })
    }
}

/// Command of a worker: this program, with rank and rendezvous in the environment.
fn command(
    world: &World,
    launch: &Launch,
    attempt: u64,
    rank: usize,
    rendezvous: &Rendezvous,
) -> Result<ProcessCommand, ClusterError> {
    let num_workers = rendezvous.num_workers.to_string();
    let mut environment = vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", num_workers.clone()),
        ("LOCAL_RANK", rank.to_string()),
        ("LOCAL_WORLD_SIZE", num_workers),
        ("MASTER_ADDR", rendezvous.master.0.clone()),
        ("MASTER_PORT", rendezvous.master.1.clone()),
        (RENDEZVOUS_ADDR, rendezvous.host_addr.clone()),
        (LAUNCHER, world.processes().own_id().to_string()),
        (RESTARTS, attempt.to_string()),
    ];
    if let Some(dir) = &launch.run_dir {
        environment.push((RUN_DIR, dir.display().to_string()));
    }
    environment.extend(rendezvous.ticket.to_env());
    environment.extend(launch.env.iter().cloned());
    if launch.forwards_termination {
        environment.push((SAVES, "1".to_owned()));
    }
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

/// Ports below the range from which the system gives ports to connections and listeners of its own
/// choice, which would often take one before rank 0 binds it.
const PORTS: Range<usize> = 20_000..32_768;

/// Loopback address and a free port; each launcher begins its search elsewhere.
fn free_port(world: &World) -> Result<(String, String), ClusterError> {
    static NUM_FOUND: AtomicUsize = AtomicUsize::new(0);
    let start =
        world.processes().own_id() as usize * 7919 + NUM_FOUND.fetch_add(1, Ordering::Relaxed);
    let mut candidates = (start..start + 64).map(|number| PORTS.start + number % PORTS.len());
    let listen = |port: usize| world.net().listen(&format!("127.0.0.1:{port}"));
    let found = candidates.find_map(|port| listen(port).ok());
    let addr = found.map_or_else(|| listen(0), Ok)?.local_addr();
    let (host, port) = addr.rsplit_once(':').expect("an address has a port");
    Ok((host.to_owned(), port.to_owned()))
}
