//! Killed workers are restarted, and the result is bit-identical to an undisturbed run.

use crate::launch::{send, send_all};
use crate::process::Folder;
use lockstep_conformance::cases::{Random, select_cases};
use lockstep_platform::{Deadline, World, real};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// Deadline of every wait.
const LIMIT: Duration = Duration::from_mins(2);

const STEPS: u64 = 60;

fn arguments(sets: &[String]) -> Vec<String> {
    let steps = format!("train.steps={STEPS}");
    let all = [steps.as_str(), "train.eval_every=0", "run.dir=run"];
    let sets = all.into_iter().chain(sets.iter().map(String::as_str));
    let fixed = ["train", "--preset", "tiny", "--json", "--quiet"].map(str::to_owned);
    fixed.into_iter().chain(sets.flat_map(|set| ["--set".to_owned(), set.to_owned()])).collect()
}

/// Summary of an undisturbed run.
fn undisturbed() -> Value {
    let arguments = arguments(&["run.workers=1".to_owned()]);
    Folder::new().json(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Polls until a value is present.
fn wait_for<T>(world: &World, what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Deadline::after(world.clock(), LIMIT);
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(!deadline.has_passed(world.clock()), "{what} does not happen");
        world.clock().sleep(Duration::from_millis(1));
    }
}

/// Number of steps in the event log.
fn steps_done(world: &World, run: &Path) -> u64 {
    let text = world.files().read_to_string(&run.join("events.jsonl")).unwrap_or_default();
    text.matches("\"event\":\"step\"").count() as u64
}

/// Process id of a rank among the children of a launcher.
fn worker(world: &World, launcher: u32, rank: usize) -> Option<u32> {
    let read = |path: String| world.files().read(&PathBuf::from(path)).ok();
    let list = read(format!("/proc/{launcher}/task/{launcher}/children"))?;
    let list = String::from_utf8(list).ok()?;
    let own = format!("RANK={rank}");
    let is_rank = |pid: &u32| {
        let environment = read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == own.as_bytes())
    };
    list.split_whitespace().filter_map(|number| number.parse().ok()).find(is_rank)
}

