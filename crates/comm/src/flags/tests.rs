//! Loom models of the protocols: every interleaving and every memory order that the language
//! allows.
//!
//! Each model runs three times: as it is, and, as a check of the checker, with words whose stores
//! or loads are relaxed. Those must fail.

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::*;

/// A word that the checker can create.
trait Checked: Word + Send + Sync + 'static {
    fn zero() -> Self;
}

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

impl Checked for AtomicU64 {
    fn zero() -> Self {
        Self::new(0)
    }
}

/// A word that is stored without `Release`.
struct WeakStores(AtomicU64);

impl Word for WeakStores {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, _: Ordering) {
        self.0.store(value, Ordering::Relaxed);
    }
    fn add(&self, value: u64) {
        self.0.fetch_add(value, Ordering::SeqCst);
    }
}

impl Checked for WeakStores {
    fn zero() -> Self {
        Self(AtomicU64::new(0))
    }
}

/// A word that is loaded without `Acquire`.
struct WeakLoads(AtomicU64);

impl Word for WeakLoads {
    fn load(&self, _: Ordering) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn add(&self, value: u64) {
        self.0.fetch_add(value, Ordering::SeqCst);
    }
}

impl Checked for WeakLoads {
    fn zero() -> Self {
        Self(AtomicU64::new(0))
    }
}

