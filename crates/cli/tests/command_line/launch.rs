//! The launcher: prefixed output, exit codes, and no process left behind.

use crate::process::{Finished, Folder, last_error};
use lockstep_platform::{Deadline, ProcessState, World, real};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

/// Deadline of every wait.
const LIMIT: Duration = Duration::from_secs(30);

fn tiny<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["train", "--preset", "tiny"];
    for set in sets {
        arguments.extend(["--set", set]);
    }
    arguments
}

/// A command that runs until it is ended.
pub(crate) struct Running {
    world: World,
    child: Child,
    stderr: BufReader<ChildStderr>,
    workers: Vec<u32>,
}

impl Running {
    /// Starts an endless run and waits for its first step.
    pub(crate) fn start(folder: &Folder, sets: &[&str]) -> Self {
        Self::start_by(folder.command(&tiny(&[&["train.steps=100000000"], sets].concat())))
    }

    fn start_by(mut command: Command) -> Self {
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("the binary starts");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut run = Self { world: real(), child, stderr, workers: Vec::new() };
        run.line_with("  loss ");
        run.workers = run.children();
        run
    }

    /// Reads up to the next line of the standard error with this text.
    fn line_with(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            let count = self.stderr.read_line(&mut line).expect("it writes text");
            assert!(count > 0, "it ended without `{text}`");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Child processes of the command.
    fn children(&self) -> Vec<u32> {
        let pid = self.child.id();
        let path = PathBuf::from(format!("/proc/{pid}/task/{pid}/children"));
        let list = self.world.files().read_to_string(&path).expect("the kernel lists children");
        list.split_whitespace().map(|number| number.parse().expect("a number")).collect()
    }

    /// Process id of a rank, by its environment.
    pub(crate) fn worker(&self, rank: usize) -> u32 {
        let own = format!("RANK={rank}");
        let is_rank = |pid: &&u32| {
            let environment =
                self.world.files().read(&PathBuf::from(format!("/proc/{pid}/environ")));
            let environment = environment.expect("it runs");
            environment.split(|byte| *byte == 0).any(|variable| variable == own.as_bytes())
        };
        *self.workers.iter().find(is_rank).expect("each rank has a process")
    }

    /// All processes of the run: the command and its workers.
    pub(crate) fn processes(&self) -> Vec<u32> {
        [&[self.child.id()], &self.workers[..]].concat()
    }

    /// Waits until the command and all its workers have ended.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let mut stderr = String::new();
        self.stderr.read_to_string(&mut stderr).expect("it writes text");
        let status = self.child.wait().expect("it was started");
        let deadline = Deadline::after(self.world.clock(), LIMIT);
        for pid in &self.workers {
            while self.is_alive(*pid) {
                assert!(!deadline.has_passed(self.world.clock()), "worker {pid} is left behind");
                self.world.clock().sleep(Duration::from_millis(5));
            }
        }
        (status, stderr)
    }

    /// Whether a process runs; a zombie does not.
    fn is_alive(&self, pid: u32) -> bool {
        let stat = self.world.files().read_to_string(&PathBuf::from(format!("/proc/{pid}/stat")));
        let Ok(stat) = stat else { return false };
        let state = stat.rsplit_once(')').expect("the name ends").1.trim_start();
        !state.starts_with('Z')
    }
}

pub(crate) fn send(signal: &str, pid: u32) {
    send_all(signal, &[pid]);
}

/// Sends a signal to all processes with one command.
pub(crate) fn send_all(signal: &str, pids: &[u32]) {
    let pids = pids.iter().map(ToString::to_string);
    let status = Command::new("kill").arg(signal).args(pids).status();
    assert!(status.expect("a kill command").success());
}

#[test]
fn every_line_of_a_worker_carries_its_rank() {
    let folder = Folder::new();
    let Finished { stderr, stdout, .. } = folder.succeed(&tiny(&["train.steps=3"]));
    assert!(stderr.lines().all(|line| line.starts_with("[0] ")), "{stderr}");
    assert!(stderr.contains(
        "[0] global batch 8 = micro-batch size 1 x 4 micro-batches x 2 data-parallel workers\n"
    ));
    assert!(stderr.contains("[0] step 3/3"), "{stderr}");
    assert!(stdout.contains("\nlosses_hash "), "the report of rank 0 has no prefix: {stdout}");
}

