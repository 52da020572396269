//! ZeRO-2 and ZeRO-3 gradients (Rajbhandari et al. 2020): each rank keeps only its shard.
//!
//! Leaves are assigned cyclically. When a rank's leaf has filled a bucket, the ranks exchange their
//! shards of it (an all-to-all, the bytes of a reduce-scatter), and each adds its own shard over
//! the leaves of the pass by the tree over leaf numbers ([`crate::shard_tree`]). With one
//! micro-batch a leaf, whole gradients exist for two buckets at a time only: the one being filled
//! and the one in flight. With several micro-batches a leaf must be filled before it can be sent.

use crate::buckets::{Bucket, Buckets};
use crate::buffer::{Buffer, Floats};
use crate::leaves::Leaves;
use crate::overlap::{Overlap, Pending};
use crate::shard_tree::ShardTree;
use crate::wire_precision::RoundedBuffer;
use lockstep_comm::CommError;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Result as DeviceResult, View, ViewMut};
use lockstep_tensor::gemm::{Precision, Write};
use std::sync::Arc;

/// Buckets being filled or in flight, where they share memory.
pub const NUM_IN_FLIGHT: usize = 2;

/// This rank's shard of the gradients of all buckets.
///
/// The step program numbers the buffers ([`crate::step_program`]): leaves being filled, and the
/// buffers of exchanges.
pub struct ShardedGradients {
    leaves: Leaves,
    num_workers: usize,
    worker: usize,
    buckets: Arc<Buckets>,
    trees: Vec<ShardTree>,
    /// Leaf buffers: two that all buckets share where a leaf has a single micro-batch, otherwise
    /// one for each bucket. Empty while in flight.
    filling: Vec<Floats>,
    is_pooled: bool,
    /// Buffer to widen received pieces into, with a rounded wire.
    wide: Vec<f32>,
    exchanges: Vec<Exchange>,
    /// Micro-batches in the current leaf, by bucket.
    num_microbatches: Vec<usize>,
    /// Number of the leaf to which a micro-batch adds, by bucket.
    open: Vec<Option<usize>>,
    /// First leaf of the current pass, by bucket: several pipeline stages on one rank are in
    /// different passes.
    first_leaf: Vec<usize>,
}

/// Buffers of one exchange.
struct Exchange {
    /// Pieces that arrive, while it is in flight.
    num_pieces: usize,
    /// Number of the leaf that is sent in `f32`.
    leaf: Option<usize>,
    buffers: Buffers,
}

enum Buffers {
    /// Receive buffer.
    Wide(Floats),
    /// Leaf sent and pieces received, in `f32`.
    WideInFlight(Pending<(Floats, Floats)>),
    /// Send and receive buffers of a rounded wire.
    Rounded(Pair),
    /// Those in flight.
    RoundedInFlight(Pending<Pair>),
    /// Moved while a call starts or ends.
    Moved,
}

