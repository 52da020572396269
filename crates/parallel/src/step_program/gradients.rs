//! Reduction of gradients by ZeRO stage.
//!
//! | stage | gradients of a bucket |
//! |---|---|
//! | 0 | one all-reduce once the rank's last micro-batch has filled it |
//! | 1 | one reduce-scatter |
//! | 2, 3 | an all-to-all a leaf; received pieces are added to this rank's shard |
//!
//! Rounded gradients are encoded before the call and decoded after it. With sharded gradients at
//! most two leaves are in flight; a third waits until the pieces of the oldest are added.

use super::{ELEMENT, GradientUse, RankPlan, StepBuilder, StepKind, StepTasks};
use crate::sparse_embedding::SparseEmbedding;
use crate::zero::NUM_IN_FLIGHT;
use lockstep_config::WireDtype;
use lockstep_mesh::Axis;
use lockstep_schedule::Op;
use lockstep_schedule::collective::pairwise;
use lockstep_schedule::collective::sparse::{self, INDEX_BYTES, Plan};
use lockstep_schedule::step::{BufferId, Call, Contents, Lengths, Queue, TaskOp};
use std::collections::VecDeque;

/// Numbers exchanged per table before its rows are.
const SHAPE_LEN: usize = 5;

const LINK: Queue = Queue::Link(Axis::Data);

/// Gradients of a step as they are filled.
pub(super) struct Gradients<'a> {
    at: &'a RankPlan<'a>,
    /// Whether gradients are reduced, exchanged by the strategy, or stay on this rank.
    kind: &'a StepKind,
    strategy: Option<&'a dyn StepTasks>,
    /// Micro-batches in the current leaf, or so far, by bucket.
    num_microbatches: Vec<usize>,
    /// Leaves and buffers of sharded gradients.
    sharded: Option<Sharded>,
}

/// Buffers of sharded gradients, by number.
struct Sharded {
    /// Leaf buffer of each bucket that is being filled.
    filling: Vec<Option<u32>>,
    /// Free leaf buffers where buckets share them.
    pool: Option<Vec<u32>>,
    /// Free buffers for received pieces, with those for encoded leaves.
    free: Vec<u32>,
    in_flight: VecDeque<Exchange>,
    /// Pass of each bucket.
    passes: Vec<usize>,
}

struct Exchange {
    bucket: usize,
    /// Leaf that is still in use by the call.
    leaf: Option<u32>,
    /// Whether this rank sent an encoded leaf.
    is_encoded: bool,
    number: u32,
}

impl<'a> Gradients<'a> {
    pub(super) fn new(
        at: &'a RankPlan<'a>,
        kind: &'a StepKind,
        strategy: Option<&'a dyn StepTasks>,
    ) -> Self {
        let num_buckets = at.buckets.list.len();
        let shares_memory = at.plan.leaves.microbatches_per_leaf == 1;
        let numbers = || (0..NUM_IN_FLIGHT as u32).rev().collect::<Vec<_>>();
        let sharded = (at.plan.zero >= 2).then(|| Sharded {
            filling: vec![None; num_buckets],
            pool: shares_memory.then(numbers),
            free: numbers(),
            in_flight: VecDeque::new(),
            passes: vec![0; num_buckets],
        });
        Self { at, kind, strategy, num_microbatches: vec![0; num_buckets], sharded }
    }

    fn is_rounded(&self) -> bool {
        self.at.plan.wire != WireDtype::F32
    }

    /// Sums of a bucket: over all leaves of this rank, or this rank's shard over all leaves.
    fn sums(&self, step: &mut StepBuilder<'_>, bucket: usize) -> BufferId {
        let grads = &self.at.trained.grads;
        let len = match &self.sharded {
            None => grads.list[bucket].len,
            Some(_) => grads.list[bucket].part(self.at.part).len(),
        };
        step.tasks.buffer(Contents::Grads { bucket: bucket as u32 }, len)
    }

    /// Buffer to which a block's backward pass adds; none if its bucket is frozen or the
    /// micro-batch is padding.
    pub(super) fn open(
        &mut self,
        step: &mut StepBuilder<'_>,
        block: usize,
        is_padding: bool,
    ) -> Option<BufferId> {
        let bucket = self.at.buckets.of_block(block);
        if is_padding || self.at.trained.of_block[block].is_empty() {
            return None;
        }
        if self.sharded.is_none() {
            return Some(self.sums(step, bucket));
        }
        let leaf = loop {
            let sharded = self.sharded.as_mut().expect("checked above");
            if let Some(leaf) = sharded.filling[bucket] {
                break leaf;
            }
            let is_in_flight = sharded.in_flight.iter().any(|one| one.bucket == bucket);
            sharded.filling[bucket] = match &mut sharded.pool {
                Some(pool) => pool.pop(),
                // Each bucket has its own leaf, which may still be in flight.
                None => {
                    (!is_in_flight || self.at.plan.wire != WireDtype::F32).then_some(bucket as u32)
                }
            };
            if sharded.filling[bucket].is_none() {
                self.decode_oldest(step);
            }
        };
        Some(self.leaf(step, leaf))
    }

