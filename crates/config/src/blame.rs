//! Responsibility for a failure, which decides the exit code and the restart policy.
//!
//! Every error of every crate has a `blame()`. The exit code and the supervisor's policy match on
//! it. A bug is not listed here: it is a panic, exit code 101.

use std::fmt;

/// The party that must act before the run can continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Blame {
    /// The person who wrote the command, the recipe or the data. Restarting changes nothing.
    User,
    /// Another worker, by rank, stopped responding. Restart from the last checkpoint.
    Peer(usize),
    /// A disk or object store failed or returned damaged bytes. Fall back to an older checkpoint.
    Storage,
    /// Training diverged to non-finite values. Stop and keep the evidence.
    Diverged,
}

impl Blame {
    /// The exit code that scripts rely on: 2 user, 3 peer, 4 storage, 5 diverged.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::User => 2,
            Self::Peer(_) => 3,
            Self::Storage => 4,
            Self::Diverged => 5,
        }
    }
}

impl fmt::Display for Blame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => f.write_str("user"),
            Self::Peer(rank) => write!(f, "peer (rank {rank})"),
            Self::Storage => f.write_str("storage"),
            Self::Diverged => f.write_str("diverged"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Blame;

    #[test]
    fn exit_codes_are_the_documented_ones() {
        let all = [Blame::User, Blame::Peer(7), Blame::Storage, Blame::Diverged];
        assert_eq!(all.map(Blame::exit_code), [2, 3, 4, 5]);
    }

    #[test]
    fn a_lost_peer_is_shown_with_its_rank() {
        assert_eq!(Blame::Peer(7).to_string(), "peer (rank 7)");
        assert_eq!(Blame::Diverged.to_string(), "diverged");
    }
}
