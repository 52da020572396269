//! Weights on servers, which are processes of their own.

use crate::launch::{Running, send};
use crate::process::Folder;
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
fn servers_are_processes_and_the_run_tells_which() {
    let folder = Folder::new();
    let sets = ["run.workers=2", "sync.servers=2", "train.steps=6", "run.dir=served"];
    let figures = folder.json(&train(&sets));
    assert_eq!((&figures["servers"], &figures["workers"]), (&Value::from(2), &Value::from(2)));
    let events = String::from_utf8(folder.read("served/events.jsonl")).expect("text");
    let joined: Value = events
        .lines()
        .map(|line| serde_json::from_str(line).expect("an event"))
        .find(|event: &Value| event["event"] == "servers_joined")
        .expect("it is told");
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
fn every_transport_and_isolation_serves_the_same_bits_in_lockstep() {
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
fn a_worker_that_keeps_its_group_from_servers_is_named() {
    for (signal, consistency) in [("-STOP", "async"), ("-STOP", "sync"), ("-KILL", "async")] {
        let folder = Folder::new();
        let consistency = format!("sync.consistency={consistency}");
        let groups = ["run.workers=4", "sync.group_workers=2", "run.deadline=2"];
        let sets = [&["sync.mode=parameter-server", consistency.as_str()], &groups[..]].concat();
        let run = Running::start(&folder, &sets);
        send(signal, run.worker(3));
        let (status, words) = run.end();
        assert_eq!(status.code(), Some(3), "{signal}, {consistency}: {words}");
        let last = words.lines().last().expect("it says why");
        assert!(last.contains("rank 3"), "{signal}, {consistency}: {words}");
    }
}

#[test]
fn a_server_that_is_frozen_or_killed_is_named() {
    // Workers notice after the deadline, settle on who it is, and the launcher then gives them
    // three seconds to say so. A machine with other things to do may take some times as long.
    let most = 4 * (Duration::from_secs(2) + Duration::from_secs(1) + Duration::from_secs(3));
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
        let (status, words) = run.end();
        let took = world.clock().since(began);
        assert!(took < most, "{signal}, {transport}: {took:?}, {words}");
        assert_eq!(status.code(), Some(3), "{signal}, {transport}: {words}");
        let last = words.lines().last().expect("it says why");
        assert!(last.contains("rank 3"), "{signal}, {transport}: {words}");
    }
}
