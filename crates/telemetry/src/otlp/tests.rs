//! Export to a collector of this process that keeps what it receives.

use std::io::{Read, Write};

use lockstep_platform::Listener;
use serde_json::Value;

use super::*;
use crate::VERSION;

const LONG: Duration = Duration::from_secs(20);

/// Requests of a collector that answers with these statuses, one a connection.
fn collect(listener: &dyn Listener, statuses: &[&str]) -> Vec<(String, Value)> {
    let answer = |status: &&str| {
        let mut stream = listener.accept(LONG).unwrap();
        stream.set_deadline(Some(LONG));
        let (mut bytes, mut block) = (Vec::new(), [0; 700]);
        let (head, body) = loop {
            let read = stream.read(&mut block).unwrap();
            assert!(read > 0, "the request is whole");
            bytes.extend_from_slice(&block[..read]);
            let text = String::from_utf8(bytes.clone()).unwrap();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let len = head.split("Content-Length: ").nth(1).unwrap().lines().next().unwrap();
            if body.len() == len.parse::<usize>().unwrap() {
                break (head.to_owned(), body.to_owned());
            }
        };
        stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).unwrap();
        (head, serde_json::from_str(&body).unwrap())
    };
    statuses.iter().map(answer).collect()
}

fn exporter(world: &World, listener: &dyn Listener) -> Otlp {
    let url = format!("http://{}", listener.local_addr());
    Otlp::start(world, url.parse().unwrap()).unwrap()
}

fn stamped(seconds: f64, event: Event) -> Stamped {
    Stamped { v: VERSION, seconds, rank: 0, event }
}

fn compressed(step: u64, delta: f64) -> Event {
    Event::Compressed { step, delta, residual_norm: 1.0, message_bytes: 2, dense_bytes: 4 }
}

/// Points of a metric of a request.
fn points(request: &Value, name: &str) -> Vec<Value> {
    let metrics = &request["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
    let metrics = metrics.as_array().unwrap();
    let metric = metrics.iter().find(|metric| metric["name"] == name).unwrap();
    metric["gauge"]["dataPoints"].as_array().unwrap().clone()
}

#[test]
fn a_collector_receives_every_number_with_its_step() {
    let world = lockstep_platform::real();
    let listener = world.net().listen("127.0.0.1:0").unwrap();
    let mut exporter = exporter(&world, &*listener);
    for (step, delta) in [(1, 0.5), (2, f64::NAN)] {
        exporter.write(&stamped(step as f64, compressed(step, delta))).unwrap();
    }
    let staleness = Event::Staleness { step: 2, worker: 3, mean: 1.5, max: 4, counts: vec![] };
    exporter.write(&stamped(2.0, staleness)).unwrap();
    // A status that passes is retried with the same body.
    let requests = collect(&*listener, &["503 Service Unavailable", "200 OK"]);
    assert_eq!(requests[0].1, requests[1].1);
    let (head, request) = &requests[1];
    assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: application/json\r\n"), "{head}");
    let found = points(request, "lockstep.compression.delta");
    assert_eq!(found[0]["asDouble"], 0.5);
    assert_eq!(found[1]["asDouble"], "NaN");
    assert_eq!(found[1]["attributes"][0]["value"]["intValue"], "2");
    let nanos = |point: &Value| point["timeUnixNano"].as_str().unwrap().parse::<u64>().unwrap();
    assert_eq!(nanos(&found[1]) - nanos(&found[0]), 1_000_000_000);
    let worker = &points(request, "lockstep.sync.staleness_mean")[0]["attributes"][1];
    assert_eq!((&worker["key"], &worker["value"]["stringValue"]), (&"worker".into(), &"3".into()));
    let attributes = &request["resourceMetrics"][0]["resource"]["attributes"];
    assert_eq!(attributes[0]["value"]["stringValue"], "lockstep");
    assert_eq!(lock(&exporter.shared).num_failures, 0);
}

#[test]
fn what_is_left_is_posted_at_the_end() {
    let world = lockstep_platform::real();
    let listener = world.net().listen("127.0.0.1:0").unwrap();
    let mut exporter = exporter(&world, &*listener);
    exporter.write(&stamped(1.0, compressed(1, 0.25))).unwrap();
    let ended = world.threads().spawn("end", Box::new(move || drop(exporter))).unwrap();
    let requests = collect(&*listener, &["200 OK"]);
    ended.join().unwrap();
    assert_eq!(points(&requests[0].1, "lockstep.compression.delta")[0]["asDouble"], 0.25);
}

#[test]
fn a_full_queue_drops_its_oldest_numbers() {
    let world = lockstep_platform::real();
    // Nothing answers.
    let listener = world.net().listen("127.0.0.1:0").unwrap();
    let mut exporter = exporter(&world, &*listener);
    let num_events = 2 * MAX_POINTS as u64;
    for step in 0..num_events {
        exporter.write(&stamped(step as f64, compressed(step, 0.5))).unwrap();
    }
    let shared = lock(&exporter.shared);
    assert!(shared.points.len() <= MAX_POINTS);
    assert!(shared.num_dropped > 0);
    assert_eq!(shared.points.back().unwrap().step, num_events - 1);
}

#[test]
fn a_collector_that_refuses_disables_the_sink_with_a_reason() {
    let world = lockstep_platform::real();
    let listener = world.net().listen("127.0.0.1:0").unwrap();
    let mut exporter = exporter(&world, &*listener);
    {
        let mut shared = lock(&exporter.shared);
        shared.num_failures = MAX_FAILURES - 1;
    }
    exporter.write(&stamped(1.0, compressed(1, 0.5))).unwrap();
    // A status that stays is not retried.
    assert_eq!(collect(&*listener, &["404 Not Found"]).len(), 1);
    let deadline = lockstep_platform::Deadline::after(world.clock(), LONG);
    while lock(&exporter.shared).num_failures < MAX_FAILURES {
        assert!(!deadline.has_passed(world.clock()), "the failure is counted");
        world.clock().sleep(Duration::from_millis(1));
    }
    let error = exporter.write(&stamped(2.0, compressed(2, 0.5))).unwrap_err().to_string();
    assert!(error.ends_with("/v1/metrics: 5 batches in a row are lost: status 404"), "{error}");
}
