//! Promises of streams.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use super::Row;
use crate::{Listener, NetAction, Stream, World};

pub(super) const CHECKS: &[Row] = &[
    ("bytes cross a stream both ways", bytes_cross_both_ways),
    ("a large message arrives whole", large_message_arrives_whole),
    ("accepting ends with its time limit", accept_times_out),
    ("an address without a listener refuses", connect_is_refused),
    ("reading ends with the deadline, and can go on after a new one", read_times_out),
    ("a peer that drips bytes cannot outlast the deadline", dripping_does_not_extend),
    ("writing to a peer that does not read ends with the deadline", write_times_out),
    ("a closed stream reads as ended", closed_stream_reads_as_ended),
    ("shutting down wakes a reader on another handle", shutdown_wakes_reader),
    ("both ends know each other's address", ends_know_addresses),
    ("a limit on silence leaves a living peer alone", living_peer_is_not_silent),
];

pub(super) const LIMIT: Duration = Duration::from_secs(20);
pub(super) const SHORT: Duration = Duration::from_millis(5);

pub(super) fn listen(world: &World) -> Box<dyn Listener> {
    world.net().listen("127.0.0.1:0").expect("a free port can be had")
}

/// Both ends of a new stream, with a deadline so that no check can hang.
pub(super) fn pair(world: &World) -> (Box<dyn Stream>, Box<dyn Stream>) {
    let listener = listen(world);
    let mut near = world.net().connect(&listener.local_addr(), LIMIT).expect("someone listens");
    let mut far = listener.accept(LIMIT).expect("someone connected");
    for stream in [&mut near, &mut far] {
        stream.set_deadline(Some(LIMIT));
        stream.set_nodelay(true).expect("a fresh stream can be configured");
    }
    (near, far)
}

fn bytes_cross_both_ways(world: &World, _dir: &Path) {
    let (mut near, mut far) = pair(world);
    let mut buffer = [0; 5];
    near.write_all(b"hello").expect("the stream is open");
    far.read_exact(&mut buffer).expect("the bytes were sent");
    assert_eq!(&buffer, b"hello");
    far.write_all(b"world").expect("the stream is open");
    near.read_exact(&mut buffer).expect("the bytes were sent");
    assert_eq!(&buffer, b"world");
}

fn large_message_arrives_whole(world: &World, _dir: &Path) {
    let (mut near, mut far) = pair(world);
    let message: Vec<u8> = (0..4_000_000_u32).map(|i| (i % 251) as u8).collect();
    let sent = message.clone();
    let body = Box::new(move || near.write_all(&sent).expect("the reader keeps up"));
    let sender = world.threads().spawn("sender", body).expect("a thread can be had");
    let mut received = vec![0; message.len()];
    far.read_exact(&mut received).expect("all bytes were sent");
    sender.join().expect("it does not panic");
    assert!(received == message, "the bytes changed on the way");
}

fn accept_times_out(world: &World, _dir: &Path) {
    let listener = listen(world);
    let start = world.clock().now();
    let error = listener.accept(SHORT).err().expect("nobody connects");
    assert_eq!((error.kind(), error.action()), (ErrorKind::TimedOut, NetAction::Accept));
    assert!(world.clock().since(start) >= SHORT);
}

fn connect_is_refused(world: &World, _dir: &Path) {
    let listener = listen(world);
    let addr = listener.local_addr();
    drop(listener);
    let error = world.net().connect(&addr, LIMIT).err().expect("nobody listens any more");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(error.to_string(), format!("cannot connect to {addr}: connection refused"));
}

fn read_times_out(world: &World, _dir: &Path) {
    let (mut near, mut far) = pair(world);
    let start = world.clock().now();
    far.set_deadline(Some(SHORT));
    let error = far.read(&mut [0; 1]).expect_err("nothing was sent");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(world.clock().since(start) >= SHORT);

    near.write_all(b"x").expect("the stream is open");
    far.set_deadline(Some(LIMIT));
    assert_eq!(far.read(&mut [0; 1]).expect("a byte was sent"), 1);
}

fn dripping_does_not_extend(world: &World, _dir: &Path) {
    let (mut near, mut far) = pair(world);
    let deadline = Duration::from_millis(40);
    far.set_deadline(Some(deadline));
    let start = world.clock().now();
    let clock = std::sync::Arc::clone(world);
    let body = Box::new(move || {
        // Ends when the reader has gone and the stream breaks.
        for _ in 0..4000 {
            if near.write_all(b"x").is_err() {
                break;
            }
            clock.clock().sleep(SHORT);
        }
    });
    let dripper = world.threads().spawn("dripper", body).expect("a thread can be had");
    let error = far.read_exact(&mut vec![0; 100_000]).expect_err("the message never ends");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    let waited = world.clock().since(start);
    assert!(waited >= deadline && waited < LIMIT, "waited {waited:?}");
    far.shutdown().expect("the stream can be ended");
    drop(far);
    dripper.join().expect("it does not panic");
}

fn write_times_out(world: &World, _dir: &Path) {
    let (mut near, far) = pair(world);
    near.set_deadline(Some(Duration::from_millis(20)));
    let error = near.write_all(&vec![0; 64 << 20]).expect_err("nobody reads");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    drop(far);
}

fn closed_stream_reads_as_ended(world: &World, _dir: &Path) {
    let (mut near, mut far) = pair(world);
    near.write_all(b"last").expect("the stream is open");
    near.shutdown().expect("an open stream can be ended");
    near.shutdown().expect("ending it twice is fine");
    let mut rest = Vec::new();
    far.read_to_end(&mut rest).expect("the end is not an error");
    assert_eq!(rest, b"last");
}

fn shutdown_wakes_reader(world: &World, _dir: &Path) {
    let (near, far) = pair(world);
    let mut reading = near.try_clone().expect("a second handle can be had");
    let body = Box::new(move || {
        let num_bytes = reading.read(&mut [0; 1]).expect("the end is not an error");
        assert_eq!(num_bytes, 0);
    });
    let reader = world.threads().spawn("reader", body).expect("a thread can be had");
    near.shutdown().expect("an open stream can be ended");
    assert!(reader.finished_within(LIMIT), "the reader still waits");
    reader.join().expect("the reader saw the end");
    drop(far);
}

fn ends_know_addresses(world: &World, _dir: &Path) {
    let (near, far) = pair(world);
    assert_eq!(near.local_addr(), far.peer_addr());
    assert_eq!(far.local_addr(), near.peer_addr());
}

fn living_peer_is_not_silent(world: &World, _dir: &Path) {
    let (mut near, mut far) = pair(world);
    near.set_silence_limit(Duration::from_secs(1)).expect("a limit can be set");
    far.write_all(b"x").expect("the stream is open");
    assert_eq!(near.read(&mut [0; 1]).expect("the peer is there"), 1);
}
