//! Data parallelism: every worker runs its leaves on the whole model, and gradients are added up.
//!
//! Gradients stay whole until backward of the worker's last micro-batch has filled a bucket; then the
//! bucket leaves, once, while blocks in front of it are still in backward. It is all-reduced (every
//! worker steps everything), or, where the optimizer's state is sharded (ZeRO-1), reduce-scattered
//! (every worker steps its part). A worker that holds an odd run of leaves hands in one addend per
//! maximal aligned group of them, so that the order of the sum is that of one worker.

use crate::buckets::Buckets;
use crate::leaves::{LeafTree, Leaves};
use crate::memory::Floats;
use crate::overlap::{Overlap, Pending};
use crate::sparse::SparseTable;
use crate::wire::Narrow;
use lockstep_comm::{CommError, Reduction};
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::{Cpu, reduce};
use std::ops::Range;
use std::sync::Arc;

/// The gradients of all buckets over a worker's leaves.
pub struct WholeGradients {
    trees: Vec<LeafTree>,
    /// What travels of each bucket, where that is not its sums themselves.
    narrow: Vec<Option<Narrow>>,
    pending: Vec<Option<Travelling>>,
    /// The lengths of the parts of each bucket, where each worker gets its part only.
    parts: Option<Vec<Arc<[usize]>>>,
    /// The table whose rows travel one by one, if any.
    sparse: Option<SparseTable>,
}

/// The sums of a bucket on their way.
enum Travelling {
    /// Themselves.
    Sums(Pending<Floats>),
    /// Rounded.
    Narrow(Pending<Narrow>),
}

impl WholeGradients {
    /// Empty sums; `is_scattered` says whether each worker gets its part of the total or all of it.
    pub fn new(
        buckets: &Buckets,
        leaves: Leaves,
        mine: &Range<usize>,
        is_scattered: bool,
        sparse: Option<SparseTable>,
        overlap: &Overlap,
    ) -> Result<Self, CommError> {
        let num_buffers = LeafTree::num_buffers(mine.clone());
        let tree = |len: usize| -> Result<_, CommError> {
            let data = match len {
                0 => Floats::default(),
                _ => Floats::exchanged(overlap.comm(), len * num_buffers)?,
            };
            Ok(LeafTree::new(len, leaves, mine.clone(), data).rounded_to(overlap.wire()))
        };
        assert!(sparse.is_none() || overlap.wire() == Precision::F32, "rows travel as they are");
        let num_sums = LeafTree::num_sums(mine.clone());
        let narrow = |len: usize| Narrow::new(overlap.wire(), overlap.comm(), num_sums * len);
        let narrow =
            buckets.list.iter().map(|bucket| narrow(bucket.len)).collect::<Result<_, _>>()?;
        let trees = buckets.list.iter().map(|bucket| tree(bucket.len)).collect::<Result<_, _>>()?;
        let lens = || buckets.list.iter().map(|bucket| bucket.part_lens().into()).collect();
        let pending = buckets.list.iter().map(|_| None).collect();
        Ok(Self { trees, narrow, pending, parts: is_scattered.then(lens), sparse })
    }

    /// Forgets the sums of the last step.
    pub fn restart(&mut self) {
        self.trees.iter_mut().for_each(LeafTree::restart);
    }

    /// Where the micro-batch at work adds its gradients of a bucket.
    pub fn microbatch_buffer(&mut self, cpu: &Cpu, bucket: usize) -> &mut [f32] {
        self.trees[bucket].microbatch_buffer(cpu)
    }

    /// Says that a micro-batch has filled a bucket; after the last one it leaves.
    pub fn finish_microbatch(
        &mut self,
        cpu: &Cpu,
        bucket: usize,
        overlap: &mut Overlap,
    ) -> Result<(), CommError> {
        if self.trees[bucket].finish_microbatch(cpu) {
            self.leave(cpu, bucket, overlap)
        } else {
            Ok(())
        }
    }

    /// A bucket that is complete leaves.
    fn leave(&mut self, cpu: &Cpu, bucket: usize, overlap: &mut Overlap) -> Result<(), CommError> {
        let tree = &mut self.trees[bucket];
        let lens = self.parts.as_ref().map(|parts| Arc::clone(&parts[bucket]));
        if let Some(mut narrow) = self.narrow[bucket].take() {
            let used = tree.all_sums().len();
            narrow.round(cpu, tree.all_sums());
            let pending = overlap.start(bucket, narrow, move |comm, narrow| match lens {
                None => narrow.all_reduce(comm, used),
                Some(lens) => narrow.reduce_scatter(comm, used, &lens),
            })?;
            self.pending[bucket] = Some(Travelling::Narrow(pending));
            return Ok(());
        }
        let (data, used) = tree.lend();
        let sparse = self.sparse.filter(|sparse| sparse.bucket == bucket);
        let pending = overlap.start(bucket, data, move |comm, data| {
            let sums = &mut data[..used];
            match (lens, sparse) {
                (None, None) => comm.all_reduce(sums, Reduction::Sum),
                (None, Some(sparse)) => sparse.all_reduce(comm, sums),
                (Some(lens), _) => comm.reduce_scatter_parts(sums, &lens, Reduction::Sum),
            }
        })?;
        self.pending[bucket] = Some(Travelling::Sums(pending));
        Ok(())
    }

