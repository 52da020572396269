//! Flags in shared memory: signals, descriptors, counts and doorbells between ranks.
//!
//! Every rank has *lines* of eight words that only it writes. The first word of a line is a counter
//! that grows until a call fails: the call number in its high part, and in the low part the number
//! of signals in that call. The other words are the rank's *call descriptor*: the signature of the
//! call and the offsets of its buffers. The descriptor is written before the counter is raised with
//! `Release`; a rank that reads the counter with `Acquire` therefore sees the descriptor, and
//! everything else the rank wrote before.
//!
//! Signals use two lines in turn, so that the line of the next signal is not the one that peers
//! poll, and can be prefetched for writing. The descriptor is beside the first signal of a call.
//!
//! Calls use two such pairs in turn. A fast rank may be in the next call while another still reads
//! the descriptor of this one; it cannot be two calls ahead, because every call waits for every
//! rank (and where one does not, the engine waits before it continues). So a descriptor is never
//! overwritten while a rank needs it.
//!
//! A rank that has waited long sleeps on its *doorbell*. It first declares that it sleeps, then
//! checks its condition once more, then sleeps until the doorbell changes; a rank that raises a
//! counter checks afterwards whether a peer sleeps. Both need a full fence between their write and
//! their read: then at least one of them sees the other, and no wake-up is lost. Where the system
//! can make all threads pass a fence (`membarrier`), the sleeper pays for both, and raising a
//! counter costs one store.
//!
//! A rank whose call fails takes its signals back, so that a late rank does not access buffers that
//! the caller uses again, and waits for ranks that are inside the call. Here, too, both sides need
//! a full fence between their write and their read, and the one that fails pays for both.
//!
//! Monotonic counts, of bytes through a ring or of finished calls, are *published* after the work
//! they count, and a rank that reads them sees that work.
//!
//! The functions are generic over the atomic word, so that the model checker (loom) runs the same
//! code as the engine.

use std::sync::atomic::{AtomicU64, Ordering};

/// Operations of the protocols on an atomic word.
pub(crate) trait Word {
    /// Loads the value.
    fn load(&self, order: Ordering) -> u64;
    /// Stores a value.
    fn store(&self, value: u64, order: Ordering);
    /// Adds a value, wrapping, with `SeqCst`.
    fn add(&self, value: u64);
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }
    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }
    #[inline(always)]
    fn add(&self, value: u64) {
        self.fetch_add(value, Ordering::SeqCst);
    }
}

/// Eight words that one rank writes and all read.
pub(crate) type Line<W> = [W; 8];

/// Bits of a counter that hold the number of signals in a call.
const SIGNAL_BITS: u32 = 20;

/// The counter of a rank that has signalled `num_signals` times in call number `call`.
#[inline(always)]
pub(crate) fn counter(call: u64, num_signals: u32) -> u64 {
    call << SIGNAL_BITS | u64::from(num_signals)
}

/// Descriptor of a call that a rank publishes to its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CallDescriptor {
    /// The packed signature of the call.
    pub(crate) signature: [u64; 3],
    /// Offset of the inputs in the rank's segment.
    pub(crate) input: u64,
    /// Distance between two inputs.
    pub(crate) input_stride: u64,
    /// Offset of the output.
    pub(crate) output: u64,
    /// Offset of the scratch memory.
    pub(crate) scratch: u64,
}

impl CallDescriptor {
    /// Whether both are equal; without signatures if `bare`. Compares word by word, as they were
    /// read: comparing larger pieces would stall until all words are written.
    #[inline(always)]
    pub(crate) fn is(&self, other: &Self, bare: bool) -> bool {
        let ([a, b, c], [d, e, f]) = (self.signature, other.signature);
        (bare || (a == d && b == e && c == f))
            && self.input == other.input
            && self.input_stride == other.input_stride
            && self.output == other.output
            && self.scratch == other.scratch
    }
}

