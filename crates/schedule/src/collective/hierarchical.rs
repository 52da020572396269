//! Hierarchical all-reduce: one level of the topology after the other.
//!
//! Ranks of a host are close, hosts are far apart. The ranks of each innermost group first
//! reduce-scatter among themselves, after which each holds a share of its group's sum; then the
//! owners of the same chunks in neighbouring groups reduce-scatter their shares, and so on up to
//! the root. All-gathers on every level follow in reverse. No rank is a leader: on each level all
//! ranks carry a part, all links are busy, and the bytes that leave a host, 2(h-1)/h of the vector
//! for h hosts, do not depend on its number of ranks.
//!
//! Groups may have different sizes. With hosts of three and two ranks, shares are split so that
//! every boundary of one host is a boundary of the other too, and each run of chunks between two
//! boundaries has one owner on each host. On every level, children that share memory read it
//! directly (as in [`direct`](super::direct)); others exchange messages, by recursive halving where
//! their number is a power of two and pairwise otherwise.
//!
//! *Order of the sum:* canonical exactly if every group is a block of the canonical tree: an
//! aligned power of two of consecutive ranks, or its remainder at the end.

use super::pairwise::Split;
use super::rabenseifner;
use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::instruction::{Buffer, Place};
use crate::op::Op;
use crate::schedule::Schedule;
use crate::sum_tree::{SumTree, is_canonical_block};
use crate::topology::{Medium, Topology};

/// All-reduce. The topology must name each rank of the group once.
pub fn all_reduce(topology: &Topology) -> Schedule {
    let num_ranks = topology.ranks().len();
    assert!(topology.covers(num_ranks), "{topology} does not name every rank once");
    let num_chunks = num_chunks(topology);
    let mut climb =
        Climb { builder: Builder::new(num_ranks), num_ranks, all: Chunks::all(num_chunks) };
    let (level, top) = climb.up(topology, 0);
    // The sum of a single rank is its input.
    for &(chunks, place) in &level.owned {
        climb.builder.copy(top, place.rank, chunks, Buffer::Output.on(place.rank), place);
    }
    climb.down(&level, top);
    climb.builder.finish(Op::AllReduce, Algorithm::Hierarchical, num_chunks)
}

/// Number of chunks, such that on every level each run of chunks with the same owners divides
/// equally among them.
fn num_chunks(topology: &Topology) -> usize {
    match topology {
        Topology::Rank(_) => 1,
        Topology::Group { children, .. } => {
            children.iter().map(num_chunks).fold(1, lcm) * children.len()
        }
    }
}

struct Climb {
    builder: Builder,
    num_ranks: usize,
    all: Chunks,
}

/// A level of the topology, with the chunks that each rank owns.
struct Level {
    /// Owner of each run of chunks of this level's sum, in ascending order.
    owned: Vec<(Chunks, Place)>,
    /// Exchange of this level, with the levels below; `None` for a single rank.
    exchange: Option<Exchange>,
}

struct Exchange {
    method: ExchangeMethod,
    ranks: Vec<usize>,
    splits: Vec<Split>,
    children: Vec<Level>,
}

/// Exchange method between the children of a level.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExchangeMethod {
    /// Shared memory.
    Memory,
    /// Messages by recursive halving and doubling.
    Halving,
    /// Messages between all pairs.
    Pairwise,
}

impl Climb {
    /// Reduces the inputs of `topology`'s ranks from slot `start` on; returns the next slot.
    fn up(&mut self, topology: &Topology, start: usize) -> (Level, usize) {
        let (medium, children) = match topology {
            Topology::Rank(rank) => {
                let owned = vec![(self.all, Buffer::INPUT.on(*rank))];
                return (Level { owned, exchange: None }, start);
            }
            Topology::Group { children, .. } if children.len() == 1 => {
                return self.up(&children[0], start);
            }
            Topology::Group { medium, children } => (*medium, children),
        };
        let (levels, ends): (Vec<Level>, Vec<usize>) =
            children.iter().map(|member| self.up(member, start)).unzip();
        let mut slot = ends.into_iter().fold(start, usize::max);
        let ranks = topology.ranks();
        let order = order(children, self.num_ranks);
        let method = ExchangeMethod::new(medium, &order);
        if method == ExchangeMethod::Memory {
            self.builder.sync(slot, &ranks);
            slot += 1;
        }
        self.builder.free_scratch();
        let mut end = slot;
        let mut splits = Vec::new();
        let mut owned = Vec::new();
        for (run, owners) in common_runs(&levels) {
            let ranks: Vec<usize> = owners.iter().map(|owner| owner.rank).collect();
            let split = Split { shares: method.shares(run, ranks.len()), ranks };
            end = end.max(self.reduce(slot, &owners, &split, method, &order));
            let owners = split.ranks.iter().map(|&rank| Buffer::Output.on(rank));
            owned.extend(split.shares.iter().copied().zip(owners));
            splits.push(split);
        }
        owned.sort_by_key(|(chunks, _)| *chunks);
        let exchange = Exchange { method, ranks, splits, children: levels };
        (Level { owned, exchange: Some(exchange) }, end)
    }

