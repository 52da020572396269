//! Collective calls and memory of a compressed exchange, known before the run.

use super::bucket_exchange::Stage;
use super::{CompressionPlan, Method, Shape, top_k};
use crate::buckets::Bucket;
use crate::replica_plan::ReplicaPlan;
use crate::trainable_params::TrainableParams;
use lockstep_model::Blueprint;
use lockstep_schedule::Op;
use std::collections::BTreeMap;

/// A collective call of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedCall {
    /// Stage of the exchange.
    pub stage: Stage,
    /// Operation.
    pub op: Op,
    /// Elements of the whole vector.
    pub len: usize,
    /// Bytes of an element.
    pub element: u64,
}

/// Compressed exchange of a run's gradients.
pub struct ExchangePlan {
    plan: CompressionPlan,
    num_workers: usize,
    /// Tensors of each bucket.
    buckets: BTreeMap<usize, Vec<PlannedTensor>>,
}

/// A tensor, and its method unless it is always sent uncompressed.
type PlannedTensor = (Shape, Option<Method>);

impl ExchangePlan {
    /// For ranks that each hold the whole model; `method_of` returns the method of a tensor by
    /// name.
    pub fn new(
        plan: CompressionPlan,
        replica: &ReplicaPlan,
        blueprint: &Blueprint,
        method_of: impl Fn(&str) -> Option<Method>,
    ) -> Self {
        let buckets = replica.buckets(blueprint);
        let trained = TrainableParams::new(blueprint, &buckets, &replica.phases, replica.phase);
        let slots = trained.slots(blueprint, &buckets, |bucket: &Bucket| 0..bucket.len);
        // With groups, only the first rank of each exchanges.
        let num_workers = replica.shares.len().div_ceil(plan.group.max(1));
        let mut buckets: BTreeMap<usize, Vec<PlannedTensor>> = BTreeMap::new();
        for slot in &slots {
            let shape = Shape::of(slot, blueprint);
            let method = method_of(&slot.name);
            let method = method.filter(|method| !method.is_dense(&shape, num_workers));
            buckets.entry(slot.block).or_default().push((shape, method));
        }
        Self { plan, num_workers, buckets }
    }

    /// Buckets with tensors, ascending, and their numbers of elements.
    pub fn buckets(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + '_ {
        let len = |tensors: &[PlannedTensor]| tensors.iter().map(|(shape, _)| shape.len).sum();
        self.buckets.iter().map(move |(bucket, tensors)| (*bucket, len(tensors)))
    }

    /// Calls of a bucket in a step.
    pub fn calls(&self, bucket: usize, step: u64) -> Vec<PlannedCall> {
        let now = |(shape, method): &PlannedTensor| {
            method.and_then(|method| method.at_step(step, shape, self.num_workers))
        };
        let tensors = self.buckets.get(&bucket).map_or(&[][..], Vec::as_slice);
        let sum = |of: &dyn Fn(&Shape, Method) -> usize| -> usize {
            tensors.iter().filter_map(|tensor| Some(of(&tensor.0, now(tensor)?))).sum()
        };
        let reduce = |stage, len, element| PlannedCall { stage, op: Op::AllReduce, len, element };
        let dense = tensors.iter().filter(|tensor| now(tensor).is_none());
        let dense = dense.map(|(shape, _)| shape.len).sum();
        let mut calls = vec![reduce(Stage::Dense, dense, 4)];
        let compressed = |len, element| reduce(Stage::Compressed, len, element);
        match self.plan.method {
            Method::Bf16 | Method::F16 => calls.push(compressed(sum(&|shape, _| shape.len), 2)),
            Method::RandomK { .. } => calls.push(compressed(sum(&random_k_len), 4)),
            Method::PowerSgd { .. } => {
                calls.push(compressed(sum(&p_len), 4));
                calls.push(reduce(Stage::SecondFactor, sum(&q_len), 4));
            }
            _ => {
                let own = sum(&|shape, method| method.message_len(shape));
                let len = own * self.num_workers;
                calls.push(PlannedCall { op: Op::AllGather, ..compressed(len, 1) });
            }
        }
        calls.retain(|call| call.len > 0);
        calls
    }

    /// Elements of all gradients.
    pub fn num_params(&self) -> usize {
        self.buckets().map(|(_, len)| len).sum()
    }

    /// Number of `f32` elements that a rank holds after a step: gradients before and after
    /// compression, and their sum; state; and the buffers of calls.
    pub fn num_elements(&self, step: u64) -> usize {
        let kept =
            usize::from(self.plan.error_feedback) + usize::from(self.plan.method.has_momentum());
        let (mut power, mut bytes) = (0, 0);
        for call in self.buckets.keys().flat_map(|bucket| self.calls(*bucket, step)) {
            let PlannedCall { stage, op, len, element } = call;
            // A gather has this rank's message besides those of all.
            let own = if op == Op::AllGather { len / self.num_workers } else { 0 };
            bytes += (len + own) * element as usize;
            power += if stage == Stage::SecondFactor { len } else { 0 };
        }
        (3 + kept) * self.num_params() + power + bytes.div_ceil(size_of::<f32>())
    }
}

/// Elements sent by random-k.
fn random_k_len(shape: &Shape, method: Method) -> usize {
    let Method::RandomK { ratio } = method else { return 0 };
    top_k::num_sent(shape.len, ratio)
}

/// Elements of PowerSGD's P and Q factors.
fn p_len(shape: &Shape, method: Method) -> usize {
    let Method::PowerSgd { rank } = method else { return 0 };
    shape.low_rank(rank).rows * rank
}

fn q_len(shape: &Shape, method: Method) -> usize {
    let Method::PowerSgd { rank } = method else { return 0 };
    shape.low_rank(rank).cols * rank
}
