//! Processes that rendezvous by environment variables and communicate over TCP, on one host and
//! two.
//!
//! The test binary starts itself again for every rank: [`a_rank_of_a_run`] is a test that does
//! nothing unless the environment gives it a task.
#![expect(clippy::print_stdout, reason = "a rank reports to the test that started it")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::processes::{free_port, spawn};
use crate::common::{OPTIONS, run_checks};
use lockstep_cluster::join::open;
use lockstep_cluster::rendezvous::{RankEnv, SECRET, Settings};
use lockstep_comm::transport::tcp::TcpOptions;
use lockstep_comm::{Comm, Reduction};
use lockstep_platform::real;

const TASK: &str = "LOCKSTEP_TEST_TASK";

#[test]
fn a_rank_of_a_run() {
    let world = real();
    let Some(task) = world.host().env(TASK) else { return };
    let rank_env = RankEnv::from_env(&world).expect("the parent sets everything");
    let shares_memory = !task.starts_with("tcp");
    let keepalive_timeout = Duration::from_secs(3);
    let encrypt = task.contains("sealed");
    let settings = Settings { shares_memory, keepalive_timeout, encrypt, ..Settings::default() };
    let options = TcpOptions::default();
    let channels = open(&world, &rank_env, &settings, &options, OPTIONS.arena_bytes);
    let comm = Comm::world(&world, channels.expect("all ranks come")).expect("a world");
    println!("via {}", comm.transport());
    if task.ends_with("check") {
        run_checks(&comm);
        println!("passed");
    } else if task.ends_with("short-deadline loop") {
        reduce_until_an_error(&comm.within(Duration::from_secs(1)));
    } else {
        reduce_until_an_error(&comm);
    }
}

fn reduce_until_an_error(comm: &Comm) {
    let mut data = vec![1.0_f32; 200_000];
    comm.all_reduce(&mut data, Reduction::Max).expect("all are there");
    println!("going");
    loop {
        if let Err(error) = comm.all_reduce(&mut data, Reduction::Max) {
            println!("error: {error}");
            return;
        }
    }
}

/// A started rank.
struct Process {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Process {
    /// Starts a rank, under the command `wrapper` if not empty.
    fn start(wrapper: &[&str], master: (&str, u16), rank: usize, of: usize, task: &str) -> Self {
        let own = std::env::current_exe().expect("this file");
        let own = own.to_str().expect("a path that is text").to_owned();
        let test = ["--exact", "tcp_processes::a_rank_of_a_run", "--nocapture"];
        let command_line: Vec<&str> =
            wrapper.iter().copied().chain([own.as_str()]).chain(test).collect();
        let mut command = Command::new(command_line[0]);
        command
            .args(&command_line[1..])
            .env(TASK, task)
            .env("MASTER_ADDR", master.0)
            .env("MASTER_PORT", master.1.to_string())
            .env(SECRET, "5e".repeat(32))
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", of.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = spawn(&mut command);
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, lines }
    }

