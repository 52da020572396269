//! How ranks tell each other through shared memory where they are.
//!
//! Every rank has *lines* of eight words that only it writes. The first word of a line is a counter
//! that only grows: the number of the call in its high part, and in the low part how often the rank
//! has signalled in it. The other words are the rank's *card*: what it calls and where its buffers
//! lie. The card is written before the counter is raised with `Release`; whoever sees the counter
//! with `Acquire` therefore sees the card, and everything else the rank wrote before.
//!
//! Signals use two lines in turn, so that the line of the next signal is not the one that the
//! others are looking at, and can be fetched for writing ahead of time. The card is beside the
//! first signal of a call.
//!
//! Calls use two such pairs in turn. A rank that is quick may be in the next call while another
//! still reads the card of this one; it cannot be two calls ahead, because every call waits for
//! every rank (and where one does not, the engine waits before it goes on). So a card is never
//! overwritten while somebody needs it.
//!
//! A rank that has waited long goes to sleep on its *bell*. It first says that it sleeps, then
//! looks once more, then sleeps until its bell changes; who raises a counter looks afterwards
//! whether somebody sleeps. Both need a full fence between their write and their read: then at
//! least one of them sees the other, and no wake-up is lost. Where the system can make all threads
//! pass a fence, the sleeper pays for both, and raising a counter costs one store.
//!
//! Counts that only grow, of bytes that went through a ring or of calls that a rank is through
//! with, are *published* after what they count was done, and whoever sees them sees that too.
//!
//! The functions are generic over the kind of atomic word, so that the model checker runs the same
//! text as the engine.

use std::sync::atomic::{AtomicU64, Ordering};

/// What the protocols ask of an atomic word.
pub(crate) trait Word {
    /// Reads it.
    fn load(&self, order: Ordering) -> u64;
    /// Writes it.
    fn store(&self, value: u64, order: Ordering);
    /// Adds to it and wraps around, with all orderings.
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

/// Signals that one call can have; the low part of a counter.
const SIGNAL_BITS: u32 = 20;

/// The counter of a rank that has signalled `num_signals` times in call number `call`.
#[inline(always)]
pub(crate) fn counter(call: u64, num_signals: u32) -> u64 {
    call << SIGNAL_BITS | u64::from(num_signals)
}

/// What a rank shows the others about its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Card {
    /// The words of the call's signature.
    pub(crate) signature: [u64; 3],
    /// Where the inputs lie in the rank's segment.
    pub(crate) input: u64,
    /// How far apart they are, where there are several.
    pub(crate) input_stride: u64,
    /// Where the output lies.
    pub(crate) output: u64,
    /// Where the working memory lies.
    pub(crate) scratch: u64,
}

impl Card {
    /// Whether both say the same. Word by word, as they were read: comparing them in larger pieces
    /// would wait until all words are written.
    /// Bare, only the places are compared.
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

/// Shows a card and raises the counter to `value`.
#[inline(always)]
pub(crate) fn show<W: Word>(line: &Line<W>, card: &Card, value: u64) {
    let [a, b, c] = card.signature;
    let words = [a, b, c, card.input, card.input_stride, card.output, card.scratch];
    for (word, value) in line[1..].iter().zip(words) {
        word.store(value, Ordering::Relaxed);
    }
    raise(line, value);
}

/// Shows where buffers lie, and not what is called.
#[inline(always)]
pub(crate) fn show_places<W: Word>(line: &Line<W>, card: &Card, value: u64) {
    let words = [card.input, card.input_stride, card.output, card.scratch];
    for (word, value) in line[4..].iter().zip(words) {
        word.store(value, Ordering::Relaxed);
    }
    raise(line, value);
}

/// Raises the counter: everything done before is visible to whoever sees it.
#[inline(always)]
pub(crate) fn raise<W: Word>(line: &Line<W>, value: u64) {
    line[0].store(value, Ordering::Release);
}

/// Whether the counter has reached `value`.
#[inline(always)]
pub(crate) fn has_reached<W: Word>(line: &Line<W>, value: u64) -> bool {
    line[0].load(Ordering::Acquire) >= value
}

/// The card, after its counter was seen.
#[inline(always)]
pub(crate) fn card<W: Word>(line: &Line<W>) -> Card {
    let word = |index: usize| line[index].load(Ordering::Relaxed);
    Card {
        signature: [word(1), word(2), word(3)],
        input: word(4),
        input_stride: word(5),
        output: word(6),
        scratch: word(7),
    }
}

/// Publishes a count: everything done before is visible to whoever sees it.
#[inline(always)]
pub(crate) fn publish<W: Word>(count: &W, value: u64) {
    count.store(value, Ordering::Release);
}

/// A count that somebody published, and with it all that was done before.
#[inline(always)]
pub(crate) fn published<W: Word>(count: &W) -> u64 {
    count.load(Ordering::Acquire)
}

/// Where one rank sleeps.
pub(crate) struct Bell<'a, W> {
    /// How many threads of its owner sleep or are about to.
    pub(crate) asleep: &'a W,
    /// Changes when somebody wakes it.
    pub(crate) rings: &'a W,
}

impl<W: Word> Bell<'_, W> {
    /// Sleeps until `is_done`, or until `nap` says to stop by returning false. `nap` gets the word
    /// to sleep on and the value it must still have; `fence` is a full fence for both sides.
    pub(crate) fn sleep_until(
        &self,
        mut is_done: impl FnMut() -> bool,
        fence: impl Fn(),
        mut nap: impl FnMut(&W, u64) -> bool,
    ) -> bool {
        self.asleep.add(1);
        let woken = loop {
            let seen = self.rings.load(Ordering::Acquire);
            fence();
            if is_done() {
                break true;
            }
            if !nap(self.rings, seen) {
                break is_done();
            }
        };
        self.asleep.add(u64::MAX);
        woken
    }

    /// Wakes the owner if it sleeps; call it after the fence that follows the change it waits for.
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
