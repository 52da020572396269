//! A worker's parameters and gradients, as its ZeRO stage has them.
//!
//! | stage | parameters | gradients | optimizer state |
//! |---|---|---|---|
//! | 0 | whole | whole | whole |
//! | 1 | whole | whole | its part |
//! | 2 | whole | its part | its part |
//! | 3 | its part | its part | its part |
//!
//! A worker holds the blocks of its stages of the pipeline only; the buckets of others are empty.
//!
//! What a worker steps is one slice per bucket, [`WorkerStore::own`]: all of it at stage 0, its
//! part from stage 1 on. Everything behind that (optimizer, norms, checks) is the same at all
//! stages.

use crate::buckets::{Bucket, Buckets, MirrorPair};
use crate::data::WholeGradients;
use crate::delayed::Delayed;
use crate::footprint::Footprint;
use crate::leaves::Leaves;
use crate::link::Link;
use crate::microbatch::Store;
use crate::overlap::Overlap;
use crate::shares::Shares;
use crate::sparse::SparseTable;
use crate::stages::Stages;
use crate::trained::Trained;
use crate::weights::{ShardedWeights, Weights, WholeWeights};
use crate::zero::ShardedGradients;
use lockstep_comm::CommError;
use lockstep_model::Grads;
use lockstep_optim::{Optimizer, Update};
use lockstep_tensor::{Cpu, reduce};
use std::ops::Range;
use std::sync::Arc;

/// See the module's text.
pub struct WorkerStore {
    pub(crate) buckets: Arc<Buckets>,
    pub(crate) overlap: Overlap,
    weights: Weights,
    pub(crate) grads: Gradients,
    /// Where a step goes by the gradients of the one before: those that are on their way.
    pub(crate) delayed: Option<Delayed>,
    stage: usize,
    worker: usize,
    /// Room for a mirror's gradient on its way to the owner.
    spare: Vec<f32>,
    trained: Trained,
    stages: Stages,
    /// Whether gradients are those of this worker's micro-batches alone.
    is_alone: bool,
    /// Whether they stay until it is known whose count.
    pub(crate) is_held: bool,
}

pub(crate) enum Gradients {
    Whole(WholeGradients),
    Sharded(Box<ShardedGradients>),
}

impl Gradients {
    /// Empty sums for buckets of gradients, as the ZeRO stage has them.
    fn new(
        buckets: &Arc<Buckets>,
        stage: usize,
        leaves: Leaves,
        shares: &Shares,
        sparse: Option<SparseTable>,
        overlap: &Overlap,
    ) -> Result<Self, CommError> {
        match shares {
            Shares::Contiguous(shares) => {
                let (mine, is_scattered) = (&shares[overlap.comm().group_rank()], stage > 0);
                WholeGradients::new(buckets, leaves, mine, is_scattered, sparse, overlap)
                    .map(Self::Whole)
            }
            Shares::Cyclic { .. } => {
                let sharded = ShardedGradients::new(buckets, leaves, overlap)?;
                Ok(Self::Sharded(Box::new(sharded)))
            }
        }
    }
}

impl WorkerStore {
    /// Zeros for a worker of a ZeRO stage; `buckets` has what its stages of the pipeline have.
    pub fn new(
        buckets: Buckets,
        stage: usize,
        leaves: Leaves,
        shares: &Shares,
        sparse: Option<SparseTable>,
        trained: Trained,
        overlap: Overlap,
        stages: Stages,
    ) -> Result<Self, CommError> {
        let buckets = Arc::new(buckets);
        let worker = overlap.comm().group_rank();
        let weights = match stage {
            3 => Weights::Sharded(ShardedWeights::new(&buckets, &overlap)?),
            _ => Weights::Whole(WholeWeights::new(&buckets, stage > 0, &overlap)?),
        };
        let grads = Gradients::new(&trained.grads, stage, leaves, shares, sparse, &overlap)?;
        let spare = Vec::new();
        let is_alone = false;
        let mut store = Self {
            buckets,
            overlap,
            weights,
            grads,
            stage,
            worker,
            spare,
            trained,
            stages,
            is_alone,
            delayed: None,
            is_held: false,
        };
        store.spare = store.room_for_mirrors();
        Ok(store)
    }

