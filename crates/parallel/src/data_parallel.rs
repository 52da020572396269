//! Data parallelism: every rank runs its leaves on the whole model and reduces gradients per
//! bucket.
//!
//! Gradients accumulate locally until backward of the rank's last micro-batch has filled a bucket;
//! then the bucket is reduced once, while earlier blocks are still in backward. It is all-reduced
//! (every rank steps everything) or, where optimizer state is sharded (ZeRO-1), reduce-scattered
//! (every rank steps its shard). A rank whose leaves do not form one aligned group contributes one
//! addend per maximal aligned group, so that the order of the sum equals that of one rank.

use crate::buckets::Buckets;
use crate::buffer::Floats;
use crate::leaves::{LeafTree, Leaves};
use crate::overlap::{Overlap, Pending};
use crate::sparse_embedding::SparseEmbedding;
use crate::wire_precision::RoundedBuffer;
use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Result as DeviceResult, View, ViewMut};
use lockstep_tensor::gemm::{Precision, Write};
use std::ops::Range;
use std::sync::Arc;

/// Gradients of all buckets over a rank's leaves.
pub struct WholeGradients {
    trees: Vec<LeafTree>,
    /// Rounded copies of the sums for the wire, where gradients are not sent in `f32`.
    narrow: Vec<Option<RoundedBuffer>>,
    pending: Vec<Option<InFlight>>,
    /// Shard lengths of each bucket, where buckets are reduce-scattered.
    parts: Option<Vec<Arc<[usize]>>>,
    /// The embedding table whose gradient rows are exchanged sparsely, if any.
    sparse: Option<SparseEmbedding>,
}

/// Sums of a bucket in flight.
enum InFlight {
    /// The sums themselves.
    Sums(Pending<Floats>),
    /// Their rounded copy.
    RoundedBuffer(Pending<RoundedBuffer>),
}

impl WholeGradients {
    /// Empty sums; `is_scattered` selects reduce-scatter over all-reduce.
    pub fn new(
        buckets: &Buckets,
        leaves: Leaves,
        mine: &Range<usize>,
        is_scattered: bool,
        sparse: Option<SparseEmbedding>,
        overlap: &Overlap,
    ) -> Result<Self, CommError> {
        let num_buffers = LeafTree::num_buffers(mine.clone());
        let tree = |len: usize| -> Result<_, CommError> {
            let data = match len {
                0 => Floats::default(),
                _ => overlap.exchanged(len * num_buffers)?,
            };
            Ok(LeafTree::new(len, leaves, mine.clone(), data).rounded_to(overlap.wire()))
        };
        assert!(
            sparse.is_none() || overlap.wire() == Precision::F32,
            "sparse rows require an f32 wire"
        );
        let num_sums = LeafTree::num_sums(mine.clone());
        let narrow =
            |len: usize| RoundedBuffer::new(overlap.wire(), overlap.comm(), num_sums * len);
        let narrow =
            buckets.list.iter().map(|bucket| narrow(bucket.len)).collect::<Result<_, _>>()?;
        let trees = buckets.list.iter().map(|bucket| tree(bucket.len)).collect::<Result<_, _>>()?;
        let lens = || buckets.list.iter().map(|bucket| bucket.part_lens().into()).collect();
        let pending = buckets.list.iter().map(|_| None).collect();
        Ok(Self { trees, narrow, pending, parts: is_scattered.then(lens), sparse })
    }

    /// Discards the sums of the last step.
    pub fn restart(&mut self) {
        self.trees.iter_mut().for_each(LeafTree::restart);
    }

    /// Buffer to which the current micro-batch adds its gradients of a bucket, or sets them.
    pub fn microbatch_buffer(
        &mut self,
        cpu: &Cpu,
        bucket: usize,
    ) -> DeviceResult<(ViewMut<'_>, Write)> {
        self.trees[bucket].microbatch_buffer(cpu)
    }