/// Publishes a descriptor and raises the counter to `value`.
#[inline(always)]
pub(crate) fn publish_descriptor<W: Word>(line: &Line<W>, descriptor: &CallDescriptor, value: u64) {
    let [a, b, c] = descriptor.signature;
    let fields =
        [a, b, c, descriptor.input, descriptor.input_stride, descriptor.output, descriptor.scratch];
    for (word, value) in line[1..].iter().zip(fields) {
        word.store(value, Ordering::Relaxed);
    }
    raise(line, value);
}

/// Publishes the offsets of a descriptor without its signature, and raises the counter.
#[inline(always)]
pub(crate) fn publish_addresses<W: Word>(line: &Line<W>, descriptor: &CallDescriptor, value: u64) {
    let fields = [descriptor.input, descriptor.input_stride, descriptor.output, descriptor.scratch];
    for (word, value) in line[4..].iter().zip(fields) {
        word.store(value, Ordering::Relaxed);
    }
    raise(line, value);
}

/// Raises the counter: a rank that reads it sees all writes before.
#[inline(always)]
pub(crate) fn raise<W: Word>(line: &Line<W>, value: u64) {
    line[0].store(value, Ordering::Release);
}

/// Whether the counter has reached `value`.
#[inline(always)]
pub(crate) fn has_reached<W: Word>(line: &Line<W>, value: u64) -> bool {
    line[0].load(Ordering::Acquire) >= value
}

/// Reads a descriptor, after its counter was observed.
#[inline(always)]
pub(crate) fn read_descriptor<W: Word>(line: &Line<W>) -> CallDescriptor {
    let word = |index: usize| line[index].load(Ordering::Relaxed);
    CallDescriptor {
        signature: [word(1), word(2), word(3)],
        input: word(4),
        input_stride: word(5),
        output: word(6),
        scratch: word(7),
    }
}

/// Takes back the signals of a call: a rank that has not seen them does not see them any more.
pub(crate) fn revoke<W: Word>(lines: [&Line<W>; 2], call: u64) {
    for line in lines {
        raise(line, counter(call, 0));
    }
}

/// Whether a rank may be inside a call: it has signalled in it or entered it, and has not finished
/// it. `first` is the line of its first signal.
pub(crate) fn may_be_inside<W: Word>(
    first: &Line<W>,
    entered: &W,
    finished: &W,
    call: u64,
) -> bool {
    (has_reached(first, counter(call, 1)) || published(entered) >= call)
        && published(finished) < call
}

/// Publishes a count: a rank that reads it sees all writes before.
#[inline(always)]
pub(crate) fn publish<W: Word>(count: &W, value: u64) {
    count.store(value, Ordering::Release);
}

/// Reads a published count.
#[inline(always)]
pub(crate) fn published<W: Word>(count: &W) -> u64 {
    count.load(Ordering::Acquire)
}

/// Doorbell of one rank, on which it sleeps.
pub(crate) struct Doorbell<'a, W> {
    /// Number of threads of its owner that sleep or are about to.
    pub(crate) asleep: &'a W,
    /// Changes when a peer wakes the owner.
    pub(crate) rings: &'a W,
}

impl<W: Word> Doorbell<'_, W> {
    /// Sleeps until `is_done`, or until `nap` returns false. `nap` gets the word to sleep on and
    /// the value it must still have; `fence` is a full fence for both sides.
    pub(crate) fn sleep_until(
        &self,
        mut is_done: impl FnMut() -> bool,
        fence: impl Fn(),
        mut nap: impl FnMut(&W, u64) -> bool,
    ) -> bool {
        self.asleep.add(1);
        let woken = loop {
            let previous = self.rings.load(Ordering::Acquire);
            fence();
            if is_done() {
                break true;
            }
            if !nap(self.rings, previous) {
                break is_done();
            }
        };
        self.asleep.add(u64::MAX);
        woken
    }

    /// Wakes the owner if it sleeps. Call it after the fence that follows the change.
    #[inline(always)]
    pub(crate) fn ring_if_asleep(&self, wake: impl FnOnce(&W)) {
        if self.asleep.load(Ordering::Relaxed) != 0 {
            self.rings.add(1);
            wake(self.rings);
        }
    }
}

#[cfg(test)]
mod tests;