    fn leaf(&self, step: &mut StepBuilder<'_>, number: u32) -> BufferId {
        let grads = &self.at.trained.grads;
        let is_pooled = self.sharded.as_ref().is_some_and(|sharded| sharded.pool.is_some());
        let len = if is_pooled { grads.max_len() } else { grads.list[number as usize].len };
        step.tasks.buffer(Contents::Leaf { number }, len)
    }

    /// Counts a micro-batch once it has filled its bucket; reduces a bucket that is complete.
    pub(super) fn close(&mut self, step: &mut StepBuilder<'_>, block: usize, is_padding: bool) {
        let bucket = self.at.buckets.of_block(block);
        if self.at.filling_block(bucket) != Some(block) {
            return;
        }
        self.num_microbatches[bucket] += 1;
        match self.sharded {
            None if self.num_microbatches[bucket] == self.at.microbatches.len() => {
                self.reduce_whole(step, bucket);
            }
            Some(_)
                if self.num_microbatches[bucket] == self.at.plan.leaves.microbatches_per_leaf =>
            {
                self.num_microbatches[bucket] = 0;
                self.exchange_leaf(step, bucket, is_padding);
            }
            _ => {}
        }
    }

    fn reduce_whole(&self, step: &mut StepBuilder<'_>, bucket: usize) {
        let sums = self.sums(step, bucket);
        let op = TaskOp::Reduce { bucket: bucket as u32 };
        if let (GradientUse::Exchanged, Some(strategy)) = (self.kind.gradients, self.strategy)
            && !step.owns_tied(bucket)
        {
            strategy.add_bucket_exchange(self.kind, step, (bucket, sums));
        }
        if !self.kind.is_reduced() {
            return;
        }
        let reduced = if self.is_rounded() {
            let encoded = encoded(step, bucket as u32, self.at.trained.grads.list[bucket].len);
            let encode = TaskOp::Encode { bucket: bucket as u32 };
            step.tasks.task(encode, Queue::Compute).takes(sums).writes(encoded);
            encoded
        } else {
            sums
        };
        for call in self.calls(step, bucket) {
            step.tasks.task(op, LINK).updates(reduced).calls(call);
        }
    }

    /// Calls that reduce a bucket of whole gradients.
    fn calls(&self, step: &StepBuilder<'_>, bucket: usize) -> Vec<Call> {
        let (list, element) = (&self.at.trained.grads.list, step.wire_element());
        if self.at.plan.zero == 1 {
            let lengths = Lengths::Parts(list[bucket].part_lens().into());
            return vec![step.data_call(Op::ReduceScatter, lengths, element)];
        }
        let table = self.at.sparse.filter(|table| table.bucket == bucket);
        if let (Some(table), Some(rows)) = (table, self.at.rows_by_rank) {
            let ranks = self.at.ranks_along(Axis::Data);
            let rows: Vec<usize> = ranks.into_iter().map(|rank| rows[rank]).collect();
            return by_rows(step, table, &rows, list[bucket].len);
        }
        vec![step.data_call(Op::AllReduce, Lengths::Even(list[bucket].len), element)]
    }

    fn pieces(&self, step: &mut StepBuilder<'_>, number: u32) -> BufferId {
        let at = self.at;
        let len = at.plan.shares.len() * at.trained.grads.max_part_len(at.part);
        step.tasks.buffer(Contents::Pieces { number }, len)
    }

