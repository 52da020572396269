//! ZeRO-2 and ZeRO-3 gradients (Rajbhandari et al. 2020): each rank keeps only its shard.
//!
//! Leaves are assigned cyclically. When a rank's leaf has filled a bucket, the ranks exchange their
//! shards of it (an all-to-all, the bytes of a reduce-scatter), and each adds its own shard over
//! the leaves of the pass by the tree over leaf numbers ([`crate::shard_tree`]). With one
//! micro-batch a leaf, whole gradients exist for two buckets at a time only: the one being filled
//! and the one in flight. With several micro-batches a leaf must be filled before it can be sent.

use crate::buckets::{Bucket, Buckets};
use crate::buffer::Floats;
use crate::leaves::Leaves;
use crate::overlap::{Overlap, Pending};
use crate::shard_tree::ShardTree;
use crate::wire_precision::RoundedBuffer;
use lockstep_comm::CommError;
use lockstep_tensor::Cpu;
use lockstep_tensor::gemm::Precision;
use std::collections::VecDeque;
use std::sync::Arc;

/// Buckets being filled or in flight, where they share memory.
pub const NUM_IN_FLIGHT: usize = 2;

/// This rank's shard of the gradients of all buckets.
pub struct ShardedGradients {
    leaves: Leaves,
    num_workers: usize,
    worker: usize,
    buckets: Arc<Buckets>,
    trees: Vec<ShardTree>,
    /// Current leaf, by bucket; empty where its buffer is in the pool or in flight.
    filling: Vec<Floats>,
    /// Buffers of leaves with a single micro-batch; `None` where each bucket has its own.
    pool: Option<Vec<Floats>>,
    /// Receive buffers; with a rounded wire, one buffer to widen into.
    incoming: Vec<Floats>,
    /// Send and receive buffers of a rounded wire.
    narrow: Option<Vec<(RoundedBuffer, RoundedBuffer)>>,
    in_flight: VecDeque<Exchange>,
    /// Micro-batches in the current leaf, by bucket.
    num_microbatches: Vec<usize>,
    is_open: Vec<bool>,
    /// First leaf of the current pass, by bucket: several pipeline stages on one rank are in
    /// different passes.
    first_leaf: Vec<usize>,
}

/// Shards of every rank's leaf in flight.
struct Exchange {
    bucket: usize,
    num_pieces: usize,
    /// Leaf sent and pieces received.
    buffers: InFlight,
}

enum InFlight {
    /// In `f32`.
    Leaf(Pending<(Floats, Floats)>),
    /// Rounded.
    RoundedBuffer(Pending<(RoundedBuffer, RoundedBuffer)>),
}

impl ShardedGradients {
    /// Empty sums.
    pub fn new(
        buckets: &Arc<Buckets>,
        leaves: Leaves,
        overlap: &Overlap,
    ) -> Result<Self, CommError> {
        let comm = overlap.comm();
        let (num_workers, worker) = (comm.group_size(), comm.group_rank());
        let list = &buckets.list;
        let tree = |bucket: &Bucket| {
            let tree = ShardTree::new(bucket.part(worker).len(), leaves.num_leaves, num_workers);
            tree.rounded_to(overlap.wire())
        };
        let shares_memory = leaves.microbatches_per_leaf == 1;
        let several = |len: usize| -> Result<Vec<_>, CommError> {
            (0..NUM_IN_FLIGHT).map(|_| Floats::exchanged(comm, len)).collect()
        };
        let pieces_len = num_workers * buckets.max_part_len(worker);
        let narrow = |len: usize| RoundedBuffer::new(overlap.wire(), comm, len);
        let mut pairs = Vec::new();
        for _ in 0..NUM_IN_FLIGHT {
            pairs.extend(narrow(buckets.max_len())?.zip(narrow(pieces_len)?));
        }
        let narrow = (overlap.wire() != Precision::F32).then_some(pairs);
        let own = |bucket: &Bucket| match bucket.len {
            0 => Ok(Floats::default()),
            len => Floats::exchanged(comm, len),
        };
        let filling = if shares_memory {
            list.iter().map(|_| Floats::default()).collect()
        } else {
            list.iter().map(own).collect::<Result<_, _>>()?
        };
        Ok(Self {
            leaves,
            num_workers,
            worker,
            buckets: Arc::clone(buckets),
            trees: list.iter().map(tree).collect(),
            filling,
            pool: if shares_memory { Some(several(buckets.max_len())?) } else { None },
            incoming: match &narrow {
                None => several(pieces_len)?,
                Some(_) => vec![Floats::private(pieces_len)],
            },
            narrow,
            in_flight: VecDeque::with_capacity(list.len()),
            num_microbatches: vec![0; list.len()],
            is_open: vec![false; list.len()],
            first_leaf: vec![0; list.len()],
        })
    }

