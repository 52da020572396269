//! The ranks of a measurement: threads of this process, or processes of a launcher.
//!
//! A rank process is this program with the same options and `--as-rank`. It maps the launcher's
//! shared coordinator, connects and measures; rank 0 prints one line of JSON per row. The launcher
//! offers the coordinator, reads the rows and polls the processes. When one fails, all stop, and
//! the error of the first failing rank is reported.

use super::plan::{Plan, Transport};
use super::report::Row;
use super::select;
use crate::failure::Failure;
use crate::output;
use lockstep_bench::{BenchError, Coordinator, CoordinatorOffer, compare_algorithms, measure};
use lockstep_cluster::rendezvous::{self, RankEnv, RendezvousError, Settings, Ticket};
use lockstep_comm::transport::{hosts, tcp::TcpOptions};
use lockstep_comm::{Comm, Options};
use lockstep_config::Blame;
use lockstep_mesh::Rank;
use lockstep_platform::{JoinHandle, World};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

/// Deadline of the rendezvous.
const RENDEZVOUS_DEADLINE: Duration = Duration::from_secs(30);

/// Interval between two polls of the processes.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time between the request to stop and the kill.
const STOP_DEADLINE: Duration = Duration::from_secs(2);

/// Address of rank 0 over TCP.
const LOOPBACK: &str = "127.0.0.1";

/// Starts the ranks and passes on every row as it arrives.
pub(super) fn launch(plan: &Plan, world: &World, on_row: impl FnMut(Row)) -> Result<(), Failure> {
    let coordinator =
        Coordinator::new(world, plan.num_ranks, plan.max_bytes()).map_err(BenchError::from)?;
    match plan.transport {
        Transport::Threads => start_threads(plan, world, &coordinator, on_row),
        Transport::Shm | Transport::Tcp => start_processes(plan, world, &coordinator, on_row),
    }
}

fn options(plan: &Plan) -> Options {
    // Inputs, outputs and copies of both, with alignment.
    let arena_bytes = (8 * plan.max_bytes()).max(64 << 20);
    Options { arena_bytes, ..Options::default() }
}