    /// Reads up to the line that holds `text`, and returns the line from there on.
    fn line_with(&mut self, text: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line).expect("output is text") == 0 {
                let mut errors = String::new();
                let stderr = self.child.stderr.as_mut().expect("piped");
                stderr.read_to_string(&mut errors).expect("errors are text");
                panic!("a rank ended without saying `{text}`:\n{errors}");
            }
            if let Some(start) = line.find(text) {
                return line[start..].trim_end().to_owned();
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start_all(of: usize, task: &str) -> Vec<Process> {
    let port = free_port();
    let start = |rank| Process::start(&[], ("127.0.0.1", port), rank, of, task);
    (0..of).map(start).collect()
}

#[test]
fn processes_of_one_host_share_memory() {
    for mut process in start_all(3, "auto check") {
        process.line_with("via shm");
        process.line_with("passed");
    }
}

#[test]
fn every_survivor_reports_a_killed_process_before_the_deadline() {
    for task in ["tcp loop", "auto loop"] {
        let mut processes = start_all(4, task);
        for process in &mut processes {
            process.line_with("going");
        }
        let mut victim = processes.remove(2);
        victim.child.kill().expect("it runs");
        for mut survivor in processes {
            let error = survivor.line_with("error:");
            assert!(error.contains("rank 2 left"), "{task}: {error}");
        }
    }
}

#[test]
fn a_stopped_process_is_reported_after_the_deadline() {
    let mut processes = start_all(2, "tcp short-deadline loop");
    for process in &mut processes {
        process.line_with("going");
    }
    let stopped = processes.remove(1);
    run(&format!("kill -STOP {}", stopped.child.id())).expect("it runs");
    for mut survivor in processes {
        let error = survivor.line_with("error:");
        assert!(error.contains("for rank 1"), "{error}");
    }
}

/// Two network namespaces connected by a veth pair, removed when dropped.
struct TwoHosts {
    names: [String; 2],
}

const ADDRS: [&str; 2] = ["10.99.77.1", "10.99.77.2"];

impl TwoHosts {
    /// `None`, and a printed reason, without the permission.
    fn new(tag: &str) -> Option<Self> {
        let id = std::process::id();
        let names = ["a", "b"].map(|side| format!("ls{tag}{id}{side}"));
        let hosts = Self { names };
        for step in hosts.steps() {
            if let Err(reason) = run(&step) {
                println!("skipped: network namespaces are not available: {reason}");
                return None;
            }
        }
        Some(hosts)
    }

    fn steps(&self) -> Vec<String> {
        let [a, b] = &self.names;
        let mut steps = vec![
            format!("ip netns add {a}"),
            format!("ip netns add {b}"),
            // A link has its namespace's name, which is short enough for one.
            format!("ip link add {a} netns {a} type veth peer name {b} netns {b}"),
        ];
        for (name, addr) in self.names.iter().zip(ADDRS) {
            steps.push(format!("ip -n {name} addr add {addr}/24 dev {name}"));
            steps.push(format!("ip -n {name} link set lo up"));
            steps.push(format!("ip -n {name} link set {name} up"));
        }
        steps
    }

    fn start(&self, host: usize, rank: usize, of: usize, task: &str) -> Process {
        let wrapper = ["ip", "netns", "exec", &self.names[host]];
        Process::start(&wrapper, (ADDRS[0], 29_500), rank, of, task)
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = run(&format!("ip netns del {name}"));
        }
    }
}

fn run(command: &str) -> Result<(), String> {
    let command_line: Vec<&str> = command.split_whitespace().collect();
    let output = Command::new(command_line[0])
        .args(&command_line[1..])
        .output()
        .map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command}: {}", text.trim()))
}

#[test]
fn ranks_of_two_hosts_use_memory_inside_and_tcp_between() {
    let Some(hosts) = TwoHosts::new("m") else { return };
    let processes: Vec<Process> =
        [0, 0, 1, 1].iter().enumerate().map(|(r, &h)| hosts.start(h, r, 4, "auto check")).collect();
    for mut process in processes {
        process.line_with("via shm+tcp");
        process.line_with("passed");
    }
}

#[test]
fn ranks_of_two_hosts_encrypt_their_connections() {
    let Some(hosts) = TwoHosts::new("e") else { return };
    let processes: Vec<Process> =
        [0, 0, 1].iter().enumerate().map(|(r, &h)| hosts.start(h, r, 3, "sealed check")).collect();
    for mut process in processes {
        process.line_with("via shm+tcp");
        process.line_with("passed");
    }
}

#[test]
fn a_disconnected_host_is_detected_before_the_deadline() {
    let Some(hosts) = TwoHosts::new("s") else { return };
    let mut processes: Vec<Process> =
        [0, 1].iter().enumerate().map(|(r, &h)| hosts.start(h, r, 2, "tcp loop")).collect();
    for process in &mut processes {
        process.line_with("going");
    }
    // The link goes down: streams neither close nor fail, and nothing arrives.
    let name = &hosts.names[0];
    run(&format!("ip -n {name} link set {name} down")).expect("it was up");
    for (rank, process) in processes.iter_mut().enumerate() {
        let error = process.line_with("error:");
        let peer = format!("rank {}", 1 - rank);
        assert!(error.contains(&peer), "{error}");
        // The side whose link is down may detect it at once.
        let reasons = ["no longer answers", "cannot be reached", "gave up"];
        assert!(reasons.iter().any(|reason| error.contains(reason)), "{error}");
    }
}
