//! What happens next: a heap of events by time, and of the same time by the order they came in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events in the order of time. Times are not negative, so their bits are in order too.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    num_pushed: u64,
}

impl Queue {
    /// Something happens at a time.
    pub(super) fn push(&mut self, time: f64, what: u32) {
        debug_assert!(time >= 0.0, "virtual time begins at 0");
        self.heap.push(Reverse((time.to_bits(), self.num_pushed, what)));
        self.num_pushed += 1;
    }

    /// When the next thing happens.
    pub(super) fn next_time(&self) -> Option<f64> {
        self.heap.peek().map(|Reverse((time, ..))| f64::from_bits(*time))
    }

    /// The next thing.
    pub(super) fn pop(&mut self) -> Option<(f64, u32)> {
        let Reverse((time, _, what)) = self.heap.pop()?;
        Some((f64::from_bits(time), what))
    }
}