fn start_threads(
    plan: &Plan,
    world: &World,
    coordinator: &Coordinator,
    mut on_row: impl FnMut(Row),
) -> Result<(), Failure> {
    let ends = Comm::threads(world, plan.num_ranks, &options(plan)).map_err(BenchError::from)?;
    let (sender, rows) = mpsc::channel();
    let results: Vec<Result<(), BenchError>> = std::thread::scope(|scope| {
        let start = |comm: Comm| {
            let sender = sender.clone();
            scope.spawn(move || {
                let result = measure_all(plan, world, coordinator, &comm, |row| {
                    // The receiver outlives all ranks.
                    let _ = sender.send(row);
                    Ok(())
                });
                if result.is_err() {
                    coordinator.stop();
                }
                result
            })
        };
        let threads: Vec<_> = ends.into_iter().map(start).collect();
        drop(sender);
        rows.iter().for_each(&mut on_row);
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    let mut errors: Vec<BenchError> = results.into_iter().filter_map(Result::err).collect();
    // The cause comes before the errors that follow from it.
    errors.sort_by_key(is_secondary);
    errors.into_iter().next().map_or(Ok(()), |error| Err(error.into()))
}

/// Whether an error follows from another rank's.
fn is_secondary(error: &BenchError) -> bool {
    matches!(error, BenchError::Stopped)
}

/// Measures all cases on one rank; rank 0 reports.
fn measure_all(
    plan: &Plan,
    world: &World,
    coordinator: &Coordinator,
    comm: &Comm,
    mut report: impl FnMut(Row) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    // After connecting, because the library counts the cores then.
    if plan.has_cores {
        world.threads().pin_to_core(comm.rank().0);
    }
    let start = world.clock().now();
    let measured = comm.probe()?;
    let took = world.clock().since(start);
    for case in &plan.cases {
        let measure = if plan.selects { compare_algorithms } else { measure };
        let point = measure(comm, coordinator, case, plan.budget)?;
        if comm.rank() == Rank(0) {
            let probe = measured.as_ref().map(|found| select::links(found, plan.num_ranks, took));
            report(Row { probe, ..Row::new(plan, case, &point) })?;
        }
    }
    Ok(())
}

/// Runs the rank of a process that the launcher started.
pub(super) fn run_rank(rank_env: &str, plan: &Plan, world: &World) -> Result<(), Failure> {
    let parsed = rank_env.rsplit_once('/').and_then(|(name, rank)| {
        let rank = rank.parse().ok().filter(|&rank| rank < plan.num_ranks)?;
        Some((name, Rank(rank)))
    });
    let (name, rank) = parsed.ok_or_else(|| Failure::user("--as-rank needs NAME/RANK"))?;
    let coordinator = Coordinator::attach(world, name, plan.num_ranks, RENDEZVOUS_DEADLINE)?;
    let mut printed = Ok(());
    let result = connect(plan, world, &coordinator, name, rank).and_then(|comm| {
        let measured = measure_all(plan, world, &coordinator, &comm, |row| {
            let line = serde_json::to_string(&row).expect("our values are JSON");
            printed = output::text(&(line + "\n"));
            if printed.is_ok() { Ok(()) } else { Err(BenchError::Stopped) }
        });
        Ok(measured?)
    });
    if result.is_err() {
        coordinator.stop();
    }
    printed?;
    result
}

/// Connects this rank with the others.
fn connect(
    plan: &Plan,
    world: &World,
    coordinator: &Coordinator,
    name: &str,
    rank: Rank,
) -> Result<Comm, Failure> {
    let num_ranks = plan.num_ranks;
    if plan.transport == Transport::Shm {
        let comm = Comm::processes(world, name, rank, num_ranks, &options(plan));
        return Ok(comm.map_err(BenchError::from)?);
    }
    let settings = Settings { shares_memory: false, ..Settings::default() };
    let ticket =
        Ticket::from_env(world).map_err(|problems| RendezvousError::Environment { problems })?;
    let joined = if rank == Rank(0) {
        let listener = rendezvous::listen(world, &format!("{LOOPBACK}:0"))?;
        let master = listener.local_addr();
        let port = master.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        coordinator.publish(port.expect("an address ends with a port"));
        let rank_env = RankEnv::new(rank, num_ranks, &master, &ticket);
        rendezvous::join_as_first(world, listener, &rank_env, &settings)
    } else {
        let master = format!("{LOOPBACK}:{}", coordinator.wait_for_value()?);
        rendezvous::join(world, &RankEnv::new(rank, num_ranks, &master, &ticket), &settings)
    };
    let options = TcpOptions { emulate: plan.emulate.clone(), ..TcpOptions::default() };
    let wires = hosts::connect(world, joined?, None, &options).map_err(BenchError::from)?;
    Ok(Comm::world(world, wires).map_err(BenchError::from)?)
}

fn start_processes(
    plan: &Plan,
    world: &World,
    coordinator: &Coordinator,
    on_row: impl FnMut(Row),
) -> Result<(), Failure> {
    let name = format!("lockstep/bench/{:016x}", world.entropy().u64());
    let offer = coordinator.offer(&name).map_err(BenchError::from)?;
    let ticket = Ticket::new(world);
    let mut ranks = Ranks { children: Vec::new(), coordinator, world };
    for rank in 0..plan.num_ranks {
        ranks.children.push(spawn(&name, rank, &ticket)?);
    }
    let stdout = ranks.children[0].stdout.take().expect("it is piped");
    let (lines, reader) = read_lines(world, stdout)?;
    let watched = ranks.watch(offer, &lines, on_row);
    if watched.is_err() {
        ranks.end();
    }
    // The pipe is closed now, so the reader ends.
    let joined = reader.join();
    watched?;
    joined.map_err(|error| Failure::new(Blame::Peer(0), error.to_string()))
}

/// Starts this program as a rank.
fn spawn(name: &str, rank: usize, ticket: &Ticket) -> Result<Child, Failure> {
    let cannot = |error: std::io::Error| {
        Failure::new(Blame::Storage, format!("cannot start rank {rank}: {error}"))
    };
    Command::new(std::env::current_exe().map_err(cannot)?)
        .args(std::env::args_os().skip(1))
        .arg("--as-rank")
        .arg(format!("{name}/{rank}"))
        .envs(ticket.to_env())
        .stdin(Stdio::null())
        .stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() })
        .stderr(Stdio::piped())
        .spawn()
        .map_err(cannot)
}