#[test]
fn every_isolation_and_transport_is_bit_identical() {
    let folder = Folder::new();
    let hashes = |sets: &[&str]| {
        let sets = [&["train.steps=3"], sets].concat();
        let figures = folder.json(&[&tiny(&sets)[..], &["--json", "--quiet"]].concat());
        [figures["losses_hash"].clone(), figures["weights_hash"].clone()]
    };
    let alone = hashes(&["run.workers=1"]);
    for sets in [
        &["run.workers=2"][..],
        &["run.workers=3", "run.transport=shm"],
        &["run.workers=2", "run.transport=tcp"],
        &["run.workers=3", "run.isolation=threads"],
        &["run.workers=2", "run.isolation=threads", "run.transport=tcp"],
    ] {
        assert_eq!(hashes(sets), alone, "{sets:?}");
    }
}

#[test]
fn a_worker_that_is_killed_is_named_with_its_signal() {
    let folder = Folder::new();
    for rank in [0, 1] {
        let run = Running::start(&folder, &["run.workers=3"]);
        assert_eq!(run.workers.len(), 3);
        send("-KILL", run.worker(rank));
        let (status, stderr) = run.end();
        assert_eq!(status.code(), Some(3), "{stderr}");
        let last = last_error(&stderr);
        assert_eq!(last, format!("error: rank {rank} was killed by signal 9 (SIGKILL)"));
        // The last line names the command that reads the records of the others.
        let doctor = stderr.lines().last().and_then(|line| line.rsplit_once("lockstep doctor "));
        let (_, dir) = doctor.unwrap_or_else(|| panic!("{stderr}"));
        let diagnosis = folder.succeed(&["doctor", dir]).stdout;
        assert!(diagnosis.contains(&format!("rank {rank}")), "{diagnosis}");
        // The others report a lost peer, which is not the cause, with their own ranks.
        let others = stderr.lines().filter(|line| line.contains(&format!("rank {rank} left")));
        for line in others {
            assert!(line.starts_with('[') && !line.starts_with(&format!("[{rank}]")), "{line}");
        }
    }
}

#[test]
fn a_frozen_worker_is_named_and_killed() {
    let folder = Folder::new();
    let mut run = Running::start(&folder, &["run.deadline=0.5"]);
    let (stopped, world) = (run.worker(1), real());
    send("-STOP", stopped);
    // The user reads the cause before the launcher kills the stopped worker.
    let report = run.line_with("for rank 1");
    assert!(report.starts_with("warning: rank 0: "), "{report}");
    assert!(report.ends_with("; waiting for rank 1 to exit\n"), "{report}");
    assert_eq!(world.processes().state(stopped), Some(ProcessState::Stopped));
    let (status, stderr) = run.end();
    assert_eq!(status.code(), Some(3), "{stderr}");
    let last = last_error(&stderr);
    assert!(last.starts_with("error: rank 0: ") && last.contains("for rank 1"), "{stderr}");
}

#[test]
fn an_interrupt_ends_all_workers_and_sets_the_exit_status() {
    let folder = Folder::new();
    for (signal, number) in [("-INT", 2), ("-TERM", 15)] {
        let run = Running::start(&folder, &["checkpoint.interval=0"]);
        send(signal, run.child.id());
        let (status, _) = run.end();
        assert_eq!(status.signal(), Some(number));
    }
}

#[test]
fn an_interrupt_reaches_a_command_in_the_background_of_a_script() {
    let folder = Folder::new();
    let arguments = tiny(&["train.steps=100000000", "checkpoint.interval=0"]).join(" ");
    let script = format!("trap '' INT; exec {} {arguments}", env!("CARGO_BIN_EXE_lockstep"));
    let run = Running::start_by(folder.shell(&script));
    send("-INT", run.child.id());
    let (status, _) = run.end();
    assert_eq!(status.signal(), Some(2));
}

