//! Conformance checks of stream sets.

use std::io::{ErrorKind, IoSlice};
use std::path::Path;
use std::time::Duration;

use super::Row;
use super::net::{LIMIT, SHORT, listen, pair};
use crate::{Interest, Stream, StreamSet, World};

pub(super) const CHECKS: &[Row] = &[
    ("a set reads and writes without waiting", set_never_waits),
    ("a set writes pieces as one", pieces_leave_as_one),
    ("a set waits for watched streams only", waits_for_the_watched),
    ("a set waits for room to write", waits_for_room),
    ("a set wakes when a peer leaves", wakes_when_peer_leaves),
    ("a set wakes when a stream arrives", wakes_for_an_arrival),
    ("waiting on a set ends with its time limit", waiting_ends),
    ("a removed stream works as before and its number is used again", removal_gives_back),
    ("writing to a closed peer is an error", writing_to_a_closed_peer_fails),
];

const READ: Interest = Interest { read: true, write: false };
const WRITE: Interest = Interest { read: false, write: true };

/// A set with one end of a new stream, the number of that end, and the other end.
fn set_and_remote(world: &World) -> (Box<dyn StreamSet>, usize, Box<dyn Stream>) {
    let (local, remote) = pair(world);
    let mut set = world.net().stream_set();
    let number = set.add(local);
    (set, number, remote)
}

fn set_never_waits(world: &World, _dir: &Path) {
    let (mut set, local, mut remote) = set_and_remote(world);
    let error = set.read(local, &mut [0; 8]).expect_err("nothing was sent");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    remote.write_all(b"abc").expect("the stream is open");
    set.watch(local, READ);
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    let mut buffer = [0; 8];
    assert_eq!(set.read(local, &mut buffer).expect("bytes were sent"), 3);
    assert_eq!(&buffer[..3], b"abc");
    drop(remote);
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    assert_eq!(set.read(local, &mut buffer).expect("the end is not an error"), 0);
}

fn pieces_leave_as_one(world: &World, _dir: &Path) {
    let (mut set, local, mut remote) = set_and_remote(world);
    let pieces = [IoSlice::new(b"head"), IoSlice::new(b""), IoSlice::new(b"body")];
    assert_eq!(set.write(local, &pieces).expect("there is room"), 8);
    let mut buffer = [0; 8];
    remote.read_exact(&mut buffer).expect("the bytes were sent");
    assert_eq!(&buffer, b"headbody");
}

fn waits_for_the_watched(world: &World, _dir: &Path) {
    let (mut set, first, mut first_remote) = set_and_remote(world);
    let (local, mut second_remote) = pair(world);
    let second = set.add(local);
    set.watch(second, READ);
    first_remote.write_all(b"x").expect("the stream is open");
    assert!(!set.wait(None, SHORT).expect("waiting works"), "the first is not watched");
    second_remote.write_all(b"y").expect("the stream is open");
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    assert!(set.is_ready(second) && !set.is_ready(first));
    set.watch(second, Interest::default());
    assert!(!set.wait(None, SHORT).expect("waiting works"), "the second is not watched any more");
    set.watch(first, READ);
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    assert!(set.is_ready(first) && !set.is_ready(second));
}

fn waits_for_room(world: &World, _dir: &Path) {
    let (mut set, local, mut remote) = set_and_remote(world);
    let message = vec![7; 1 << 20];
    let mut num_bytes = 0;
    set.watch(local, WRITE);
    // Socket buffers may grow while bytes move, so full means full for a while.
    loop {
        match set.write(local, &[IoSlice::new(&message)]) {
            Ok(written) => num_bytes += written,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                if !set.wait(None, Duration::from_millis(50)).expect("waiting works") {
                    break;
                }
            }
        }
    }
    let body = Box::new(move || remote.read_exact(&mut vec![0; num_bytes]).expect("all were sent"));
    let reader = world.threads().spawn("reader", body).expect("a thread can be had");
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    assert!(set.write(local, &[IoSlice::new(b"more")]).is_ok());
    reader.join().expect("it does not panic");
}

fn wakes_when_peer_leaves(world: &World, _dir: &Path) {
    let (mut set, local, remote) = set_and_remote(world);
    set.watch(local, READ);
    let body = Box::new(move || drop(remote));
    let leaver = world.threads().spawn("leaver", body).expect("a thread can be had");
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    assert_eq!(set.read(local, &mut [0; 1]).expect("the end is not an error"), 0);
    leaver.join().expect("it does not panic");
}

fn wakes_for_an_arrival(world: &World, _dir: &Path) {
    let listener = listen(world);
    let (mut set, local, _far) = set_and_remote(world);
    set.watch(local, READ);
    assert!(!set.wait(Some(&*listener), SHORT).expect("waiting works"));
    let _caller = world.net().connect(&listener.local_addr(), LIMIT).expect("the listener is open");
    assert!(set.wait(Some(&*listener), LIMIT).expect("waiting works"));
    assert!(listener.accept(Duration::ZERO).is_ok());
}

fn waiting_ends(world: &World, _dir: &Path) {
    let (mut set, local, _far) = set_and_remote(world);
    set.watch(local, READ);
    let start = world.clock().now();
    assert!(!set.wait(None, SHORT).expect("waiting works"));
    assert!(world.clock().since(start) >= SHORT);
    assert!(!set.wait(None, Duration::ZERO).expect("waiting works"));
}

fn removal_gives_back(world: &World, _dir: &Path) {
    let (mut set, first, mut remote) = set_and_remote(world);
    let (local, _second_far) = pair(world);
    let second = set.add(local);
    let mut stream = set.remove(first);
    stream.set_deadline(Some(LIMIT));
    stream.write_all(b"still").expect("the stream is open");
    remote.read_exact(&mut [0; 5]).expect("the bytes were sent");
    assert_eq!(set.add(stream), first);
    assert_ne!(first, second);
}

fn writing_to_a_closed_peer_fails(world: &World, _dir: &Path) {
    let (mut set, local, remote) = set_and_remote(world);
    drop(remote);
    set.watch(local, READ);
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    // The first bytes may still leave; the reset that answers them ends the stream.
    let mut writes = (0..10_000).map(|_| set.write(local, &[IoSlice::new(b"x")]));
    let error = writes.find_map(Result::err).expect("the peer is gone");
    let broken = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
    assert!(broken.contains(&error.kind()), "{error}");
}
