//! From reduced gradients to updated parameters: tied tensors, loss scale, norm, agreement, update,
//! and the gathering of what other ranks have updated (ZeRO-1 and 2).

use super::{ELEMENT, StepBuilder, StepKind, StepTasks};
use crate::buckets::{Buckets, MirrorPair};
use lockstep_config::units::Bytes;
use lockstep_mesh::Axis;
use lockstep_schedule::Op;
use lockstep_schedule::step::{
    Access, BufferId, Call, Contents, Lengths, Message, MessageKind, Queue, TaskId, TaskOp,
};
use std::ops::Range;

/// Elements of a chunk whose sum of squares is one number of the norm.
const NORM_CHUNK_LEN: usize = 4096;

const PIPELINE: Queue = Queue::Link(Axis::Pipeline);

impl StepBuilder<'_> {
    /// Adds everything after the reduction; a strategy may exchange gradients before their norm.
    pub(super) fn update(&mut self, kind: &StepKind, strategy: Option<&dyn StepTasks>) {
        let at = self.at;
        self.add_mirrors();
        let buckets: Vec<usize> = at.grad_buckets().collect();
        let agree = self.agree(&buckets, kind, strategy);
        let inputs = self.add_update_inputs(&buckets, agree);
        for (&bucket, inputs) in buckets.iter().zip(inputs) {
            self.update_bucket(bucket, &inputs, agree);
        }
        self.hand_to_mirrors(agree);
        for &bucket in &buckets {
            self.gather_updated(bucket, agree);
        }
        self.release_all();
    }

    pub(super) fn grads(&mut self, bucket: usize) -> BufferId {
        let len = self.at.own_len(&self.at.trained.grads, bucket);
        self.tasks.buffer(Contents::Grads { bucket: bucket as u32 }, len)
    }

    /// Parameters that the update has changed: whole ones, this rank's shard of them, or its shard.
    fn updated(&mut self, bucket: usize) -> BufferId {
        if self.is_published() {
            let len = self.at.own_len(&self.at.buckets, bucket);
            return self.tasks.buffer(Contents::Updated { bucket: bucket as u32 }, len);
        }
        self.params(bucket)
    }

    /// Whether ranks step shards of parameters that all of them hold.
    fn is_published(&self) -> bool {
        matches!(self.at.plan.zero, 1 | 2)
    }

    /// Elements of a tied tensor that this rank steps; a tensor of another stage is empty here.
    fn own_of_pair(&self, buckets: &Buckets, pair: &MirrorPair) -> usize {
        self.own_of(buckets, if pair.is_owner_here() { &pair.owner } else { &pair.mirror })
    }

    /// Elements of a range of a bucket that this rank steps.
    fn own_of(&self, buckets: &Buckets, (bucket, range): &(usize, Range<usize>)) -> usize {
        match self.at.plan.zero {
            0 => range.len(),
            _ => buckets.list[*bucket].part_lens_of(range)[self.at.part],
        }
    }

    /// Message about a tied tensor to the pipeline rank of a bucket.
    fn mirror_message(&self, kind: MessageKind, bucket: usize, len: usize) -> Message {
        let block = self.at.buckets.list[bucket].blocks.start;
        let peer = self.at.pipeline_peer(self.at.plan.stages.device_of(block));
        Message { kind, peer, len: len as u64, element: ELEMENT.0 as u32 }
    }

    /// Adds the gradients of tied copies to their owners.
    fn add_mirrors(&mut self) {
        let grads = &*self.at.trained.grads;
        for (pair, number) in grads.mirrors.iter().zip(pair_numbers(grads)) {
            let len = self.own_of_pair(grads, pair);
            let kind = MessageKind::MirrorGrad { pair: number };
            if !pair.is_owner_here() {
                if len > 0 {
                    let message = self.mirror_message(kind, pair.owner.0, len);
                    let mirror = self.grads(pair.mirror.0);
                    self.tasks.task(TaskOp::Send(message), PIPELINE).reads(mirror);
                }
                continue;
            }
            let owner = self.grads(pair.owner.0);
            let add = TaskOp::AddMirror { pair: number };
            if pair.is_mirror_here() {
                let mirror = self.grads(pair.mirror.0);
                let added = self.tasks.buffer(Contents::MirrorGrad { pair: number }, 0);
                self.added_mirrors.push(added);
                let task = self.tasks.task(add, Queue::Compute).updates(owner).writes(added);
                if mirror != owner {
                    task.reads(mirror);
                }
            } else if len > 0 {
                let message = self.mirror_message(kind, pair.mirror.0, len);
                let received = self.tasks.buffer(Contents::MirrorGrad { pair: number }, len);
                self.tasks.task(TaskOp::Recv(message), PIPELINE).writes(received);
                self.tasks.task(add, Queue::Compute).updates(owner).takes(received);
            }
        }
    }

    /// Divides by the loss scale, measures the norm and agrees on the update.
    fn agree(
        &mut self,
        buckets: &[usize],
        kind: &StepKind,
        strategy: Option<&dyn StepTasks>,
    ) -> TaskId {
        let unscaled = self.tasks.buffer(Contents::Unscaled, 0);
        let norm = self.tasks.buffer(Contents::Norm, 1);
        let grads: Vec<_> = buckets.iter().map(|bucket| (*bucket, self.grads(*bucket))).collect();
        let mut unscale = self.tasks.task(TaskOp::Unscale, Queue::Compute).writes(unscaled);
        for (_, grads) in &grads {
            unscale = unscale.updates(*grads);
        }
        for added in self.added_mirrors.drain(..) {
            unscale = unscale.takes(added);
        }
        if let Some(strategy) = strategy {
            strategy.add_exchange(kind, self, &grads);
        }
        let mut measure = self.tasks.task(TaskOp::GradNorm, Queue::Compute).takes(unscaled);
        for (_, grads) in &grads {
            measure = measure.reads(*grads);
        }
        measure.writes(norm);
        let num_chunks = self.at.blueprint.num_params().div_ceil(NORM_CHUNK_LEN);
        let call = Call {
            group: self.world,
            op: Op::AllGather,
            lengths: Lengths::Even(num_chunks),
            element: Bytes(8),
        };
        self.tasks.task(TaskOp::Agree, Queue::Control).takes(norm).calls(call).id()
    }

    /// State of the optimizer for the parameters of a bucket that this rank owns.
    pub(super) fn optimizer_state(&mut self, bucket: usize) -> BufferId {
        let len = self.at.own_len(&self.at.trained.grads, bucket);
        self.tasks.persistent(Contents::OptimizerState { bucket: bucket as u32 }, len)
    }

    fn update_bucket(&mut self, bucket: usize, inputs: &[Access], agree: TaskId) {
        let state = self.optimizer_state(bucket);
        let (grads, params, updated) =
            (self.grads(bucket), self.params(bucket), self.updated(bucket));
        let stale = self.local_mirrors().into_iter().filter(|(owner, ..)| *owner == bucket);
        let stale: Vec<_> = stale.map(|(.., number)| self.stale_copy(number)).collect();
        let op = TaskOp::Update { bucket: bucket as u32 };
        let task = self.tasks.task(op, Queue::Compute).guarded_by(agree);
        let mut task = task.takes(grads).updates(state);
        task = if params == updated {
            task.updates(params)
        } else {
            task.takes(params).writes(updated)
        };
        for copy in stale {
            task = task.writes(copy);
        }
        for input in inputs {
            task = task.access(*input);
        }
    }

    /// Trained pairs of tied tensors of which both are on this rank: buckets of the owner and of
    /// the copy, and the number of the pair.
    fn local_mirrors(&self) -> Vec<(usize, usize, u32)> {
        let pairs = self.trained_mirrors();
        let pairs = pairs.filter(|(pair, _)| pair.is_owner_here() && pair.is_mirror_here());
        pairs.map(|(pair, number)| (pair.owner.0, pair.mirror.0, number)).collect()
    }

    /// Pairs of tied tensors that are trained, with their numbers.
    fn trained_mirrors(&self) -> impl Iterator<Item = (&MirrorPair, u32)> {
        let (params, grads) = (&self.at.buckets, &*self.at.trained.grads);
        let buckets = |pair: &MirrorPair| (pair.owner.0, pair.mirror.0);
        let is_trained =
            move |pair: &MirrorPair| grads.mirrors.iter().any(|it| buckets(it) == buckets(pair));
        let pairs = params.mirrors.iter().zip(pair_numbers(params));
        pairs.filter(move |(pair, _)| is_trained(pair))
    }

    /// Mark of a copy that its owner's update has made stale.
    fn stale_copy(&mut self, pair: u32) -> BufferId {
        self.tasks.buffer(Contents::StaleCopy { pair }, 0)
    }

    /// Copies updated tied tensors to their copies.
    fn hand_to_mirrors(&mut self, agree: TaskId) {
        for (owner, mirror, number) in self.local_mirrors() {
            let stale = self.stale_copy(number);
            let (owner, mirror) = (self.updated(owner), self.updated(mirror));
            let copy = TaskOp::CopyMirror { pair: number };
            let task = self.tasks.task(copy, Queue::Compute).guarded_by(agree);
            let task = task.takes(stale).updates(mirror);
            if mirror != owner {
                task.reads(owner);
            }
        }
        let pairs: Vec<_> = self.trained_mirrors().map(|(pair, n)| (pair.clone(), n)).collect();
        for (pair, number) in pairs {
            let len = self.own_of_pair(&self.at.buckets, &pair);
            let kind = MessageKind::MirrorParams { pair: number };
            if len == 0 || (pair.is_owner_here() && pair.is_mirror_here()) {
                continue;
            }
            if pair.is_owner_here() {
                let message = self.mirror_message(kind, pair.mirror.0, len);
                let owner = self.updated(pair.owner.0);
                let task = self.tasks.task(TaskOp::Send(message), PIPELINE);
                task.guarded_by(agree).reads(owner);
            } else {
                let message = self.mirror_message(kind, pair.owner.0, len);
                let mirror = self.updated(pair.mirror.0);
                let task = self.tasks.task(TaskOp::Recv(message), PIPELINE);
                task.guarded_by(agree).updates(mirror);
            }
        }
    }

    /// Gathers the parameters of a bucket that other ranks have updated, a run of trained ones at a
    /// time; the next step's forward pass waits for them.
    fn gather_updated(&mut self, bucket: usize, agree: TaskId) {
        if !self.is_published() {
            return;
        }
        let (params, updated) = (self.params(bucket), self.updated(bucket));
        let runs = self.at.trained.of_bucket[bucket].iter().filter(|run| !run.is_empty());
        let calls: Vec<_> = runs
            .map(|run| {
                let lens = self.at.buckets.list[bucket].part_lens_of(run);
                let lengths = Lengths::Parts(lens.into());
                self.data_call(Op::AllGather, lengths, ELEMENT)
            })
            .collect();
        let op = TaskOp::GatherUpdated { bucket: bucket as u32 };
        let num_calls = calls.len();
        for (number, call) in calls.into_iter().enumerate() {
            let task = self.tasks.task(op, Queue::Link(Axis::Data)).guarded_by(agree).calls(call);
            if number + 1 == num_calls {
                task.takes(updated).writes(params);
            } else {
                task.updates(updated);
            }
        }
    }
}

/// Numbers of the pairs of tied tensors that agree on all pipeline ranks: the bucket of the copy,
/// and a count within it.
pub fn pair_numbers(buckets: &Buckets) -> impl Iterator<Item = u32> + '_ {
    let mirrors = &buckets.mirrors;
    (0..mirrors.len()).map(move |index| {
        let bucket = mirrors[index].mirror.0;
        let before = mirrors[..index].iter().filter(|pair| pair.mirror.0 == bucket).count();
        (bucket * 64 + before) as u32
    })
}
