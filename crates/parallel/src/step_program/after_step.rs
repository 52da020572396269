//! Communication of strategies that do not reduce gradients: averages of local SGD, gossip with
//! neighbours, compressed exchange.

use super::kind::graph_of;
use super::{ELEMENT, StepBuilder, StepKind};
use crate::compress::ExchangePlan;
use crate::from_recipe;
use crate::gossip::Graph;
use crate::local_sgd::params_of_fragment;
use lockstep_config::Recipe;
use lockstep_config::units::Bytes;
use lockstep_mesh::Axis;
use lockstep_schedule::step::{
    BufferId, Call, CommGroup, Contents, Lengths, Message, MessageKind, Queue, TaskOp,
};
use lockstep_schedule::{Contributions, Op};
use std::ops::Range;

const LINK: Queue = Queue::Link(Axis::Data);

/// Numbers of a push-sum weight, which is an `f64`.
const PUSH_SUM_LEN: u64 = 2;

/// Compressed exchange of a recipe's gradients, if any.
pub fn exchange_plan(
    recipe: &Recipe,
    plan: &crate::ReplicaPlan,
    blueprint: &lockstep_model::Blueprint,
) -> Option<ExchangePlan> {
    let compression = from_recipe::compression_from_recipe(recipe)?;
    let method_of = |param: &str| from_recipe::tensor_method(recipe, &compression, param);
    Some(ExchangePlan::new(compression, plan, blueprint, method_of))
}

impl StepBuilder<'_> {
    /// Group of consecutive workers.
    fn workers(&mut self, ranks: Range<usize>) -> u32 {
        let contributions = Contributions::one_each(ranks.len());
        let ranks = ranks.collect();
        self.tasks.group(CommGroup { axis: Axis::Data, ranks, contributions })
    }

    /// Adds the exchange of compressed gradients, in place of their reduction.
    pub(super) fn exchange_compressed(&mut self, recipe: &Recipe, step: u64, grads: &[BufferId]) {
        let Some(plan) = exchange_plan(recipe, self.at.plan, self.at.blueprint) else { return };
        let group = self.workers(0..recipe.run.workers);
        for (part, planned) in plan.calls(step).into_iter().enumerate() {
            let (lengths, element) = (Lengths::Even(planned.len), Bytes(planned.element));
            let call = Call { group, op: planned.op, lengths, element };
            let op = TaskOp::Exchange { part: part as u32 };
            let mut task = self.tasks.task(op, LINK).calls(call);
            for grads in grads {
                task = task.updates(*grads);
            }
        }
    }

    /// Adds what workers exchange after the update.
    pub(super) fn after_step(&mut self, recipe: &Recipe, kind: &StepKind) {
        let workers = recipe.run.workers;
        if let (Some(turn), Some(graph)) = (kind.gossip, graph_of(recipe)) {
            self.mix(&graph, turn);
        }
        if kind.local_group {
            let size = recipe.sync.group_workers;
            let first = self.at.rank / size * size;
            self.average_buckets(first..(first + size).min(workers));
        }
        for &fragment in &kind.fragments {
            self.average_fragment(workers, fragment, recipe.sync.fragments);
        }
        if kind.round {
            self.average_buckets(0..workers);
        }
    }

    /// Buckets with parameters.
    fn full_buckets(&self) -> Vec<usize> {
        let list = self.at.buckets.list.iter().enumerate();
        list.filter(|(_, bucket)| bucket.len > 0).map(|(index, _)| index).collect()
    }

    fn average_buckets(&mut self, ranks: Range<usize>) {
        let group = self.workers(ranks);
        for bucket in self.full_buckets() {
            let lengths = Lengths::Even(self.at.buckets.list[bucket].len);
            let call = Call { group, op: Op::AllReduce, lengths, element: ELEMENT };
            let params = self.params(bucket);
            let op = TaskOp::Average { bucket: bucket as u32 };
            self.tasks.task(op, LINK).updates(params).calls(call);
        }
    }

    fn average_fragment(&mut self, workers: usize, fragment: usize, num_fragments: usize) {
        let params: Vec<_> =
            params_of_fragment(self.at.blueprint, fragment, num_fragments).collect();
        let len: usize = params.iter().map(|(_, param)| param.len()).sum();
        if len == 0 {
            return;
        }
        let mut buckets: Vec<usize> =
            params.iter().map(|(block, _)| self.at.buckets.of_block(*block)).collect();
        buckets.dedup();
        let buffers: Vec<_> = buckets.into_iter().map(|bucket| self.params(bucket)).collect();
        let group = self.workers(0..workers);
        let call = Call { group, op: Op::AllReduce, lengths: Lengths::Even(len), element: ELEMENT };
        let op = TaskOp::Average { bucket: fragment as u32 };
        let mut task = self.tasks.task(op, LINK).calls(call);
        for buffer in buffers {
            task = task.updates(buffer);
        }
    }

    /// Sends weights to neighbours, receives theirs and mixes them, bucket by bucket.
    fn mix(&mut self, graph: &Graph, turn: u64) {
        let rank = self.at.rank;
        let others = || (0..graph.num_workers()).filter(move |other| *other != rank);
        let to: Vec<usize> = others().filter(|to| graph.has_edge(turn, rank, *to)).collect();
        let from: Vec<usize> = others().filter(|from| graph.has_edge(turn, *from, rank)).collect();
        let element = ELEMENT.0 as u32;
        for bucket in self.full_buckets() {
            let (params, len) = (self.params(bucket), self.at.buckets.list[bucket].len);
            let kind = MessageKind::Weights { bucket: bucket as u32 };
            let message = |peer: usize| {
                let (peer, len) = (peer as u32, len as u64);
                Message { kind, peer, len, element }
            };
            for &peer in &to {
                self.tasks.task(TaskOp::Send(message(peer)), LINK).reads(params);
            }
            let mut received = Vec::new();
            for &peer in &from {
                let contents = Contents::Received { peer: peer as u32, bucket: bucket as u32 };
                let buffer = self.tasks.buffer(contents, len);
                self.tasks.task(TaskOp::Recv(message(peer)), LINK).writes(buffer);
                received.push(buffer);
            }
            let op = TaskOp::Mix { bucket: bucket as u32 };
            let mut task = self.tasks.task(op, Queue::Compute).updates(params);
            for buffer in received {
                task = task.takes(buffer);
            }
        }
        if graph.is_directed() {
            let kind = MessageKind::PushSumWeight;
            let message = |peer: usize| {
                let peer = peer as u32;
                Message { kind, peer, len: PUSH_SUM_LEN, element }
            };
            let weight = self.tasks.persistent(Contents::PushSumWeight, 1);
            for &peer in &to {
                self.tasks.task(TaskOp::Send(message(peer)), LINK).reads(weight);
            }
            for &peer in &from {
                self.tasks.task(TaskOp::Recv(message(peer)), LINK).updates(weight);
            }
        }
    }
}
