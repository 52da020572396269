//! Some workers in order: the members of a collective operation.
//!
//! Schedules speak of *positions* 0, 1, 2 … inside a group and know nothing of the run around it;
//! a group translates between those positions and ranks.

use std::fmt;

use crate::Rank;

/// Distinct ranks in a fixed order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    ranks: Vec<Rank>,
}

impl Group {
    /// A group of these ranks, in this order. A rank that appears twice is a bug of the caller.
    pub fn new(ranks: Vec<Rank>) -> Self {
        assert!(!ranks.is_empty(), "a group has at least one member");
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

    /// How many members there are.
    #[expect(clippy::len_without_is_empty, reason = "a group is never empty")]
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The members by position.
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// The member at `position`.
    pub fn rank(&self, position: usize) -> Rank {
        self.ranks[position]
    }

    /// Where `rank` stands in the group, if it is a member.
    pub fn group_rank(&self, rank: Rank) -> Option<usize> {
        self.ranks.iter().position(|&member| member == rank)
    }

    /// Whether `rank` is a member.
    pub fn contains(&self, rank: Rank) -> bool {
        self.group_rank(rank).is_some()
    }

    /// The members at `positions`, in that order, as a group of their own.
    pub fn select(&self, positions: &[usize]) -> Self {
        Self::new(positions.iter().map(|&position| self.rank(position)).collect())
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
    fn positions_and_ranks_invert_each_other() {
        let group = Group::new(vec![Rank(5), Rank(1), Rank(9)]);
        for position in 0..group.len() {
            assert_eq!(group.group_rank(group.rank(position)), Some(position));
        }
        assert_eq!(group.group_rank(Rank(2)), None);
        assert!(group.contains(Rank(9)));
        assert_eq!(group.to_string(), "[5 1 9]");
    }

    #[test]
    fn a_selection_keeps_the_order_it_was_asked_in() {
        let group = Group::all(4).select(&[3, 1]);
        assert_eq!(group.ranks(), [Rank(3), Rank(1)]);
    }

    #[test]
    #[should_panic(expected = "rank 2 appears twice")]
    fn a_member_counts_once() {
        Group::new(vec![Rank(2), Rank(0), Rank(2)]);
    }
}