#[test]
fn workers_do_not_outlive_a_launcher_that_was_killed() {
    let folder = Folder::new();
    let run = Running::start(&folder, &[]);
    assert_eq!(run.workers.len(), 2);
    send("-KILL", run.child.id());
    let (status, _) = run.end();
    assert_eq!(status.signal(), Some(9));
}

#[test]
fn one_worker_and_threads_are_one_process() {
    let folder = Folder::new();
    for sets in [&["run.workers=1"][..], &["run.isolation=threads", "run.workers=3"]] {
        let run = Running::start(&folder, &[sets, &["checkpoint.interval=0"]].concat());
        assert!(run.workers.is_empty(), "{sets:?} starts no process");
        send("-INT", run.child.id());
        assert_eq!(run.end().0.signal(), Some(2));
    }
}

#[test]
fn invalid_recipes_are_refused_before_a_worker_starts() {
    let folder = Folder::new();
    for (sets, expected) in [
        (&["run.workers=9"][..], "run.workers = 9 is more than numerics.invariant_up_to = 8"),
        (&["run.transport=threads"], "run.isolation = \"processes\""),
        (&["data.source=nowhere.txt"], "nowhere.txt does not exist"),
        (&["model.context=1000000"], "is too short"),
    ] {
        let finished = folder.run(&tiny(sets));
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        let [line] = finished.stderr.lines().collect::<Vec<_>>()[..] else {
            panic!("not one line: {}", finished.stderr);
        };
        // An error of a worker would have its rank.
        assert!(line.contains(expected) && !line.contains("rank"), "{line}");
        assert!(folder.content().is_empty(), "{sets:?} left files");
    }
}

#[test]
fn the_cause_of_a_failure_ends_the_run_with_its_own_code() {
    let folder = Folder::new();
    for isolation in ["processes", "threads"] {
        let isolation = format!("run.isolation={isolation}");
        let finished = folder.run(&tiny(&["optim.lr=1000", "optim.clip=0", &isolation]));
        assert_eq!(finished.code, Some(5), "{}", finished.stderr);
        let last = last_error(&finished.stderr);
        assert!(last.starts_with("error: rank ") && last.contains("became"), "{last}");
    }
}

#[test]
fn workers_may_be_started_by_another_launcher() {
    let folder = Folder::new();
    let port = real().net().listen("127.0.0.1:0").expect("a port").local_addr();
    let port = port.rsplit_once(':').expect("a port").1.to_owned();
    let worker = |rank: usize, world_size: usize| {
        let mut command = folder.command(&tiny(&["train.steps=2", "run.workers=2"]));
        command.arg("--json").env("RANK", rank.to_string());
        command.env("WORLD_SIZE", world_size.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        command.env("LOCKSTEP_SECRET", "5e".repeat(32));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
    };
    let workers = [worker(1, 2), worker(0, 2)];
    let [one, zero] = workers.map(|worker| {
        let finished = Finished::new(worker.wait_with_output().expect("it ends"));
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        finished
    });
    let figures: Value = serde_json::from_str(&zero.stdout).expect("rank 0 has the figures");
    assert_eq!(figures["workers"], 2);
    // On a busy machine it may wait long enough for a report.
    let is_report = |line: &str| line.contains("rank 1 waits for rank 0");
    assert!(one.stdout.is_empty() && one.stderr.lines().all(is_report), "{one:?}");

    let output = worker(0, 3).wait_with_output().expect("it ends");
    let refused = Finished::new(output);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("WORLD_SIZE = 3 is not run.workers = 2"), "{}", refused.stderr);
}

#[test]
fn too_many_threads_cause_a_warning() {
    let folder = Folder::new();
    let threads = format!("run.threads={}", 4 * real().threads().available() + 1);
    let sets = ["train.steps=1", "run.workers=1", &threads];
    let finished = folder.succeed(&tiny(&sets));
    assert!(finished.stderr.starts_with("warning: run.threads = "), "{}", finished.stderr);
    let quiet = [&tiny(&sets)[..], &["--quiet"]].concat();
    assert_eq!(folder.succeed(&quiet).stderr, "");
}
