//! Messages of a transport: the envelope that matches them, and the messages of one round.

use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Source, Target};

use super::timing::MIN_BYTES_PER_SECOND;
use crate::signature::Signature;

/// Identifies a message; travels in front of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Envelope {
    /// Id of the group, and from `PURPOSE_BIT` on the kind of traffic.
    pub group: u64,
    /// Number of the call in its group, or the tag of a point-to-point message.
    pub number: u64,
    /// Signature of the call.
    pub signature: Signature,
}

impl Envelope {
    /// Whether a receive of `expected` takes a message with this envelope. Signatures are compared
    /// afterwards, so that a different call is reported as a mismatch.
    pub(crate) fn matches(&self, expected: &Self) -> bool {
        (self.group, self.number) == (expected.group, expected.number)
    }

    /// Whether a message with this envelope belongs to an earlier collective call than `expected`.
    /// An earlier message that no call has taken means that this rank made a different call then.
    /// (Tags have no order.)
    pub(crate) fn is_left_over(&self, expected: &Self) -> bool {
        self.group == expected.group
            && self.group >> PURPOSE_BIT == 0
            && self.number < expected.number
    }

    /// Whether the envelope belongs to a later collective call than `expected`.
    pub(crate) fn is_ahead(&self, expected: &Self) -> bool {
        expected.is_left_over(self)
    }
}

/// First bit of an envelope's group that holds the kind of traffic; 0 for collective calls.
pub(crate) const PURPOSE_BIT: u32 = 60;

/// The messages of one round.
pub struct Round<'a> {
    /// The envelope of each of them.
    pub envelope: Envelope,
    /// Messages to send: target rank and source memory.
    pub sends: &'a [(Rank, Source<'a, u8>)],
    /// Messages to receive: source rank and target memory.
    pub recvs: &'a [(Rank, Target<'a, u8>)],
    /// Bytes sent and received so far, envelopes not counted.
    pub done_bytes: u64,
    /// Called with each source rank as soon as its message has arrived.
    pub arrived: &'a dyn Fn(Rank),
}

impl Round<'_> {
    /// Bytes that the round sends and receives on this rank.
    pub fn expected_bytes(&self) -> u64 {
        let sent: usize = self.sends.iter().map(|(_, window)| window.len()).sum();
        let received: usize = self.recvs.iter().map(|(_, window)| window.len()).sum();
        (sent + received) as u64
    }

    /// Longest time that the round may take although its bytes keep moving: ranks that arrive one
    /// after the other get two timeouts, and the bytes a minimal rate. Without it a peer that sends
    /// single bytes would hold this rank for ever.
    pub(crate) fn total_timeout(&self, timeout: Duration) -> Duration {
        let seconds = self.expected_bytes() as f64 / MIN_BYTES_PER_SECOND as f64;
        timeout.saturating_mul(2).saturating_add(Duration::from_secs_f64(seconds))
    }
}
