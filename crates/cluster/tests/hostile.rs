//! 100,000 cases of bytes that no rank has sent, against everything that reads from a network: no
//! panic, nothing believed, no allocation beyond a bound. Made from genuine bytes, because bytes
//! that are random throughout do not get past the first check.
#![expect(unsafe_code, reason = "a global allocator that counts is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::ErrorKind;

use lockstep_auth::hostile::{Eavesdropper, read_sealed};
use lockstep_cluster::rendezvous::hostile::{decode, samples};
use lockstep_comm::hostile;
use lockstep_platform::real;

/// Sums what the current thread allocates.
struct Counting;

thread_local! {
    static NUM_BYTES: Cell<usize> = const { Cell::new(0) };
}

fn count(num_bytes: usize) {
    // During a thread's end the counter may be gone; nobody counts then.
    let _ = NUM_BYTES.try_with(|counter| counter.set(counter.get() + num_bytes));
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract;
// the counter beside it neither allocates nor touches the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// All that one case makes a reader allocate, added up, although most of it is given back on the
/// way: buffers of a connection, the state of a handshake, early messages.
const MAX_BYTES: usize = 256 << 10;

/// Runs an action that allocates no more than it may.
fn bounded<T>(case: u64, action: impl FnOnce() -> T) -> T {
    let before = NUM_BYTES.get();
    let result = action();
    let num_bytes = NUM_BYTES.get() - before;
    assert!(num_bytes <= MAX_BYTES, "case {case} allocates {num_bytes} bytes");
    result
}

/// A few random numbers; the same for the same case.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    /// Changes bytes, so that they differ.
    fn meddle(&mut self, bytes: &mut Vec<u8>) {
        let genuine = bytes.clone();
        loop {
            let at = self.below(bytes.len());
            match self.below(8) {
                0 => bytes.truncate(at),
                1 => bytes.extend((0..=at % 40).map(|byte| byte as u8)),
                2 if !bytes.is_empty() => drop(bytes.remove(at)),
                3 => bytes.insert(at, self.next() as u8),
                // Lengths and counts are where readers are hurt.
                4 if bytes.len() >= 8 => {
                    let at = self.below(bytes.len() - 7);
                    let number = [u64::MAX, 1 << 31, 1 << 16, 1 << 40][self.below(4)];
                    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
                }
                5 => *bytes = (0..self.below(300)).map(|_| self.next() as u8).collect(),
                6 => bytes.rotate_left(at),
                _ if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
                _ => {}
            }
            if *bytes != genuine && self.below(3) > 0 {
                return;
            }
        }
    }
}

/// How many cases of each kind: 100,000 in all; products of keys take most of the time, so the
/// kinds that need them get their share of 100,000 each only in the long suite.
fn num_cases(needs_keys: bool) -> u64 {
    let is_long = real().host().env("LOCKSTEP_SOAK").is_some();
    match (is_long, needs_keys) {
        (true, _) => 100_000,
        (false, true) => 1_000,
        (false, false) => 24_500,
    }
}

#[test]
fn greetings_that_nobody_made_are_refused() {
    let eavesdropper = Eavesdropper::new(&real(), &samples()[0]);
    assert!(eavesdropper.greets(&eavesdropper.greeting));
    for case in 0..num_cases(false) {
        let mut bytes = eavesdropper.greeting.clone();
        Dice(case).meddle(&mut bytes);
        assert!(!bounded(case, || eavesdropper.greets(&bytes)), "case {case}");
    }
}

#[test]
fn replies_that_nobody_made_are_refused() {
    let eavesdropper = Eavesdropper::new(&real(), &samples()[0]);
    assert!(!eavesdropper.replies(&eavesdropper.reply), "it was for somebody else");
    for case in 0..num_cases(true) {
        let mut bytes = eavesdropper.reply.clone();
        Dice(case).meddle(&mut bytes);
        assert!(!bounded(case, || eavesdropper.replies(&bytes)), "case {case}");
    }
}

#[test]
fn hellos_that_nobody_sealed_are_refused() {
    let eavesdropper = Eavesdropper::new(&real(), &samples()[0]);
    for case in 0..num_cases(false) {
        let mut bytes = eavesdropper.hello.clone();
        Dice(case).meddle(&mut bytes);
        assert!(!bounded(case, || eavesdropper.says_hello(&bytes)), "case {case}");
    }
    assert!(eavesdropper.says_hello(&eavesdropper.hello), "the genuine one is still good");
}

#[test]
fn hellos_and_answers_of_any_bytes_are_understood_or_refused() {
    let samples = samples();
    assert!(samples.iter().all(|sample| decode(sample)));
    for case in 0..num_cases(false) {
        let mut dice = Dice(case);
        let mut bytes = samples[dice.below(samples.len())].clone();
        dice.meddle(&mut bytes);
        // Ranks and names may become others, which is for the host to judge.
        bounded(case, || decode(&bytes));
    }
}

#[test]
fn sealed_streams_give_what_was_sent_or_an_error() {
    let world = real();
    for case in 0..num_cases(true) {
        let mut dice = Dice(case);
        let genuine: Vec<u8> = (0..dice.below(2000)).map(|_| dice.next() as u8).collect();
        let piece = 1 + dice.below(400);
        if dice.below(4) == 0 {
            let read = read_sealed(&world, &genuine, piece, |_| ());
            assert_eq!(read.as_deref(), Ok(&genuine[..]), "case {case}");
            continue;
        }
        let read =
            bounded(case, || read_sealed(&world, &genuine, piece, |sealed| dice.meddle(sealed)));
        match read {
            // Cut between two records it is only shorter.
            Ok(bytes) => assert!(genuine.starts_with(&bytes), "case {case}"),
            Err(kind) => assert!(
                matches!(kind, ErrorKind::InvalidData | ErrorKind::UnexpectedEof),
                "case {case}: {kind}"
            ),
        }
    }
}

#[test]
fn long_sealed_streams_cross_in_records() {
    let world = real();
    for (len, piece) in [(32 << 10, 9000), ((32 << 10) + 1, 1001), (200_000, 40_000), (1, 1)] {
        let genuine: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
        let read = read_sealed(&world, &genuine, piece, |_| ());
        assert!(read.as_deref() == Ok(&genuine[..]), "{len} bytes in pieces of {piece}");
    }
}

#[test]
fn messages_of_any_bytes_are_received_or_refused() {
    let two = [hostile::message(), second()].concat();
    assert!(hostile::receive([&two, &[]], 100));
    for case in 0..num_cases(false) {
        let mut dice = Dice(case);
        let (mut first, mut second) = (two.clone(), hostile::message());
        dice.meddle(&mut first);
        if dice.below(2) == 0 {
            dice.meddle(&mut second);
        }
        let piece = 1 + dice.below(500);
        bounded(case, || hostile::receive([&first, &second], piece));
    }
}

/// The same message again, counted as the next one.
fn second() -> Vec<u8> {
    let mut message = hostile::message();
    message[8] = 1;
    message
}
