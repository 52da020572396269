//! What an exchange will take, before there is one: its calls, and what a worker keeps for it.

use super::{CompressionPlan, Method, Shape, top_k};
use crate::buckets::Bucket;
use crate::replica::ReplicaPlan;
use crate::trained::Trained;
use lockstep_model::Blueprint;
use lockstep_optim::Slot;
use lockstep_schedule::Op;

/// A call that all workers make together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedCall {
    /// What it does.
    pub op: Op,
    /// Elements of the whole vector.
    pub len: usize,
    /// Bytes of an element.
    pub element: u64,
}

/// An exchange of a run's gradients.
pub struct PlannedExchange {
    plan: CompressionPlan,
    num_workers: usize,
    tensors: Vec<(Shape, Option<Method>)>,
}

impl PlannedExchange {
    /// Of workers that each hold the whole model and write to everybody; `method_of` says how a
    /// tensor is written.
    pub fn new(
        plan: CompressionPlan,
        replica: &ReplicaPlan,
        blueprint: &Blueprint,
        method_of: impl Fn(&str) -> Option<Method>,
    ) -> Self {
        let buckets = replica.buckets(blueprint);
        let trained = Trained::new(blueprint, &buckets, &replica.phases, replica.phase);
        let slots = trained.slots(blueprint, &buckets, |bucket: &Bucket| 0..bucket.len);
        let num_workers = replica.shares.len();
        let tensor = |slot: &Slot| {
            let shape = Shape::of(slot, blueprint);
            let method = method_of(&slot.name);
            (shape.clone(), method.filter(|method| !method.leaves_alone(&shape, num_workers)))
        };
        Self { plan, num_workers, tensors: slots.iter().map(tensor).collect() }
    }

    /// How each tensor is written in a step.
    fn now(&self, step: u64) -> impl Iterator<Item = (&Shape, Option<Method>)> {
        self.tensors.iter().map(move |(shape, method)| {
            (shape, method.and_then(|method| method.of_tensor_in(step, shape, self.num_workers)))
        })
    }

    /// The calls of a step.
    pub fn calls(&self, step: u64) -> Vec<PlannedCall> {
        let sum = |of: &dyn Fn(&Shape, Method) -> usize| -> usize {
            self.now(step).filter_map(|(shape, now)| Some(of(shape, now?))).sum()
        };
        let reduce = |len, element| PlannedCall { op: Op::AllReduce, len, element };
        let mut calls = vec![reduce(self.dense_len(step), 4)];
        match self.plan.method {
            Method::Bf16 | Method::F16 => calls.push(reduce(sum(&|shape, _| shape.len), 2)),
            Method::RandomK { .. } => calls.push(reduce(sum(&few), 4)),
            Method::PowerSgd { .. } => {
                calls.push(reduce(sum(&left), 4));
                calls.push(reduce(sum(&right), 4));
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

    /// Elements of tensors that travel as they are in a step.
    fn dense_len(&self, step: u64) -> usize {
        self.now(step).filter(|(_, now)| now.is_none()).map(|(shape, _)| shape.len).sum()
    }

    /// Numbers of `f32` that a worker keeps, after a step.
    pub fn num_elements(&self, step: u64) -> usize {
        let all: usize = self.tensors.iter().map(|(shape, _)| shape.len).sum();
        let kept =
            usize::from(self.plan.error_feedback) + usize::from(self.plan.method.has_momentum());
        let sum = |of: &dyn Fn(&Shape, Method) -> usize| -> usize {
            self.tensors.iter().filter_map(|(shape, method)| Some(of(shape, (*method)?))).sum()
        };
        let (thin, power) = match self.plan.method {
            Method::RandomK { .. } => (sum(&few), 0),
            Method::PowerSgd { .. } => (sum(&left), sum(&right)),
            _ => (self.dense_len(step), 0),
        };
        let gathers = self.calls(step).into_iter().filter(|call| call.op == Op::AllGather);
        let messages: usize = gathers.map(|call| call.len + call.len / self.num_workers).sum();
        (3 + kept) * all + thin + power + messages.div_ceil(size_of::<f32>())
    }
}

/// Elements of random-k.
fn few(shape: &Shape, method: Method) -> usize {
    let Method::RandomK { ratio } = method else { return 0 };
    top_k::num_sent(shape.len, ratio)
}

/// Elements of the thin matrices on both sides.
fn left(shape: &Shape, method: Method) -> usize {
    let Method::PowerSgd { rank } = method else { return 0 };
    shape.thin(rank).rows * rank
}

fn right(shape: &Shape, method: Method) -> usize {
    let Method::PowerSgd { rank } = method else { return 0 };
    shape.thin(rank).cols * rank
}