    /// See [`Self::spare`].
    fn room_for_mirrors(&self) -> Vec<f32> {
        let grads = &self.trained.grads;
        let owners = grads.mirrors.iter().map(|pair| self.own_of_pair(grads, pair).0.len());
        vec![0.0; owners.max().unwrap_or(0)]
    }

    /// Makes room for the gradients of another phase of the run, or of leaves of another size, in
    /// place of those there were. All workers do so together, between two steps.
    pub fn renew_gradients(
        &mut self,
        leaves: Leaves,
        shares: &Shares,
        sparse: Option<SparseTable>,
        trained: Trained,
    ) -> Result<(), CommError> {
        // What there was goes first, so that there is never room for both.
        let (stage, nothing) = (self.stage, Trained::nothing(&self.buckets).grads);
        self.grads = Gradients::new(&nothing, stage, leaves, shares, None, &self.overlap)?;
        let grads = &trained.grads;
        self.grads = Gradients::new(grads, stage, leaves, shares, sparse, &self.overlap)?;
        self.renew_delayed(&trained, leaves, shares, sparse)?;
        self.trained = trained;
        self.spare = self.room_for_mirrors();
        Ok(())
    }

    /// Whether the gradients of the step at work stay with this worker.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Says whether the gradients of the next step stay with this worker.
    pub fn set_alone(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
    }

    /// What is trained.
    pub fn trained(&self) -> &Trained {
        &self.trained
    }

    /// What this worker steps of a bucket, of parameters or of gradients.
    pub fn own(&self, bucket: &Bucket) -> Range<usize> {
        if self.stage == 0 { 0..bucket.len } else { bucket.part(self.worker) }
    }

    /// The parameters that this worker steps.
    pub fn own_params(&self, bucket: usize) -> &[f32] {
        match &self.weights {
            Weights::Whole(whole) => &whole.bucket(bucket)[self.own(&self.buckets.list[bucket])],
            Weights::Sharded(sharded) => sharded.own(bucket),
        }
    }

    /// See [`Self::own_params`]; [`Self::publish`] must follow a change.
    pub fn own_params_mut(&mut self, bucket: usize) -> &mut [f32] {
        let own = self.own(&self.buckets.list[bucket]);
        match &mut self.weights {
            Weights::Whole(whole) => &mut whole.bucket_mut(bucket)[own],
            Weights::Sharded(sharded) => sharded.own_mut(bucket),
        }
    }

    /// The reduced gradients of what this worker steps.
    pub fn own_grads(&self, bucket: usize) -> &[f32] {
        match &self.grads {
            Gradients::Whole(whole) => {
                &whole.total(bucket)[self.own(&self.trained.grads.list[bucket])]
            }
            Gradients::Sharded(sharded) => sharded.total(bucket),
        }
    }

    /// See [`Self::own_grads`].
    pub fn own_grads_mut(&mut self, bucket: usize) -> &mut [f32] {
        let own = self.own(&self.trained.grads.list[bucket]);
        match &mut self.grads {
            Gradients::Whole(whole) => &mut whole.total_mut(bucket)[own],
            Gradients::Sharded(sharded) => sharded.total_mut(bucket),
        }
    }

    /// Forgets the gradients of the last step.
    pub fn restart(&mut self) {
        match &mut self.grads {
            Gradients::Whole(whole) => whole.restart(),
            Gradients::Sharded(sharded) => sharded.restart(),
        }
    }

    /// Whether a bucket has all its gradients once backward has passed a block. Backward ends at
    /// the first block that is trained, which may not be its bucket's first.
    fn fills_bucket(&self, block: usize) -> bool {
        let bucket = self.buckets.of_block(block);
        let last = self.buckets.list[bucket].blocks.start.max(self.trained.first_block);
        block == last && self.trained.grads.list[bucket].len > 0
    }