    /// Sends every rank its shard of this rank's leaf; in a padding pass the rank only receives.
    fn exchange_leaf(&mut self, step: &mut StepBuilder<'_>, bucket: usize, is_padding: bool) {
        let number = loop {
            let sharded = self.sharded.as_mut().expect("gradients are sharded");
            match sharded.free.pop() {
                Some(number) => break number,
                None => self.decode_oldest(step),
            }
        };
        let at = self.at;
        let num_workers = at.plan.shares.len();
        let sharded = self.sharded.as_mut().expect("gradients are sharded");
        let leaf = sharded.filling[bucket].take().filter(|_| !is_padding);
        let first_leaf = sharded.passes[bucket] * num_workers;
        sharded.passes[bucket] += 1;
        let num_with_leaf = num_workers.min(at.plan.leaves.num_leaves - first_leaf);
        let parts = at.trained.grads.list[bucket].part_lens();
        let from = |worker: usize| {
            parts.iter().map(move |&len| if worker < num_with_leaf { len } else { 0 })
        };
        let pairs = (0..num_workers).flat_map(from).collect();
        let call = step.data_call(Op::AllToAll, Lengths::Pairs(pairs), step.wire_element());
        let source = leaf.map(|leaf| self.leaf(step, leaf));
        let (mut leaf, mut source, is_rounded) = (leaf, source, self.is_rounded());
        if let (Some(number_of_leaf), Some(buffer), true) = (leaf, source, is_rounded) {
            let encoded = encoded(step, number, at.trained.grads.max_len());
            let encode = TaskOp::Encode { bucket: bucket as u32 };
            step.tasks.task(encode, Queue::Compute).takes(buffer).writes(encoded);
            self.give_back(number_of_leaf);
            (leaf, source) = (None, Some(encoded));
        }
        let pieces = self.pieces(step, number);
        let op = TaskOp::Reduce { bucket: bucket as u32 };
        let task = step.tasks.task(op, LINK).writes(pieces).calls(call);
        let is_encoded = is_rounded && source.is_some();
        if let Some(source) = source {
            task.reads(source);
        }
        let sharded = self.sharded.as_mut().expect("gradients are sharded");
        sharded.in_flight.push_back(Exchange { bucket, leaf, is_encoded, number });
    }

    fn give_back(&mut self, leaf: u32) {
        if let Some(pool) = self.sharded.as_mut().and_then(|sharded| sharded.pool.as_mut()) {
            pool.push(leaf);
        }
    }

    /// Adds the pieces of the oldest exchange to the sums.
    fn decode_oldest(&mut self, step: &mut StepBuilder<'_>) {
        let sharded = self.sharded.as_mut().expect("gradients are sharded");
        let oldest = sharded.in_flight.pop_front().expect("a buffer is free or in flight");
        let Exchange { bucket, leaf, is_encoded, number } = oldest;
        let (sums, pieces) = (self.sums(step, bucket), self.pieces(step, number));
        let mut sources = vec![pieces];
        sources.extend(leaf.map(|leaf| self.leaf(step, leaf)));
        if is_encoded {
            sources.push(encoded(step, number, 0));
        }
        let op = TaskOp::Decode { bucket: bucket as u32 };
        let mut task = step.tasks.task(op, Queue::Compute).adds(sums);
        for source in sources {
            task = task.takes(source);
        }
        if let Some(leaf) = leaf {
            self.give_back(leaf);
        }
        self.sharded.as_mut().expect("gradients are sharded").free.push(number);
    }

    /// Completes the sums of all buckets.
    pub(super) fn finish(&mut self, step: &mut StepBuilder<'_>) {
        while self.sharded.as_ref().is_some_and(|sharded| !sharded.in_flight.is_empty()) {
            self.decode_oldest(step);
        }
        if self.sharded.is_some() || !self.is_rounded() || !self.kind.is_reduced() {
            return;
        }
        for bucket in self.at.grad_buckets().rev() {
            let (sums, encoded) = (self.sums(step, bucket), encoded(step, bucket as u32, 0));
            let decode = TaskOp::Decode { bucket: bucket as u32 };
            step.tasks.task(decode, Queue::Compute).takes(encoded).writes(sums);
        }
    }
}

/// Gradients in the format of the wire.
fn encoded(step: &mut StepBuilder<'_>, number: u32, len: usize) -> BufferId {
    step.tasks.buffer(Contents::Encoded { number }, len)
}

/// Calls of a sparse table with these rows per rank, and of the rest of its bucket of `len`
/// elements.
fn by_rows(
    step: &StepBuilder<'_>,
    sparse: SparseEmbedding,
    rows: &[usize],
    len: usize,
) -> Vec<Call> {
    let table = sparse.table();
    let gather = |lengths, element| step.data_call(Op::AllGather, lengths, element);
    let reduce = |len| step.data_call(Op::AllReduce, Lengths::Even(len), ELEMENT);
    let mut list = vec![gather(Lengths::Even(SHAPE_LEN * rows.len()), INDEX_BYTES)];
    let table_len = table.num_rows * table.row_len;
    let shape = sparse::Table {
        num_rows: table.num_rows,
        row_bytes: ELEMENT * table.row_len as u64,
        row_len: table.row_len,
    };
    let plan = sparse::plan(shape, rows, &pairwise::all_gather(rows.len()));
    if matches!(plan, Plan::Sparse { .. }) {
        list.push(gather(Lengths::Parts(rows.into()), INDEX_BYTES));
        let values = rows.iter().map(|num| num * table.row_len).collect();
        list.push(gather(Lengths::Parts(values), ELEMENT));
    } else {
        list.push(reduce(table_len));
    }
    if len > table_len {
        list.push(reduce(len - table_len));
    }
    list
}