    /// Discards the sums of the last step.
    pub fn restart(&mut self) {
        assert!(self.in_flight.is_empty(), "the last step was finished");
        self.trees.iter_mut().for_each(ShardTree::restart);
        self.first_leaf.fill(0);
    }

    /// Buffer to which the current micro-batch adds its gradients of a bucket.
    pub fn microbatch_buffer(
        &mut self,
        cpu: &Cpu,
        bucket: usize,
        overlap: &mut Overlap,
    ) -> Result<&mut [f32], CommError> {
        let len = self.buckets.list[bucket].len;
        if !self.is_open[bucket] {
            while self.filling[bucket].len() < len {
                match self.pool.as_mut().and_then(Vec::pop) {
                    Some(buffer) => self.filling[bucket] = buffer,
                    None => self.finish_oldest(cpu, overlap)?,
                }
            }
            if self.num_microbatches[bucket] == 0 {
                cpu.for_each_part(&mut self.filling[bucket][..len], 1 << 14, |_, part| {
                    part.fill(0.0);
                });
            }
            self.is_open[bucket] = true;
        }
        Ok(&mut self.filling[bucket][..len])
    }

    /// Marks a bucket as filled by a micro-batch; after the leaf's last one its shards are sent.
    pub fn finish_microbatch(
        &mut self,
        cpu: &Cpu,
        bucket: usize,
        overlap: &mut Overlap,
    ) -> Result<(), CommError> {
        self.is_open[bucket] = false;
        self.num_microbatches[bucket] += 1;
        if self.num_microbatches[bucket] < self.leaves.microbatches_per_leaf {
            return Ok(());
        }
        self.num_microbatches[bucket] = 0;
        let leaf = std::mem::take(&mut self.filling[bucket]);
        self.exchange(cpu, bucket, leaf, overlap)
    }

    /// Counts a padding micro-batch of a pass in which this rank has no leaf; after a whole leaf it
    /// joins the exchange.
    pub fn skip_microbatch(
        &mut self,
        cpu: &Cpu,
        bucket: usize,
        overlap: &mut Overlap,
    ) -> Result<(), CommError> {
        self.num_microbatches[bucket] += 1;
        if self.num_microbatches[bucket] < self.leaves.microbatches_per_leaf {
            return Ok(());
        }
        self.num_microbatches[bucket] = 0;
        self.exchange(cpu, bucket, Floats::default(), overlap)
    }

    /// Waits until all buckets are reduced.
    pub fn finish(&mut self, cpu: &Cpu, overlap: &mut Overlap) -> Result<(), CommError> {
        while !self.in_flight.is_empty() {
            self.finish_oldest(cpu, overlap)?;
        }
        Ok(())
    }

    /// This rank's shard of the total of a bucket.
    pub fn total(&self, bucket: usize) -> &[f32] {
        self.trees[bucket].root()
    }

    /// Number of elements of the sums, and of buffers for leaves being filled or in flight.
    pub fn num_elements(&self) -> (usize, usize) {
        let sums = self.trees.iter().map(ShardTree::num_elements).sum();
        let leaves = match self.pool {
            Some(_) => NUM_IN_FLIGHT * self.buckets.max_len(),
            None => self.buckets.num_params(),
        };
        let pieces = self.num_workers * self.buckets.max_part_len(self.worker);
        let wire = if self.narrow.is_some() { WireFormat::RoundedBuffer } else { WireFormat::Wide };
        (sums, leaves + wire.num_in_flight(self.buckets.max_len(), pieces))
    }

    /// Mutable shard of the total of a bucket.
    pub fn total_mut(&mut self, bucket: usize) -> &mut [f32] {
        self.trees[bucket].root_mut()
    }