/// Starts a thread that reads lines until the pipe is closed.
fn read_lines(
    world: &World,
    pipe: impl Read + Send + 'static,
) -> Result<(Receiver<String>, Box<dyn JoinHandle>), Failure> {
    let (sender, lines) = mpsc::channel();
    let body = move || {
        for line in BufReader::new(pipe).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    };
    let thread = world.threads().spawn("bench-reader", Box::new(body));
    let thread = thread.map_err(|error| Failure::new(Blame::Storage, error.to_string()))?;
    Ok((lines, thread))
}

/// The rank processes.
struct Ranks<'a> {
    children: Vec<Child>,
    coordinator: &'a Coordinator,
    world: &'a World,
}

impl Ranks<'_> {
    /// Offers the coordinator and passes on rows until all ranks have ended or one has failed.
    fn watch(
        &mut self,
        mut offer: CoordinatorOffer,
        lines: &Receiver<String>,
        mut on_row: impl FnMut(Row),
    ) -> Result<(), Failure> {
        let mut num_joined = 0;
        let mut is_open = true;
        loop {
            if num_joined < self.children.len() {
                let joined =
                    offer.serve_one(self.coordinator, POLL_INTERVAL).map_err(BenchError::from)?;
                num_joined += usize::from(joined);
            } else if is_open {
                match lines.recv_timeout(POLL_INTERVAL) {
                    Ok(line) => on_row(row_of(&line)?),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => is_open = false,
                }
            }
            let all_have_ended = self.poll()?;
            if all_have_ended && !is_open {
                return Ok(());
            }
        }
    }

    /// Whether all ranks have ended; an error if one has failed.
    fn poll(&mut self) -> Result<bool, Failure> {
        let mut num_ended = 0;
        for rank in 0..self.children.len() {
            match self.children[rank].try_wait() {
                Ok(Some(status)) if status.success() => num_ended += 1,
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => return Err(self.first_failure()),
            }
        }
        Ok(num_ended == self.children.len())
    }

    /// Stops all ranks and returns the first failure.
    fn first_failure(&mut self) -> Failure {
        // A rank that is still running may have to be killed, which is not a failure of its own.
        let is_running = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        let was_running: Vec<bool> = self.children.iter_mut().map(is_running).collect();
        self.end();
        let mut failures = Vec::new();
        for (rank, child) in self.children.iter_mut().enumerate() {
            let mut text = String::new();
            if let Some(mut pipe) = child.stderr.take() {
                // A partial read is good enough for an error message.
                let _ = pipe.read_to_string(&mut text);
            }
            let code = child.try_wait().ok().flatten().and_then(|status| status.code());
            if code == Some(0) {
                continue;
            }
            let error = text.lines().find_map(|line| line.strip_prefix("error: "));
            let is_secondary = error.is_some_and(|error| error.contains("gave up"));
            let message = error.or_else(|| text.lines().next()).unwrap_or("it was killed");
            let code = code.and_then(|code| u8::try_from(code).ok());
            let order = (is_secondary, was_running[rank], code.is_some());
            failures.push((order, code, format!("rank {rank}: {message}")));
        }
        failures.sort_by_key(|(order, ..)| *order);
        let first = failures.into_iter().next();
        first.map_or_else(
            || Failure::new(Blame::Peer(0), "the ranks ended without a result"),
            |(_, code, text)| Failure::with_code(code.unwrap_or(3), text),
        )
    }

    /// Stops all ranks; kills those that do not end in time.
    fn end(&mut self) {
        self.coordinator.stop();
        let mut num_polls = STOP_DEADLINE.as_millis() / POLL_INTERVAL.as_millis();
        for child in &mut self.children {
            while num_polls > 0 && matches!(child.try_wait(), Ok(None)) {
                num_polls -= 1;
                self.world.clock().sleep(POLL_INTERVAL);
            }
            // It may have ended in the meantime.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Ranks<'_> {
    fn drop(&mut self) {
        self.end();
    }
}

fn row_of(line: &str) -> Result<Row, Failure> {
    serde_json::from_str(line)
        .map_err(|error| Failure::new(Blame::Peer(0), format!("rank 0 printed {line:?}: {error}")))
}
