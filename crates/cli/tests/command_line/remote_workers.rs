//! Remote workers join and leave a running elastic run. All hosts are this one.

use crate::launch::send;
use crate::process::{Finished, Folder};
use lockstep_platform::{Deadline, World, real};
use serde_json::Value;
use std::process::{Child, Stdio};
use std::time::Duration;

/// Deadline of every wait.
const LIMIT: Duration = Duration::from_mins(2);

const SECRET: &str = "5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2";

const TINY: [&str; 9] = [
    "train",
    "--preset",
    "tiny",
    "--json",
    "--quiet",
    "--set",
    "train.steps=400",
    "--set",
    "train.eval_every=0",
];

/// Settings of a run with one or two workers and slow links.
const SETS: [&str; 10] = [
    "--set",
    "run.workers={min=1,max=2}",
    "--set",
    "checkpoint.every=20",
    "--set",
    "run.transport=tcp",
    "--set",
    "emulate.latency_ms=2",
    "--set",
    "run.dir=run",
];

fn start(folder: &Folder, secret: &str, option: &str, addr: &str) -> Child {
    let mut command = folder.command(&[&TINY[..], &SETS, &[option, addr]].concat());
    command.env("LOCKSTEP_SECRET", secret).env_remove("LOCKSTEP_SECRET_FILE");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts")
}

fn finish(child: Child) -> Finished {
    Finished::new(child.wait_with_output().expect("it ends"))
}

/// An address that was free a moment ago.
fn free_addr(world: &World) -> String {
    world.net().listen("127.0.0.1:0").expect("a port").local_addr()
}

/// Number of workers of each attempt that started training.
fn sizes(world: &World, folder: &Folder) -> Vec<u64> {
    let path = folder.path().join("run/events.jsonl");
    let events = world.files().read_to_string(&path).unwrap_or_default();
    let events = events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let starts = events.filter(|event| event["event"] == "run_started");
    starts.filter_map(|event| event["workers"].as_u64()).collect()
}

fn wait_for_size(world: &World, folder: &Folder, size: u64) {
    let deadline = Deadline::after(world.clock(), LIMIT);
    while sizes(world, folder).last() != Some(&size) {
        assert!(!deadline.has_passed(world.clock()), "never {size}: {:?}", sizes(world, folder));
        world.clock().sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_run_grows_when_a_worker_joins_and_shrinks_when_it_is_lost() {
    let (world, folder) = (real(), Folder::new());
    let whole = Folder::new().json(&[&TINY[..], &["--set", "run.workers=1"]].concat());
    let addr = free_addr(&world);
    // A worker may start before the launcher.
    let first = start(&folder, SECRET, "--join", &addr);
    let run = start(&folder, SECRET, "--listen", &addr);
    let stranger = start(&folder, &SECRET.replace('5', "6"), "--join", &addr);
    wait_for_size(&world, &folder, 2);
    send("-KILL", first.id());
    finish(first);
    wait_for_size(&world, &folder, 1);
    let second = start(&folder, SECRET, "--join", &addr);
    let ended = finish(run);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let summary: Value = serde_json::from_str(&ended.stdout).expect("one JSON value");
    for hash in ["weights_hash", "losses_hash"] {
        assert_eq!(summary[hash], whole[hash], "{}", ended.stderr);
    }
    assert!(ended.stderr.contains("a remote worker joined from 127.0.0.1:"), "{}", ended.stderr);
    assert!(ended.stderr.contains("resuming with 2, not 1"), "{}", ended.stderr);
    assert!(ended.stderr.contains("resuming with 1 workers, not 2"), "{}", ended.stderr);
    assert!(ended.stderr.contains("it does not know the run's secret"), "{}", ended.stderr);
    // The remaining worker either saw the end of the run or never joined.
    send("-TERM", second.id());
    finish(second);
    let stranger = finish(stranger);
    assert_eq!(stranger.code, Some(2), "{}", stranger.stderr);
    assert!(stranger.stderr.contains("the rendezvous host refused: it has another secret"));
}

#[test]
fn a_fixed_size_and_an_unreachable_address_are_refused() {
    let folder = Folder::new();
    for (sets, addr, expected) in [
        ("run.workers=2", "127.0.0.1:0", "needs a range of workers, so that more can join"),
        (
            "run.workers={min=1,max=2}",
            "0.0.0.0:0",
            "is not an address that other hosts can connect to",
        ),
    ] {
        let refused = folder.run(&[&TINY[..], &["--set", sets, "--listen", addr]].concat());
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    }
    assert!(folder.content().is_empty(), "nothing was trained");
}
