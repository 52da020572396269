//! What a device of a pipeline does in a step, as far as others notice: which blocks it asks for,
//! what it sends, and what it has completed by those that hold other slices.
//!
//! The order of passes is the engine's own ([`lockstep_schedule::pipeline`]), and blocks say
//! themselves what they exchange ([`lockstep_model::Block::exchanges`]); here they are walked as
//! [`lockstep_parallel::pipeline`] walks them, without computing anything.

use super::calls::{Call, Lengths, Message, call};
use lockstep_model::{Blueprint, ExchangeCall, ExchangeKind, Pass as BlockPass};
use lockstep_parallel::buckets::MirrorPair;
use lockstep_parallel::trained::Trained;
use lockstep_parallel::{Buckets, ReplicaPlan};
use lockstep_schedule::Op;
use lockstep_schedule::pipeline::{Pass, Shape, Task, forward};
use std::collections::BTreeMap;
use std::ops::Range;

/// The program of a device with a part of the batch.
pub(super) struct Program<'a> {
    plan: &'a ReplicaPlan,
    blueprint: &'a Blueprint,
    device: usize,
    buckets: &'a Buckets,
    trained: &'a Trained,
    /// The blocks of each of its stages.
    runs: Vec<Range<usize>>,
    tasks: Vec<Task>,
    /// Microbatches behind these are empty.
    num_microbatches: usize,
}

impl<'a> Program<'a> {
    pub(super) fn new(
        plan: &'a ReplicaPlan,
        blueprint: &'a Blueprint,
        device: usize,
        (buckets, trained): (&'a Buckets, &'a Trained),
        part: usize,
    ) -> Self {
        let mut pipeline = plan.stages.pipeline(plan.num_microbatches(part));
        Self {
            plan,
            blueprint,
            device,
            buckets,
            trained,
            runs: plan.stages.runs_of(device, blueprint.blocks.len()),
            tasks: pipeline.programs.swap_remove(device),
            num_microbatches: plan.leaf_shares().microbatches_of(part, plan.leaves).len(),
        }
    }

    /// The blocks that are asked for, in order, each with the one that will be next.
    pub(super) fn fetches(&self) -> impl Iterator<Item = (usize, Option<usize>)> {
        self.tasks.iter().flat_map(|task| self.fetches_of(*task))
    }

    /// The same for an evaluation of so many rounds.
    pub(super) fn evaluation_fetches(
        &self,
        num_rounds: usize,
    ) -> impl Iterator<Item = (usize, Option<usize>)> {
        let stages = &self.plan.stages;
        let (num_devices, num_chunks) = (stages.num_devices(), stages.num_chunks());
        let shape = Shape { num_devices, num_chunks, num_microbatches: num_devices };
        let round = forward::program(shape);
        let rounds = (0..num_rounds).flat_map(move |_| round.clone());
        rounds.flat_map(|task| self.fetches_of(task))
    }

    fn fetches_of(&self, task: Task) -> Vec<(usize, Option<usize>)> {
        let run = self.runs[task.chunk].clone();
        if task.pass == Pass::Forward {
            let last = run.end - 1;
            return run.map(|block| (block, Some((block + 1).min(last)))).collect();
        }
        let back = self.backward(task);
        let first = back.start;
        back.rev().map(|block| (block, (block > first).then(|| block - 1))).collect()
    }

    /// The blocks that a backward pass goes through, last to first.
    fn backward(&self, task: Task) -> Range<usize> {
        let run = &self.runs[task.chunk];
        self.trained.first_block.clamp(run.start, run.end)..run.end
    }

    /// The calls on the group of those that hold other slices.
    pub(super) fn exchanges(&self) -> Vec<Call> {
        let mut counts: BTreeMap<(Op, usize), u64> = BTreeMap::new();
        for task in self.microbatches() {
            for ExchangeCall { kind, len } in self.exchanges_of(task) {
                let op = match kind {
                    ExchangeKind::Sum | ExchangeKind::Max => Op::AllReduce,
                    ExchangeKind::Gather => Op::AllGather,
                    ExchangeKind::SumScatter => Op::ReduceScatter,
                };
                *counts.entry((op, len)).or_default() += 1;
            }
        }
        counts.into_iter().map(|((op, len), n)| call(op, 0, Lengths::Even(len), n)).collect()
    }

