//! Calls and traffic of a rank, by operation.
//!
//! The engine counts the steps that it executes, so the numbers can be compared with those of the
//! schedule, byte for byte.

use lockstep_schedule::Op;

use crate::prepared_schedule::Traffic;
use crate::signature::{MESSAGE, NAMES, code};

/// Calls and traffic of one rank in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    by_op: [Count; NAMES.len()],
}

/// Calls of one operation and their traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Number of calls.
    pub calls: u64,
    /// Traffic of the calls.
    pub traffic: Traffic,
}

impl Counters {
    #[inline]
    pub(crate) fn add(&mut self, code: usize, traffic: &Traffic) {
        let count = &mut self.by_op[code];
        count.calls += 1;
        count.traffic.add(traffic);
    }

    /// Adds the traffic of a failed call.
    #[cold]
    pub(crate) fn add_unfinished(&mut self, code: usize, traffic: &Traffic) {
        self.by_op[code].traffic.add(traffic);
    }

    /// Calls of one operation, with any root.
    pub fn of(&self, op: Op) -> Count {
        self.by_op[code(op)]
    }

    /// Point-to-point messages.
    pub fn messages(&self) -> Count {
        self.by_op[MESSAGE]
    }

    /// Counts of all operations by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Count)> {
        NAMES.iter().copied().zip(self.by_op)
    }

    /// Sum over all operations.
    pub fn total(&self) -> Count {
        self.by_op.iter().fold(Count::default(), |mut total, count| {
            total.calls += count.calls;
            total.traffic.add(&count.traffic);
            total
        })
    }
}

impl Traffic {
    /// All bytes sent, received, read and written.
    pub(crate) fn bytes(&self) -> u64 {
        self.sent_bytes + self.received_bytes + self.read_bytes + self.written_bytes
    }

    /// Adds the traffic of another call.
    #[inline]
    pub(crate) fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}
