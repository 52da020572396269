//! Parameter servers as processes.

use crate::launch::{Running, send};
use crate::process::{Folder, last_error};
use lockstep_platform::real;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

fn train<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["train", "--preset", "tiny", "--json", "--quiet"];
    for set in [&["sync.mode=parameter-server"], sets].concat() {
        arguments.extend(["--set", set]);
    }
    arguments
}

#[test]
fn servers_are_processes_listed_in_the_event_log() {
    let folder = Folder::new();
    let sets = ["run.workers=2", "sync.servers=2", "train.steps=6", "run.dir=served"];
    let figures = folder.json(&train(&sets));
    assert_eq!((&figures["servers"], &figures["workers"]), (&Value::from(2), &Value::from(2)));
    let events = String::from_utf8(folder.read("served/events.jsonl")).expect("text");
    let joined: Value = events
        .lines()
        .map(|line| serde_json::from_str(line).expect("an event"))
        .find(|event: &Value| event["event"] == "servers_joined")
        .expect("an event");
    let processes = ["worker_processes", "server_processes"].map(|name| joined[name].clone());
    let numbers = processes.iter().flat_map(|list| list.as_array().expect("a list"));
    let different: BTreeSet<u64> = numbers.map(|number| number.as_u64().expect("one")).collect();
    assert_eq!(different.len(), 4, "{joined}");
    let pushes = figures["staleness_by_rank"].as_array().expect("by worker").iter();
    let pushes: u64 = pushes
        .flat_map(|counts| counts.as_object().expect("counts").values())
        .map(|count| count.as_u64().expect("a number"))
        .sum();
    assert_eq!(pushes, 12, "two workers, six steps");
}

#[test]
fn synchronous_servers_are_bit_identical_over_every_transport() {
    let folder = Folder::new();
    let hash = |sets: &[&str]| {
        let lockstep = ["sync.consistency=sync", "optim.clip=0", "train.steps=3"];
        folder.json(&train(&[&lockstep, sets].concat()))["weights_hash"].clone()
    };
    let shared = hash(&["run.workers=2"]);
    assert_eq!(hash(&["run.workers=2", "run.transport=tcp", "sync.servers=2"]), shared);
    assert_eq!(hash(&["run.workers=2", "run.isolation=threads"]), shared);
}

#[test]
fn a_lost_worker_of_a_group_is_named() {
    for (signal, consistency) in [("-STOP", "async"), ("-STOP", "sync"), ("-KILL", "async")] {
        let folder = Folder::new();
        let consistency = format!("sync.consistency={consistency}");
        let groups = ["run.workers=4", "sync.group_workers=2", "run.deadline=2"];
        let sets = [&["sync.mode=parameter-server", consistency.as_str()], &groups[..]].concat();
        let run = Running::start(&folder, &sets);
        send(signal, run.worker(3));
        let (status, stderr) = run.end();
        assert_eq!(status.code(), Some(3), "{signal}, {consistency}: {stderr}");
        let last = last_error(&stderr);
        assert!(last.contains("rank 3"), "{signal}, {consistency}: {stderr}");
    }
}

#[test]
fn a_server_that_is_frozen_or_killed_is_named() {
    // Workers notice after the deadline and agree on the rank; the launcher then waits three
    // seconds for their errors. A busy machine may take several times as long.
    let limit = 4 * (Duration::from_secs(2) + Duration::from_secs(1) + Duration::from_secs(3));
    let world = real();
    for (signal, transport) in [("-STOP", "shm"), ("-STOP", "tcp"), ("-KILL", "auto")] {
        let folder = Folder::new();
        let run = Running::start(
            &folder,
            &[
                "sync.mode=parameter-server",
                "sync.servers=2",
                "run.workers=2",
                "run.deadline=2",
                &format!("run.transport={transport}"),
            ],
        );
        let began = world.clock().now();
        send(signal, run.worker(3));
        let (status, stderr) = run.end();
        let took = world.clock().since(began);
        assert!(took < limit, "{signal}, {transport}: {took:?}, {stderr}");
        assert_eq!(status.code(), Some(3), "{signal}, {transport}: {stderr}");
        let last = last_error(&stderr);
        assert!(last.contains("rank 3"), "{signal}, {transport}: {stderr}");
    }
}
