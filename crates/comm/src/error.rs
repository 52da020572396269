//! What can go wrong between ranks, and who is to blame.

use std::time::Duration;

use lockstep_config::Blame;
use lockstep_mesh::Rank;
use lockstep_platform::{NetError, SharedError, ThreadError};

use crate::label::Label;
use crate::signature::Signature;
use crate::verdict::{Cause, Verdict};

/// A call that failed. Every variant says which call and on which group.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CommError {
    /// A rank died, did not come, or made another call. All ranks that are left settle on one
    /// verdict, and every one of them returns it.
    #[error("{0}")]
    Failed(Box<Verdict>),
    /// A rank died that the others can do without ([`Comm::spare`](crate::Comm::spare)); only this
    /// message failed.
    #[error("rank {peer} left during a message on the {group} group: {reason}")]
    Gone {
        /// Who.
        peer: Rank,
        /// How it was noticed.
        reason: String,
        /// On which group.
        group: String,
    },
    /// The arguments of a call do not fit together.
    #[error("{call} on the {group} group: {rule}")]
    Invalid {
        /// Which call.
        call: String,
        /// On which group.
        group: String,
        /// What would be right.
        rule: String,
    },
    /// The memory for exchange is used up.
    #[error(
        "no room for {wanted_bytes} bytes in the rank's arena, whose largest hole has \
         {largest_bytes}; open it with more"
    )]
    ArenaFull {
        /// What was asked for.
        wanted_bytes: usize,
        /// What there is.
        largest_bytes: usize,
    },
    /// Shared memory could not be had.
    #[error("shared memory")]
    Shared(#[from] SharedError),
    /// A connection could not be had.
    #[error("network")]
    Net(#[from] NetError),
    /// A thread could not be had.
    #[error("progress thread")]
    Thread(#[from] ThreadError),
}

impl CommError {
    /// Who must act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Failed(verdict) => verdict.blame(),
            Self::Gone { peer, .. } => Blame::Peer(peer.0),
            Self::Invalid { .. }
            | Self::ArenaFull { .. }
            | Self::Shared(_)
            | Self::Net(_)
            | Self::Thread(_) => Blame::User,
        }
    }
}

impl CommError {
    /// What the ranks settled on, where they had to.
    pub fn verdict(&self) -> Option<&Verdict> {
        match self {
            Self::Failed(verdict) => Some(verdict),
            _ => None,
        }
    }
}

/// Why a wait ended before what was waited for happened; the engine adds the call and the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Interruption {
    /// The time was up.
    Deadline {
        /// Who was waited for.
        peer: Rank,
    },
    /// The peer is gone.
    Lost {
        /// Who.
        peer: Rank,
        /// How it was noticed.
        reason: String,
    },
    /// The peer makes another call.
    Mismatch {
        /// Who.
        peer: Rank,
        /// What it calls, or called.
        theirs: Signature,
        /// Which call of the group that is, where it is not the one that was interrupted.
        number: Option<u64>,
    },
    /// Another rank has made a statement about a failure already.
    Reported(Box<Verdict>),
}

/// What is known about a call when it is interrupted.
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
    /// What this rank has to say about an interruption.
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