    fn exchange(
        &mut self,
        cpu: &Cpu,
        bucket: usize,
        leaf: Floats,
        overlap: &mut Overlap,
    ) -> Result<(), CommError> {
        let num_pieces = self.num_workers.min(self.leaves.num_leaves - self.first_leaf[bucket]);
        self.first_leaf[bucket] += self.num_workers;
        let parts = self.buckets.list[bucket].part_lens();
        let has_leaf = |worker: usize| worker < num_pieces;
        let lens: Vec<usize> = (0..self.num_workers)
            .flat_map(|from| parts.iter().map(move |&len| if has_leaf(from) { len } else { 0 }))
            .collect();
        let num_sent = if has_leaf(self.worker) { self.buckets.list[bucket].len } else { 0 };
        let num_received = num_pieces * parts[self.worker];
        let buffers = if self.narrow.is_some() {
            let (mut rounded, incoming) = loop {
                match self.narrow.as_mut().and_then(Vec::pop) {
                    Some(pair) => break pair,
                    None => self.finish_oldest(cpu, overlap)?,
                }
            };
            rounded.round(cpu, &leaf[..num_sent]);
            self.return_buffer(bucket, leaf);
            let pair = (rounded, incoming);
            let pending = overlap.start(bucket, pair, move |comm, (leaf, incoming)| {
                leaf.all_to_all(comm, (num_sent, num_received), &lens, incoming)
            })?;
            InFlight::RoundedBuffer(pending)
        } else {
            let incoming = loop {
                match self.incoming.pop() {
                    Some(buffer) => break buffer,
                    None => self.finish_oldest(cpu, overlap)?,
                }
            };
            let pair = (leaf, incoming);
            let pending = overlap.start(bucket, pair, move |comm, (leaf, incoming)| {
                comm.all_to_all_parts(&leaf[..num_sent], &lens, &mut incoming[..num_received])
            })?;
            InFlight::Leaf(pending)
        };
        self.in_flight.push_back(Exchange { bucket, num_pieces, buffers });
        Ok(())
    }

    /// Waits for the oldest exchange and adds its pieces to the sums.
    fn finish_oldest(&mut self, cpu: &Cpu, overlap: &mut Overlap) -> Result<(), CommError> {
        let oldest = self.in_flight.pop_front().expect("a buffer is free or in flight");
        let Exchange { bucket, num_pieces, buffers } = oldest;
        let len = num_pieces * self.buckets.list[bucket].part(self.worker).len();
        match buffers {
            InFlight::Leaf(pending) => {
                let (leaf, mut incoming) = overlap.finish(pending)?;
                self.trees[bucket].absorb(cpu, &mut incoming[..len], num_pieces);
                self.incoming.push(incoming);
                self.return_buffer(bucket, leaf);
            }
            InFlight::RoundedBuffer(pending) => {
                let pair = overlap.finish(pending)?;
                let pieces = &mut self.incoming[0][..len];
                pair.1.widen(cpu, pieces);
                self.trees[bucket].absorb(cpu, pieces, num_pieces);
                self.narrow.as_mut().expect("the wire is rounded").push(pair);
            }
        }
        Ok(())
    }

    /// Returns the buffer of a leaf.
    fn return_buffer(&mut self, bucket: usize, leaf: Floats) {
        match &mut self.pool {
            // A rank without a leaf has no buffer.
            Some(pool) if !leaf.is_empty() => pool.push(leaf),
            None if !leaf.is_empty() => self.filling[bucket] = leaf,
            _ => {}
        }
    }
}

/// Wire format of leaves, for memory counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireFormat {
    /// `f32`.
    Wide,
    /// Rounded.
    RoundedBuffer,
}