    /// Waits until all gradients are reduced; mirrors give theirs to their owners, on another stage
    /// of the pipeline where that is.
    pub fn finish_reduce(&mut self, cpu: &Cpu, link: &mut Link) -> Result<(), CommError> {
        self.take_older();
        match &mut self.grads {
            Gradients::Whole(whole) => whole.finish(cpu, &mut self.overlap)?,
            Gradients::Sharded(sharded) => sharded.finish(cpu, &mut self.overlap)?,
        }
        let grads = Arc::clone(&self.trained.grads);
        for pair in &grads.mirrors {
            let (owner, mirror) = self.own_of_pair(&grads, pair);
            let (tag, [owner_device, mirror_device]) = (mirror_tag(pair), self.devices(pair));
            if !pair.is_owner_here() {
                let addend = &self.own_grads(pair.mirror.0)[mirror];
                if !addend.is_empty() {
                    link.call(|comm| comm.send(addend, owner_device, tag))?;
                }
                continue;
            }
            // The two lie in buffers that cannot be borrowed together.
            let mut spare = std::mem::take(&mut self.spare);
            let addend = &mut spare[..owner.len()];
            if pair.is_mirror_here() {
                addend.copy_from_slice(&self.own_grads(pair.mirror.0)[mirror]);
            } else if !addend.is_empty() {
                link.call(|comm| comm.recv(addend, mirror_device, tag))?;
            }
            reduce::add_assign(cpu, &mut self.own_grads_mut(pair.owner.0)[owner], addend);
            self.spare = spare;
        }
        Ok(())
    }

    /// Steps what this worker owns and shows it to the others.
    pub fn step(
        &mut self,
        cpu: &Cpu,
        optimizer: &mut Optimizer,
        update: &Update,
        link: &mut Link,
    ) -> Result<(), CommError> {
        for bucket in 0..self.buckets.list.len() {
            if let Some((params, grads)) = self.own_pair_mut(bucket) {
                optimizer.step_block(cpu, update, bucket, params, grads);
            }
        }
        self.show_changes(false, link)
    }

    /// Brings gradients to what the optimizer wants measured.
    pub fn prepare(&mut self, cpu: &Cpu, optimizer: &mut Optimizer, update: &Update) {
        for bucket in 0..self.buckets.list.len() {
            if let Some((params, grads)) = self.own_pair_mut(bucket) {
                optimizer.prepare_block(cpu, update, bucket, params, grads);
            }
        }
    }

    /// The parameters that this worker steps of a bucket and the gradients of those that are
    /// trained, if any is.
    fn own_pair_mut(&mut self, bucket: usize) -> Option<(&mut [f32], &mut [f32])> {
        let of_grads = &self.trained.grads.list[bucket];
        if of_grads.len == 0 {
            return None;
        }
        let (own, own_grads) = (self.own(&self.buckets.list[bucket]), self.own(of_grads));
        let grads = match &mut self.grads {
            Gradients::Whole(whole) => &mut whole.total_mut(bucket)[own_grads],
            Gradients::Sharded(sharded) => sharded.total_mut(bucket),
        };
        let params = match &mut self.weights {
            Weights::Whole(whole) => &mut whole.bucket_mut(bucket)[own],
            Weights::Sharded(sharded) => sharded.own_mut(bucket),
        };
        Some((params, grads))
    }

    /// Copies owners over their mirrors and shows all parameters to the other workers.
    pub fn publish(&mut self, link: &mut Link) -> Result<(), CommError> {
        self.show_changes(true, link)
    }

