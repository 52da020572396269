//! The protocols under every interleaving and every memory order that the language allows.

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::*;

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }
    fn add(&self, value: u64) {
        self.fetch_add(value, Ordering::SeqCst);
    }
}

/// What the sleeper makes the waker pass, or what both pass by themselves.
fn full_fence() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Every interleaving with up to three preemptions, which is where bugs of this kind show.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Two ranks' flags and one element of memory each, which the checker watches for races.
struct Pair {
    lines: [[Line<AtomicU64>; 4]; 2],
    memory: [UnsafeCell<u64>; 2],
}

impl Pair {
    fn new() -> Arc<Self> {
        let line = || std::array::from_fn(|_| AtomicU64::new(0));
        let lines = std::array::from_fn(|_| std::array::from_fn(|_| line()));
        Arc::new(Self { lines, memory: std::array::from_fn(|_| UnsafeCell::new(0)) })
    }

    fn line(&self, rank: usize, call: u64, num_signals: u32) -> &Line<AtomicU64> {
        &self.lines[rank][2 * (call as usize % 2) + num_signals as usize % 2]
    }

    fn wait(&self, rank: usize, call: u64, num_signals: u32) {
        while !has_reached(self.line(rank, call, num_signals), counter(call, num_signals)) {
            thread::yield_now();
        }
    }

    #[expect(unsafe_code, reason = "the checker's cell, which fails the test on a race")]
    fn write(&self, rank: usize, value: u64) {
        // SAFETY: what is checked is that this never races.
        self.memory[rank].with_mut(|place| unsafe { *place = value });
    }

    #[expect(unsafe_code, reason = "the checker's cell, which fails the test on a race")]
    fn read(&self, rank: usize) -> u64 {
        // SAFETY: what is checked is that this never races.
        self.memory[rank].with(|place| unsafe { *place })
    }
}

fn some_card(call: u64, rank: usize) -> Card {
    Card { signature: [call, 1, 2], input: rank as u64, ..Card::default() }
}

/// Both ranks write their own memory, meet, read both memories, one of them stores into both, and
/// meet again: what a direct all-reduce does.
fn direct(pair: &Pair, rank: usize, call: u64) {
    let other = 1 - rank;
    pair.write(rank, 10 * call + rank as u64);
    show(pair.line(rank, call, 1), &some_card(call, rank), counter(call, 1));
    pair.wait(other, call, 1);
    assert_eq!(card(pair.line(other, call, 1)), some_card(call, other));
    if rank == 0 {
        let sum = pair.read(0) + pair.read(1);
        pair.write(0, sum);
        pair.write(1, sum);
    }
    raise(pair.line(rank, call, 2), counter(call, 2));
    pair.wait(other, call, 2);
    assert_eq!(pair.read(rank), 20 * call + 1);
}

#[test]
fn a_direct_call_has_no_race_and_the_next_may_follow_at_once() {
    explore(|| {
        let pair = Pair::new();
        let twin = Arc::clone(&pair);
        let thread = thread::spawn(move || {
            direct(&twin, 1, 1);
            direct(&twin, 1, 2);
        });
        direct(&pair, 0, 1);
        direct(&pair, 0, 2);
        thread.join().unwrap();
    });
}

/// One meeting only: a quick rank may show its next card while the slow one reads this one.
fn barrier(pair: &Pair, rank: usize, call: u64) {
    let other = 1 - rank;
    show(pair.line(rank, call, 1), &some_card(call, rank), counter(call, 1));
    pair.wait(other, call, 1);
    assert_eq!(card(pair.line(other, call, 1)), some_card(call, other), "call {call}");
}

#[test]
fn a_card_stays_readable_while_a_quick_rank_runs_ahead() {
    explore(|| {
        let pair = Pair::new();
        let twin = Arc::clone(&pair);
        let thread = thread::spawn(move || (1..=3).for_each(|call| barrier(&twin, 1, call)));
        (1..=3).for_each(|call| barrier(&pair, 0, call));
        thread.join().unwrap();
    });
}

#[test]
fn a_sleeper_is_always_woken() {
    explore(|| {
        let words: Arc<[AtomicU64; 3]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let twin = Arc::clone(&words);
        let thread = thread::spawn(move || {
            let [flag, asleep, rings] = &*twin;
            flag.store(1, Ordering::Release);
            full_fence();
            Bell { asleep, rings }.ring_if_asleep(|_| {});
        });
        let [flag, asleep, rings] = &*words;
        // A nap without a limit: a lost wake-up would never end, and the checker would say so.
        let nap = |rings: &AtomicU64, seen| {
            while rings.load(Ordering::Acquire) == seen {
                thread::yield_now();
            }
            true
        };
        let is_done = || flag.load(Ordering::Acquire) == 1;
        assert!(Bell { asleep, rings }.sleep_until(is_done, full_fence, nap));
        thread.join().unwrap();
    });
}
