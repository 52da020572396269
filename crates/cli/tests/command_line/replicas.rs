//! Replicated parameter servers: one of two replicas is killed during training, and no acknowledged
//! update is lost or applied twice.

use crate::launch::send;
use crate::process::{Folder, last_error};
use lockstep_planner::traffic::{ByteRange, Interconnect, RecordedDecisions, wire_replay};
use lockstep_platform::{Deadline, World, real};
use lockstep_telemetry::{Event, load_events};
use lockstep_trainer::run_folder::load_recipe;
use lockstep_trainer::{RunFolder, blueprint_of_rank};
use serde_json::Value;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

/// Deadline of every wait.
const LIMIT: Duration = Duration::from_mins(2);

const STEPS: u64 = 40;

/// Ranks of the second server and of its replica, with two workers and two servers.
const PRIMARY: usize = 3;
const REPLICA: usize = 5;

/// Settings with four workers in groups, and the ranks of the second server and its replica.
const GROUPS: [&str; 2] = ["run.workers=4", "sync.group_workers=2"];
const PRIMARY_OF_GROUPS: usize = 5;
const REPLICA_OF_GROUPS: usize = 7;

/// A run of two workers and two servers with one replica each.
struct Run {
    world: World,
    folder: Folder,
    child: Child,
}

fn arguments(sets: &[&str]) -> Vec<String> {
    let steps = format!("train.steps={STEPS}");
    let all = [
        "sync.mode=parameter-server",
        "run.workers=2",
        "sync.servers=2",
        "sync.replicas=1",
        "optim.clip=0",
        "train.eval_every=0",
        "train.eval_batches=1",
        "run.dir=run",
        steps.as_str(),
    ];
    let fixed = ["train", "--preset", "tiny", "--json", "--quiet"].map(str::to_owned);
    let sets = all.iter().chain(sets);
    fixed.into_iter().chain(sets.flat_map(|set| ["--set".to_owned(), (*set).to_owned()])).collect()
}

impl Run {
    fn start(sets: &[&str]) -> Self {
        let folder = Folder::new();
        let arguments = arguments(sets);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let mut command = folder.command(&arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self { world: real(), folder, child: child.expect("the binary starts") }
    }

    /// Events so far, without an incomplete last line.
    fn events(&self) -> Vec<Value> {
        let path = self.folder.path().join("run/events.jsonl");
        let text = self.world.files().read_to_string(&path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for `count` events of a kind and returns the last one.
    fn wait_for(&self, kind: &str, count: usize) -> Value {
        let deadline = Deadline::after(self.world.clock(), LIMIT);
        loop {
            let events = self.events();
            let found = events.iter().filter(|event| event["event"] == kind).nth(count - 1);
            if let Some(event) = found {
                return event.clone();
            }
            assert!(!deadline.has_passed(self.world.clock()), "no {count} events of {kind}");
            self.world.clock().sleep(Duration::from_millis(2));
        }
    }

    /// Process id of a server's rank.
    fn process(&self, rank: usize) -> u32 {
        let joined = self.wait_for("servers_joined", 1);
        let num_workers = joined["worker_processes"].as_array().expect("a list").len();
        let process = joined["server_processes"][rank - num_workers].as_u64().expect("a process");
        u32::try_from(process).expect("a process id")
    }

    fn end(self) -> (Folder, Output) {
        (self.folder, self.child.wait_with_output().expect("it was started"))
    }
}

fn figures(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("figures")
}

/// Kills a server during a run and returns the summary.
fn run_with_killed_server(sets: &[&str], victim: usize, successor: usize) -> Value {
    let run = Run::start(sets);
    run.wait_for("step", 5);
    let process = run.process(victim);
    send("-KILL", process);
    let lost = run.wait_for("server_lost", 1);
    let event =
        ["server", "process", "successor"].map(|name| lost[name].as_u64().expect("a number"));
    assert_eq!(event, [victim as u64, u64::from(process), successor as u64], "{sets:?}");
    let (folder, output) = run.end();
    let figures = figures(&output);
    if sets.iter().any(|set| set.contains("async")) {
        assert_replayed(&folder, &figures, victim < successor);
    }
    let each = serde_json::json!([[STEPS, STEPS], [STEPS, STEPS]]);
    assert_eq!(figures["acknowledged_by_server"], each, "{sets:?}: acknowledged updates");
    assert_eq!(figures["applied_by_server"], each, "{sets:?}: applied updates");
    assert_eq!(figures["servers_lost"], serde_json::json!([victim]));
    figures
}

/// The requests that workers repeated give the bytes of every worker.
fn assert_replayed(folder: &Folder, figures: &Value, has_lost_primary: bool) {
    let (world, dir) = (real(), folder.path().join("run"));
    let mut decisions = RecordedDecisions::default();
    for stamped in load_events(&world, &dir.join("events.jsonl")).expect("events") {
        if let Event::ServerRequests { repeats, .. } = stamped.event {
            decisions.repeats = repeats;
        }
    }
    assert!(has_lost_primary || decisions.repeats.is_empty(), "{decisions:?}");
    let recipe = RunFolder::started(&dir, &world).and_then(|run| load_recipe(&run, &world));
    let recipe = recipe.expect("a recipe");
    let interconnect = Interconnect::memory(recipe.run.workers);
    let found = wire_replay(&recipe, &blueprint_of_rank(&recipe, 0), &interconnect, &decisions);
    let bytes = figures["wire_bytes_by_rank"].as_array().expect("a list").iter();
    let bytes = bytes.map(|bytes| bytes.as_u64().expect("a number"));
    let exactly = |range: &ByteRange| range.is_exact().then_some(range.low.0);
    assert!(found.iter().map(exactly).eq(bytes.map(Some)), "{found:?} {figures} {decisions:?}");
}

#[test]
fn a_killed_server_loses_no_acknowledged_update() {
    for transport in ["run.transport=shm", "run.transport=tcp"] {
        run_with_killed_server(&["sync.consistency=async", transport], PRIMARY, REPLICA);
        run_with_killed_server(&["sync.consistency=async", transport], REPLICA, PRIMARY);
    }
    run_with_killed_server(&GROUPS, PRIMARY_OF_GROUPS, REPLICA_OF_GROUPS);
    let figures =
        run_with_killed_server(&["sync.consistency=bounded", "sync.staleness=1"], PRIMARY, REPLICA);
    assert!(figures["staleness_max"].as_u64().expect("a number") <= 1, "{figures}");
}

#[test]
fn synchronous_replicas_are_bit_identical_after_a_kill() {
    let (_folder, output) = Run::start(&["sync.consistency=sync"]).end();
    let whole = figures(&output);
    assert_eq!(whole["servers_lost"], serde_json::json!([]));
    for (victim, successor, transport) in [(PRIMARY, REPLICA, "shm"), (REPLICA, PRIMARY, "tcp")] {
        let transport = format!("run.transport={transport}");
        let found =
            run_with_killed_server(&["sync.consistency=sync", &transport], victim, successor);
        for name in ["weights_hash", "losses_hash"] {
            assert_eq!(found[name], whole[name], "{name}, {victim}");
        }
    }
}

#[test]
fn the_loss_of_both_replicas_ends_the_run() {
    let run = Run::start(&["train.steps=100000000", "run.deadline=4"]);
    run.wait_for("step", 3);
    send("-KILL", run.process(PRIMARY));
    run.wait_for("server_lost", 1);
    send("-KILL", run.process(REPLICA));
    let (_folder, output) = run.end();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    let last = last_error(&stderr);
    assert_eq!(last, format!("error: rank {REPLICA} was killed by signal 9 (SIGKILL)"));
}
