//! How ranks hang together: who shares a host, a rack, a building.
//!
//! A topology is a nested list. `[[0 1 2] [3 4]]` is two hosts of three and two ranks; each level
//! says how its members reach each other. Levels may be as many and as uneven as the machines are.

use std::fmt;

/// How the members of a level reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// They see each other's memory.
    Memory,
    /// They send messages.
    Messages,
}

/// A rank, or a group of topologies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topology {
    /// One rank.
    Rank(usize),
    /// Members that are closer to each other than to anybody else.
    Group {
        /// How they reach each other.
        medium: Medium,
        /// Who they are.
        members: Vec<Self>,
    },
}

impl Topology {
    /// All ranks on one level.
    pub fn flat(num_ranks: usize, medium: Medium) -> Self {
        Self::Group { medium, members: (0..num_ranks).map(Self::Rank).collect() }
    }

    /// Hosts, joined by messages. Rank i runs on the host named `hosts[i]`; inside a host ranks
    /// share memory. Hosts stand in the order of their first rank.
    pub fn by_host<T: PartialEq>(hosts: &[T]) -> Self {
        let mut seen: Vec<(&T, Vec<Self>)> = Vec::new();
        for (rank, host) in hosts.iter().enumerate() {
            match seen.iter_mut().find(|(name, _)| *name == host) {
                Some((_, ranks)) => ranks.push(Self::Rank(rank)),
                None => seen.push((host, vec![Self::Rank(rank)])),
            }
        }
        let group = |(_, members)| Self::Group { medium: Medium::Memory, members };
        Self::Group { medium: Medium::Messages, members: seen.into_iter().map(group).collect() }
    }

    /// Its ranks, in the order in which they are written.
    pub fn ranks(&self) -> Vec<usize> {
        match self {
            Self::Rank(rank) => vec![*rank],
            Self::Group { members, .. } => members.iter().flat_map(Self::ranks).collect(),
        }
    }

    /// Whether it holds each of the ranks 0 … `num_ranks - 1` once, and no group is empty.
    pub fn covers(&self, num_ranks: usize) -> bool {
        let mut ranks = self.ranks();
        ranks.sort_unstable();
        ranks.into_iter().eq(0..num_ranks) && self.has_no_empty_group()
    }

    /// Which ranks see each other's memory: those with the same number, by rank.
    pub fn memory_domains(&self) -> Vec<usize> {
        let mut domains = vec![0; self.ranks().len()];
        let mut next = 0;
        self.number_domains(&mut domains, &mut next);
        domains
    }

    fn number_domains(&self, domains: &mut [usize], next: &mut usize) {
        match self {
            Self::Group { medium: Medium::Messages, members } => {
                for member in members {
                    member.number_domains(domains, next);
                }
            }
            Self::Rank(_) | Self::Group { medium: Medium::Memory, .. } => {
                for rank in self.ranks() {
                    domains[rank] = *next;
                }
                *next += 1;
            }
        }
    }

    fn has_no_empty_group(&self) -> bool {
        match self {
            Self::Rank(_) => true,
            Self::Group { members, .. } => {
                !members.is_empty() && members.iter().all(Self::has_no_empty_group)
            }
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "{rank}"),
            Self::Group { members, .. } => {
                let members: Vec<String> = members.iter().map(Self::to_string).collect();
                write!(f, "[{}]", members.join(" "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_host_become_one_group() {
        let topology = Topology::by_host(&["a", "a", "b", "a", "b"]);
        assert_eq!(topology.to_string(), "[[0 1 3] [2 4]]");
        assert!(topology.covers(5));
    }

    #[test]
    fn memory_ends_where_messages_begin() {
        let hosts = Topology::by_host(&["a", "a", "b", "a"]);
        assert_eq!(hosts.memory_domains(), [0, 0, 1, 0]);
        assert_eq!(Topology::flat(3, Medium::Messages).memory_domains(), [0, 1, 2]);
        assert_eq!(Topology::flat(3, Medium::Memory).memory_domains(), [0, 0, 0]);
    }

    #[test]
    fn a_topology_names_every_rank_once() {
        assert!(Topology::flat(3, Medium::Messages).covers(3));
        assert!(!Topology::flat(3, Medium::Messages).covers(4));
        let twice = vec![Topology::Rank(0), Topology::Rank(0)];
        assert!(!Topology::Group { medium: Medium::Memory, members: twice }.covers(2));
        let empty = vec![Topology::Rank(0), Topology::flat(0, Medium::Memory)];
        assert!(!Topology::Group { medium: Medium::Memory, members: empty }.covers(1));
    }
}
