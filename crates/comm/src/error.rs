//! Errors of calls, and interruptions of waits.

use std::time::Duration;

use lockstep_config::Blame;
use lockstep_mesh::Rank;
use lockstep_platform::{NetError, SharedError, ThreadError};
use lockstep_tensor::device::DeviceError;

use crate::label::Label;
use crate::signature::Signature;
use crate::verdict::{Cause, Verdict};

/// A failed call.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CommError {
    /// A rank died, timed out or made a different call. All remaining ranks agree on one verdict
    /// and return it.
    #[error("{0}")]
    Failed(Box<Verdict>),
    /// An expendable rank died ([`Comm::mark_expendable`](crate::Comm::mark_expendable)); only
    /// this message failed.
    #[error("rank {peer} left during a message on the {group} group: {reason}")]
    Gone {
        /// The rank.
        peer: Rank,
        /// How the death was detected.
        reason: String,
        /// Name of the group.
        group: String,
    },
    /// The arguments of a call are invalid.
    #[error("{call} on the {group} group: {rule}")]
    Invalid {
        /// Name of the call.
        call: String,
        /// Name of the group.
        group: String,
        /// The violated rule.
        rule: String,
    },
    /// The arena is full.
    #[error(
        "no room for {requested_bytes} bytes in the rank's arena, whose largest free block has \
         {largest_bytes} bytes; open the world with a larger arena"
    )]
    ArenaFull {
        /// Requested size.
        requested_bytes: usize,
        /// Largest free block.
        largest_bytes: usize,
    },
    /// Shared memory is not available.
    #[error("shared memory")]
    Shared(#[from] SharedError),
    /// A connection failed.
    #[error("network")]
    Net(#[from] NetError),
    /// A thread could not be started.
    #[error("progress thread")]
    Thread(#[from] ThreadError),
    /// The compute device failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

impl CommError {
    /// The party that must act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Failed(verdict) => verdict.blame(),
            Self::Gone { peer, .. } => Blame::Peer(peer.0),
            Self::Invalid { .. }
            | Self::ArenaFull { .. }
            | Self::Shared(_)
            | Self::Net(_)
            | Self::Thread(_)
            | Self::Device(_) => Blame::User,
        }
    }
}

impl CommError {
    /// The verdict that the ranks agreed on, if this is one.
    pub fn verdict(&self) -> Option<&Verdict> {
        match self {
            Self::Failed(verdict) => Some(verdict),
            _ => None,
        }
    }
}

/// Cause of an interrupted wait; the engine adds the call and the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interruption {
    /// The deadline passed.
    Deadline {
        /// The awaited rank.
        peer: Rank,
    },
    /// The peer died or left.
    Lost {
        /// The rank.
        peer: Rank,
        /// How it was detected.
        reason: String,
    },
    /// The peer makes a different call.
    Mismatch {
        /// The rank.
        peer: Rank,
        /// Signature of the peer's call.
        theirs: Signature,
        /// Number of that call, if it is not the interrupted one.
        number: Option<u64>,
    },
    /// Another rank has reported a failure already.
    Reported(Box<Verdict>),
}

/// Context of an interrupted call.
pub(crate) struct Context {
    pub(crate) epoch: u64,
    pub(crate) rank: Rank,
    pub(crate) call: Signature,
    pub(crate) group: String,
    pub(crate) number: u64,
    pub(crate) label: Label,
    pub(crate) timeout: Duration,
    pub(crate) done_bytes: u64,
    pub(crate) expected_bytes: u64,
}

impl Context {
    /// This rank's report of an interruption.
    pub(crate) fn report(self, why: Interruption) -> Verdict {
        let (culprit, cause) = match why {
            Interruption::Deadline { peer } => {
                (peer, Cause::Timeout { deadline_ms: self.timeout.as_millis() as u64 })
            }
            Interruption::Lost { peer, reason } => (peer, Cause::Lost { reason }),
            Interruption::Mismatch { peer, theirs, .. } => (peer, Cause::Mismatch { theirs }),
            Interruption::Reported(verdict) => return *verdict,
        };
        let Self { epoch, call, group, number, label, done_bytes, expected_bytes, .. } = self;
        let (process, noticed_by) = (None, self.rank);
        Verdict {
            epoch,
            culprit,
            process,
            cause,
            noticed_by,
            call,
            number,
            group,
            label,
            done_bytes,
            expected_bytes,
        }
    }
}
