//! Conformance checks of streams.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use super::Row;
use crate::{Listener, NetAction, Stream, World};

pub(super) const CHECKS: &[Row] = &[
    ("bytes cross a stream in both directions", bytes_cross_in_both_directions),
    ("a large message arrives whole", large_message_arrives_whole),
    ("accepting ends with its time limit", accept_times_out),
    ("an address without a listener refuses", connect_is_refused),
    ("reading ends with the deadline and resumes after a new one", read_times_out),
    ("a peer that drips bytes cannot outlast the deadline", dripping_does_not_extend),
    ("writing to a peer that does not read ends with the deadline", write_times_out),
    ("a closed stream reads as ended", closed_stream_reads_as_ended),
    ("shutting down wakes a reader on another handle", shutdown_wakes_reader),
    ("both ends know each other's address", ends_know_addresses),
    ("keep-alive does not affect a responsive peer", keepalive_spares_a_responsive_peer),
];

pub(super) const LIMIT: Duration = Duration::from_secs(20);
pub(super) const SHORT: Duration = Duration::from_millis(5);

pub(super) fn listen(world: &World) -> Box<dyn Listener> {
    world.net().listen("127.0.0.1:0").expect("a free port can be had")
}

/// Both ends of a new stream, with a deadline so that no check can hang.
pub(super) fn pair(world: &World) -> (Box<dyn Stream>, Box<dyn Stream>) {
    let listener = listen(world);
    let mut local =
        world.net().connect(&listener.local_addr(), LIMIT).expect("the listener is open");
    let mut remote = listener.accept(LIMIT).expect("a peer connected");
    for stream in [&mut local, &mut remote] {
        stream.set_deadline(Some(LIMIT));
        stream.set_nodelay(true).expect("a fresh stream can be configured");
    }
    (local, remote)
}

fn bytes_cross_in_both_directions(world: &World, _dir: &Path) {
    let (mut local, mut remote) = pair(world);
    let mut buffer = [0; 5];
    local.write_all(b"hello").expect("the stream is open");
    remote.read_exact(&mut buffer).expect("the bytes were sent");
    assert_eq!(&buffer, b"hello");
    remote.write_all(b"world").expect("the stream is open");
    local.read_exact(&mut buffer).expect("the bytes were sent");
    assert_eq!(&buffer, b"world");
}

fn large_message_arrives_whole(world: &World, _dir: &Path) {
    let (mut local, mut remote) = pair(world);
    let message: Vec<u8> = (0..4_000_000_u32).map(|i| (i % 251) as u8).collect();
    let sent = message.clone();
    let body = Box::new(move || local.write_all(&sent).expect("the reader keeps up"));
    let sender = world.threads().spawn("sender", body).expect("a thread can be had");
    let mut received = vec![0; message.len()];
    remote.read_exact(&mut received).expect("all bytes were sent");
    sender.join().expect("it does not panic");
    assert!(received == message, "the bytes changed on the way");
}

fn accept_times_out(world: &World, _dir: &Path) {
    let listener = listen(world);
    let start = world.clock().now();
    let error = listener.accept(SHORT).err().expect("no peer connects");
    assert_eq!((error.kind(), error.action()), (ErrorKind::TimedOut, NetAction::Accept));
    assert!(world.clock().since(start) >= SHORT);
}

fn connect_is_refused(world: &World, _dir: &Path) {
    let listener = listen(world);
    let addr = listener.local_addr();
    drop(listener);
    let error = world.net().connect(&addr, LIMIT).err().expect("the listener is gone");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(error.to_string(), format!("cannot connect to {addr}: connection refused"));
}

fn read_times_out(world: &World, _dir: &Path) {
    let (mut local, mut remote) = pair(world);
    let start = world.clock().now();
    remote.set_deadline(Some(SHORT));
    let error = remote.read(&mut [0; 1]).expect_err("nothing was sent");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(world.clock().since(start) >= SHORT);

    local.write_all(b"x").expect("the stream is open");
    remote.set_deadline(Some(LIMIT));
    assert_eq!(remote.read(&mut [0; 1]).expect("a byte was sent"), 1);
}

fn dripping_does_not_extend(world: &World, _dir: &Path) {
    let (mut local, mut remote) = pair(world);
    let deadline = Duration::from_millis(40);
    remote.set_deadline(Some(deadline));
    let start = world.clock().now();
    let clock = std::sync::Arc::clone(world);
    let body = Box::new(move || {
        // Ends when the reader is gone and the stream breaks.
        for _ in 0..4000 {
            if local.write_all(b"x").is_err() {
                break;
            }
            clock.clock().sleep(SHORT);
        }
    });
    let dripper = world.threads().spawn("dripper", body).expect("a thread can be had");
    let error = remote.read_exact(&mut vec![0; 100_000]).expect_err("the message never ends");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let waited = world.clock().since(start);
    assert!(waited >= deadline && waited < LIMIT, "waited {waited:?}");
    remote.shutdown().expect("the stream can be ended");
    drop(remote);
    dripper.join().expect("it does not panic");
}

fn write_times_out(world: &World, _dir: &Path) {
    let (mut local, remote) = pair(world);
    local.set_deadline(Some(Duration::from_millis(20)));
    let error = local.write_all(&vec![0; 64 << 20]).expect_err("the peer does not read");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    drop(remote);
}

fn closed_stream_reads_as_ended(world: &World, _dir: &Path) {
    let (mut local, mut remote) = pair(world);
    local.write_all(b"last").expect("the stream is open");
    local.shutdown().expect("an open stream can be ended");
    local.shutdown().expect("ending it twice is fine");
    let mut rest = Vec::new();
    remote.read_to_end(&mut rest).expect("the end is not an error");
    assert_eq!(rest, b"last");
}

fn shutdown_wakes_reader(world: &World, _dir: &Path) {
    let (local, remote) = pair(world);
    let mut reading = local.try_clone().expect("a second handle can be had");
    let body = Box::new(move || {
        let num_bytes = reading.read(&mut [0; 1]).expect("the end is not an error");
        assert_eq!(num_bytes, 0);
    });
    let reader = world.threads().spawn("reader", body).expect("a thread can be had");
    local.shutdown().expect("an open stream can be ended");
    assert!(reader.finished_within(LIMIT), "the reader still waits");
    reader.join().expect("the reader saw the end");
    drop(remote);
}

fn ends_know_addresses(world: &World, _dir: &Path) {
    let (local, remote) = pair(world);
    assert_eq!(local.local_addr(), remote.peer_addr());
    assert_eq!(remote.local_addr(), local.peer_addr());
}

fn keepalive_spares_a_responsive_peer(world: &World, _dir: &Path) {
    let (mut local, mut remote) = pair(world);
    local.set_keepalive_timeout(Duration::from_secs(1)).expect("a limit can be set");
    remote.write_all(b"x").expect("the stream is open");
    assert_eq!(local.read(&mut [0; 1]).expect("the peer is there"), 1);
}