    /// The same where nothing leaves: after the last micro-batch the sums of the worker's groups of
    /// leaves are added up here.
    pub fn finish_microbatch_alone(&mut self, cpu: &Cpu, bucket: usize) {
        let tree = &mut self.trees[bucket];
        if tree.finish_microbatch(cpu) {
            let (mut data, used) = tree.lend();
            let len = tree.len();
            let (first, others) = data[..used].split_at_mut(len);
            for other in others.chunks_exact(len) {
                reduce::add_assign(cpu, first, other);
            }
            self.pending[bucket] = Some(Travelling::Sums(Pending::Done(data)));
        }
    }

    /// The same where everything stays until [`Self::release`].
    pub fn hold_microbatch(&mut self, cpu: &Cpu, bucket: usize) {
        self.trees[bucket].finish_microbatch(cpu);
    }

    /// Puts zeros in the place of all sums of this worker that have not left.
    pub fn abandon(&mut self) {
        for (tree, pending) in self.trees.iter_mut().zip(&self.pending) {
            if pending.is_none() {
                tree.abandon();
            }
        }
    }

    /// Waits until all buckets have arrived that travel as they are.
    pub fn take_back(&mut self, overlap: &mut Overlap) -> Result<(), CommError> {
        for (tree, pending) in self.trees.iter_mut().zip(&mut self.pending) {
            match pending.take() {
                Some(Travelling::Sums(pending)) => tree.give_back(overlap.finish(pending)?),
                Some(Travelling::Narrow(_)) => unreachable!("sums travel as they are"),
                None => {}
            }
        }
        Ok(())
    }

    /// Waits until nothing is on its way.
    pub fn settle(&mut self, overlap: &mut Overlap) -> Result<(), CommError> {
        for pending in &mut self.pending {
            *pending = match pending.take() {
                Some(Travelling::Sums(sums)) => {
                    Some(Travelling::Sums(Pending::Done(overlap.finish(sums)?)))
                }
                Some(Travelling::Narrow(narrow)) => {
                    Some(Travelling::Narrow(Pending::Done(overlap.finish(narrow)?)))
                }
                None => None,
            };
        }
        Ok(())
    }

    /// Lets all buckets leave that have stayed, in the order in which backward fills them.
    pub fn release(&mut self, cpu: &Cpu, overlap: &mut Overlap) -> Result<(), CommError> {
        for bucket in (0..self.trees.len()).rev() {
            if !self.trees[bucket].is_empty() && self.pending[bucket].is_none() {
                self.leave(cpu, bucket, overlap)?;
            }
        }
        Ok(())
    }

    /// What has arrived, as if it were still to be waited for.
    pub fn put_back(&mut self) {
        for (tree, pending) in self.trees.iter_mut().zip(&mut self.pending) {
            if !tree.is_empty() && pending.is_none() {
                *pending = Some(Travelling::Sums(Pending::Done(tree.lend().0)));
            }
        }
    }

    /// Waits until all buckets are reduced.
    pub fn finish(&mut self, cpu: &Cpu, overlap: &mut Overlap) -> Result<(), CommError> {
        for bucket in (0..self.trees.len()).rev() {
            if self.trees[bucket].is_empty() {
                continue;
            }
            match self.pending[bucket].take().expect("every micro-batch was run") {
                Travelling::Sums(pending) => {
                    self.trees[bucket].give_back(overlap.finish(pending)?);
                }
                Travelling::Narrow(pending) => {
                    let narrow = overlap.finish(pending)?;
                    narrow.widen(cpu, self.trees[bucket].root_mut());
                    self.narrow[bucket] = Some(narrow);
                }
            }
        }
        Ok(())
    }

    /// The total of a bucket; where it is scattered, only this worker's part of it is.
    pub fn total(&self, bucket: usize) -> &[f32] {
        self.trees[bucket].root()
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        let sums = self.trees.iter().map(LeafTree::num_elements).sum::<usize>();
        sums + self.narrow.iter().flatten().map(Narrow::held).sum::<usize>()
    }

    /// See [`Self::total`].
    pub fn total_mut(&mut self, bucket: usize) -> &mut [f32] {
        self.trees[bucket].root_mut()
    }
}
