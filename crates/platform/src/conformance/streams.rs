//! Promises of sets of streams.

use std::io::{ErrorKind, IoSlice};
use std::path::Path;
use std::time::Duration;

use super::Row;
use super::net::{LIMIT, SHORT, listen, pair};
use crate::{Interest, Stream, StreamSet, World};

pub(super) const CHECKS: &[Row] = &[
    ("a set reads and writes without waiting", set_never_waits),
    ("a set writes pieces as one", pieces_leave_as_one),
    ("a set waits for whatever is watched, and for nothing else", waits_for_the_watched),
    ("a set waits for room to write", waits_for_room),
    ("a set wakes when a peer leaves", wakes_when_peer_leaves),
    ("a set wakes when a stream arrives", wakes_for_an_arrival),
    ("waiting on a set ends with its time limit", waiting_ends),
    ("a removed stream works as before and its number is used again", removal_gives_back),
    ("writing to a peer that left is an error", writing_to_the_gone_fails),
];

const READ: Interest = Interest { read: true, write: false };
const WRITE: Interest = Interest { read: false, write: true };

/// A set with one end of a new stream, the other end, and the number in the set.
fn set_and_far(world: &World) -> (Box<dyn StreamSet>, usize, Box<dyn Stream>) {
    let (near, far) = pair(world);
    let mut set = world.net().stream_set();
    let number = set.add(near);
    (set, number, far)
}

fn set_never_waits(world: &World, _dir: &Path) {
    let (mut set, near, mut far) = set_and_far(world);
    let error = set.read(near, &mut [0; 8]).expect_err("nothing was sent");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    far.write_all(b"abc").expect("the stream is open");
    set.watch(near, READ);
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    let mut buffer = [0; 8];
    assert_eq!(set.read(near, &mut buffer).expect("bytes were sent"), 3);
    assert_eq!(&buffer[..3], b"abc");
    drop(far);
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    assert_eq!(set.read(near, &mut buffer).expect("the end is not an error"), 0);
}

fn pieces_leave_as_one(world: &World, _dir: &Path) {
    let (mut set, near, mut far) = set_and_far(world);
    let pieces = [IoSlice::new(b"head"), IoSlice::new(b""), IoSlice::new(b"body")];
    assert_eq!(set.write(near, &pieces).expect("there is room"), 8);
    let mut buffer = [0; 8];
    far.read_exact(&mut buffer).expect("the bytes were sent");
    assert_eq!(&buffer, b"headbody");
}

fn waits_for_the_watched(world: &World, _dir: &Path) {
    let (mut set, first, mut first_far) = set_and_far(world);
    let (near, mut second_far) = pair(world);
    let second = set.add(near);
    set.watch(second, READ);
    first_far.write_all(b"x").expect("the stream is open");
    assert!(!set.wait(None, SHORT).expect("waiting works"), "the first is not watched");
    second_far.write_all(b"y").expect("the stream is open");
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    assert!(set.is_ready(second) && !set.is_ready(first));
    set.watch(second, Interest::default());
    assert!(!set.wait(None, SHORT).expect("waiting works"), "the second is not watched any more");
    set.watch(first, READ);
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    assert!(set.is_ready(first) && !set.is_ready(second));
}

fn waits_for_room(world: &World, _dir: &Path) {
    let (mut set, near, mut far) = set_and_far(world);
    let message = vec![7; 1 << 20];
    let mut num_bytes = 0;
    set.watch(near, WRITE);
    // The way may widen while bytes move along it, so full means full for a while.
    loop {
        match set.write(near, &[IoSlice::new(&message)]) {
            Ok(written) => num_bytes += written,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                if !set.wait(None, Duration::from_millis(50)).expect("waiting works") {
                    break;
                }
            }
        }
    }
    let body = Box::new(move || far.read_exact(&mut vec![0; num_bytes]).expect("all were sent"));
    let reader = world.threads().spawn("reader", body).expect("a thread can be had");
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    assert!(set.write(near, &[IoSlice::new(b"more")]).is_ok());
    reader.join().expect("it does not panic");
}

fn wakes_when_peer_leaves(world: &World, _dir: &Path) {
    let (mut set, near, far) = set_and_far(world);
    set.watch(near, READ);
    let body = Box::new(move || drop(far));
    let leaver = world.threads().spawn("leaver", body).expect("a thread can be had");
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    assert_eq!(set.read(near, &mut [0; 1]).expect("the end is not an error"), 0);
    leaver.join().expect("it does not panic");
}

fn wakes_for_an_arrival(world: &World, _dir: &Path) {
    let listener = listen(world);
    let (mut set, near, _far) = set_and_far(world);
    set.watch(near, READ);
    assert!(!set.wait(Some(&*listener), SHORT).expect("waiting works"));
    let _caller = world.net().connect(&listener.local_addr(), LIMIT).expect("someone listens");
    assert!(set.wait(Some(&*listener), LIMIT).expect("waiting works"));
    assert!(listener.accept(Duration::ZERO).is_ok());
}

fn waiting_ends(world: &World, _dir: &Path) {
    let (mut set, near, _far) = set_and_far(world);
    set.watch(near, READ);
    let start = world.clock().now();
    assert!(!set.wait(None, SHORT).expect("waiting works"));
    assert!(world.clock().since(start) >= SHORT);
    assert!(!set.wait(None, Duration::ZERO).expect("waiting works"));
}

fn removal_gives_back(world: &World, _dir: &Path) {
    let (mut set, first, mut far) = set_and_far(world);
    let (near, _second_far) = pair(world);
    let second = set.add(near);
    let mut stream = set.remove(first);
    stream.set_deadline(Some(LIMIT));
    stream.write_all(b"still").expect("the stream is open");
    far.read_exact(&mut [0; 5]).expect("the bytes were sent");
    assert_eq!(set.add(stream), first);
    assert_ne!(first, second);
}

fn writing_to_the_gone_fails(world: &World, _dir: &Path) {
    let (mut set, near, far) = set_and_far(world);
    drop(far);
    set.watch(near, READ);
    assert!(set.wait(None, LIMIT).expect("waiting works"));
    // The first bytes may still leave; the answer to them ends the stream.
    let mut writes = (0..10_000).map(|_| set.write(near, &[IoSlice::new(b"x")]));
    let error = writes.find_map(Result::err).expect("nobody is there");
    let kinds = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset];
    assert!(kinds.contains(&error.kind()), "{error}");
}
