//! Federated rounds (`FedAvg`, `McMahan` et al. 2017): clients take turns in the model of their
//! rank and report their losses; at the end of a round they send updates to the coordinator, which
//! broadcasts the new weights.
//!
//! Sampling, lost updates and delays follow from the recipe's seed. A client that has taken its
//! steps of a round keeps its turn and skips its passes; one with non-finite values sends nothing,
//! which no forecast knows.

use super::gradients::Gradients;
use super::{ELEMENT, FederatedStep, RankPlan, StepBuilder, StepKind};
use crate::federated::arrival::COORDINATOR;
use lockstep_config::units::Bytes;
use lockstep_config::{FederatedMethod, Recipe};
use lockstep_mesh::Axis;
use lockstep_schedule::pipeline::Task as PipelineTask;
use lockstep_schedule::step::{
    BufferId, Call, CommGroup, Contents, Lengths, Message, MessageKind, Program, Queue, TaskOp,
};
use lockstep_schedule::{Contributions, Op};

const LINK: Queue = Queue::Link(Axis::Data);

/// Bytes of an element of a masked update.
const MASKED_ELEMENT: u32 = 8;

/// Program of a rank's step.
pub(crate) fn federated_program(
    at: &RankPlan<'_>,
    recipe: &Recipe,
    kind: &FederatedStep,
) -> Program {
    let per_client = recipe.num_microbatches() / recipe.federated.sampled;
    let (rank, own) = (at.rank, kind.clients[at.rank]);
    let first: usize = kind.clients[..rank].iter().sum();
    let microbatches = (first * per_client..(first + own) * per_client).collect();
    let at = RankPlan { microbatches, ..RankPlan::new(at.plan, at.blueprint, rank) };
    let pipeline = at.plan.stages.pipeline(per_client);
    let mut step = StepBuilder::new(&at, &pipeline);
    let num_workers = recipe.run.workers;
    let group = step.tasks.group(CommGroup {
        axis: Axis::Data,
        ranks: (0..num_workers).collect(),
        contributions: Contributions::one_each(num_workers),
    });
    step.load_batch();
    for client in 0..own {
        step.load_client(client);
        let local = StepKind::local();
        let mut gradients = Gradients::new(&at, &local, None);
        for task in &pipeline.programs[at.device] {
            let microbatch = client * per_client + task.microbatch;
            step.pass(PipelineTask { microbatch, ..*task }, &mut gradients);
        }
        step.step_client(client);
    }
    step.report_losses(group, 3 * recipe.federated.sampled);
    if let Some(updates) = &kind.updates {
        step.end_round(recipe, group, updates);
    }
    step.tasks.finish()
}

