//! Communication of a pipeline rank in a step: blocks whose weights it gathers, messages between
//! stages, and tensor-parallel collectives.
//!
//! The order of passes is the engine's ([`lockstep_schedule::pipeline`]), and blocks declare their
//! collectives ([`lockstep_model::Block::collective_calls`]); they are walked as
//! [`lockstep_parallel::pipeline`] does, without computing anything.

use super::call::{Call, Lengths, Message, call};
use lockstep_model::{Blueprint, CollectiveCall, CollectiveKind, Pass as BlockPass};
use lockstep_parallel::buckets::MirrorPair;
use lockstep_parallel::trainable_params::TrainableParams;
use lockstep_parallel::{Buckets, ReplicaPlan};
use lockstep_schedule::Op;
use lockstep_schedule::pipeline::{Pass, Shape, Task, forward};
use std::collections::BTreeMap;
use std::ops::Range;

/// Program of a pipeline rank and a data-parallel rank.
pub(super) struct Program<'a> {
    plan: &'a ReplicaPlan,
    blueprint: &'a Blueprint,
    device: usize,
    buckets: &'a Buckets,
    trained: &'a TrainableParams,
    /// Blocks of each of its stages.
    runs: Vec<Range<usize>>,
    tasks: Vec<Task>,
    /// Number of micro-batches that are not padding.
    num_microbatches: usize,
}

impl<'a> Program<'a> {
    pub(super) fn new(
        plan: &'a ReplicaPlan,
        blueprint: &'a Blueprint,
        device: usize,
        (buckets, trained): (&'a Buckets, &'a TrainableParams),
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
            num_microbatches: plan.leaf_assignment().microbatches_of(part, plan.leaves).len(),
        }
    }

    /// Blocks in order of use, each with the next one.
    pub(super) fn fetches(&self) -> impl Iterator<Item = (usize, Option<usize>)> {
        self.tasks.iter().flat_map(|task| self.fetches_of(*task))
    }

    /// Blocks in order of use in an evaluation of `rounds` rounds.
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

    /// Blocks of a backward pass, last to first.
    fn backward(&self, task: Task) -> Range<usize> {
        let run = &self.runs[task.chunk];
        self.trained.first_block.clamp(run.start, run.end)..run.end
    }

    /// Tensor-parallel calls.
    pub(super) fn exchanges(&self) -> Vec<Call> {
        let mut counts: BTreeMap<(Op, usize), u64> = BTreeMap::new();
        for task in self.microbatches() {
            for CollectiveCall { kind, len } in self.exchanges_of(task) {
                let op = match kind {
                    CollectiveKind::AllReduce | CollectiveKind::AllReduceMax => Op::AllReduce,
                    CollectiveKind::AllGather => Op::AllGather,
                    CollectiveKind::ReduceScatter => Op::ReduceScatter,
                };
                *counts.entry((op, len)).or_default() += 1;
            }
        }
        counts.into_iter().map(|((op, len), n)| call(op, 0, Lengths::Even(len), n)).collect()
    }

    fn exchanges_of(&self, task: Task) -> Vec<CollectiveCall> {
        let blocks = &self.blueprint.blocks;
        let of = |block: usize, pass| blocks[block].collective_calls(self.plan.microbatch, pass);
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
            let recomputed = of(block, BlockPass::Recompute(policy));
            recomputed.into_iter().chain(of(block, pass))
        });
        passes.collect()
    }

    /// Messages to other pipeline ranks; `part` is the data-parallel rank.
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

    /// Receiver and number of elements of a pass's output.
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

    /// Gradients of a tied copy sent to its owner, and parameters sent back.
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

    /// Tasks of micro-batches that are not padding.
    fn microbatches(&self) -> impl Iterator<Item = Task> {
        self.tasks.iter().copied().filter(|task| task.microbatch < self.num_microbatches)
    }
}