fn start(folder: &Folder, sets: &[String]) -> Child {
    let arguments = arguments(sets);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let mut command = folder.command(&arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

#[test]
fn a_run_with_killed_workers_is_bit_identical() {
    let world = real();
    let whole = undisturbed();
    for seed in select_cases(&world, 100, 5) {
        let mut random = Random(seed);
        let pipeline = 1 + random.below(2);
        let workers = pipeline * (1 + random.below(3 - pipeline));
        let victim = random.below(workers);
        let (after, every) = (1 + random.below(STEPS as usize / 2) as u64, 1 + random.below(8));
        let sets = [
            format!("run.workers={workers}"),
            "run.restarts=3".to_owned(),
            format!("checkpoint.every={every}"),
            format!("parallel.pipeline={pipeline}"),
            format!("parallel.zero={}", random.below(4)),
            format!("run.transport={}", ["auto", "tcp"][random.below(2)]),
        ];
        let case = format!("seed {seed}: rank {victim} after {after} steps, {sets:?}");
        let folder = Folder::new();
        let run = start(&folder, &sets);
        let dir = folder.path().join("run");
        wait_for(&world, &case, || (steps_done(&world, &dir) >= after).then_some(()));
        let pid = wait_for(&world, &case, || worker(&world, run.id(), victim));
        send("-KILL", pid);
        let ended = run.wait_with_output().expect("it was started");
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(0), "{case}: {stderr}");
        let summary: Value = serde_json::from_slice(&ended.stdout).expect("one JSON value");
        assert_eq!(summary["restarts"], 1, "{case}: {stderr}");
        for hash in ["weights_hash", "losses_hash"] {
            assert_eq!(summary[hash], whole[hash], "{case}");
        }
        assert!(stderr.contains("restarting all workers (1 of 3)"), "{case}: {stderr}");
        // The newest checkpoint may have been incomplete, but the one before it was not.
        let events = String::from_utf8(folder.read("run/events.jsonl")).expect("text");
        let is_restored = events.contains("\"event\":\"restored\"");
        assert!(is_restored || after <= 2 * every as u64, "{case}: {events}");
    }
}

/// Methods with state per worker: outer momentum, error feedback.
const STATEFUL: [&[&str]; 4] = [
    &["sync.mode=local-sgd", "sync.local_steps=4", "sync.outer=nesterov"],
    &["compress.method=top-k", "compress.ratio=0.05"],
    &["compress.method=one-bit-adam", "compress.warmup_steps=10", "optim.clip=0"],
    &["compress.method=dgc", "compress.ratio=0.02", "optim.name=sgd", "optim.lr=0.1"],
];

/// Drift of every local-SGD round, or compression error of every step.
fn measured(events: &str) -> Vec<(u64, String)> {
    let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let of = |event: Value| {
        let name = match event["event"].as_str()? {
            "round_finished" => "drift",
            "compressed" => "delta",
            _ => return None,
        };
        Some((event["step"].as_u64()?, event[name].to_string()))
    };
    events.filter_map(of).collect()
}

#[test]
fn state_per_worker_survives_a_kill() {
    let world = real();
    for seed in select_cases(&world, 26, 2) {
        let mut random = Random(seed);
        let (method, victim) = (STATEFUL[seed as usize % STATEFUL.len()], random.below(3));
        let (after, every) = (5 + random.below(STEPS as usize / 2) as u64, 1 + random.below(5));
        let restarts = if (seed as usize / STATEFUL.len()).is_multiple_of(2) { 3 } else { 0 };
        let sets = [
            "run.workers=3".to_owned(),
            format!("checkpoint.every={every}"),
            format!("run.restarts={restarts}"),
            // Slow steps on any machine.
            "emulate.microbatch_ms=5".to_owned(),
        ];
        let sets: Vec<_> =
            sets.into_iter().chain(method.iter().map(|set| (*set).to_owned())).collect();
        let case = format!("seed {seed}: rank {victim} after {after} steps, {sets:?}");
        let undisturbed = Folder::new();
        let all = arguments(&sets);
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let whole = undisturbed.json(&all);
        let folder = Folder::new();
        let run = start(&folder, &sets);
        let dir = folder.path().join("run");
        wait_for(&world, &case, || (steps_done(&world, &dir) >= after).then_some(()));
        let is_complete = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-"))
        };
        let list = || world.files().list(&dir.join("checkpoints")).unwrap_or_default();
        wait_for(&world, &case, || list().iter().any(is_complete).then_some(()));
        send("-KILL", wait_for(&world, &case, || worker(&world, run.id(), victim)));
        let ended = run.wait_with_output().expect("it was started");
        let stderr = String::from_utf8_lossy(&ended.stderr);
        let mut last = "run";
        let summary = if restarts > 0 {
            assert_eq!(ended.status.code(), Some(0), "{case}: {stderr}");
            serde_json::from_slice(&ended.stdout).expect("one JSON value")
        } else {
            assert_eq!(ended.status.code(), Some(3), "{case}: {stderr}");
            last = "rest";
            let more = ["--resume", "run", "--set", "run.dir=rest"];
            folder.json(&[&all[..], &more].concat())
        };
        for hash in ["weights_hash", "losses_hash"] {
            assert_eq!(summary[hash], whole[hash], "{case}");
        }
        let read = |folder: &Folder, name: &str| {
            measured(
                &String::from_utf8(folder.read(&format!("{name}/events.jsonl"))).expect("text"),
            )
        };
        let (expected, found) = (read(&undisturbed, "run"), read(&folder, last));
        assert!(!found.is_empty(), "{case}");
        assert!(found.iter().all(|pair| expected.contains(pair)), "{case}: {found:?}");
    }
}

