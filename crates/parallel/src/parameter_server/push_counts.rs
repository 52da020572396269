//! Outcomes of the pushes of a worker at one server: applied, discarded or skipped.

use std::collections::BTreeMap;

/// Outcomes of the pushes of one worker at one server. A gradient counts once its update has
/// closed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PushCounts {
    /// Gradients that changed parameters, by staleness.
    pub applied: BTreeMap<u64, u64>,
    /// Gradients that changed nothing: too stale, too late, or of a synchronous step that another
    /// worker skipped.
    pub discarded: u64,
    /// Steps that the worker skipped.
    pub skipped: u64,
}

impl PushCounts {
    /// Number of gradients that changed parameters.
    pub fn num_applied(&self) -> u64 {
        self.applied.values().sum()
    }

    /// Sum of the staleness of all gradients that changed parameters.
    pub fn total_staleness(&self) -> u64 {
        self.applied.iter().map(|(staleness, count)| staleness * count).sum()
    }

    /// Counts a gradient that changed parameters.
    pub(super) fn apply(&mut self, staleness: u64) {
        *self.applied.entry(staleness).or_default() += 1;
    }

    /// Counts of all workers as one message.
    pub(super) fn message(all: &[Self]) -> Vec<u64> {
        let numbers = |counts: &Self| -> Vec<u64> {
            let head = [counts.discarded, counts.skipped, counts.applied.len() as u64];
            head.into_iter().chain(counts.applied.iter().flat_map(|(s, n)| [*s, *n])).collect()
        };
        all.iter().flat_map(numbers).collect()
    }

    /// Counts of all workers from a message.
    pub(super) fn from_message(mut message: &[u64]) -> Vec<Self> {
        let mut all = Vec::new();
        while let [discarded, skipped, num_classes, rest @ ..] = message {
            let (classes, behind) = rest.split_at(2 * *num_classes as usize);
            let applied = classes.as_chunks().0.iter().map(|&[s, n]| (s, n)).collect();
            all.push(Self { applied, discarded: *discarded, skipped: *skipped });
            message = behind;
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_workers_survive_a_message() {
        let busy =
            PushCounts { applied: BTreeMap::from([(0, 7), (3, 2)]), discarded: 4, skipped: 1 };
        assert_eq!((busy.num_applied(), busy.total_staleness()), (9, 6));
        let all = [PushCounts::default(), busy, PushCounts { skipped: 5, ..PushCounts::default() }];
        assert_eq!(PushCounts::from_message(&PushCounts::message(&all)), all);
    }
}