type Pair = (RoundedBuffer, RoundedBuffer);

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
        let num_kept = ShardTree::num_kept(leaves.num_leaves, num_workers);
        let tree = |bucket: &Bucket| -> Result<_, CommError> {
            let len = bucket.part(worker).len();
            let kept = overlap.private(len * num_kept)?;
            Ok(ShardTree::new(len, leaves.num_leaves, kept).rounded_to(overlap.wire()))
        };
        let is_pooled = leaves.microbatches_per_leaf == 1;
        let pieces_len = num_workers * buckets.max_part_len(worker);
        let exchanged = |len: usize| match len {
            0 => Ok(Floats::default()),
            len => overlap.exchanged(len),
        };
        let filling: Result<_, CommError> = if is_pooled {
            (0..NUM_IN_FLIGHT).map(|_| exchanged(buckets.max_len())).collect()
        } else {
            list.iter().map(|bucket| exchanged(bucket.len)).collect()
        };
        let filling = filling?;
        let rounded = |len: usize| RoundedBuffer::new(overlap.wire(), comm, len);
        let exchange = || -> Result<Exchange, CommError> {
            let pair = rounded(buckets.max_len())?.zip(rounded(pieces_len)?);
            let buffers = match pair {
                Some(pair) => Buffers::Rounded(pair),
                None => {
                    Buffers::Wide(Floats::on_host(Buffer::exchanged(comm, pieces_len)?, pieces_len))
                }
            };
            Ok(Exchange { num_pieces: 0, leaf: None, buffers })
        };
        let exchanges = (0..NUM_IN_FLIGHT).map(|_| exchange()).collect::<Result<_, _>>()?;
        let wide_len = if overlap.wire() == Precision::F32 { 0 } else { pieces_len };
        Ok(Self {
            leaves,
            num_workers,
            worker,
            buckets: Arc::clone(buckets),
            trees: list.iter().map(tree).collect::<Result<_, _>>()?,
            filling,
            is_pooled,
            wide: vec![0.0; wide_len],
            exchanges,
            num_microbatches: vec![0; list.len()],
            open: vec![None; list.len()],
            first_leaf: vec![0; list.len()],
        })
    }

    /// Discards the sums of the last step.
    pub fn restart(&mut self) {
        let is_free = |exchange: &Exchange| {
            matches!(exchange.buffers, Buffers::Wide(_) | Buffers::Rounded(_))
        };
        assert!(self.exchanges.iter().all(is_free), "the last step was finished");
        self.trees.iter_mut().for_each(ShardTree::restart);
        self.first_leaf.fill(0);
    }

    /// Buffer to which the current micro-batch adds its gradients of a bucket, or sets them in an
    /// undefined buffer of an accelerator; `leaf` is its number.
    pub fn microbatch_buffer(
        &mut self,
        cpu: &Cpu,
        bucket: usize,
        leaf: usize,
    ) -> DeviceResult<(ViewMut<'_>, Write)> {
        let is_first = self.num_microbatches[bucket] == 0;
        let is_undefined = is_first && self.filling[leaf].is_on_accelerator();
        let was_open = self.open[bucket].replace(leaf).is_some();
        let (device, data) = self.filling[leaf].on_device(cpu)?;
        let mut buffer = data.range(0..self.buckets.list[bucket].len);
        if is_undefined {
            return Ok((buffer, Write::Set));
        }
        if !was_open && is_first {
            device.fill(buffer.reborrow(), 0.0)?;
        }
        Ok((buffer, Write::Add))
    }

    /// The leaf of a bucket that the current micro-batch completes, if it does.
    pub fn completed_leaf(&self, bucket: usize) -> DeviceResult<Option<View<'_>>> {
        let is_last = self.num_microbatches[bucket] + 1 == self.leaves.microbatches_per_leaf;
        let Some(leaf) = self.open[bucket].filter(|_| is_last) else { return Ok(None) };
        Ok(Some(self.filling[leaf].view()?.range(0..self.buckets.list[bucket].len)))
    }

    /// Marks a bucket as filled by a micro-batch.
    pub fn finish_microbatch(&mut self, bucket: usize) {
        self.open[bucket] = None;
        let num = self.num_microbatches[bucket] + 1;
        self.num_microbatches[bucket] = num % self.leaves.microbatches_per_leaf;
    }

    /// Rounds a leaf into the send buffer of an exchange.
    pub fn encode(&mut self, cpu: &Cpu, bucket: usize, leaf: usize, number: usize) {
        let Buffers::Rounded((rounded, _)) = &mut self.exchanges[number].buffers else {
            unreachable!("a leaf is encoded into a free buffer of a rounded wire")
        };
        rounded.round(cpu, &self.filling[leaf][..self.buckets.list[bucket].len]);
    }

    /// Starts to exchange the shards of a leaf in every rank. `leaf` is the number of this rank's
    /// leaf where it is sent in `f32`; a rank without one in this pass only receives. `lens` are
    /// those of [`lockstep_comm::Comm::all_to_all_parts`].
    pub fn exchange(
        &mut self,
        bucket: usize,
        leaf: Option<usize>,
        number: usize,
        lens: Arc<[usize]>,
        overlap: &mut Overlap,
    ) -> Result<(), CommError> {
        let num_pieces = self.num_workers.min(self.leaves.num_leaves - self.first_leaf[bucket]);
        self.first_leaf[bucket] += self.num_workers;
        let list = &self.buckets.list[bucket];
        let num_sent = if self.worker < num_pieces { list.len } else { 0 };
        let num_received = num_pieces * list.part(self.worker).len();
        let exchange = &mut self.exchanges[number];
        (exchange.num_pieces, exchange.leaf) = (num_pieces, leaf);
        exchange.buffers = match std::mem::replace(&mut exchange.buffers, Buffers::Moved) {
            Buffers::Rounded(pair) => {
                let start = overlap.start(bucket, pair, move |comm, (leaf, incoming)| {
                    leaf.all_to_all(comm, (num_sent, num_received), &lens, incoming)
                });
                Buffers::RoundedInFlight(start?)
            }
            Buffers::Wide(incoming) => {
                let leaf = leaf.map(|leaf| std::mem::take(&mut self.filling[leaf]));
                let pair = (leaf.unwrap_or_default(), incoming);
                let start = overlap.start(bucket, pair, move |comm, (leaf, incoming)| {
                    comm.all_to_all_parts(&leaf[..num_sent], &lens, &mut incoming[..num_received])
                });
                Buffers::WideInFlight(start?)
            }
            _ => unreachable!("an exchange starts with free buffers"),
        };
        Ok(())
    }

    /// Waits for an exchange and adds its pieces to the sums of a bucket.
    pub fn decode(
        &mut self,
        cpu: &Cpu,
        bucket: usize,
        number: usize,
        overlap: &mut Overlap,
    ) -> Result<(), CommError> {
        let Exchange { num_pieces, leaf, buffers } = &mut self.exchanges[number];
        let len = *num_pieces * self.buckets.list[bucket].part(self.worker).len();
        *buffers = match std::mem::replace(buffers, Buffers::Moved) {
            Buffers::WideInFlight(pending) => {
                let (sent, mut incoming) = overlap.finish(pending)?;
                self.trees[bucket].absorb(cpu, &mut incoming[..len], *num_pieces);
                if let Some(leaf) = leaf.take() {
                    self.filling[leaf] = sent;
                }
                Buffers::Wide(incoming)
            }
            Buffers::RoundedInFlight(pending) => {
                let pair = overlap.finish(pending)?;
                let pieces = &mut self.wide[..len];
                pair.1.widen(cpu, pieces);
                self.trees[bucket].absorb(cpu, pieces, *num_pieces);
                Buffers::Rounded(pair)
            }
            _ => unreachable!("an exchange is decoded once"),
        };
        Ok(())
    }

    /// This rank's shard of the total of a bucket.
    pub fn total(&self, bucket: usize) -> &[f32] {
        self.trees[bucket].root()
    }

    /// This rank's shard of the total of a bucket, on the device.
    pub fn total_view(&self, bucket: usize) -> DeviceResult<View<'_>> {
        self.trees[bucket].root_view()
    }

    /// Mutable shard of the total of a bucket, on the device.
    pub fn total_view_mut(&mut self, bucket: usize) -> DeviceResult<ViewMut<'_>> {
        self.trees[bucket].root_view_mut()
    }

    /// Number of elements of the sums, and of buffers for leaves being filled or in flight.
    pub fn num_elements(&self) -> (usize, usize) {
        let sums = self.trees.iter().map(ShardTree::num_elements).sum();
        let leaves = if self.is_pooled {
            NUM_IN_FLIGHT * self.buckets.max_len()
        } else {
            self.buckets.num_params()
        };
        let pieces = self.num_workers * self.buckets.max_part_len(self.worker);
        let wire = if self.wide.is_empty() { WireFormat::Wide } else { WireFormat::RoundedBuffer };
        (sums, leaves + wire.num_in_flight(self.buckets.max_len(), pieces))
    }

    /// Mutable shard of the total of a bucket.
    pub fn total_mut(&mut self, bucket: usize) -> &mut [f32] {
        self.trees[bucket].root_mut()
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

    /// One step: the micro-batches of this rank's leaves, and padding passes. Exchanges alternate
    /// between the buffers, as do pooled leaves.
    fn step(grads: &mut ShardedGradients, cpu: &Cpu, overlap: &mut Overlap) {
        let mut in_flight: Vec<(usize, usize)> = Vec::new();
        let mut num_exchanges = 0;
        let (num_workers, worker) = (grads.num_workers, grads.worker);
        let Leaves { num_leaves, microbatches_per_leaf } = grads.leaves;
        grads.restart();
        for leaf in (worker..num_leaves.next_multiple_of(num_workers)).step_by(num_workers) {
            for microbatch in 0..microbatches_per_leaf {
                for bucket in (0..grads.trees.len()).rev() {
                    let number = num_exchanges % NUM_IN_FLIGHT;
                    let is_last = microbatch + 1 == microbatches_per_leaf;
                    if in_flight.len() == NUM_IN_FLIGHT && (is_last || grads.is_pooled) {
                        let (bucket, number) = in_flight.remove(0);
                        grads.decode(cpu, bucket, number, overlap).unwrap();
                    }
                    // A bucket with its own leaf waits until that is back.
                    while let Some(at) = in_flight.iter().position(|(it, _)| *it == bucket) {
                        let (bucket, number) = in_flight.remove(at);
                        grads.decode(cpu, bucket, number, overlap).unwrap();
                    }
                    let own = if grads.is_pooled { number } else { bucket };
                    let own = (leaf < num_leaves).then_some(own);
                    if let Some(own) = own {
                        let (buffer, _) = grads.microbatch_buffer(cpu, bucket, own).unwrap();
                        let buffer = buffer.into_slice::<f32>().unwrap();
                        let microbatch = leaf * microbatches_per_leaf + microbatch;
                        let add = |(element, sum): (usize, &mut f32)| {
                            *sum += gradient(microbatch, bucket, element);
                        };
                        buffer.iter_mut().enumerate().for_each(add);
                        grads.finish_microbatch(bucket);
                    }
                    if is_last {
                        let num_pieces = num_workers.min(num_leaves - (leaf - worker));
                        let parts = grads.buckets.list[bucket].part_lens();
                        let mut lens = parts.repeat(num_workers);
                        lens[num_pieces * num_workers..].fill(0);
                        grads.exchange(bucket, own, number, lens.into(), overlap).unwrap();
                        in_flight.push((bucket, number));
                        num_exchanges += 1;
                    }
                }
            }
        }
        for (bucket, number) in in_flight {
            grads.decode(cpu, bucket, number, overlap).unwrap();
        }
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
                    let incoming = grads.exchanges.iter().map(|exchange| match &exchange.buffers {
                        Buffers::Wide(incoming) => incoming.len(),
                        _ => unreachable!("nothing is in flight"),
                    });
                    let leaves = grads.filling.iter().map(Floats::len);
                    let held = incoming.chain(leaves).sum();
                    assert_eq!((sums, held), grads.num_elements());
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
            let _ = grads.microbatch_buffer(&cpu, 0, 0);
            grads.finish_microbatch(0);
            let lens = grads.buckets.list[0].part_lens().into();
            grads.exchange(0, Some(0), 0, lens, &mut overlap).unwrap();
            grads.restart();
        });
    }
}
