//! 100,000 cases of forged bytes against every reader of network bytes: no panic, no forgery
//! accepted, no allocation beyond a bound. Cases mutate genuine bytes, because random bytes fail at
//! the first check.
#![expect(unsafe_code, reason = "a global allocator that counts is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::ErrorKind;

use lockstep_auth::hostile::{Eavesdropper, read_sealed};
use lockstep_cluster::rendezvous::hostile::{decode, samples};
use lockstep_comm::hostile;
use lockstep_platform::real;

/// Counts the bytes that the current thread allocates.
struct Counting;

thread_local! {
    static NUM_BYTES: Cell<usize> = const { Cell::new(0) };
}

fn count(num_bytes: usize) {
    // The counter may be gone while a thread ends.
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

/// Bound on the sum of all allocations of one case: buffers of a connection, handshake state, early
/// messages.
const MAX_BYTES: usize = 256 << 10;

/// Runs an action and checks that it stays within the bound.
fn bounded<T>(case: u64, action: impl FnOnce() -> T) -> T {
    let before = NUM_BYTES.get();
    let result = action();
    let num_bytes = NUM_BYTES.get() - before;
    assert!(num_bytes <= MAX_BYTES, "case {case} allocates {num_bytes} bytes");
    result
}

/// SplitMix64 generator (Steele 2014), seeded by the case.
struct Generator(u64);

impl Generator {
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

    /// Mutates bytes until they differ.
    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        let genuine = bytes.clone();
        loop {
            let at = self.below(bytes.len());
            match self.below(8) {
                0 => bytes.truncate(at),
                1 => bytes.extend((0..=at % 40).map(|byte| byte as u8)),
                2 if !bytes.is_empty() => drop(bytes.remove(at)),
                3 => bytes.insert(at, self.next() as u8),
                // Overwrites a field with a large length or count.
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

/// Number of cases of a test: 100,000 in all tests together, and in each test of the long suite.
/// Key products take most of the time, so tests with them have fewer.
fn num_cases(needs_keys: bool) -> u64 {
    let is_long = real().host().env("LOCKSTEP_SOAK").is_some();
    match (is_long, needs_keys) {
        (true, _) => 100_000,
        (false, true) => 1_000,
        (false, false) => 24_500,
    }
}

#[test]
fn forged_first_messages_are_refused() {
    let eavesdropper = Eavesdropper::new(&real(), &samples()[0]);
    assert!(eavesdropper.accepts_first_message(&eavesdropper.first_message));
    for case in 0..num_cases(false) {
        let mut bytes = eavesdropper.first_message.clone();
        Generator(case).mutate(&mut bytes);
        assert!(!bounded(case, || eavesdropper.accepts_first_message(&bytes)), "case {case}");
    }
}

#[test]
fn forged_replies_are_refused() {
    let eavesdropper = Eavesdropper::new(&real(), &samples()[0]);
    assert!(!eavesdropper.accepts_reply(&eavesdropper.reply), "it belongs to another handshake");
    for case in 0..num_cases(true) {
        let mut bytes = eavesdropper.reply.clone();
        Generator(case).mutate(&mut bytes);
        assert!(!bounded(case, || eavesdropper.accepts_reply(&bytes)), "case {case}");
    }
}

#[test]
fn forged_hellos_are_refused() {
    let eavesdropper = Eavesdropper::new(&real(), &samples()[0]);
    for case in 0..num_cases(false) {
        let mut bytes = eavesdropper.hello.clone();
        Generator(case).mutate(&mut bytes);
        assert!(!bounded(case, || eavesdropper.accepts_hello(&bytes)), "case {case}");
    }
    assert!(eavesdropper.accepts_hello(&eavesdropper.hello), "the genuine one is still accepted");
}

#[test]
fn hellos_and_answers_of_any_bytes_decode_or_fail() {
    let samples = samples();
    assert!(samples.iter().all(|sample| decode(sample)));
    for case in 0..num_cases(false) {
        let mut random = Generator(case);
        let mut bytes = samples[random.below(samples.len())].clone();
        random.mutate(&mut bytes);
        // A mutation may change a rank or a name, which the host checks.
        bounded(case, || decode(&bytes));
    }
}

#[test]
fn encrypted_streams_deliver_a_prefix_or_an_error() {
    let world = real();
    for case in 0..num_cases(true) {
        let mut random = Generator(case);
        let genuine: Vec<u8> = (0..random.below(2000)).map(|_| random.next() as u8).collect();
        let piece = 1 + random.below(400);
        if random.below(4) == 0 {
            let read = read_sealed(&world, &genuine, piece, |_| ());
            assert_eq!(read.as_deref(), Ok(&genuine[..]), "case {case}");
            continue;
        }
        let read =
            bounded(case, || read_sealed(&world, &genuine, piece, |sealed| random.mutate(sealed)));
        match read {
            // A cut between two records only shortens the stream.
            Ok(bytes) => assert!(genuine.starts_with(&bytes), "case {case}"),
            Err(kind) => assert!(
                matches!(kind, ErrorKind::InvalidData | ErrorKind::UnexpectedEof),
                "case {case}: {kind}"
            ),
        }
    }
}

#[test]
fn long_encrypted_streams_span_records() {
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
        let mut random = Generator(case);
        let (mut first, mut second) = (two.clone(), hostile::message());
        random.mutate(&mut first);
        if random.below(2) == 0 {
            random.mutate(&mut second);
        }
        let piece = 1 + random.below(500);
        bounded(case, || hostile::receive([&first, &second], piece));
    }
}

/// The message with the next sequence number.
fn second() -> Vec<u8> {
    let mut message = hostile::message();
    message[8] = 1;
    message
}
