//! Process group: the ranks of a collective operation, in order.
//!
//! Schedules use *group ranks* 0, 1, 2 … and do not know the run's ranks; a group translates
//! between the two.

use std::fmt;

use crate::Rank;

/// Distinct ranks in a fixed order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    ranks: Vec<Rank>,
}

impl Group {
    /// Makes a group of these ranks, in this order. Panics if a rank appears twice.
    pub fn new(ranks: Vec<Rank>) -> Self {
        assert!(!ranks.is_empty(), "a group has at least one rank");
        let mut sorted = ranks.clone();
        sorted.sort_unstable();
        let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]);
        assert!(twice.is_none(), "rank {} appears twice in a group", twice.map_or(0, |p| p[0].0));
        Self { ranks }
    }

    /// The ranks 0, 1, … `num_ranks - 1`.
    pub fn all(num_ranks: usize) -> Self {
        Self::new((0..num_ranks).map(Rank).collect())
    }

    /// Number of ranks in the group.
    #[expect(clippy::len_without_is_empty, reason = "a group is never empty")]
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Ranks, ordered by group rank.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// Rank of the worker with this group rank.
    pub fn rank(&self, group_rank: usize) -> Rank {
        self.ranks[group_rank]
    }

    /// Group rank of `rank`, if the group contains it.
    pub fn group_rank(&self, rank: Rank) -> Option<usize> {
        self.ranks.iter().position(|&other| other == rank)
    }

    /// Whether the group contains `rank`.
    pub fn contains(&self, rank: Rank) -> bool {
        self.group_rank(rank).is_some()
    }

    /// Subgroup of these group ranks, in this order.
    pub fn select(&self, group_ranks: &[usize]) -> Self {
        Self::new(group_ranks.iter().map(|&group_rank| self.rank(group_rank)).collect())
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.ranks.iter().map(Rank::to_string).collect();
        write!(f, "[{}]", names.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_ranks_and_ranks_invert_each_other() {
        let group = Group::new(vec![Rank(5), Rank(1), Rank(9)]);
        for group_rank in 0..group.len() {
            assert_eq!(group.group_rank(group.rank(group_rank)), Some(group_rank));
        }
        assert_eq!(group.group_rank(Rank(2)), None);
        assert!(group.contains(Rank(9)));
        assert_eq!(group.to_string(), "[5 1 9]");
    }

    #[test]
    fn a_subgroup_keeps_the_requested_order() {
        let group = Group::all(4).select(&[3, 1]);
        assert_eq!(group.ranks(), [Rank(3), Rank(1)]);
    }

    #[test]
    #[should_panic(expected = "rank 2 appears twice")]
    fn a_rank_that_appears_twice_is_refused() {
        Group::new(vec![Rank(2), Rank(0), Rank(2)]);
    }
}