    /// The owners of a run of chunks reduce their shares of it.
    fn reduce(
        &mut self,
        slot: usize,
        owners: &[Place],
        split: &Split,
        method: ExchangeMethod,
        order: &SumTree<usize>,
    ) -> usize {
        let sum = order.map(&mut |&member| owners[member]);
        let builder = &mut self.builder;
        match method {
            ExchangeMethod::Memory => {
                for (&rank, &share) in split.ranks.iter().zip(&split.shares) {
                    let into = vec![Buffer::Output.on(rank)];
                    builder.reduce(slot, rank, share, into, sum.clone());
                }
                slot + 1
            }
            ExchangeMethod::Halving => {
                rabenseifner::halve(builder, slot, owners, &split.shares, |_| Buffer::Output)
            }
            ExchangeMethod::Pairwise => {
                split.reduce_scatter(builder, slot, &sum, |_| Buffer::Output)
            }
        }
    }

    /// Gathers the sums back down from slot `start` on; returns the next slot.
    fn down(&mut self, level: &Level, start: usize) -> usize {
        let Some(exchange) = &level.exchange else { return start };
        let mut slot = start;
        if exchange.method == ExchangeMethod::Memory {
            self.builder.sync(slot, &exchange.ranks);
            slot += 1;
        }
        let gathered =
            exchange.splits.iter().map(|split| self.gather(slot, split, exchange.method));
        let mut end = gathered.fold(slot, usize::max);
        if exchange.method == ExchangeMethod::Memory {
            self.builder.sync(end, &exchange.ranks);
            end += 1;
        }
        let children = exchange.children.iter();
        children.map(|member| self.down(member, end)).fold(end, usize::max)
    }

    /// The owners of a run of chunks all-gather their shares of it.
    fn gather(&mut self, slot: usize, split: &Split, method: ExchangeMethod) -> usize {
        let builder = &mut self.builder;
        let output = |&rank: &usize| Buffer::Output.on(rank);
        match method {
            ExchangeMethod::Memory => {
                for &rank in &split.ranks {
                    for (source, &share) in split.ranks.iter().map(output).zip(&split.shares) {
                        builder.copy(slot, rank, share, Buffer::Output.on(rank), source);
                    }
                }
                slot + 1
            }
            ExchangeMethod::Halving => {
                let outputs: Vec<Place> = split.ranks.iter().map(output).collect();
                rabenseifner::double(builder, slot, &outputs, &split.shares)
            }
            ExchangeMethod::Pairwise => split.all_gather(builder, slot, Buffer::Output),
        }
    }
}

impl ExchangeMethod {
    /// Halving needs a power of two of children whose sum is a perfect tree.
    fn new(medium: Medium, order: &SumTree<usize>) -> Self {
        let group_size = order.leaves().len();
        let is_perfect = group_size.is_power_of_two() && *order == SumTree::canonical(group_size);
        match medium {
            Medium::Memory => Self::Memory,
            Medium::Messages if is_perfect => Self::Halving,
            Medium::Messages => Self::Pairwise,
        }
    }

    /// Divides a run among its owners; for halving, shares of one message are contiguous.
    fn shares(self, run: Chunks, num_owners: usize) -> Vec<Chunks> {
        match self {
            Self::Halving => rabenseifner::contiguous_shares(run, num_owners),
            Self::Memory | Self::Pairwise => run.split(num_owners),
        }
    }
}

/// Longest runs of chunks with a single owner in every level, with those owners.
fn common_runs(levels: &[Level]) -> Vec<(Chunks, Vec<Place>)> {
    let mut borders: Vec<usize> =
        levels.iter().flat_map(|level| &level.owned).map(|(chunks, _)| chunks.end).collect();
    borders.sort_unstable();
    borders.dedup();
    let starts = std::iter::once(0).chain(borders.iter().copied());
    let runs = starts.zip(&borders).map(|(start, &end)| Chunks { start, end });
    let owner = |level: &Level, run: Chunks| {
        let found = level.owned.iter().find(|(chunks, _)| chunks.contains(run));
        found.expect("the owners of a level hold every chunk").1
    };
    runs.map(|run| (run, levels.iter().map(|level| owner(level, run)).collect())).collect()
}

/// Order in which the children's sums are added: that of the canonical tree over all ranks where
/// the children are blocks of it, otherwise the canonical tree over the children.
fn order(children: &[Topology], num_ranks: usize) -> SumTree<usize> {
    let block = |member: &Topology| {
        let ranks = member.ranks();
        let block = ranks[0]..ranks[0] + ranks.len();
        let is_block = ranks.iter().copied().eq(block.clone());
        (is_block && is_canonical_block(num_ranks, &block)).then_some(block)
    };
    let numbered = children.iter().enumerate();
    let blocks: Option<Vec<_>> = numbered.map(|(index, m)| Some((block(m)?, index))).collect();
    match blocks {
        Some(blocks) => SumTree::over_blocks(num_ranks, &blocks),
        None => SumTree::canonical(children.len()),
    }
}

fn lcm(a: usize, b: usize) -> usize {
    a / gcd(a, b) * b
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
