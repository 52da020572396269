//! Why a run could not come together.

use std::fmt;

use lockstep_config::Blame;
use lockstep_mesh::Rank;
use lockstep_platform::NetError;

/// Who answered, or should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// A rank.
    Rank(Rank),
    /// A meeting point of its own.
    MeetingPoint,
}

impl Side {
    /// Who is to blame; a meeting point is no rank, and stands in for rank 0.
    pub(super) fn rank(self) -> Rank {
        match self {
            Self::Rank(rank) => rank,
            Self::MeetingPoint => Rank(0),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "rank {rank}"),
            Self::MeetingPoint => f.write_str("the meeting point"),
        }
    }
}

/// A rank that could not join.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RendezvousError {
    /// The environment does not say where this rank belongs.
    #[error("cannot tell this rank's place: {problems}")]
    Place {
        /// Everything that is wrong, with what would be right.
        problems: String,
    },
    /// Some ranks did not come.
    #[error("{} did not come to {addr} within {waited_ms} ms{}", ranks(missing), refusals(refused))]
    Missing {
        /// Who.
        missing: Vec<Rank>,
        /// Where they were waited for.
        addr: String,
        /// How long they were waited for.
        waited_ms: u64,
        /// Who came and was turned away, and why.
        refused: Vec<String>,
    },
    /// The host of the meeting point could not be reached.
    #[error("{who} could not be reached at {addr} within {waited_ms} ms: {reason}")]
    Unreachable {
        /// Rank 0, or a meeting point of its own.
        who: Side,
        /// Where it should be.
        addr: String,
        /// How long it was tried.
        waited_ms: u64,
        /// The last attempt's failure.
        reason: String,
    },
    /// Another rank does not want this one.
    #[error("{by} refused: {reason}")]
    Refused {
        /// Who.
        by: Side,
        /// Its own words.
        reason: String,
    },
    /// A rank went away, or said something strange, while ranks were being connected.
    #[error("rank {peer} was lost while ranks were being connected: {reason}")]
    Lost {
        /// Who.
        peer: Rank,
        /// How it was noticed.
        reason: String,
    },
    /// No connections can be accepted here.
    #[error(transparent)]
    Net(#[from] NetError),
}

impl RendezvousError {
    /// Who must act.
    pub fn blame(&self) -> Blame {
        match self {
            Self::Missing { missing, .. } => Blame::Peer(missing.first().map_or(0, |rank| rank.0)),
            Self::Unreachable { .. } => Blame::Peer(0),
            Self::Lost { peer, .. } => Blame::Peer(peer.0),
            Self::Place { .. } | Self::Refused { .. } | Self::Net(_) => Blame::User,
        }
    }
}

/// `rank 3`, `ranks 1, 2 and 5`, and not a page of them.
fn ranks(missing: &[Rank]) -> String {
    const MAX_NAMED: usize = 16;
    let named: Vec<String> = missing.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    match named.split_last() {
        None => "nobody".to_owned(),
        Some((only, [])) => format!("rank {only}"),
        Some(_) if missing.len() > MAX_NAMED => {
            format!("ranks {} and {} more", named.join(", "), missing.len() - MAX_NAMED)
        }
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
    }
}

fn refusals(refused: &[String]) -> String {
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
        assert_eq!(text, "rank 3 did not come to 10.0.0.1:29500 within 500 ms");
        assert!(missing(&[1, 2, 5]).to_string().starts_with("ranks 1, 2 and 5 did not"));
        let many: Vec<usize> = (0..100).collect();
        assert!(missing(&many).to_string().contains("15 and 84 more"));
        assert_eq!(missing(&[3, 4]).blame(), Blame::Peer(3));
    }
}
