//! What can go wrong between ranks, and who is to blame.

use std::time::Duration;

use lockstep_config::Blame;
use lockstep_mesh::Rank;
use lockstep_platform::{NetError, SharedError, ThreadError};

use crate::rendezvous::RendezvousError;
use crate::signature::Signature;

/// A call that failed. Every variant says which call and on which group.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CommError {
    /// A rank ended while others needed it.
    #[error(
        "rank {peer} left during {call} on the {group} group after {done_bytes} of \
         {expected_bytes} bytes: {reason}"
    )]
    PeerLost {
        /// Who left.
        peer: Rank,
        /// During which call.
        call: Signature,
        /// Of which group.
        group: String,
        /// Bytes exchanged before.
        done_bytes: u64,
        /// Bytes the call exchanges.
        expected_bytes: u64,
        /// How it was noticed.
        reason: String,
    },
    /// A rank did not come in time.
    #[error(
        "{call} on the {group} group waited {deadline_ms} ms for rank {peer}, after {done_bytes} \
         of {expected_bytes} bytes"
    )]
    Deadline {
        /// Who did not come.
        peer: Rank,
        /// To which call.
        call: Signature,
        /// Of which group.
        group: String,
        /// How long it was waited for.
        deadline_ms: u64,
        /// Bytes exchanged before.
        done_bytes: u64,
        /// Bytes the call exchanges.
        expected_bytes: u64,
    },
    /// Two ranks made different calls.
    #[error(
        "call {number} on the {group} group differs: rank {rank} calls {call}, rank {peer} calls \
         {peer_call}"
    )]
    Mismatch {
        /// The rank that reports.
        rank: Rank,
        /// What it called.
        call: Signature,
        /// A rank that called something else.
        peer: Rank,
        /// What that rank called.
        peer_call: Signature,
        /// On which group.
        group: String,
        /// Which call of the group, counted from 1.
        number: u64,
    },
    /// Another rank failed and told the others.
    #[error("rank {by} gave up: {reason}")]
    Aborted {
        /// Who failed first.
        by: Rank,
        /// Its own words.
        reason: String,
        /// Who must act, as it saw it.
        blame: Blame,
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
    /// The ranks did not find each other.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// A thread could not be had.
    #[error("progress thread")]
    Thread(#[from] ThreadError),
}

impl CommError {
    /// Who must act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::PeerLost { peer, .. } | Self::Deadline { peer, .. } => Blame::Peer(peer.0),
            Self::Aborted { blame, .. } => *blame,
            Self::Rendezvous(error) => error.blame(),
            Self::Mismatch { .. }
            | Self::Invalid { .. }
            | Self::ArenaFull { .. }
            | Self::Shared(_)
            | Self::Net(_)
            | Self::Thread(_) => Blame::User,
        }
    }
}

impl CommError {
    /// What the other ranks are told: the error, and in front of it who is to blame, so that all
    /// ranks agree on what must be done.
    pub(crate) fn last_words(&self) -> String {
        match self.blame() {
            Blame::Peer(rank) => format!("{rank}:{self}"),
            Blame::User | Blame::Storage | Blame::Diverged => format!("u:{self}"),
        }
    }
}

/// What a rank's last words say about the blame, and the rest of them. Any text is understood.
fn understand(by: Rank, words: String) -> (Blame, String) {
    match words.split_once(':') {
        Some(("u", text)) => (Blame::User, text.to_owned()),
        Some((rank, text)) if rank.bytes().all(|byte| byte.is_ascii_digit()) => {
            (rank.parse().map_or(Blame::Peer(by.0), Blame::Peer), text.to_owned())
        }
        _ => (Blame::Peer(by.0), words),
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
        /// What it calls.
        theirs: Signature,
    },
    /// Another rank failed and told everybody.
    Aborted {
        /// Who.
        by: Rank,
        /// Its own words.
        reason: String,
    },
}

/// What is known about a call when it is interrupted.
pub(crate) struct Context {
    pub(crate) rank: Rank,
    pub(crate) call: Signature,
    pub(crate) group: String,
    pub(crate) number: u64,
    pub(crate) timeout: Duration,
    pub(crate) done_bytes: u64,
    pub(crate) expected_bytes: u64,
}

impl Context {
    /// The error that an interruption becomes.
    pub(crate) fn error(self, why: Interruption) -> CommError {
        let Self { rank, call, group, number, timeout, done_bytes, expected_bytes } = self;
        match why {
            Interruption::Deadline { peer } => {
                let deadline_ms = timeout.as_millis() as u64;
                CommError::Deadline { peer, call, group, deadline_ms, done_bytes, expected_bytes }
            }
            Interruption::Lost { peer, reason } => {
                CommError::PeerLost { peer, call, group, done_bytes, expected_bytes, reason }
            }
            Interruption::Mismatch { peer, theirs } => {
                CommError::Mismatch { rank, call, peer, peer_call: theirs, group, number }
            }
            Interruption::Aborted { by, reason } => {
                let (blame, reason) = understand(by, reason);
                CommError::Aborted { by, reason, blame }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_blame_whom_the_first_one_blames() {
        let by = Rank(5);
        let call = Signature::message(crate::Dtype::F32, 4);
        let group = || "world".to_owned();
        let lost = CommError::PeerLost {
            peer: Rank(2),
            call,
            group: group(),
            done_bytes: 0,
            expected_bytes: 16,
            reason: "its process ended".to_owned(),
        };
        assert_eq!(understand(by, lost.last_words()), (Blame::Peer(2), lost.to_string()));
        let wrong = CommError::Invalid { call: group(), group: group(), rule: group() };
        assert_eq!(understand(by, wrong.last_words()), (Blame::User, wrong.to_string()));
        for words in ["", "no blame", "x:y", "99999999999999999999999:z"] {
            assert_eq!(understand(by, words.to_owned()).0, Blame::Peer(5), "{words}");
        }
    }
}
