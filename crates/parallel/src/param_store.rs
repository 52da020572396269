//! Parameters and gradients of a rank at every ZeRO stage (Rajbhandari et al. 2020).
//!
//! | stage | parameters | gradients | optimizer state |
//! |---|---|---|---|
//! | 0 | whole | whole | whole |
//! | 1 | whole | whole | shard |
//! | 2 | whole | shard | shard |
//! | 3 | shard | shard | shard |
//!
//! A rank holds only the blocks of its pipeline stages; its buckets of other stages are empty.
//!
//! A rank steps one contiguous range per bucket, [`ParamStore::own`]: the whole bucket at stage 0,
//! its shard from stage 1 on. Optimizer, norms and checks work on that range at every stage.

mod tasks;

pub(crate) use tasks::part_lens;

use crate::buckets::{Bucket, Buckets, MirrorPair};
use crate::buffer::Floats;
use crate::data_parallel::WholeGradients;
use crate::footprint::Footprint;
use crate::leaf_assignment::LeafAssignment;
use crate::leaf_norms::LeafNorms;
use crate::leaves::Leaves;
use crate::microbatch::Store;
use crate::overlap::Overlap;
use crate::sparse_embedding::SparseEmbedding;
use crate::stage_link::Link;
use crate::stages::Stages;
use crate::trainable_params::TrainableParams;
use crate::weights::{ShardedWeights, Weights, WholeWeights};
use crate::zero::ShardedGradients;
use lockstep_comm::{Comm, CommError};
use lockstep_optim::{Optimizer, Update};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Device, Dtype, Result as DeviceResult, View, ViewMut};
use std::ops::Range;
use std::sync::Arc;

/// Parameters and gradients of one rank.
pub struct ParamStore {
    pub(crate) buckets: Arc<Buckets>,
    pub(crate) overlap: Overlap,
    weights: Weights,
    pub(crate) grads: Gradients,
    /// Gradients of the previous step in flight, with one-step gradient delay.
    pub(crate) delayed: Option<DelayedGradients>,
    /// Norms of the gradients of leaves, where they are measured.
    pub(crate) leaf_norms: Option<LeafNorms>,
    stage: usize,
    worker: usize,
    /// Buffer for a mirror's gradient on its way to the owner.
    spare: Floats,
    trained: TrainableParams,
    stages: Stages,
    /// Whether gradients stay local instead of being reduced.
    is_alone: bool,
    /// Whether buckets wait until the set of counted ranks is decided.
    pub(crate) is_held: bool,
    /// Type of the rounded copy of the parameters, if there is one.
    copy: Option<Dtype>,
}

/// Parameters that a rank steps with their rounded copy, and their gradients.
type OwnPair<'a> = (&'a dyn Device, (ViewMut<'a>, ViewMut<'a>), ViewMut<'a>);

/// Gradients in flight for the next step.
pub struct DelayedGradients {
    pub(crate) sums: WholeGradients,
    /// Whether they hold the gradients of a step.
    pub(crate) is_of_a_step: bool,
    /// Whether the gradients of the last step did.
    pub(crate) was_of_a_step: bool,
}

pub(crate) enum Gradients {
    Whole(WholeGradients),
    Sharded(Box<ShardedGradients>),
}

impl Gradients {
    /// Empty sums for the gradient buckets, laid out for the ZeRO stage.
    fn new(
        buckets: &Arc<Buckets>,
        stage: usize,
        leaves: Leaves,
        shares: &LeafAssignment,
        sparse: Option<SparseEmbedding>,
        overlap: &Overlap,
    ) -> Result<Self, CommError> {
        match shares {
            LeafAssignment::Contiguous(shares) => {
                let (mine, is_scattered) = (&shares[overlap.comm().group_rank()], stage > 0);
                WholeGradients::new(buckets, leaves, mine, is_scattered, sparse, overlap)
                    .map(Self::Whole)
            }
            LeafAssignment::Cyclic { .. } => {
                let sharded = ShardedGradients::new(buckets, leaves, overlap)?;
                Ok(Self::Sharded(Box::new(sharded)))
            }
        }
    }
}