/// The fence that the sleeper issues for both sides, or that each issues itself.
fn full_fence() {
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Every interleaving with up to three preemptions, which is where bugs of this kind show.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Flags of two ranks and one element of memory each, which the checker watches for races.
struct Pair<W> {
    lines: [[Line<W>; 4]; 2],
    entered: [W; 2],
    finished: [W; 2],
    memory: [UnsafeCell<u64>; 2],
}

impl<W: Checked> Pair<W> {
    fn new() -> Arc<Self> {
        let line = || std::array::from_fn(|_| W::zero());
        Arc::new(Self {
            lines: std::array::from_fn(|_| std::array::from_fn(|_| line())),
            entered: std::array::from_fn(|_| W::zero()),
            finished: std::array::from_fn(|_| W::zero()),
            memory: std::array::from_fn(|_| UnsafeCell::new(0)),
        })
    }

    fn line(&self, rank: usize, call: u64, num_signals: u32) -> &Line<W> {
        &self.lines[rank][2 * (call as usize % 2) + num_signals as usize % 2]
    }

    fn wait(&self, rank: usize, call: u64, num_signals: u32) {
        while !has_reached(self.line(rank, call, num_signals), counter(call, num_signals)) {
            thread::yield_now();
        }
    }

    #[expect(unsafe_code, reason = "the checker's cell, which fails the test on a race")]
    fn write(&self, place: usize, value: u64) {
        // SAFETY: the model checker fails the test if this access races.
        self.memory[place].with_mut(|place| unsafe { *place = value });
    }

    #[expect(unsafe_code, reason = "the checker's cell, which fails the test on a race")]
    fn read(&self, place: usize) -> u64 {
        // SAFETY: the model checker fails the test if this access races.
        self.memory[place].with(|place| unsafe { *place })
    }
}

/// Runs `body` as rank 0 and as rank 1.
fn as_two_ranks<W: Checked>(body: fn(&Pair<W>, usize)) {
    explore(move || {
        let pair = Pair::<W>::new();
        let twin = Arc::clone(&pair);
        let thread = thread::spawn(move || body(&twin, 1));
        body(&pair, 0);
        thread.join().unwrap();
    });
}

fn some_descriptor(call: u64, rank: usize) -> CallDescriptor {
    CallDescriptor { signature: [call, 1, 2], input: rank as u64, ..CallDescriptor::default() }
}

/// Direct all-reduce: both ranks write their own memory and synchronize, one of them sums both into
/// both, and they synchronize again.
fn direct<W: Checked>(pair: &Pair<W>, rank: usize) {
    let other = 1 - rank;
    for call in 1..=2 {
        pair.write(rank, 10 * call + rank as u64);
        publish_descriptor(
            pair.line(rank, call, 1),
            &some_descriptor(call, rank),
            counter(call, 1),
        );
        pair.wait(other, call, 1);
        assert_eq!(read_descriptor(pair.line(other, call, 1)), some_descriptor(call, other));
        if rank == 0 {
            let sum = pair.read(0) + pair.read(1);
            pair.write(0, sum);
            pair.write(1, sum);
        }
        raise(pair.line(rank, call, 2), counter(call, 2));
        pair.wait(other, call, 2);
        assert_eq!(pair.read(rank), 20 * call + 1);
    }
}

#[test]
fn a_direct_call_has_no_race_and_the_next_may_follow_at_once() {
    as_two_ranks::<AtomicU64>(direct);
}

#[test]
#[should_panic = "write"]
fn a_direct_call_needs_release() {
    as_two_ranks::<WeakStores>(direct);
}

#[test]
#[should_panic = "write"]
fn a_direct_call_needs_acquire() {
    as_two_ranks::<WeakLoads>(direct);
}

/// Barrier: a fast rank may publish its next descriptor while the slow one reads this one.
fn barrier<W: Checked>(pair: &Pair<W>, rank: usize) {
    let other = 1 - rank;
    for call in 1..=3 {
        publish_descriptor(
            pair.line(rank, call, 1),
            &some_descriptor(call, rank),
            counter(call, 1),
        );
        pair.wait(other, call, 1);
        assert_eq!(
            read_descriptor(pair.line(other, call, 1)),
            some_descriptor(call, other),
            "call {call}"
        );
    }
}

#[test]
fn a_descriptor_stays_readable_while_a_fast_rank_runs_ahead() {
    as_two_ranks::<AtomicU64>(barrier);
}

#[test]
#[should_panic = "call"]
fn a_descriptor_needs_release() {
    as_two_ranks::<WeakStores>(barrier);
}

#[test]
#[should_panic = "call"]
fn a_descriptor_needs_acquire() {
    as_two_ranks::<WeakLoads>(barrier);
}

/// Rank 0 only publishes and rank 1 only reads, so rank 0 could run ahead for ever. Before it
/// overwrites a descriptor it waits until the other has finished that call.
fn open_calls<W: Checked>(pair: &Pair<W>, rank: usize) {
    for call in 1..=3 {
        if rank == 0 {
            while published(&pair.finished[1]) + 2 < call {
                thread::yield_now();
            }
            publish_descriptor(pair.line(0, call, 1), &some_descriptor(call, 0), counter(call, 1));
        } else {
            pair.wait(0, call, 1);
            assert_eq!(
                read_descriptor(pair.line(0, call, 1)),
                some_descriptor(call, 0),
                "call {call}"
            );
            publish(&pair.finished[1], call);
        }
    }
}

#[test]
fn a_descriptor_is_not_overwritten_before_a_straggler_has_read_it() {
    as_two_ranks::<AtomicU64>(open_calls);
}

#[test]
#[should_panic = "call"]
fn a_straggler_reads_a_wrong_descriptor_without_the_wait() {
    as_two_ranks::<AtomicU64>(|pair, rank| {
        if rank == 0 {
            publish(&pair.finished[1], u64::MAX / 2);
        }
        open_calls(pair, rank);
    });
}

/// Rank 0 signals, fails and uses its memory again; rank 1 comes late and writes to that memory if
/// it finds the signal. It signals before it waits, or else enters.
fn withdrawal<W: Checked>(pair: &Pair<W>, rank: usize, fence: fn(), signals: bool) {
    if rank == 0 {
        publish_descriptor(pair.line(0, 1, 1), &some_descriptor(1, 0), counter(1, 1));
        revoke([1, 2].map(|signal| pair.line(0, 1, signal)), 1);
        fence();
        while may_be_inside(pair.line(1, 1, 1), &pair.entered[1], &pair.finished[1], 1) {
            thread::yield_now();
        }
        pair.write(0, 7);
        assert_eq!(pair.read(0), 7);
    } else {
        if signals {
            publish_descriptor(pair.line(1, 1, 1), &some_descriptor(1, 1), counter(1, 1));
        } else {
            publish(&pair.entered[1], 1);
        }
        fence();
        if has_reached(pair.line(0, 1, 1), counter(1, 1)) {
            pair.write(0, 5);
        }
        publish(&pair.finished[1], 1);
    }
}

#[test]
fn no_rank_writes_to_the_buffer_of_a_rank_that_has_withdrawn() {
    as_two_ranks::<AtomicU64>(|pair, rank| withdrawal(pair, rank, full_fence, true));
    as_two_ranks::<AtomicU64>(|pair, rank| withdrawal(pair, rank, full_fence, false));
}

#[test]
#[should_panic = "write"]
fn a_withdrawal_needs_fences() {
    as_two_ranks::<AtomicU64>(|pair, rank| withdrawal(pair, rank, || {}, true));
}

#[test]
#[should_panic = "write"]
fn a_withdrawal_needs_release() {
    as_two_ranks::<WeakStores>(|pair, rank| withdrawal(pair, rank, full_fence, true));
}

#[test]
#[should_panic = "write"]
fn a_withdrawal_needs_acquire() {
    as_two_ranks::<WeakLoads>(|pair, rank| withdrawal(pair, rank, full_fence, true));
}

/// A ring with two slots: rank 0 writes three messages, rank 1 reads them.
fn ring<W: Checked>(pair: &Pair<W>, rank: usize) {
    let (written, taken) = (&pair.finished[0], &pair.finished[1]);
    for number in 0..3 {
        let place = number as usize % 2;
        if rank == 0 {
            while number - published(taken) == 2 {
                thread::yield_now();
            }
            pair.write(place, 10 + number);
            publish(written, number + 1);
        } else {
            while published(written) <= number {
                thread::yield_now();
            }
            assert_eq!(pair.read(place), 10 + number);
            publish(taken, number + 1);
        }
    }
}

#[test]
fn messages_leave_a_ring_as_they_came_in() {
    as_two_ranks::<AtomicU64>(ring);
}

#[test]
#[should_panic = "write"]
fn a_ring_needs_release() {
    as_two_ranks::<WeakStores>(ring);
}

#[test]
#[should_panic = "write"]
fn a_ring_needs_acquire() {
    as_two_ranks::<WeakLoads>(ring);
}

/// One rank sleeps until a flag is set; the other sets it and checks for a sleeper.
fn sleep_and_wake(fence: fn()) {
    explore(move || {
        let fields: Arc<[AtomicU64; 3]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let twin = Arc::clone(&fields);
        let thread = thread::spawn(move || {
            let [flag, asleep, rings] = &*twin;
            flag.store(1, Ordering::Release);
            fence();
            Doorbell { asleep, rings }.ring_if_asleep(|_| {});
        });
        let [flag, asleep, rings] = &*fields;
        // A nap without a limit: a lost wake-up never ends, and the checker reports it.
        let nap = |rings: &AtomicU64, previous| {
            while rings.load(Ordering::Acquire) == previous {
                thread::yield_now();
            }
            true
        };
        let is_done = || flag.load(Ordering::Acquire) == 1;
        assert!(Doorbell { asleep, rings }.sleep_until(is_done, fence, nap));
        thread.join().unwrap();
    });
}

#[test]
fn a_sleeper_is_always_woken() {
    sleep_and_wake(full_fence);
}

#[test]
#[should_panic = "Model exceeded maximum number of branches"]
fn without_fences_a_wake_up_may_be_lost() {
    sleep_and_wake(|| {});
}
