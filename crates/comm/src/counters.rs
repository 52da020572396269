//! What a rank has moved so far, by operation.
//!
//! The numbers are those of the steps that were carried out, so they can be held against what the
//! schedule says, byte for byte.

use lockstep_schedule::Op;

use crate::prepared_schedule::Traffic;
use crate::signature::{MESSAGE, NAMES, code};

/// Calls and bytes of one rank's end of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    by_op: [Count; NAMES.len()],
}

/// Calls of one kind and what they moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// How many calls.
    pub calls: u64,
    /// What they moved.
    pub traffic: Traffic,
}

impl Counters {
    #[inline]
    pub(crate) fn add(&mut self, code: usize, traffic: &Traffic) {
        let count = &mut self.by_op[code];
        count.calls += 1;
        count.traffic.add(traffic);
    }

    /// What a call moved before it failed.
    #[cold]
    pub(crate) fn add_unfinished(&mut self, code: usize, traffic: &Traffic) {
        self.by_op[code].traffic.add(traffic);
    }

    /// The calls of one operation, whatever the root.
    pub fn of(&self, op: Op) -> Count {
        self.by_op[code(op)]
    }

    /// Messages from one rank to another.
    pub fn messages(&self) -> Count {
        self.by_op[MESSAGE]
    }

    /// All kinds of calls by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Count)> {
        NAMES.iter().copied().zip(self.by_op)
    }

    /// Everything together.
    pub fn total(&self) -> Count {
        self.by_op.iter().fold(Count::default(), |mut total, count| {
            total.calls += count.calls;
            total.traffic.add(&count.traffic);
            total
        })
    }
}

impl Traffic {
    /// All bytes that came, left or were touched.
    pub(crate) fn bytes(&self) -> u64 {
        self.sent_bytes + self.received_bytes + self.read_bytes + self.written_bytes
    }

    /// Adds up.
    #[inline]
    pub(crate) fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}