impl ParamStore {
    /// A zeroed store for a ZeRO stage; `buckets` are those of this rank's pipeline stages.
    pub fn new(
        buckets: Buckets,
        stage: usize,
        leaves: Leaves,
        shares: &LeafAssignment,
        sparse: Option<SparseEmbedding>,
        trained: TrainableParams,
        overlap: Overlap,
        stages: Stages,
        copy: Option<Dtype>,
    ) -> Result<Self, CommError> {
        let buckets = Arc::new(buckets);
        let worker = overlap.comm().group_rank();
        let weights = match stage {
            3 => Weights::Sharded(Box::new(ShardedWeights::new(&buckets, &overlap)?)),
            _ => Weights::Whole(WholeWeights::new(&buckets, stage > 0, &overlap)?),
        };
        let grads = Gradients::new(&trained.grads, stage, leaves, shares, sparse, &overlap)?;
        let spare = Floats::default();
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
            leaf_norms: None,
            is_held: false,
            copy,
        };
        store.spare = store.room_for_mirrors()?;
        Ok(store)
    }

    /// Allocates the buffer for mirrors' gradients.
    fn room_for_mirrors(&self) -> Result<Floats, CommError> {
        let grads = &self.trained.grads;
        let owners = grads.mirrors.iter().map(|pair| self.own_of_pair(grads, pair).0.len());
        self.overlap.private(owners.max().unwrap_or(0))
    }

    /// Reallocates the gradients for another phase or leaf size. Collective, between two steps.
    pub fn renew_gradients(
        &mut self,
        leaves: Leaves,
        shares: &LeafAssignment,
        sparse: Option<SparseEmbedding>,
        trained: TrainableParams,
    ) -> Result<(), CommError> {
        // Free the old sums first, so that both never exist at once.
        let (stage, nothing) = (self.stage, TrainableParams::nothing(&self.buckets).grads);
        self.grads = Gradients::new(&nothing, stage, leaves, shares, None, &self.overlap)?;
        let grads = &trained.grads;
        self.grads = Gradients::new(grads, stage, leaves, shares, sparse, &self.overlap)?;
        self.reset_delayed(&trained, leaves, shares, sparse)?;
        self.trained = trained;
        self.spare = self.room_for_mirrors()?;
        Ok(())
    }

    /// Whether the gradients of the current step stay on this rank.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// Sets whether the gradients of the next step stay on this rank.
    pub fn set_alone(&mut self, is_alone: bool) {
        self.is_alone = is_alone;
    }

    /// Trainable parameters of this phase.
    pub fn trained(&self) -> &TrainableParams {
        &self.trained
    }

    /// The range of a bucket, of parameters or gradients, that this rank steps.
    pub fn own(&self, bucket: &Bucket) -> Range<usize> {
        if self.stage == 0 { 0..bucket.len } else { bucket.part(self.worker) }
    }

    /// Parameters that this rank steps.
    pub fn own_params(&self, bucket: usize) -> &[f32] {
        match &self.weights {
            Weights::Whole(whole) => &whole.bucket(bucket)[self.own(&self.buckets.list[bucket])],
            Weights::Sharded(sharded) => sharded.own(bucket),
        }
    }

    /// Mutable parameters that this rank steps; call [`Self::publish`] after a change.
    pub fn own_params_mut(&mut self, bucket: usize) -> &mut [f32] {
        let own = self.own(&self.buckets.list[bucket]);
        match &mut self.weights {
            Weights::Whole(whole) => &mut whole.bucket_mut(bucket)[own],
            Weights::Sharded(sharded) => sharded.own_mut(bucket),
        }
    }

    /// Parameters of a block that has arrived, in host memory.
    pub fn host_params(&self, block: usize) -> &[f32] {
        let (params, range) = self.params_of(block);
        &params[range]
    }

    /// Parameters of a block's bucket, and the block's range of them.
    fn params_of(&self, block: usize) -> (&Floats, Range<usize>) {
        let bucket = self.buckets.of_block(block);
        (self.weights.bucket(bucket), self.buckets.list[bucket].block(block))
    }

    /// Memory of the rounded copies, in `f32` elements.
    fn copies_len(&self) -> usize {
        self.copy.map_or(0, |dtype| self.buckets.copies_len(dtype))
    }

    /// Parameters that this rank steps, on the device.
    pub fn own_params_view(&self, bucket: usize) -> DeviceResult<View<'_>> {
        match &self.weights {
            Weights::Whole(whole) => {
                Ok(whole.bucket(bucket).view()?.range(self.own(&self.buckets.list[bucket])))
            }
            Weights::Sharded(sharded) => sharded.own(bucket).view(),
        }
    }

    /// Reduced gradients of the range that this rank steps, on the device.
    pub fn own_grads_view(&self, bucket: usize) -> DeviceResult<View<'_>> {
        match &self.grads {
            Gradients::Whole(whole) => {
                let own = self.own(&self.trained.grads.list[bucket]);
                Ok(whole.total_view(bucket)?.range(own))
            }
            Gradients::Sharded(sharded) => sharded.total_view(bucket),
        }
    }

    /// Mutable reduced gradients of the range that this rank steps, on the device.
    pub fn own_grads_view_mut(&mut self, bucket: usize) -> DeviceResult<ViewMut<'_>> {
        let own = self.own(&self.trained.grads.list[bucket]);
        match &mut self.grads {
            Gradients::Whole(whole) => Ok(whole.total_view_mut(bucket)?.range(own)),
            Gradients::Sharded(sharded) => sharded.total_view_mut(bucket),
        }
    }

    /// Reduced gradients of the range that this rank steps.
    pub fn own_grads(&self, bucket: usize) -> &[f32] {
        match &self.grads {
            Gradients::Whole(whole) => {
                &whole.total(bucket)[self.own(&self.trained.grads.list[bucket])]
            }
            Gradients::Sharded(sharded) => sharded.total(bucket),
        }
    }

    /// Mutable reduced gradients of the range that this rank steps.
    pub fn own_grads_mut(&mut self, bucket: usize) -> &mut [f32] {
        let own = self.own(&self.trained.grads.list[bucket]);
        match &mut self.grads {
            Gradients::Whole(whole) => &mut whole.total_mut(bucket)[own],
            Gradients::Sharded(sharded) => sharded.total_mut(bucket),
        }
    }

    /// Gradients of a bucket that a local step has completed, also before
    /// [`Self::finish_reduce`].
    pub(crate) fn complete_grads(&self, bucket: usize) -> &[f32] {
        let Gradients::Whole(whole) = &self.grads else {
            unreachable!("only whole gradients are exchanged by a strategy")
        };
        whole.complete(bucket)
    }

    /// Discards the gradients of the last step.
    pub fn restart(&mut self) {
        match &mut self.grads {
            Gradients::Whole(whole) => whole.restart(),
            Gradients::Sharded(sharded) => sharded.restart(),
        }
        if let Some(norms) = &mut self.leaf_norms {
            norms.restart();
        }
    }

    /// Whether a bucket has all its gradients once backward has passed `block`. Backward ends at
    /// the first trained block, which need not be the first of its bucket.
    fn fills_bucket(&self, block: usize) -> bool {
        let bucket = self.buckets.of_block(block);
        let last = self.buckets.list[bucket].blocks.start.max(self.trained.first_block);
        block == last && self.trained.grads.list[bucket].len > 0
    }

    /// Gathers a block's parameters outside a step.
    pub fn fetch(&mut self, block: usize) -> Result<(), CommError> {
        let bucket = self.buckets.of_block(block);
        match &mut self.weights {
            Weights::Sharded(sharded) if !sharded.holds(bucket) => {
                let lens = self.buckets.list[bucket].part_lens().into();
                sharded.gather(&self.buckets, bucket, 0, lens, &mut self.overlap)?;
            }
            _ => {}
        }
        self.arrive(block)
    }

    /// Turns the owned gradients of a bucket into directions of the update.
    pub(crate) fn prepare(
        &mut self,
        cpu: &Cpu,
        optimizer: &mut Optimizer,
        update: &Update,
        bucket: usize,
    ) -> DeviceResult<()> {
        match self.own_pair_mut(cpu, bucket)? {
            Some((device, (params, _), grads)) => {
                optimizer.prepare_on(device, update, bucket, params.into_view(), grads)
            }
            None => Ok(()),
        }
    }

    /// Owned parameters of a bucket with their rounded copy, and their gradients, on the device;
    /// `None` if none of them is trained.
    fn own_pair_mut<'a>(
        &'a mut self,
        cpu: &'a Cpu,
        bucket: usize,
    ) -> DeviceResult<Option<OwnPair<'a>>> {
        let of_grads = &self.trained.grads.list[bucket];
        if of_grads.len == 0 {
            return Ok(None);
        }
        let (own, own_grads) = (self.own(&self.buckets.list[bucket]), self.own(of_grads));
        let grads = match &mut self.grads {
            Gradients::Whole(whole) => whole.total_view_mut(bucket)?.range(own_grads),
            Gradients::Sharded(sharded) => sharded.total_view_mut(bucket)?,
        };
        let (device, params, copy) = match &mut self.weights {
            Weights::Whole(whole) => {
                let (device, params, copy) = whole.bucket_mut(bucket).on_device_with_copy(cpu)?;
                let copy = if copy.is_empty() { copy } else { copy.range(own.clone()) };
                (device, params.range(own), copy)
            }
            Weights::Sharded(sharded) => sharded.own_mut(bucket).on_device_with_copy(cpu)?,
        };
        Ok(Some((device, (params, copy), grads)))
    }

    /// Copies owners over their mirrors and publishes all parameters.
    pub fn publish(&mut self, link: &mut Link) -> Result<(), CommError> {
        let buckets = Arc::clone(&self.buckets);
        for pair in &buckets.mirrors {
            if pair.is_mirror_here() && pair.is_owner_here() {
                self.copy_to_mirror(&buckets, pair)?;
            } else {
                self.hand_to_mirror(&buckets, pair, link)?;
            }
        }
        let whole = match &mut self.weights {
            Weights::Whole(whole) => whole,
            Weights::Sharded(sharded) => return sharded.release_all(&mut self.overlap),
        };
        let is_gathered = |bucket: &Bucket| self.stage > 0 && bucket.len > 0;
        for (index, bucket) in buckets.list.iter().enumerate().filter(|it| is_gathered(it.1)) {
            let (all, lens) = (0..bucket.len, bucket.part_lens().into());
            whole.add_run(index, std::slice::from_ref(&all), lens);
            whole.start_gathering(index, &mut self.overlap)?;
        }
        Ok(())
    }

    /// Receives the parameters of a bucket in the background; [`Store::arrive`] waits for them.
    pub(crate) fn receive_params(
        &mut self,
        bucket: usize,
        comm: &Comm,
        receive: impl FnOnce(&Comm, &mut [f32]) -> Result<(), CommError> + Send + 'static,
    ) -> Result<(), CommError> {
        let Weights::Whole(whole) = &mut self.weights else {
            unreachable!("only whole parameters are received")
        };
        whole.receive(bucket, comm, receive)
    }

    /// Sends the gradients of a bucket in the background, if they are complete;
    /// [`Self::finish_reduce`] waits for it. Returns whether they were.
    pub(crate) fn send_grads(
        &mut self,
        bucket: usize,
        comm: &Comm,
        send: impl FnOnce(&Comm, &[f32]) -> Result<(), CommError> + Send + 'static,
    ) -> Result<bool, CommError> {
        let Gradients::Whole(whole) = &mut self.grads else {
            unreachable!("only whole gradients are sent")
        };
        whole.send(bucket, comm, send)
    }

    /// Makes the gradients of the last step ready to be sent.
    pub(crate) fn mark_pending(&mut self) {
        let Gradients::Whole(whole) = &mut self.grads else {
            unreachable!("only whole gradients are sent")
        };
        whole.mark_pending();
    }

    /// Waits until all gradients are sent.
    pub(crate) fn wait_for_grads(&mut self, cpu: &Cpu) -> Result<(), CommError> {
        let Gradients::Whole(whole) = &mut self.grads else {
            unreachable!("only whole gradients are sent")
        };
        whole.finish(cpu, &mut self.overlap)
    }

    /// Copies the owned range of a parameter over its mirror.
    pub(crate) fn copy_to_mirror(
        &mut self,
        buckets: &Buckets,
        pair: &MirrorPair,
    ) -> Result<(), CommError> {
        let (owner, mirror) = self.own_of_pair(buckets, pair);
        let base = |bucket: usize| self.own(&buckets.list[bucket]).start;
        let (owner_base, mirror_base) = (base(pair.owner.0), base(pair.mirror.0));
        let shift = |range: Range<usize>, by: usize| range.start + by..range.end + by;
        match &mut self.weights {
            Weights::Whole(whole) => {
                let [from, into] = whole.two_mut(pair.owner.0, pair.mirror.0);
                into.copy_from(shift(mirror, mirror_base), from, shift(owner, owner_base))?;
            }
            Weights::Sharded(sharded) => {
                let [from, into] = sharded.two_mut(pair.owner.0, pair.mirror.0);
                into.copy_from(mirror, from, owner)?;
            }
        }
        Ok(())
    }

    /// Copies a parameter to its mirror on another stage over the pipeline link.
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

    /// Pipeline ranks of a pair's owner and mirror.
    fn devices(&self, pair: &MirrorPair) -> [usize; 2] {
        let device = |bucket: usize| self.stages.device_of(self.buckets.list[bucket].blocks.start);
        [device(pair.owner.0), device(pair.mirror.0)]
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

    /// Memory held, without activations and the optimizer.
    pub fn footprint(&self) -> Footprint {
        let (weights, windows) = self.weights.num_elements();
        let (gradients, in_flight) = match &self.grads {
            Gradients::Whole(whole) => (whole.num_elements() + self.delayed_len(), 0),
            Gradients::Sharded(sharded) => sharded.num_elements(),
        };
        let buffers = windows + in_flight + self.spare.len() + self.copies_len();
        Footprint { weights, gradients, buffers, optimizer: 0, activations: 0 }
    }

    /// Ranges of an owner and its mirror that this rank steps, relative to its ranges of their
    /// `buckets`. Both are cut alike and have one length.
    fn own_of_pair(&self, buckets: &Buckets, pair: &MirrorPair) -> (Range<usize>, Range<usize>) {
        let own = |(bucket, range): &(usize, Range<usize>)| {
            let own = self.own(&buckets.list[*bucket]);
            let start = range.start.clamp(own.start, own.end);
            start - own.start..range.end.clamp(start, own.end) - own.start
        };
        (own(&pair.owner), own(&pair.mirror))
    }
}

/// Tag of messages between an owner and its mirror. Stage boundaries use the small tags.
fn mirror_tag(pair: &MirrorPair) -> u64 {
    u64::MAX - pair.mirror.0 as u64
}