    /// The leaf of a bucket that the current micro-batch completes, if it does.
    pub fn completed_leaf(&self, bucket: usize) -> DeviceResult<Option<View<'_>>> {
        self.trees[bucket].completed_leaf()
    }

    /// Marks a bucket as filled by a micro-batch.
    pub fn finish_microbatch(&mut self, cpu: &Cpu, bucket: usize) -> DeviceResult<()> {
        self.trees[bucket].finish_microbatch(cpu).map(|_| ())
    }

    /// Rounds the sums of a complete bucket for the wire.
    pub fn encode(&mut self, cpu: &Cpu, bucket: usize) {
        let rounded = self.narrow[bucket].as_mut().expect("the wire is rounded");
        rounded.round(cpu, self.trees[bucket].all_sums());
    }

    /// Starts the reduction of a complete bucket.
    pub fn reduce(&mut self, bucket: usize, overlap: &mut Overlap) -> Result<(), CommError> {
        let tree = &mut self.trees[bucket];
        let lens = self.parts.as_ref().map(|parts| Arc::clone(&parts[bucket]));
        if let Some(narrow) = self.narrow[bucket].take() {
            let used = tree.all_sums().len();
            let pending = overlap.start(bucket, narrow, move |comm, narrow| match lens {
                None => narrow.all_reduce(comm, used),
                Some(lens) => narrow.reduce_scatter(comm, used, &lens),
            })?;
            self.pending[bucket] = Some(InFlight::RoundedBuffer(pending));
            return Ok(());
        }
        let (data, used) = tree.lend();
        if data.is_on_accelerator() && overlap.comm().group_size() == 1 {
            // One rank has the total, which need not leave the device.
            self.pending[bucket] = Some(InFlight::Sums(Pending::Done(data)));
            return Ok(());
        }
        let sparse = self.sparse.filter(|sparse| sparse.bucket == bucket);
        let pending = overlap.start(bucket, data, move |comm, data| {
            let sums = &mut data[..used];
            match (lens, sparse) {
                (None, None) => comm.all_reduce(sums, Reduction::Sum),
                (None, Some(sparse)) => sparse.all_reduce(comm, sums),
                (Some(lens), _) => comm.reduce_scatter_parts(sums, &lens, Reduction::Sum),
            }
        })?;
        self.pending[bucket] = Some(InFlight::Sums(pending));
        Ok(())
    }

    /// Marks a bucket as filled by a micro-batch of a local step; after the last one the sums of
    /// the rank's leaf groups are added locally.
    pub fn finish_microbatch_alone(&mut self, cpu: &Cpu, bucket: usize) -> DeviceResult<()> {
        let tree = &mut self.trees[bucket];
        if tree.finish_microbatch(cpu)? {
            let (mut data, used) = tree.lend();
            let len = tree.len();
            let (device, sums) = data.on_device(cpu)?;
            let (mut first, others) = sums.range(0..used).split_at(len);
            let others = others.into_view();
            for start in (0..others.len()).step_by(len) {
                device.add_assign(first.reborrow(), others.range(start..start + len))?;
            }
            self.pending[bucket] = Some(InFlight::Sums(Pending::Done(data)));
        }
        Ok(())
    }

    /// Total of a bucket that a local step has completed.
    pub fn complete(&self, bucket: usize) -> &[f32] {
        match &self.pending[bucket] {
            Some(InFlight::Sums(Pending::Done(data))) => &data[..self.trees[bucket].len()],
            _ => self.total(bucket),
        }
    }

    /// Sends the total of a bucket in the background, if a local step has completed it; returns
    /// whether it has.
    pub fn send(
        &mut self,
        bucket: usize,
        comm: &Comm,
        send: impl FnOnce(&Comm, &[f32]) -> Result<(), CommError> + Send + 'static,
    ) -> Result<bool, CommError> {
        let Some(InFlight::Sums(Pending::Done(data))) = self.pending[bucket].take() else {
            return Ok(false);
        };
        let len = self.trees[bucket].len();
        let send = move |comm: &Comm, data: &mut Floats| send(comm, &data[..len]);
        self.pending[bucket] = Some(InFlight::Sums(Pending::Running(comm.start(data, send)?)));
        Ok(true)
    }

    /// Zeroes all sums of this rank whose reduction has not started.
    pub fn abandon(&mut self) {
        for (tree, pending) in self.trees.iter_mut().zip(&self.pending) {
            if pending.is_none() {
                tree.abandon();
            }
        }
    }

    /// Waits for all reductions; only with an `f32` wire.
    pub fn wait_all(&mut self, overlap: &mut Overlap) -> Result<(), CommError> {
        for (tree, pending) in self.trees.iter_mut().zip(&mut self.pending) {
            match pending.take() {
                Some(InFlight::Sums(pending)) => tree.give_back(overlap.finish(pending)?),
                Some(InFlight::RoundedBuffer(_)) => {
                    unreachable!("delayed gradients require an f32 wire")
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Waits for all reductions and leaves their results pending.
    pub fn settle(&mut self, overlap: &mut Overlap) -> Result<(), CommError> {
        for pending in &mut self.pending {
            *pending = match pending.take() {
                Some(InFlight::Sums(sums)) => {
                    Some(InFlight::Sums(Pending::Done(overlap.finish(sums)?)))
                }
                Some(InFlight::RoundedBuffer(narrow)) => {
                    Some(InFlight::RoundedBuffer(Pending::Done(overlap.finish(narrow)?)))
                }
                None => None,
            };
        }
        Ok(())
    }

    /// Starts the held reductions, in the order in which backward fills buckets.
    pub fn release(&mut self, cpu: &Cpu, overlap: &mut Overlap) -> Result<(), CommError> {
        for bucket in (0..self.trees.len()).rev() {
            if !self.trees[bucket].is_empty() && self.pending[bucket].is_none() {
                if self.narrow[bucket].is_some() {
                    self.encode(cpu, bucket);
                }
                self.reduce(bucket, overlap)?;
            }
        }
        Ok(())
    }

    /// Marks finished sums as pending again.
    pub fn mark_pending(&mut self) {
        for (tree, pending) in self.trees.iter_mut().zip(&mut self.pending) {
            if !tree.is_empty() && pending.is_none() {
                *pending = Some(InFlight::Sums(Pending::Done(tree.lend().0)));
            }
        }
    }

    /// Waits until all buckets are reduced, those of a rounded wire before they are decoded.
    pub fn finish(&mut self, cpu: &Cpu, overlap: &mut Overlap) -> Result<(), CommError> {
        for bucket in (0..self.trees.len()).rev() {
            if self.trees[bucket].is_empty() {
                continue;
            }
            let is_decoded = self.narrow[bucket].is_some();
            assert!(is_decoded || self.pending[bucket].is_some(), "every micro-batch was run");
            self.decode(cpu, bucket, overlap)?;
        }
        Ok(())
    }

    /// Waits until a bucket is reduced and widens what was rounded; does nothing if that was done.
    pub fn decode(
        &mut self,
        cpu: &Cpu,
        bucket: usize,
        overlap: &mut Overlap,
    ) -> Result<(), CommError> {
        match self.pending[bucket].take() {
            Some(InFlight::Sums(pending)) => {
                self.trees[bucket].give_back(overlap.finish(pending)?);
            }
            Some(InFlight::RoundedBuffer(pending)) => {
                let narrow = overlap.finish(pending)?;
                narrow.widen(cpu, self.trees[bucket].root_mut());
                self.narrow[bucket] = Some(narrow);
            }
            None => {}
        }
        Ok(())
    }

    /// Total of a bucket; with reduce-scatter only this rank's shard is valid.
    pub fn total(&self, bucket: usize) -> &[f32] {
        self.trees[bucket].root()
    }

    /// Total of a bucket, on the device.
    pub fn total_view(&self, bucket: usize) -> DeviceResult<View<'_>> {
        self.trees[bucket].root_view()
    }

    /// Mutable total of a bucket, on the device.
    pub fn total_view_mut(&mut self, bucket: usize) -> DeviceResult<ViewMut<'_>> {
        self.trees[bucket].root_view_mut()
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        let sums = self.trees.iter().map(LeafTree::num_elements).sum::<usize>();
        sums + self.narrow.iter().flatten().map(RoundedBuffer::held).sum::<usize>()
    }

    /// Mutable total of a bucket.
    pub fn total_mut(&mut self, bucket: usize) -> &mut [f32] {
        self.trees[bucket].root_mut()
    }
}