impl StepBuilder<'_> {
    fn client_weights(&mut self, client: usize) -> BufferId {
        let contents = Contents::ClientWeights { client: client as u32 };
        self.tasks.persistent(contents, self.at.blueprint.num_params())
    }

    fn all_params(&mut self) -> Vec<BufferId> {
        (0..self.at.buckets.list.len()).map(|bucket| self.params(bucket)).collect()
    }

    fn load_client(&mut self, client: usize) {
        let (weights, params) = (self.client_weights(client), self.all_params());
        let op = TaskOp::LoadClient { client: client as u32 };
        let mut task = self.tasks.task(op, Queue::Compute).takes(weights);
        for params in params {
            task = task.updates(params);
        }
    }

    fn step_client(&mut self, client: usize) {
        let (weights, params) = (self.client_weights(client), self.all_params());
        let grads: Vec<_> = self.at.grad_buckets().collect();
        let len = |bucket: usize| self.at.trained.grads.list[bucket].len;
        let contents = |bucket: usize| Contents::Grads { bucket: bucket as u32 };
        let grads: Vec<_> =
            grads.into_iter().map(|b| self.tasks.buffer(contents(b), len(b))).collect();
        let op = TaskOp::ClientStep { client: client as u32 };
        let mut task = self.tasks.task(op, Queue::Compute).writes(weights);
        for params in params {
            task = task.updates(params);
        }
        for grads in grads {
            task = task.takes(grads);
        }
    }

    /// Sums the losses, targets and norms of all clients.
    fn report_losses(&mut self, group: u32, len: usize) {
        let losses: Vec<_> = (0..self.at.microbatches.len() as u32)
            .map(|microbatch| self.tasks.buffer(Contents::Loss { microbatch }, 2))
            .collect();
        let batch = self.tasks.buffer(Contents::Batch, 0);
        let (op, lengths) = (Op::AllReduce, Lengths::Even(len));
        let call = Call { group, op, lengths, element: Bytes(8) };
        let mut task = self.tasks.task(TaskOp::Report { part: 0 }, LINK).takes(batch);
        for loss in losses {
            task = task.takes(loss);
        }
        task.calls(call);
    }

    fn end_round(&mut self, recipe: &Recipe, group: u32, updates: &[usize]) {
        let (op, lengths) = (Op::AllReduce, Lengths::Even(recipe.federated.sampled));
        let call = Call { group, op, lengths, element: Bytes(4) };
        let arrivals = self.tasks.buffer(Contents::Arrivals, 0);
        self.tasks.task(TaskOp::Report { part: 1 }, LINK).writes(arrivals).calls(call);
        let is_masked = recipe.federated.secure_aggregation;
        self.send_updates(updates, 0, if is_masked { MASKED_ELEMENT } else { ELEMENT.0 as u32 });
        if recipe.federated.method == FederatedMethod::Scaffold {
            self.send_updates(updates, 1, ELEMENT.0 as u32);
            self.broadcast_global(group, 1);
        }
        self.broadcast_global(group, 0);
    }

    /// Sends the updates of this rank's clients, or their control variates, to the coordinator,
    /// which aggregates them.
    fn send_updates(&mut self, updates: &[usize], part: u32, element: u32) {
        let (rank, len) = (self.at.rank, self.at.blueprint.num_params());
        let message = |client: usize, peer: usize| {
            let kind = MessageKind::ClientUpdate { client: client as u32, part };
            Message { kind, peer: peer as u32, len: len as u64, element }
        };
        if rank != COORDINATOR {
            for client in 0..updates[rank] {
                let weights = self.client_weights(client);
                let op = TaskOp::Send(message(client, COORDINATOR));
                self.tasks.task(op, LINK).reads(weights);
            }
            return;
        }
        let mut received = Vec::new();
        for (home, &number) in updates.iter().enumerate().filter(|(home, _)| *home != rank) {
            for client in 0..number {
                let (peer, bucket) = (home as u32, client as u32);
                let buffer = self.tasks.buffer(Contents::Received { peer, bucket }, len);
                self.tasks.task(TaskOp::Recv(message(client, home)), LINK).writes(buffer);
                received.push(buffer);
            }
        }
        let global = self.tasks.persistent(Contents::GlobalWeights, len);
        let arrivals = self.tasks.buffer(Contents::Arrivals, 0);
        let news = self.tasks.buffer(Contents::Updated { bucket: part }, 0);
        let op = TaskOp::Aggregate { part };
        let mut task = self.tasks.task(op, Queue::Compute).reads(arrivals).updates(global);
        task = task.writes(news);
        for buffer in received {
            task = task.takes(buffer);
        }
    }

    fn broadcast_global(&mut self, group: u32, part: u32) {
        let len = self.at.blueprint.num_params();
        let global = self.tasks.persistent(Contents::GlobalWeights, len);
        let (op, lengths) = (Op::Broadcast { root: COORDINATOR }, Lengths::Even(len));
        let call = Call { group, op, lengths, element: ELEMENT };
        let arrivals = self.tasks.buffer(Contents::Arrivals, 0);
        let news = self.tasks.buffer(Contents::Updated { bucket: part }, 0);
        let task = self.tasks.task(TaskOp::Broadcast { part }, LINK).updates(global).calls(call);
        let task = if self.at.rank == COORDINATOR { task.takes(news) } else { task };
        // The weights are the last that a round broadcasts.
        if part == 0 {
            task.takes(arrivals);
        }
    }
}
