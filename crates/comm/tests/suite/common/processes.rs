//! Processes as ranks: a test runs its own binary once for every rank, with the rank in the
//! environment; in such a process only the test with the role of a rank does anything.

use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockstep_cluster::join::open;
use lockstep_cluster::rendezvous::{RankEnv, Settings, Ticket};
use lockstep_comm::Comm;
use lockstep_comm::transport::tcp::TcpOptions;
use lockstep_mesh::Rank;
use lockstep_platform::real;

use super::OPTIONS;

/// Environment variable of a rank: transport, job, rank, world size, port of the rendezvous.
const PLACE: &str = "LOCKSTEP_TEST_PLACE";

/// Processes that are ranks of one run; they do not outlive the test.
pub(crate) struct Ranks {
    pub(crate) job: String,
    pub(crate) children: Vec<Child>,
}

impl Ranks {
    /// Runs the test `role` of this binary as every rank of a new run; `transport` is `shm`, or
    /// `tcp` for TCP only.
    pub(crate) fn start(role: &str, transport: &str, num_ranks: usize) -> Self {
        Self::start_with(role, transport, num_ranks, &[])
    }

    /// [`Ranks::start`] with more environment variables.
    pub(crate) fn start_with(
        role: &str,
        transport: &str,
        num_ranks: usize,
        variables: &[(&str, String)],
    ) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let binary = std::env::current_exe().expect("a test has a binary");
        let name = role.replace("::", "-");
        let job = format!("{name}-{transport}-{num_ranks}-{}-{number}", std::process::id());
        let port = if transport == "tcp" { free_port() } else { 0 };
        let ticket = Ticket::new(&real());
        let start = |rank: usize| {
            let mut command = Command::new(&binary);
            command
                .envs(ticket.to_env())
                .args([role, "--exact", "--nocapture"])
                .env(PLACE, format!("{transport} {job} {rank} {num_ranks} {port}"))
                .env("RUST_BACKTRACE", "0")
                .envs(variables.iter().map(|(name, value)| (name, value)))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            spawn(&mut command)
        };
        let children = (0..num_ranks).map(start).collect();
        Self { job, children }
    }

    /// Waits for all, and panics with their output if one failed.
    pub(crate) fn assert_success(mut self) {
        let outputs = self.children.drain(..).map(Child::wait_with_output);
        let outputs: Vec<Output> = outputs.map(|output| output.expect("it ends")).collect();
        for (rank, output) in outputs.iter().enumerate() {
            let stdout = String::from_utf8_lossy(&output.stdout);
            let text = stdout + String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "rank {rank}: {text}");
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// This process's communicator in world `index` of its run, if it has the role of a rank.
pub(crate) fn own_comm(index: usize) -> Option<Comm> {
    let world = real();
    let place = world.host().env(PLACE)?;
    let fields: Vec<&str> = place.split(' ').collect();
    let number = |index: usize| fields[index].parse::<usize>().expect("a number");
    let (rank, num_ranks) = (Rank(number(2)), number(3));
    if fields[0] == "shm" {
        let job = format!("{}-{index}", fields[1]);
        let comm = Comm::processes(&world, &job, rank, num_ranks, &OPTIONS);
        return Some(comm.expect("the processes meet"));
    }
    let master = format!("127.0.0.1:{}", number(4));
    let ticket = Ticket::from_env(&world).expect("the parent has made one");
    let place = RankEnv::new(rank, num_ranks, &master, &ticket);
    let timeout = Duration::from_mins(1);
    let settings = Settings { shares_memory: false, timeout, ..Settings::default() };
    let options = TcpOptions::default();
    let channels = open(&world, &place, &settings, &options, OPTIONS.arena_bytes);
    Some(Comm::world(&world, channels.expect("all ranks come")).expect("a world"))
}

/// Excludes a start of a process from the search for a free port: between fork and exec a child
/// holds the listener of the search, and the port stays in use.
static STARTS: Mutex<()> = Mutex::new(());

/// Starts a process of this test binary.
pub(crate) fn spawn(command: &mut Command) -> Child {
    let _guard = STARTS.lock().unwrap_or_else(PoisonError::into_inner);
    command.spawn().expect("the test binary can be started")
}

/// A free port outside the ephemeral range.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let _guard = STARTS.lock().unwrap_or_else(PoisonError::into_inner);
    let world = real();
    let first = std::process::id().wrapping_mul(257);
    loop {
        let number = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (number % 20_000) as u16;
        if world.net().listen(&format!("127.0.0.1:{port}")).is_ok() {
            return port;
        }
    }
}