    fn exchanges_of(&self, task: Task) -> Vec<ExchangeCall> {
        let blocks = &self.blueprint.blocks;
        let of = |block: usize, pass| blocks[block].exchanges(self.plan.microbatch, pass);
        if task.pass == Pass::Forward {
            let run = self.runs[task.chunk].clone();
            return run.flat_map(|block| of(block, BlockPass::Forward)).collect();
        }
        let passes = self.backward(task).rev().flat_map(|block| {
            let policy = self.plan.recompute.of_block(block, &*blocks[block]);
            let trained = &self.trained.of_block[block];
            let pass = match task.pass {
                Pass::InputGrad => BlockPass::BackwardInputs,
                Pass::WeightGrad => BlockPass::BackwardWeights(trained),
                Pass::Forward | Pass::Backward => BlockPass::Backward(trained),
            };
            let again = of(block, BlockPass::Recompute(policy));
            again.into_iter().chain(of(block, pass))
        });
        passes.collect()
    }

    /// What it sends to other devices of its pipeline; `part` is the part of the batch.
    pub(super) fn messages(&self, part: usize) -> Vec<Message> {
        let mut counts: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for message in self.microbatches().filter_map(|task| self.message_of(task)) {
            *counts.entry(message).or_default() += 1;
        }
        for message in self.mirrors(part) {
            *counts.entry(message).or_default() += 1;
        }
        counts.into_iter().map(|((to, len), times)| Message { to, len, times }).collect()
    }

    /// The device and the number of elements of what a pass hands on.
    fn message_of(&self, task: Task) -> Option<(usize, usize)> {
        let stages = &self.plan.stages;
        let stage = task.chunk * stages.num_devices() + self.device;
        let (run, blocks) = (&self.runs[task.chunk], &self.blueprint.blocks);
        let rows = self.blueprint.stream_rows(self.plan.microbatch);
        let (to, len) = match task.pass {
            Pass::Forward if stage + 1 < stages.num_stages() => {
                (stage + 1, rows * blocks[run.end - 1].io().output_width())
            }
            Pass::Backward | Pass::InputGrad if stage > 0 => {
                let is_needed = self.trained.first_block < run.start;
                is_needed.then(|| (stage - 1, rows * blocks[run.start].io().input_width()))?
            }
            _ => return None,
        };
        let to = to % stages.num_devices();
        (to != self.device).then_some((to, len))
    }

    /// Gradients of a copy that go to its owner, and parameters that come back.
    fn mirrors(&self, part: usize) -> Vec<(usize, usize)> {
        let device =
            |bucket: usize| self.plan.stages.device_of(self.buckets.list[bucket].blocks.start);
        let own = |buckets: &Buckets, (bucket, range): &(usize, Range<usize>)| match self.plan.zero
        {
            0 => range.len(),
            _ => buckets.list[*bucket].part_lens_of(range)[part],
        };
        let (grads, params) = (&*self.trained.grads, self.buckets);
        let of_copies = grads.mirrors.iter().filter(|p| p.is_mirror_here() && !p.is_owner_here());
        let of_copies = of_copies.map(|p| (device(p.owner.0), own(grads, &p.mirror)));
        let is_trained = |pair: &&MirrorPair| {
            let buckets = |pair: &MirrorPair| (pair.owner.0, pair.mirror.0);
            grads.mirrors.iter().any(|other| buckets(other) == buckets(pair))
        };
        let of_owners = params.mirrors.iter().filter(|p| p.is_owner_here() && !p.is_mirror_here());
        let of_owners = of_owners.filter(is_trained);
        let of_owners = of_owners.map(|p| (device(p.mirror.0), own(params, &p.owner)));
        of_copies.chain(of_owners).filter(|(_, len)| *len > 0).collect()
    }

    /// The tasks of microbatches that are not empty.
    fn microbatches(&self) -> impl Iterator<Item = Task> {
        self.tasks.iter().copied().filter(|task| task.microbatch < self.num_microbatches)
    }
}