    /// See [`Self::publish`]; a step changes only what is trained.
    fn show_changes(&mut self, has_all_changed: bool, link: &mut Link) -> Result<(), CommError> {
        let buckets = Arc::clone(&self.buckets);
        for pair in &buckets.mirrors {
            if pair.is_mirror_here() && pair.is_owner_here() {
                self.copy_to_mirror(&buckets, pair);
            } else if has_all_changed || self.is_pair_trained(pair) {
                self.hand_to_mirror(&buckets, pair, link)?;
            }
        }
        match &mut self.weights {
            Weights::Whole(whole) if self.stage > 0 => {
                if !has_all_changed {
                    let trained = |bucket: usize| &self.trained.of_bucket[bucket][..];
                    return whole.start_gathering(&self.buckets, trained, &mut self.overlap);
                }
                let all: Vec<_> = buckets.list.iter().map(|bucket| 0..bucket.len).collect();
                let all = |bucket: usize| std::slice::from_ref(&all[bucket]);
                whole.start_gathering(&self.buckets, all, &mut self.overlap)
            }
            Weights::Whole(_) => Ok(()),
            Weights::Sharded(sharded) => sharded.forget(&mut self.overlap),
        }
    }

    /// Copies what this worker steps of a parameter over its part of the mirror.
    fn copy_to_mirror(&mut self, buckets: &Buckets, pair: &MirrorPair) {
        let (owner, mirror) = self.own_of_pair(buckets, pair);
        let base = |bucket: usize| self.own(&buckets.list[bucket]).start;
        let (owner_base, mirror_base) = (base(pair.owner.0), base(pair.mirror.0));
        let shift = |range: Range<usize>, by: usize| range.start + by..range.end + by;
        match &mut self.weights {
            Weights::Whole(whole) => {
                let [from, into] = whole.two_mut(pair.owner.0, pair.mirror.0);
                into[shift(mirror, mirror_base)].copy_from_slice(&from[shift(owner, owner_base)]);
            }
            Weights::Sharded(sharded) => {
                let [from, into] = sharded.two_mut(pair.owner.0, pair.mirror.0);
                into[mirror].copy_from_slice(&from[owner]);
            }
        }
    }

    /// The same where one of the two is on another stage: it travels.
    fn hand_to_mirror(
        &mut self,
        buckets: &Buckets,
        pair: &MirrorPair,
        link: &mut Link,
    ) -> Result<(), CommError> {
        let ((owner, mirror), tag) = (self.own_of_pair(buckets, pair), mirror_tag(pair));
        let [owner_device, mirror_device] = self.devices(pair);
        if pair.is_owner_here() {
            let values = &self.own_params(pair.owner.0)[owner];
            if values.is_empty() {
                return Ok(());
            }
            return link.call(|comm| comm.send(values, mirror_device, tag));
        }
        let values = &mut self.own_params_mut(pair.mirror.0)[mirror];
        if values.is_empty() {
            return Ok(());
        }
        link.call(|comm| comm.recv(values, owner_device, tag))
    }

    /// The devices of a pair's owner and mirror.
    fn devices(&self, pair: &MirrorPair) -> [usize; 2] {
        let device = |bucket: usize| self.stages.device_of(self.buckets.list[bucket].blocks.start);
        [device(pair.owner.0), device(pair.mirror.0)]
    }

    fn is_pair_trained(&self, pair: &MirrorPair) -> bool {
        let is_it =
            |other: &MirrorPair| (other.owner.0, other.mirror.0) == (pair.owner.0, pair.mirror.0);
        self.trained.grads.mirrors.iter().any(is_it)
    }

    /// Waits until whole parameters are complete.
    pub fn settle(&mut self) -> Result<(), CommError> {
        if let Weights::Whole(whole) = &mut self.weights {
            for bucket in 0..self.buckets.list.len() {
                whole.fetch(bucket, &mut self.overlap)?;
            }
        }
        Ok(())
    }

    /// The memory that is held; activations and the optimizer are not part of it.
    pub fn footprint(&self) -> Footprint {
        let (weights, windows) = self.weights.num_elements();
        let (gradients, in_flight) = match &self.grads {
            Gradients::Whole(whole) => (whole.num_elements() + self.delayed_len(), 0),
            Gradients::Sharded(sharded) => sharded.num_elements(),
        };
        let buffers = windows + in_flight + self.spare.len();
        Footprint { weights, gradients, buffers, optimizer: 0, activations: 0 }
    }