#[test]
fn a_run_saves_a_checkpoint_on_sigterm() {
    let world = real();
    let whole = undisturbed();
    for workers in [1, 2] {
        let folder = Folder::new();
        let sets = [format!("run.workers={workers}"), "checkpoint.every=1000".to_owned()];
        let run = start(&folder, &sets);
        let dir = folder.path().join("run");
        wait_for(&world, "a step", || (steps_done(&world, &dir) >= 2).then_some(()));
        send("-TERM", run.id());
        let ended = run.wait_with_output().expect("it was started");
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(143), "{stderr}");
        let count = stderr.matches("ended on request after step").count();
        assert_eq!(count, 1, "{stderr}");
        let more = ["--resume", "run", "--set", "run.dir=rest", "--set", "run.workers=2"];
        let more = arguments(&[]).into_iter().chain(more.map(str::to_owned));
        let more: Vec<_> = more.collect();
        let rest = folder.json(&more.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(rest["weights_hash"], whole["weights_hash"], "{stderr}");
    }
}

#[test]
fn permanent_failures_are_not_retried() {
    let folder = Folder::new();
    // A folder blocks the checkpoint shard of rank 0 in both attempts.
    for attempt in [1, 2] {
        let part = format!("place/.step-00000002.g{attempt}.partial/rank-0000.safetensors");
        folder.write(&format!("{part}/a folder"), b"");
    }
    let run = |sets: &[&str]| {
        let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
        let arguments = arguments(&sets);
        folder.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let refused = run(&["run.restarts=1", "run.isolation=threads"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("run.restarts = 1 cannot restart threads"));
    // A storage failure is retried; if it persists, the run ends with exit code 4.
    let full = run(&["run.restarts=1", "checkpoint.every=2", "checkpoint.dir=place"]);
    assert_eq!(full.code, Some(4), "{}", full.stderr);
    assert!(full.stderr.contains("the checkpoint of step 2 was not written"), "{}", full.stderr);
    assert!(full.stderr.contains("restarting all workers (1 of 1)"), "{}", full.stderr);
}

/// Number of workers of each attempt that started training.
fn sizes(events: &str) -> Vec<u64> {
    let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let starts = events.filter(|event| event["event"] == "run_started");
    starts.filter_map(|event| event["workers"].as_u64()).collect()
}

#[test]
fn an_elastic_run_shrinks_and_grows_back_bit_for_bit() {
    let world = real();
    let steps = "train.steps=300".to_owned();
    let whole = {
        let arguments = arguments(&[steps.clone(), "run.workers=1".to_owned()]);
        Folder::new().json(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    for seed in select_cases(&world, 30, 1) {
        let mut random = Random(seed);
        let pipeline = 1 + random.below(2);
        let after = 1 + random.below(60) as u64;
        let (first, distance) = (random.below(4), 1 + random.below(3));
        let victims = [first, (first + distance) % 4];
        let sets = [
            steps.clone(),
            "run.workers={min=2,max=4}".to_owned(),
            // Workers rejoin on a signal only.
            "run.rejoin=10000".to_owned(),
            format!("checkpoint.every={}", 1 + random.below(20)),
            format!("parallel.pipeline={pipeline}"),
            format!("parallel.zero={}", random.below(4)),
            // Slow steps on any machine.
            "run.transport=tcp".to_owned(),
            "emulate.latency_ms=2".to_owned(),
        ];
        let case = format!("seed {seed}: ranks {victims:?} after {after} steps, {sets:?}");
        let folder = Folder::new();
        let run = start(&folder, &sets);
        let dir = folder.path().join("run");
        wait_for(&world, &case, || (steps_done(&world, &dir) >= after).then_some(()));
        let pids =
            victims.map(|victim| wait_for(&world, &case, || worker(&world, run.id(), victim)));
        // One worker of a pipeline is enough: its replica is lost with it. A stopped worker cannot
        // exit before the kill.
        let pids = &pids[..3 - pipeline];
        send_all("-STOP", pids);
        send_all("-KILL", pids);
        let attempts = || {
            let events = world.files().read_to_string(&dir.join("events.jsonl"));
            sizes(&events.unwrap_or_default())
        };
        wait_for(&world, &case, || (attempts().last() == Some(&2)).then_some(()));
        send("-USR1", run.id());
        let ended = run.wait_with_output().expect("it was started");
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(0), "{case}: {stderr}");
        let summary: Value = serde_json::from_slice(&ended.stdout).expect("one JSON value");
        for hash in ["weights_hash", "losses_hash"] {
            assert_eq!(summary[hash], whole[hash], "{case}");
        }
        let events = String::from_utf8(folder.read("run/events.jsonl")).expect("text");
        assert_eq!(sizes(&events), [4, 2, 4], "{case}: {stderr}");
        assert!(
            stderr.contains("its slot is unavailable: resuming with 2 workers, not 4"),
            "{stderr}"
        );
        assert!(stderr.contains("more workers can be started: resuming with"), "{stderr}");
    }
}

#[test]
fn a_run_with_too_few_workers_left_fails_and_names_the_lost_one() {
    let world = real();
    let folder = Folder::new();
    let sets = ["run.workers={min=2,max=2}", "train.steps=100000", "checkpoint.every=5"];
    let run = start(&folder, &sets.map(str::to_owned));
    let dir = folder.path().join("run");
    wait_for(&world, "a step", || (steps_done(&world, &dir) >= 2).then_some(()));
    send("-KILL", wait_for(&world, "rank 1", || worker(&world, run.id(), 1)));
    let ended = run.wait_with_output().expect("it was started");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("error: rank 1 was killed by signal 9"), "{stderr}");
}

#[test]
fn a_drill_kills_workers_and_finds_the_same_bits() {
    let folder = Folder::new();
    let report = folder.json(&[
        "drill",
        "--preset",
        "tiny",
        "--set",
        "train.steps=80",
        "--kills",
        "2",
        "--seed=3",
        "--quiet",
        "--json",
    ]);
    assert_eq!((&report["same_weights"], &report["same_losses"]), (&true.into(), &true.into()));
    let kills = report["kills"].as_array().expect("a list");
    assert_eq!(Some(kills.len() as u64), report["restarts"].as_u64(), "{report}");
    assert!(!kills.is_empty(), "{report}");
    assert!(kills.iter().all(|kill| kill["recovery_seconds"].as_f64() > Some(0.0)), "{report}");
    let repeated = folder.run(&["drill", "--preset", "tiny"]);
    assert_eq!(repeated.code, Some(2));
    assert!(repeated.stderr.contains("drill exists already; choose another --out"), "{repeated:?}");
}

#[test]
fn a_drill_with_absent_workers_finds_the_same_bits() {
    let folder = Folder::new();
    let report = folder.json(&[
        "drill",
        "--preset",
        "tiny",
        "--set=train.steps=150",
        "--set=run.workers=3",
        "--set=run.transport=tcp",
        "--set=emulate.latency_ms=2",
        "--gone=1",
        "--quiet",
        "--json",
    ]);
    assert_eq!((&report["same_weights"], &report["same_losses"]), (&true.into(), &true.into()));
    let sizes: Vec<_> = report["workers"].as_array().into_iter().flatten().collect();
    assert_eq!((sizes[0].as_u64(), sizes[1].as_u64()), (Some(3), Some(2)), "{report}");
    let too_many = folder.run(&["drill", "--preset", "tiny", "--gone", "2", "--out", "other"]);
    assert_eq!(too_many.code, Some(2), "{}", too_many.stderr);
    assert!(too_many.stderr.contains("--gone 2 leaves no worker of run.workers = 2; try 1"));
    assert!(!folder.path().join("other").exists(), "nothing was trained");
}
