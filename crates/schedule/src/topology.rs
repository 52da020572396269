//! Topology of the ranks: hosts, racks, data centres.
//!
//! A topology is a nested list. `[[0 1 2] [3 4]]` is two hosts of three and two ranks; each level
//! states how its children communicate. Levels may be of any depth and size.

use std::fmt;

/// Medium between the children of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Shared memory.
    Memory,
    /// Messages.
    Messages,
}

/// A rank, or a group of topologies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Topology {
    /// One rank.
    Rank(usize),
    /// Children that are closer to each other than to other ranks.
    Group {
        /// Medium between the children.
        medium: Medium,
        /// Children of the group.
        children: Vec<Self>,
    },
}

impl Topology {
    /// All ranks on one level.
    pub fn flat(num_ranks: usize, medium: Medium) -> Self {
        Self::Group { medium, children: (0..num_ranks).map(Self::Rank).collect() }
    }

    /// Hosts connected by messages. Rank i runs on the host named `hosts[i]`; ranks of a host share
    /// memory. Hosts are in the order of their first rank.
    pub fn by_host<T: PartialEq>(hosts: &[T]) -> Self {
        let mut names: Vec<(&T, Vec<Self>)> = Vec::new();
        for (rank, host) in hosts.iter().enumerate() {
            match names.iter_mut().find(|(name, _)| *name == host) {
                Some((_, ranks)) => ranks.push(Self::Rank(rank)),
                None => names.push((host, vec![Self::Rank(rank)])),
            }
        }
        let group = |(_, children)| Self::Group { medium: Medium::Memory, children };
        Self::Group { medium: Medium::Messages, children: names.into_iter().map(group).collect() }
    }

    /// Ranks in the order of the topology.
    pub fn ranks(&self) -> Vec<usize> {
        match self {
            Self::Rank(rank) => vec![*rank],
            Self::Group { children, .. } => children.iter().flat_map(Self::ranks).collect(),
        }
    }

    /// Whether the topology holds each rank 0 … `num_ranks - 1` once and no group is empty.
    pub fn covers(&self, num_ranks: usize) -> bool {
        let mut ranks = self.ranks();
        ranks.sort_unstable();
        ranks.into_iter().eq(0..num_ranks) && self.has_no_empty_group()
    }

    /// Memory domain of each rank; ranks of equal number share memory.
    pub fn memory_domains(&self) -> Vec<usize> {
        let mut domains = vec![0; self.ranks().len()];
        let mut next = 0;
        self.number_domains(&mut domains, &mut next);
        domains
    }

    fn number_domains(&self, domains: &mut [usize], next: &mut usize) {
        match self {
            Self::Group { medium: Medium::Messages, children } => {
                for member in children {
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
            Self::Group { children, .. } => {
                !children.is_empty() && children.iter().all(Self::has_no_empty_group)
            }
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rank(rank) => write!(f, "{rank}"),
            Self::Group { children, .. } => {
                let children: Vec<String> = children.iter().map(Self::to_string).collect();
                write!(f, "[{}]", children.join(" "))
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
        assert!(!Topology::Group { medium: Medium::Memory, children: twice }.covers(2));
        let empty = vec![Topology::Rank(0), Topology::flat(0, Medium::Memory)];
        assert!(!Topology::Group { medium: Medium::Memory, children: empty }.covers(1));
    }
}
