//! Scrapes of a real endpoint: the page, bad requests, and many idle connections.

use std::io::{Read, Write};
use std::time::Duration;

use lockstep_platform::{Stream, World};

use super::*;
use crate::VERSION;

const LONG: Duration = Duration::from_secs(20);

fn stamped(event: Event) -> Stamped {
    Stamped { v: VERSION, seconds: 1.0, rank: 0, event }
}

fn connect(world: &World, endpoint: &Prometheus) -> Box<dyn Stream> {
    let mut stream = world.net().connect(endpoint.addr(), LONG).unwrap();
    stream.set_deadline(Some(LONG));
    stream
}

fn request(world: &World, endpoint: &Prometheus, text: &str) -> String {
    let mut stream = connect(world, endpoint);
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn status(answer: &str) -> &str {
    answer.lines().next().unwrap()
}

#[test]
fn a_scrape_has_the_newest_value_of_every_metric() {
    let world = lockstep_platform::real();
    let mut endpoint = Prometheus::listen(&world, "127.0.0.1:0").unwrap();
    for (step, distance) in [(10, 2.0), (20, 0.5)] {
        let event = Event::Consensus { step, distance, distance_max: 3.0, distance_max_rank: 1 };
        endpoint.write(&stamped(event)).unwrap();
    }
    for (worker, mean) in [(0, 1.5), (1, f64::INFINITY)] {
        let event = Event::Staleness { step: 20, worker, mean, max: 4, counts: vec![] };
        endpoint.write(&stamped(event)).unwrap();
    }
    let answer = request(&world, &endpoint, "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(status(head), "HTTP/1.1 200 OK");
    assert!(head.contains(&format!("Content-Length: {}\r\n", page.len())), "{head}");
    assert_eq!(
        page,
        "# HELP lockstep_run_info Identity of the run.\n\
         # TYPE lockstep_run_info gauge\n\
         lockstep_run_info 1\n\
         # HELP lockstep_steps_total Completed steps.\n\
         # TYPE lockstep_steps_total counter\n\
         lockstep_steps_total 0\n\
         # HELP lockstep_skipped_steps_total Steps of this attempt without an update.\n\
         # TYPE lockstep_skipped_steps_total counter\n\
         lockstep_skipped_steps_total 0\n\
         # HELP lockstep_sync_consensus_distance Mean squared distance of local weights from their \
         average.\n\
         # TYPE lockstep_sync_consensus_distance gauge\n\
         lockstep_sync_consensus_distance 0.5\n\
         # HELP lockstep_sync_staleness_mean Mean staleness of the applied gradients of a worker.\n\
         # TYPE lockstep_sync_staleness_mean gauge\n\
         lockstep_sync_staleness_mean{worker=\"0\"} 1.5\n\
         lockstep_sync_staleness_mean{worker=\"1\"} +Inf\n\
         # HELP lockstep_sync_staleness_max Maximum staleness of the applied gradients of a \
         worker.\n\
         # TYPE lockstep_sync_staleness_max gauge\n\
         lockstep_sync_staleness_max{worker=\"0\"} 4\n\
         lockstep_sync_staleness_max{worker=\"1\"} 4\n"
    );
}

#[test]
fn labels_are_escaped() {
    let mut labels = String::new();
    push_label(&mut labels, "task", "a\"b\\c\nd");
    push_label(&mut labels, "score", "acc");
    assert_eq!(labels, "task=\"a\\\"b\\\\c\\nd\",score=\"acc\"");
}

#[test]
fn other_requests_are_refused() {
    let world = lockstep_platform::real();
    let endpoint = Prometheus::listen(&world, "127.0.0.1:0").unwrap();
    for (text, expected) in [
        ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        ("GET /metrics\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        ("\r\n\r\n", "HTTP/1.1 400 Bad Request"),
        (
            &format!("GET /{} HTTP/1.1\r\n", "x".repeat(8200)),
            "HTTP/1.1 431 Request Header Fields \
         Too Large",
        ),
    ] {
        assert_eq!(status(&request(&world, &endpoint, text)), expected, "{text:?}");
    }
}

#[test]
fn a_scrape_is_answered_beside_a_hundred_idle_connections() {
    let world = lockstep_platform::real();
    let mut endpoint = Prometheus::listen(&world, "127.0.0.1:0").unwrap();
    let idle: Vec<_> = (0..100).map(|_| connect(&world, &endpoint)).collect();
    let start = world.clock().now();
    for step in 0..1000 {
        let event =
            Event::Consensus { step, distance: 1.0, distance_max: 1.0, distance_max_rank: 0 };
        endpoint.write(&stamped(event)).unwrap();
    }
    let answer = request(&world, &endpoint, "GET /metrics HTTP/1.1\r\n\r\n");
    assert_eq!(status(&answer), "HTTP/1.1 200 OK");
    let taken = world.clock().since(start);
    assert!(
        taken < server::CONNECTION_TIME,
        "{taken:?} waits for the deadline of idle connections"
    );
    drop(idle);
}

#[test]
fn a_request_in_single_bytes_is_answered_and_a_taken_port_is_an_error() {
    let world = lockstep_platform::real();
    let endpoint = Prometheus::listen(&world, "127.0.0.1:0").unwrap();
    let mut stream = connect(&world, &endpoint);
    for byte in b"GET /metrics HTTP/1.0\r\n\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(status(&answer), "HTTP/1.1 200 OK");
    let error = Prometheus::listen(&world, endpoint.addr()).err().unwrap().to_string();
    assert!(error.starts_with("cannot write events to Prometheus at 127.0.0.1:"), "{error}");
}
