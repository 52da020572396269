//! Tree collectives over the canonical tree of the ranks: binomial for powers of two (Thakur,
//! Rabenseifner and Gropp 2005).
//!
//! Every node of the tree is a block of consecutive ranks, and one rank acts for the block: the
//! root of the operation if it is inside, else the first rank. Going up, at each node the actor of
//! one half sends to the other's; going down, in reverse. A reduce or broadcast takes ⌈log₂ n⌉
//! rounds for any number of ranks and any root, with the whole vector in each, which suits short
//! vectors; the root sends or receives it up to ⌈log₂ n⌉ times.
//!
//! *Order of the sum:* always canonical: partial sums are sums of whole blocks, and the lower block
//! is on the left.

use std::ops::Range;

use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::instruction::{Buffer, Side};
use crate::op::Op;
use crate::schedule::Schedule;
use crate::sum_tree::halves;

/// All-reduce: reduce to rank 0, then broadcast.
pub fn all_reduce(num_ranks: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    let tree = Tree { num_ranks, root: 0 };
    let spreading = tree.add_up(&mut builder, |_| Buffer::Output);
    tree.spread(&mut builder, spreading, Buffer::Output);
    builder.finish(Op::AllReduce, Algorithm::Tree, 1)
}

/// Reduce.
pub fn reduce(num_ranks: usize, root: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    // Only the root has an output; other ranks keep their partial sum in scratch memory.
    Tree { num_ranks, root }.add_up(&mut builder, |rank| match rank {
        _ if rank == root => Buffer::Output,
        _ => Buffer::Scratch { slot: 0, base: 0 },
    });
    builder.finish(Op::Reduce { root }, Algorithm::Tree, 1)
}

/// Broadcast.
pub fn broadcast(num_ranks: usize, root: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    builder.copy(0, root, Chunks::all(1), Buffer::Output.on(root), Buffer::INPUT.on(root));
    Tree { num_ranks, root }.spread(&mut builder, 0, Buffer::INPUT);
    builder.finish(Op::Broadcast { root }, Algorithm::Tree, 1)
}

/// Gather: at each node the parts of one half travel together.
pub fn gather(num_ranks: usize, root: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    let tree = Tree { num_ranks, root };
    builder.copy(0, root, Chunks::one(root), Buffer::Output.on(root), Buffer::INPUT.on(root));
    let collected = |rank| match rank {
        _ if rank == root => Buffer::Output,
        // A rank other than the root acts for blocks that begin with itself.
        _ => Buffer::Scratch { slot: 0, base: rank + 1 },
    };
    for edge in tree.edges() {
        let slot = edge.height - 1;
        let (child, parent) = (edge.child, collected(edge.parent).on(edge.parent));
        builder.message(slot, Chunks::one(child), Buffer::INPUT.on(child), parent);
        let rest = Chunks { start: child + 1, end: edge.block.end };
        if !rest.is_empty() {
            builder.message(slot, rest, collected(child).on(child), parent);
        }
    }
    builder.finish(Op::Gather { root }, Algorithm::Tree, num_ranks)
}

/// Scatter: at each node the parts of one half travel together.
pub fn scatter(num_ranks: usize, root: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    let tree = Tree { num_ranks, root };
    builder.copy(0, root, Chunks::one(root), Buffer::Output.on(root), Buffer::INPUT.on(root));
    let in_transit = |rank| match rank {
        _ if rank == root => Buffer::INPUT,
        _ => Buffer::Scratch { slot: 0, base: rank + 1 },
    };
    for edge in tree.edges() {
        let slot = tree.height() - edge.height;
        let (parent, child) = (in_transit(edge.parent).on(edge.parent), edge.child);
        builder.message(slot, Chunks::one(child), parent, Buffer::Output.on(child));
        let rest = Chunks { start: child + 1, end: edge.block.end };
        if !rest.is_empty() {
            builder.message(slot, rest, parent, in_transit(child).on(child));
        }
    }
    builder.finish(Op::Scatter { root }, Algorithm::Tree, num_ranks)
}

/// Canonical tree over the ranks, rooted at one of them.
pub(crate) struct Tree {
    pub(crate) num_ranks: usize,
    pub(crate) root: usize,
}

/// Edge between the actors of a node's two halves.
pub(crate) struct Edge {
    /// Actor of the half that holds the root, or of the lower half.
    pub(crate) parent: usize,
    /// Actor of the other half.
    pub(crate) child: usize,
    /// Ranks of the child's half.
    pub(crate) block: Range<usize>,
    /// Height of the node: 1 above leaves.
    pub(crate) height: usize,
}

impl Tree {
    /// Edges from the bottom to the top.
    pub(crate) fn edges(&self) -> Vec<Edge> {
        let mut edges = Vec::new();
        self.collect(0..self.num_ranks, &mut edges);
        edges.sort_by_key(|edge| edge.height);
        edges
    }

    /// Number of levels: ⌈log₂ n⌉.
    pub(crate) fn height(&self) -> usize {
        height(self.num_ranks)
    }

    /// Reduces to the root from slot 0 on; `rests` gives the buffer of a rank's partial sum.
    /// Returns the next slot.
    fn add_up(&self, builder: &mut Builder, rests: impl Fn(usize) -> Buffer) -> usize {
        let mut latest = vec![Buffer::INPUT; self.num_ranks];
        for Edge { parent, child, height, .. } in self.edges() {
            let received = if child < parent { Side::Left } else { Side::Right };
            let (from, into) = (latest[child].on(child), rests(parent).on(parent));
            let with = latest[parent];
            builder.message_sum(height - 1, Chunks::all(1), from, into, with, received);
            latest[parent] = into.buffer;
        }
        if self.num_ranks == 1 {
            builder.copy(0, 0, Chunks::all(1), Buffer::Output.on(0), Buffer::INPUT.on(0));
        }
        self.height()
    }

    /// Broadcasts the root's buffer `own` from slot `start` on.
    fn spread(&self, builder: &mut Builder, start: usize, own: Buffer) {
        for Edge { parent, child, height, .. } in self.edges() {
            let slot = start + self.height() - height;
            let from = if parent == self.root { own } else { Buffer::Output };
            builder.message(slot, Chunks::all(1), from.on(parent), Buffer::Output.on(child));
        }
    }

    fn collect(&self, node: Range<usize>, edges: &mut Vec<Edge>) {
        let Some((left, right)) = halves(&node) else { return };
        let height = height(node.len());
        let (upper, lower) =
            if right.contains(&self.root) { (&right, &left) } else { (&left, &right) };
        let (parent, child) = (self.actor(upper), self.actor(lower));
        edges.push(Edge { parent, child, block: lower.clone(), height });
        self.collect(left, edges);
        self.collect(right, edges);
    }

    fn actor(&self, block: &Range<usize>) -> usize {
        if block.contains(&self.root) { self.root } else { block.start }
    }
}

/// ⌈log₂ n⌉.
pub(crate) fn height(num_ranks: usize) -> usize {
    num_ranks.next_power_of_two().trailing_zeros() as usize
}