impl WireFormat {
    /// Memory in `f32` elements for leaves of `leaf` numbers in flight and `pieces` received.
    pub(crate) const fn num_in_flight(self, leaf: usize, pieces: usize) -> usize {
        match self {
            Self::Wide => NUM_IN_FLIGHT * pieces,
            Self::RoundedBuffer => {
                let each = RoundedBuffer::num_floats(leaf) + RoundedBuffer::num_floats(pieces);
                pieces + NUM_IN_FLIGHT * each
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MODEL, on_workers};
    use lockstep_config::Model;
    use lockstep_model::describe;
    use lockstep_tensor::Isa;
    use lockstep_tensor::random::Key;
    use std::ops::Range;

    /// Gradients of a model.
    fn gradients(model: &Model, leaves: Leaves, overlap: &Overlap) -> ShardedGradients {
        let blueprint = describe(model);
        let buckets = Arc::new(Buckets::new(&blueprint, 0, overlap.comm().group_size()));
        ShardedGradients::new(&buckets, leaves, overlap).unwrap()
    }

    fn gradient(microbatch: usize, bucket: usize, element: usize) -> f32 {
        Key::new(4, "gradient").with(microbatch as u64).with(bucket as u64).normal(element as u64)
    }

    /// Definition: micro-batches of a leaf from zero, leaves by halves.
    fn total(
        leaves: Range<usize>,
        microbatches_per_leaf: usize,
        bucket: usize,
        element: usize,
    ) -> f32 {
        if leaves.len() == 1 {
            let microbatches =
                leaves.start * microbatches_per_leaf..leaves.end * microbatches_per_leaf;
            return microbatches
                .fold(0.0, |sum, microbatch| sum + gradient(microbatch, bucket, element));
        }
        let middle = leaves.start + leaves.len() / 2;
        total(leaves.start..middle, microbatches_per_leaf, bucket, element)
            + total(middle..leaves.end, microbatches_per_leaf, bucket, element)
    }

    /// One step: the micro-batches of this rank's leaves, and padding passes.
    fn step(grads: &mut ShardedGradients, cpu: &Cpu, overlap: &mut Overlap) {
        let (num_workers, worker) = (grads.num_workers, grads.worker);
        let Leaves { num_leaves, microbatches_per_leaf } = grads.leaves;
        grads.restart();
        for leaf in (worker..num_leaves.next_multiple_of(num_workers)).step_by(num_workers) {
            for microbatch in 0..microbatches_per_leaf {
                for bucket in (0..grads.trees.len()).rev() {
                    if leaf < num_leaves {
                        let buffer = grads.microbatch_buffer(cpu, bucket, overlap).unwrap();
                        let microbatch = leaf * microbatches_per_leaf + microbatch;
                        let add = |(element, sum): (usize, &mut f32)| {
                            *sum += gradient(microbatch, bucket, element);
                        };
                        buffer.iter_mut().enumerate().for_each(add);
                        grads.finish_microbatch(cpu, bucket, overlap).unwrap();
                    } else {
                        grads.skip_microbatch(cpu, bucket, overlap).unwrap();
                    }
                }
            }
        }
        grads.finish(cpu, overlap).unwrap();
    }

    #[test]
    fn shards_match_the_definition_and_every_buffer_is_returned() {
        let model = Model { layers: 1, width: 16, ffn: 512, ..MODEL };
        for (num_workers, microbatches_per_leaf) in [(1, 1), (3, 1), (4, 1), (2, 3), (5, 2)] {
            let leaves = Leaves { num_leaves: 8, microbatches_per_leaf };
            on_workers(num_workers, num_workers % 2 == 0, |mut overlap| {
                let cpu = Cpu::single(Isa::detect());
                let mut grads = gradients(&model, leaves, &overlap);
                let buckets = Arc::clone(&grads.buckets);
                for _ in 0..2 {
                    step(&mut grads, &cpu, &mut overlap);
                    for (index, bucket) in buckets.list.iter().enumerate() {
                        let part = bucket.part(grads.worker);
                        // A sample of them; the sums are long.
                        for (at, element) in part.enumerate().step_by(101) {
                            let expected = total(0..8, microbatches_per_leaf, index, element);
                            let found = grads.total(index)[at];
                            assert_eq!(found.to_bits(), expected.to_bits(), "{index}, {element}");
                        }
                    }
                    let sums: usize = grads.trees.iter().map(ShardTree::num_elements).sum();
                    let held = grads.incoming.iter().chain(&grads.filling);
                    let held = held.chain(grads.pool.iter().flatten()).map(|floats| floats.len());
                    assert_eq!((sums, held.sum()), grads.num_elements());
                }
            });
        }
    }

    #[test]
    #[should_panic(expected = "the last step was finished")]
    fn restarting_with_reductions_in_flight_is_a_bug() {
        on_workers(1, false, |mut overlap| {
            let cpu = Cpu::single(Isa::detect());
            let leaves = Leaves { num_leaves: 1, microbatches_per_leaf: 1 };
            let mut grads = gradients(&MODEL, leaves, &overlap);
            grads.microbatch_buffer(&cpu, 0, &mut overlap).unwrap();
            grads.finish_microbatch(&cpu, 0, &mut overlap).unwrap();
            grads.restart();
        });
    }
}
