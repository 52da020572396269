//! The first failure of a rank, shared by all its channels.

use std::sync::{Mutex, OnceLock};

use lockstep_mesh::Rank;

use crate::error::Interruption;
use crate::verdict::Verdict;

/// Failure of a rank's channels. Messages may be torn once one is recorded.
#[derive(Default)]
pub(crate) struct FailureState {
    /// The first interruption of any channel.
    pub(super) first: OnceLock<Interruption>,
    /// The verdict that all ranks agreed on.
    pub(super) verdict: OnceLock<Verdict>,
    /// Held by the channel that runs the agreement.
    pub(super) agreement: Mutex<()>,
    /// Ranks whose death interrupts only the ranks that wait for them.
    expendable: OnceLock<Vec<Rank>>,
}

impl FailureState {
    /// Whether the ranks have agreed on a verdict.
    pub(super) fn has_verdict(&self) -> bool {
        self.verdict.get().is_some()
    }

    /// Marks ranks as expendable ([`super::Transport::mark_expendable`]); the first list counts.
    pub(super) fn mark_expendable(&self, ranks: &[Rank]) {
        let _ = self.expendable.set(ranks.to_vec());
    }

    pub(super) fn is_expendable(&self, rank: Rank) -> bool {
        self.expendable.get().is_some_and(|expendable| expendable.contains(&rank))
    }
}