    /// The parts of a mirror and its owner that this worker steps, relative to what it owns of
    /// their `buckets`. They are cut alike, so both have one length.
    fn own_of_pair(&self, buckets: &Buckets, pair: &MirrorPair) -> (Range<usize>, Range<usize>) {
        let own = |(bucket, range): &(usize, Range<usize>)| {
            let own = self.own(&buckets.list[*bucket]);
            let start = range.start.clamp(own.start, own.end);
            start - own.start..range.end.clamp(start, own.end) - own.start
        };
        (own(&pair.owner), own(&pair.mirror))
    }
}

impl Store for WorkerStore {
    fn fetch(&mut self, block: usize, next: Option<usize>) -> Result<(), CommError> {
        let bucket = self.buckets.of_block(block);
        match &mut self.weights {
            Weights::Whole(whole) => whole.fetch(bucket, &mut self.overlap),
            Weights::Sharded(sharded) => {
                let next = next.map(|next| self.buckets.of_block(next));
                sharded.fetch(&self.buckets, bucket, next, &mut self.overlap)
            }
        }
    }

    fn params(&self, block: usize) -> &[f32] {
        let bucket = self.buckets.of_block(block);
        let range = self.buckets.list[bucket].block(block);
        match &self.weights {
            Weights::Whole(whole) => &whole.bucket(bucket)[range],
            Weights::Sharded(sharded) => &sharded.bucket(bucket)[range],
        }
    }

    fn params_and_grads(
        &mut self,
        cpu: &Cpu,
        block: usize,
    ) -> Result<(&[f32], Grads<'_>), CommError> {
        let bucket = self.buckets.of_block(block);
        let range = self.buckets.list[bucket].block(block);
        let params = match &self.weights {
            Weights::Whole(whole) => &whole.bucket(bucket)[range],
            Weights::Sharded(sharded) => &sharded.bucket(bucket)[range],
        };
        let runs = &self.trained.of_block[block];
        if runs.is_empty() {
            return Ok((params, Grads::none()));
        }
        let grads = match &mut self.grads {
            Gradients::Whole(whole) => whole.microbatch_buffer(cpu, bucket),
            Gradients::Sharded(sharded) => {
                sharded.microbatch_buffer(cpu, bucket, &mut self.overlap)?
            }
        };
        let range = self.trained.grads.list[bucket].block(block);
        Ok((params, Grads::new(&mut grads[range], runs)))
    }

    fn first_trained(&self) -> usize {
        self.trained.first_block
    }

    fn finish_grads(&mut self, cpu: &Cpu, block: usize) -> Result<(), CommError> {
        let bucket = self.buckets.of_block(block);
        if !self.fills_bucket(block) {
            return Ok(());
        }
        match &mut self.grads {
            Gradients::Whole(whole) if self.is_alone => {
                whole.finish_microbatch_alone(cpu, bucket);
                Ok(())
            }
            Gradients::Whole(whole) if self.is_held => {
                whole.hold_microbatch(cpu, bucket);
                Ok(())
            }
            Gradients::Whole(whole) => whole.finish_microbatch(cpu, bucket, &mut self.overlap),
            Gradients::Sharded(sharded) => {
                sharded.finish_microbatch(cpu, bucket, &mut self.overlap)
            }
        }
    }

    fn pass_over(&mut self, cpu: &Cpu, block: usize) -> Result<(), CommError> {
        let (bucket, is_filled) = (self.buckets.of_block(block), self.fills_bucket(block));
        match &mut self.grads {
            Gradients::Sharded(sharded) if is_filled => {
                sharded.pass_over(cpu, bucket, &mut self.overlap)
            }
            _ => Ok(()),
        }
    }
}

/// The tag of what passes between the stages of a mirror and its owner; boundaries between stages
/// have the small numbers.
fn mirror_tag(pair: &MirrorPair) -> u64 {
    u64::MAX - pair.mirror.0 as u64
}
