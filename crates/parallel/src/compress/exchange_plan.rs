//! Collective calls and memory of a compressed exchange, known before the run.

use super::{CompressionPlan, Method, Shape, top_k};
use crate::buckets::Bucket;
use crate::replica_plan::ReplicaPlan;
use crate::trainable_params::TrainableParams;
use lockstep_model::Blueprint;
use lockstep_optim::Slot;
use lockstep_schedule::Op;

/// A collective call of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedCall {
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
    tensors: Vec<(Shape, Option<Method>)>,
}

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
        let tensor = |slot: &Slot| {
            let shape = Shape::of(slot, blueprint);
            let method = method_of(&slot.name);
            (shape.clone(), method.filter(|method| !method.is_dense(&shape, num_workers)))
        };
        Self { plan, num_workers, tensors: slots.iter().map(tensor).collect() }
    }

    /// Method of each tensor in a step.
    fn now(&self, step: u64) -> impl Iterator<Item = (&Shape, Option<Method>)> {
        self.tensors.iter().map(move |(shape, method)| {
            (shape, method.and_then(|method| method.at_step(step, shape, self.num_workers)))
        })
    }

    /// Calls of a step.
    pub fn calls(&self, step: u64) -> Vec<PlannedCall> {
        let sum = |of: &dyn Fn(&Shape, Method) -> usize| -> usize {
            self.now(step).filter_map(|(shape, now)| Some(of(shape, now?))).sum()
        };
        let reduce = |len, element| PlannedCall { op: Op::AllReduce, len, element };
        let mut calls = vec![reduce(self.dense_len(step), 4)];
        match self.plan.method {
            Method::Bf16 | Method::F16 => calls.push(reduce(sum(&|shape, _| shape.len), 2)),
            Method::RandomK { .. } => calls.push(reduce(sum(&random_k_len), 4)),
            Method::PowerSgd { .. } => {
                calls.push(reduce(sum(&p_len), 4));
                calls.push(reduce(sum(&q_len), 4));
            }
            _ => {
                let own = sum(&|shape, method| method.message_len(shape));
                calls.push(PlannedCall {
                    op: Op::AllGather,
                    len: own * self.num_workers,
                    element: 1,
                });
            }
        }
        calls.retain(|call| call.len > 0);
        calls
    }

    /// Elements of all gradients.
    pub fn num_params(&self) -> usize {
        self.tensors.iter().map(|(shape, _)| shape.len).sum()
    }

    /// Elements of the tensors that are sent uncompressed in a step.
    fn dense_len(&self, step: u64) -> usize {
        self.now(step).filter(|(_, now)| now.is_none()).map(|(shape, _)| shape.len).sum()
    }

    /// Number of `f32` elements that a rank holds after a step.
    pub fn num_elements(&self, step: u64) -> usize {
        let all = self.num_params();
        let kept =
            usize::from(self.plan.error_feedback) + usize::from(self.plan.method.has_momentum());
        let sum = |of: &dyn Fn(&Shape, Method) -> usize| -> usize {
            self.tensors.iter().filter_map(|(shape, method)| Some(of(shape, (*method)?))).sum()
        };
        let (buffer, power) = match self.plan.method {
            Method::RandomK { .. } => (sum(&random_k_len), 0),
            Method::PowerSgd { .. } => (sum(&p_len), sum(&q_len)),
            _ => (self.dense_len(step), 0),
        };
        let gathers = self.calls(step).into_iter().filter(|call| call.op == Op::AllGather);
        let messages: usize = gathers.map(|call| call.len + call.len / self.num_workers).sum();
        (3 + kept) * all + buffer + power + messages.div_ceil(size_of::<f32>())
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
