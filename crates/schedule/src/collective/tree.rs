//! Tree: the canonical tree over the ranks, walked up to add or collect, down to spread.
//!
//! Every node of the tree is a block of consecutive ranks, and one of them acts for the block: the
//! root of the operation if it is inside, else the first rank. Going up, at each node one half's
//! actor sends what the half has to the other's; going down, the other way round. That is
//! ⌈log₂ n⌉ rounds for any number of ranks and any root, with the whole vector in each, which suits
//! short vectors. (For powers of two it is the binomial tree.)
//!
//! *Order of the sum:* canonical, always: partial sums are sums of whole blocks, and the lower
//! block stands on the left.

use std::ops::Range;

use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::op::Op;
use crate::schedule::Schedule;
use crate::step::{Buffer, Side};
use crate::sum_tree::halves;

/// Every rank gets the sum: up to rank 0 and down again.
pub fn all_reduce(num_ranks: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    let tree = Tree { num_ranks, root: 0 };
    let spreading = tree.add_up(&mut builder, |_| Buffer::Output);
    tree.spread(&mut builder, spreading, Buffer::Output);
    builder.finish(Op::AllReduce, Algorithm::Tree, 1)
}

/// The root gets the sum.
pub fn reduce(num_ranks: usize, root: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    // Only the root has an output; the others keep their partial sum in working memory.
    Tree { num_ranks, root }.add_up(&mut builder, |rank| match rank {
        _ if rank == root => Buffer::Output,
        _ => Buffer::Scratch { slot: 0, base: 0 },
    });
    builder.finish(Op::Reduce { root }, Algorithm::Tree, 1)
}

/// Every rank gets the root's vector.
pub fn broadcast(num_ranks: usize, root: usize) -> Schedule {
    let mut builder = Builder::new(num_ranks);
    builder.copy(0, root, Chunks::all(1), Buffer::Output.on(root), Buffer::INPUT.on(root));
    Tree { num_ranks, root }.spread(&mut builder, 0, Buffer::INPUT);
    builder.finish(Op::Broadcast { root }, Algorithm::Tree, 1)
}

/// The root gets everybody's part: at each node the parts of one half travel together.
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

/// Every rank gets its part of the root's vector: at each node one half's parts travel together.
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

/// The canonical tree over the ranks with one of them at its root.
pub(crate) struct Tree {
    pub(crate) num_ranks: usize,
    pub(crate) root: usize,
}

/// A link between the actors of the two halves of a node.
pub(crate) struct Edge {
    /// The actor of the half that holds the root, or of the lower half.
    pub(crate) parent: usize,
    /// The actor of the other half.
    pub(crate) child: usize,
    /// The ranks of the child's half.
    pub(crate) block: Range<usize>,
    /// 1 for a node of leaves, one more for every level above.
    pub(crate) height: usize,
}

impl Tree {
    /// The links from the bottom to the top.
    pub(crate) fn edges(&self) -> Vec<Edge> {
        let mut edges = Vec::new();
        self.collect(0..self.num_ranks, &mut edges);
        edges.sort_by_key(|edge| edge.height);
        edges
    }

    /// How many levels of links there are: ⌈log₂ n⌉.
    pub(crate) fn height(&self) -> usize {
        height(self.num_ranks)
    }

    /// Sums travel up from slot 0 on; `rests` says where a rank keeps its partial sum. Returns the
    /// slot after the last.
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

    /// What the root has in its buffer `own` travels down from slot `start` on.
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
