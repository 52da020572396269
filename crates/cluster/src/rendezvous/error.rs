//! Errors of the rendezvous.

use std::fmt;

use lockstep_config::Blame;
use lockstep_mesh::Rank;
use lockstep_platform::NetError;

/// Listening side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// A rank.
    Rank(Rank),
    /// A standalone rendezvous host.
    RendezvousHost,
}

impl Side {
    /// Rank to blame; rank 0 for a standalone host.
    pub(super) fn rank(self) -> Rank {
        match self {
            Self::Rank(rank) => rank,
            Self::RendezvousHost => Rank(0),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::RendezvousHost => f.write_str("the rendezvous host"),
        }
    }
}

/// Failure to join a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RendezvousError {
    /// The environment does not describe a rank.
    #[error("the environment does not describe this rank: {problems}")]
    Environment {
        /// All problems, each with a fix.
        problems: String,
    },
    /// Some ranks did not connect.
    #[error(
        "{} did not connect to {addr} within {waited_ms} ms{}",
        ranks(missing),
        rejections(refused)
    )]
    Missing {
        /// Missing ranks.
        missing: Vec<Rank>,
        /// Rendezvous address.
        addr: String,
        /// Timeout.
        waited_ms: u64,
        /// Rejected clients, each with its reason.
        refused: Vec<String>,
    },
    /// The rendezvous host could not be reached.
    #[error("{who} could not be reached at {addr} within {waited_ms} ms: {reason}")]
    Unreachable {
        /// Rank 0, or a standalone host.
        who: Side,
        /// Rendezvous address.
        addr: String,
        /// Timeout.
        waited_ms: u64,
        /// Failure of the last attempt.
        reason: String,
    },
    /// The listening side rejected this rank.
    #[error("{by} refused: {reason}")]
    Refused {
        /// Listening side.
        by: Side,
        /// Reason it gave.
        reason: String,
    },
    /// A rank disconnected or broke the protocol during the rendezvous.
    #[error("rank {peer} was lost while ranks were being connected: {reason}")]
    Lost {
        /// Lost rank.
        peer: Rank,
        /// Observed failure.
        reason: String,
    },
    /// Rank 0 cannot listen at the rendezvous address.
    #[error("{source}; {fix}")]
    NoListener {
        /// Failure of the system.
        source: NetError,
        /// Variable to set.
        fix: String,
    },
    /// This rank cannot accept connections.
    #[error(transparent)]
    Net(#[from] NetError),
}

impl RendezvousError {
    /// Party that must act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Missing { missing, .. } => Blame::Peer(missing.first().map_or(0, |rank| rank.0)),
            Self::Unreachable { .. } => Blame::Peer(0),
            Self::Lost { peer, .. } => Blame::Peer(peer.0),
            Self::Environment { .. }
            | Self::Refused { .. }
            | Self::NoListener { .. }
            | Self::Net(_) => Blame::User,
        }
    }
}

/// `rank 3` or `ranks 1, 2 and 5`, at most 16 of them.
pub(super) fn ranks(missing: &[Rank]) -> String {
    const MAX_NAMED: usize = 16;
    let named: Vec<String> = missing.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    match named.split_last() {
        None => "no rank".to_owned(),
        Some((only, [])) => format!("rank {only}"),
        Some(_) if missing.len() > MAX_NAMED => {
            format!("ranks {} and {} more", named.join(", "), missing.len() - MAX_NAMED)
        }
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
    }
}

fn rejections(refused: &[String]) -> String {
    if refused.is_empty() { String::new() } else { format!("; refused: {}", refused.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranks_are_named() {
        let missing = |ranks: &[usize]| RendezvousError::Missing {
            missing: ranks.iter().map(|&rank| Rank(rank)).collect(),
            addr: "10.0.0.1:29500".to_owned(),
            waited_ms: 500,
            refused: Vec::new(),
        };
        let text = missing(&[3]).to_string();
        assert_eq!(text, "rank 3 did not connect to 10.0.0.1:29500 within 500 ms");
        assert!(missing(&[1, 2, 5]).to_string().starts_with("ranks 1, 2 and 5 did not"));
        let many: Vec<usize> = (0..100).collect();
        assert!(missing(&many).to_string().contains("15 and 84 more"));
        assert_eq!(missing(&[3, 4]).blame(), Blame::Peer(3));
    }
}
