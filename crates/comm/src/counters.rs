//! Calls and traffic of a rank, by operation and by algorithm.
//!
//! The engine counts the steps that it executes, so the numbers can be compared with those of the
//! schedule, byte for byte.

use lockstep_schedule::{Algorithm, Op};

use crate::prepared_schedule::Traffic;
use crate::signature::{MESSAGE, NAMES, code};

/// Calls and traffic of one rank in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    by_op: [Count; NAMES.len()],
    /// Collectives; messages have no algorithm.
    by_algorithm: [Count; Algorithm::NAMES.len()],
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
    /// Adds a collective.
    #[inline]
    pub(crate) fn add(&mut self, code: usize, algorithm: Algorithm, traffic: &Traffic) {
        self.by_op[code].add_call(traffic);
        self.by_algorithm[algorithm.index()].add_call(traffic);
    }

    /// Adds a message.
    #[inline]
    pub(crate) fn add_message(&mut self, traffic: &Traffic) {
        self.by_op[MESSAGE].add_call(traffic);
    }

    /// Adds the traffic of a failed call.
    #[cold]
    pub(crate) fn add_unfinished(&mut self, code: usize, algorithm: Algorithm, traffic: &Traffic) {
        self.by_op[code].traffic.add(traffic);
        self.by_algorithm[algorithm.index()].traffic.add(traffic);
    }

    /// Sum of two groups' counts.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        let all = self.by_op.iter_mut().chain(&mut self.by_algorithm);
        for (own, other) in all.zip(other.by_op.iter().chain(&other.by_algorithm)) {
            own.calls += other.calls;
            own.traffic.add(&other.traffic);
        }
        self
    }

    /// With received bytes counted as sent: those of a rank on whose behalf another one sends.
    #[must_use]
    pub fn with_received_as_sent(mut self) -> Self {
        for count in self.by_op.iter_mut().chain(&mut self.by_algorithm) {
            count.traffic.sent_bytes += count.traffic.received_bytes;
        }
        self
    }

    /// Collectives by the name of their algorithm.
    pub fn by_algorithm(&self) -> impl Iterator<Item = (&'static str, Count)> {
        Algorithm::NAMES.iter().copied().zip(self.by_algorithm)
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

impl Count {
    #[inline]
    fn add_call(&mut self, traffic: &Traffic) {
        self.calls += 1;
        self.traffic.add(traffic);
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
