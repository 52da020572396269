//! Several hosts: network namespaces with a bridge between them, as far as this system allows them.
//!
//! Every namespace has an address of its own; a link can go down, be slow or lose one direction.
//! Where namespaces need a permission that is missing, the tests say so and pass, unless
//! `LOCKSTEP_HOSTS=1` requires them.

use crate::process::{Finished, Folder, is_switched_on};
use lockstep_platform::{Deadline, World, real};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longest wait for a state of a run.
const LIMIT: Duration = Duration::from_mins(2);

const SECRET: &str = "5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2";

/// A short run of four ranks, whose bits any layout has.
const TRAINING: [&str; 9] =
    ["train", "--preset", "tiny", "--json", "--quiet", "--device", "cpu", "--set", "train.steps=5"];

/// Namespaces at a bridge in one of their own, removed when dropped. The last one is a host that
/// belongs to no run.
struct Hosts {
    tag: String,
    is_v6: bool,
}

const NUM_HOSTS: usize = 4;

/// Runs a command line; `Err` with its messages if it fails.
fn run(command_line: &str) -> Result<(), String> {
    let parts: Vec<&str> = command_line.split_whitespace().collect();
    let output = Command::new(parts[0]).args(&parts[1..]).output();
    let output = output.map_err(|error| format!("{command_line}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command_line}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

impl Hosts {
    /// `None`, and a printed reason, where they cannot be made.
    #[expect(clippy::print_stdout, reason = "says what it skips")]
    fn new(tag: &str, is_v6: bool) -> Option<Self> {
        let hosts = Self { tag: format!("{tag}{}", std::process::id()), is_v6 };
        for step in hosts.steps() {
            if let Err(reason) = run(&step) {
                assert!(!is_switched_on("LOCKSTEP_HOSTS"), "LOCKSTEP_HOSTS=1, and {reason}");
                println!("skipped: network namespaces are not available: {reason}");
                return None;
            }
        }
        Some(hosts)
    }

    /// Name of a namespace and of its link.
    fn name(&self, host: usize) -> String {
        format!("l{}{host}", self.tag)
    }

    fn switch(&self) -> String {
        format!("l{}s", self.tag)
    }

    fn addr(&self, host: usize) -> String {
        if self.is_v6 { format!("fd00:77::{}", host + 1) } else { format!("10.98.77.{}", host + 1) }
    }

    fn steps(&self) -> Vec<String> {
        let switch = self.switch();
        let mut steps = vec![
            format!("ip netns add {switch}"),
            format!("ip -n {switch} link add bridge type bridge"),
            format!("ip -n {switch} link set bridge up"),
        ];
        for host in 0..NUM_HOSTS {
            let (name, addr) = (self.name(host), self.addr(host));
            let kind = if self.is_v6 { "64 nodad" } else { "24" };
            steps.extend([
                format!("ip netns add {name}"),
                format!(
                    "ip link add {name} netns {name} type veth peer name p{host} netns {switch}"
                ),
                format!("ip -n {switch} link set p{host} master bridge"),
                format!("ip -n {switch} link set p{host} up"),
                format!("ip -n {name} addr add {addr}/{kind} dev {name}"),
                format!("ip -n {name} link set lo up"),
                format!("ip -n {name} link set {name} up"),
            ]);
        }
        steps
    }

    /// Address of rank 0, on the first host.
    fn master(&self) -> String {
        if self.is_v6 {
            format!("[{}]:29500", self.addr(0))
        } else {
            format!("{}:29500", self.addr(0))
        }
    }

    /// `lockstep` on a host.
    fn command(&self, host: usize, folder: &Folder, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(host), env!("CARGO_BIN_EXE_lockstep")]);
        command.args(arguments).current_dir(folder.path()).env("LOCKSTEP_SECRET", SECRET);
        command.env_remove("LOCKSTEP_SECRET_FILE");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Starts two ranks on each of the first two hosts.
    fn start_ranks(&self, folder: &Folder, sets: &[&str]) -> Vec<Child> {
        let master = self.master();
        let start = |rank: usize| {
            let index = rank.to_string();
            let place = ["--rank", &index, "--world-size", "4", "--master", &master];
            let mut arguments = [&TRAINING[..], &place].concat();
            for set in sets {
                arguments.extend(["--set", set]);
            }
            self.command(rank / 2, folder, &arguments).spawn().expect("the binary starts")
        };
        (0..4).map(start).collect()
    }

    /// Switches the link of a host.
    fn set_link(&self, host: usize, state: &str) {
        let switch = self.switch();
        run(&format!("ip -n {switch} link set p{host} {state}")).expect("the link is there");
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in (0..NUM_HOSTS).map(|host| self.name(host)).chain([self.switch()]) {
            let _ = run(&format!("ip netns del {name}"));
        }
    }
}

fn finish(child: Child) -> Finished {
    Finished::new(child.wait_with_output().expect("it ends"))
}

fn hashes(summary: &Value) -> [Value; 2] {
    ["losses_hash", "weights_hash"].map(|name| summary[name].clone())
}

/// Summary of rank 0 of ranks that must succeed.
fn summary(ranks: Vec<Child>) -> Value {
    let ended: Vec<Finished> = ranks.into_iter().map(finish).collect();
    for rank in &ended {
        assert_eq!(rank.code, Some(0), "{rank:?}");
    }
    serde_json::from_str(&ended[0].stdout).expect("rank 0 prints one JSON value")
}

#[test]
fn two_hosts_of_two_workers_train_the_bits_of_one_worker() {
    let folder = Folder::new();
    let alone = hashes(&folder.json(&[&TRAINING[..], &["--workers", "1"]].concat()));
    for (tag, is_v6) in [("f", false), ("x", true)] {
        let Some(hosts) = Hosts::new(tag, is_v6) else { return };
        if is_v6 {
            // The least that version 6 allows.
            for host in 0..NUM_HOSTS {
                let name = hosts.name(host);
                run(&format!("ip -n {name} link set {name} mtu 1280")).expect("an MTU");
            }
        }
        for sets in [&["parallel.zero=3"][..], &["run.encrypt=true", "parallel.pipeline=2"]] {
            let found = summary(hosts.start_ranks(&folder, sets));
            assert_eq!(hashes(&found), alone, "{sets:?}");
            assert_eq!(found["wire_bytes"], found["predicted_wire_bytes"], "{sets:?}");
        }
    }
}

#[test]
fn a_check_finds_the_slow_link_of_one_host() {
    let Some(hosts) = Hosts::new("k", false) else { return };
    let (folder, master, size) = (Folder::new(), hosts.master(), NUM_HOSTS.to_string());
    let check = || {
        let start = |rank: usize| {
            let index = rank.to_string();
            let arguments = ["check", "--preset", "tiny", "--device", "cpu", "--json", "--rank"];
            let place = [&index, "--world-size", &size, "--master", &master];
            let mut command = hosts.command(rank, &folder, &[&arguments[..], &place].concat());
            command.spawn().expect("the binary starts")
        };
        summary((0..NUM_HOSTS).map(start).collect())
    };
    let of_links = |report: &Value| -> Vec<String> {
        let findings = report["findings"].as_array().expect("a list").iter();
        let texts = findings.filter_map(|finding| finding["text"].as_str());
        texts.filter(|text| text.contains("B/s, the median is")).map(str::to_owned).collect()
    };
    let report = check();
    assert_eq!(report["hosts"].as_array().map(Vec::len), Some(NUM_HOSTS));
    assert_eq!(report["links"].as_array().map(Vec::len), Some(NUM_HOSTS * (NUM_HOSTS - 1)));
    let name = hosts.name(3);
    let limit = "root tbf rate 20mbit burst 32kbit latency 400ms";
    run(&format!("ip netns exec {name} tc qdisc add dev {name} {limit}")).expect("a limit");
    let report = check();
    let slow = |from: usize, to: usize| {
        let links = report["links"].as_array().expect("a list").iter();
        let mut link = links.filter(|link| link["from"] == from && link["to"] == to);
        link.next().and_then(|link| link["bytes_per_second"].as_f64()).expect("a link")
    };
    // 20 Mbit/s are 2.5 MB/s.
    assert!(slow(3, 0) < 4e6 && slow(0, 1) > 2.0 * slow(3, 0), "{report}");
    assert!(!of_links(&report).is_empty(), "{report}");
}

/// Payload bytes that a command sends over the link of the first host, and the share of the most
/// frequent byte.
fn captured(hosts: &Hosts, work: impl FnOnce()) -> (u64, f64) {
    let name = hosts.name(0);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/command_line/capture.py");
    let mut capture = Command::new("ip")
        .args(["netns", "exec", &name, "python3", script, &name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python starts");
    let mut output = BufReader::new(capture.stdout.take().expect("it is piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("it captures");
    work();
    drop(capture.stdin.take());
    line.clear();
    output.read_line(&mut line).expect("figures");
    capture.wait().expect("it ends");
    let (num_bytes, share) = line.trim().split_once(' ').expect("two figures");
    (num_bytes.parse().expect("a number"), share.parse().expect("a share"))
}

#[test]
fn sealed_bytes_between_hosts_look_random_in_a_capture() {
    let Some(hosts) = Hosts::new("w", false) else { return };
    let folder = Folder::new();
    let share_of = |encrypt: &str| {
        let (num_bytes, share) =
            captured(&hosts, || drop(summary(hosts.start_ranks(&folder, &[encrypt]))));
        assert!(num_bytes > 100_000, "{num_bytes} bytes were captured");
        share
    };
    // Gradients have few exponents, and bytes of zero; a sealed byte has any value.
    let [plain, sealed] = ["run.encrypt=false", "run.encrypt=true"].map(share_of);
    assert!(plain > 4.0 / 256.0, "{plain}");
    assert!(sealed < 1.2 / 256.0, "{sealed}");
}

/// One direction between the hosts is lost: answers no longer arrive, while requests still do.
#[test]
fn a_partition_of_one_direction_is_found_by_both_sides() {
    let Some(hosts) = Hosts::new("p", false) else { return };
    let (folder, world) = (Folder::new(), real());
    let sets = ["train.steps=100000", "run.deadline=3", "run.dir=run"];
    let ranks = hosts.start_ranks(&folder, &sets);
    wait_until(&world, "it trains", || has_event(&world, &folder, "step"));
    let (name, to) = (hosts.name(1), hosts.addr(0));
    run(&format!("ip -n {name} route add blackhole {to}/32")).expect("a route");
    for (rank, child) in ranks.into_iter().enumerate() {
        let ended = finish(child);
        assert_eq!(ended.code, Some(3), "rank {rank}: {ended:?}");
        // A rank names one of the other host, or the rank beside it that gave up first.
        let error = ended.stderr.lines().find(|line| line.starts_with("error: "));
        let error = error.unwrap_or_else(|| panic!("rank {rank}: {ended:?}"));
        assert!(error.contains("rank "), "rank {rank}: {error}");
        let others = if rank < 2 { ["rank 2", "rank 3"] } else { ["rank 0", "rank 1"] };
        let is_named = others.iter().any(|other| error.contains(other));
        assert!(is_named || error.contains("detected by"), "rank {rank}: {error}");
    }
}

/// Steps of the elastic run, which must outlast a lost and restored link.
const ELASTIC: [&str; 10] = [
    "--set",
    "train.steps=400",
    "--set",
    "run.workers={min=1,max=2}",
    "--set",
    "checkpoint.every=20",
    "--set",
    "run.deadline=3",
    "--set",
    "emulate.microbatch_ms=1",
];

#[test]
fn a_host_that_is_cut_off_comes_back_and_the_run_ends_in_the_same_bits() {
    let Some(hosts) = Hosts::new("c", false) else { return };
    let (folder, world) = (Folder::new(), real());
    let long = [&TRAINING[..7], &ELASTIC].concat();
    let start = |host: usize, option: &str, secret: &str| {
        let master = hosts.master();
        let own = ["--set", "run.dir=run", option, &master];
        let mut command = hosts.command(host, &folder, &[&long[..], &own].concat());
        command.env("LOCKSTEP_SECRET", secret).spawn().expect("the binary starts")
    };
    let whole = [&TRAINING[..7], &["--set", "train.steps=400", "--workers", "1"]].concat();
    let whole = hashes(&Folder::new().json(&whole));
    let launcher = start(0, "--listen", SECRET);
    let first = start(1, "--join", SECRET);
    let stranger = start(2, "--join", &SECRET.replace('5', "6"));
    wait_until(&world, "two workers", || last_size(&world, &folder) == Some(2));
    hosts.set_link(1, "down");
    wait_until(&world, "one worker", || last_size(&world, &folder) == Some(1));
    hosts.set_link(1, "up");
    let second = start(1, "--join", SECRET);
    wait_until(&world, "two workers again", || last_size(&world, &folder) == Some(2));
    let ended = finish(launcher);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let found: Value = serde_json::from_str(&ended.stdout).expect("one JSON value");
    assert_eq!(hashes(&found), whole, "{}", ended.stderr);
    let stranger = finish(stranger);
    assert_eq!(stranger.code, Some(2), "{stranger:?}");
    assert!(stranger.stderr.contains("it has another secret"), "{stranger:?}");
    for worker in [first, second] {
        // Each of them ended with the run, or found its link down.
        let ended = finish(worker);
        assert!(matches!(ended.code, Some(0 | 3)), "{ended:?}");
    }
}

fn wait_until(world: &World, what: &str, is_so: impl Fn() -> bool) {
    let deadline = Deadline::after(world.clock(), LIMIT);
    while !is_so() {
        assert!(!deadline.has_passed(world.clock()), "never {what}");
        world.clock().sleep(Duration::from_millis(5));
    }
}

/// Events of the run in the folder, of one kind.
fn events(world: &World, folder: &Folder, kind: &str) -> Vec<Value> {
    let path: PathBuf = folder.path().join("run/events.jsonl");
    let text = world.files().read_to_string(&path).unwrap_or_default();
    let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event"] == kind).collect()
}

fn has_event(world: &World, folder: &Folder, kind: &str) -> bool {
    !events(world, folder, kind).is_empty()
}

/// Number of workers of the attempt that started last.
fn last_size(world: &World, folder: &Folder) -> Option<u64> {
    events(world, folder, "run_started").last()?["workers"].as_u64()
}
