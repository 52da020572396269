//! Event queue: a heap by time, first in first out among equal times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events in the order of time. The bit patterns of non-negative floats sort like their values.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<(u64, u64, u32)>>,
    num_pushed: u64,
}

impl Queue {
    /// Adds an event.
    pub(super) fn push(&mut self, time: f64, event: u32) {
        debug_assert!(time >= 0.0, "virtual time starts at 0");
        self.heap.push(Reverse((time.to_bits(), self.num_pushed, event)));
        self.num_pushed += 1;
    }

    /// Time of the next event.
    pub(super) fn next_time(&self) -> Option<f64> {
        self.heap.peek().map(|Reverse((time, ..))| f64::from_bits(*time))
    }

    /// Removes the next event.
    pub(super) fn pop(&mut self) -> Option<(f64, u32)> {
        let Reverse((time, _, event)) = self.heap.pop()?;
        Some((f64::from_bits(time), event))
    }
}
