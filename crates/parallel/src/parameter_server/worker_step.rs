//! A worker's step with parameter servers, task by task: pull, passes, push.
//!
//! A request, its reply and their values are tasks of their own in the program, because each takes
//! a link. A worker runs them with the request, since a lost server makes it repeat all of them at
//! the backup; only the replies to pushes are awaited apart. Which embedding rows are sent depends
//! on the tokens, so that they follow the request of their shard.
//!
//! The initial weights are sent, and weights and state for a checkpoint are read, outside a step
//! ([`crate::programs::Segment::Outside`]). Servers have programs too, but no step: they answer
//! requests in the order of arrival ([`super::server_loop`]).

use super::{Client, RequestKind};
use crate::replica::Replica;
use crate::replica_plan::ReplicaPlan;
use crate::step_context::StepContext;
use crate::step_program::parameter_server::{
    ServerPlan, server_program, tokens_by_worker, worker_program,
};
use crate::step_program::{RankPlan, ServerStep, StepKind, StepTasks};
use crate::strategy::{StepLoss, Strategy, StrategyPlan, StrategyStart};
use lockstep_comm::CommError;
use lockstep_config::Recipe;
use lockstep_model::Blueprint;
use lockstep_optim::Update;
use lockstep_schedule::step::{Message, MessageKind, Program, ServerCall, TaskOp};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::View;
use std::collections::BTreeMap;

/// Steps of workers that pull weights and push gradients.
pub struct PullPushPlan {
    recipe: Recipe,
}

impl PullPushPlan {
    /// Steps of a recipe's workers.
    pub fn new(recipe: &Recipe) -> Self {
        Self { recipe: recipe.clone() }
    }
}

impl StepTasks for PullPushPlan {
    fn program(&self, at: &RankPlan<'_>, kind: &StepKind) -> Option<Program> {
        kind.servers.map(|step| worker_program(at, &self.recipe, step))
    }
}

impl StrategyPlan for PullPushPlan {
    fn kind_at(&self, step: u64) -> StepKind {
        StepKind { servers: Some(ServerStep::at(&self.recipe, step)), ..StepKind::local() }
    }

    fn step_counts(&self, _steps: u64) -> BTreeMap<StepKind, u64> {
        let kind = |step| StepKind { servers: Some(step), ..StepKind::local() };
        let steps = ServerStep::of_run(&self.recipe).into_iter();
        steps.map(|(step, count)| (kind(step), count)).collect()
    }

    fn other_programs(
        &self,
        plan: &ReplicaPlan,
        blueprint: &Blueprint,
        kind: &StepKind,
    ) -> Vec<Program> {
        let Some(step) = kind.servers else { return Vec::new() };
        let tokens = tokens_by_worker(&RankPlan::new(plan, blueprint, 0));
        let servers = ServerPlan::new(&self.recipe, blueprint, step, &tokens);
        let numbers = 0..self.recipe.num_server_ranks();
        numbers.map(|number| server_program(&servers, number)).collect()
    }

    fn steps_together(&self) -> bool {
        false
    }

    fn holds_optimizer_state(&self) -> bool {
        false
    }

    fn start(&self, _at: &StrategyStart<'_>) -> Result<Option<Box<dyn Strategy>>, CommError> {
        Ok(None)
    }
}

impl Replica {
    /// Whether this rank is a worker of parameter servers.
    pub(crate) fn is_served(&self) -> bool {
        self.client.is_some() || self.host_group.is_some()
    }

    /// Sets the version from which on the run is over without this worker.
    pub(crate) fn set_last_version(&mut self, version: Option<u64>) {
        self.step_context.last_version = version;
    }

    /// Loss of a step from that of this worker's micro-batches, which is that of all workers where
    /// they synchronize. A loss that has jumped is announced with the push: all workers then take
    /// synchronous steps from the next one on. `num_targets` counts the targets of micro-batches of
    /// the batch, or of all.
    pub(crate) fn served_loss(
        &mut self,
        own: StepLoss,
        num_targets: impl Fn(Option<&[u32]>) -> u64,
    ) -> Result<StepLoss, CommError> {
        let mut loss = own;
        if let Some(num) = own.num_targets {
            let (sum, num_targets) = self.reduce_losses_in_host(own.sum, num as u64)?;
            loss = StepLoss { sum, num_targets: Some(num_targets as f64), ..own };
        }
        if let Some(client) = &mut self.client {
            let num_targets = loss.num_targets.unwrap_or_else(|| num_targets(None) as f64);
            client.is_alarm = client.loss_spike.observe(loss.sum / num_targets);
        }
        Ok(loss)
    }

    /// Whether the other workers have passed a step without this one.
    pub(crate) fn has_missed(&self, step: u64) -> bool {
        step < self.step_context.next_step
    }

    /// Notes that a step is over, or a later one that the others have gone to.
    pub(crate) fn pass_step(&mut self, step: u64) {
        if self.step_context.last_version.is_some() {
            self.step_context.next_step = self.step_context.version.max(step) + 1;
        }
    }

    /// Prepares for the pulls of a step; `tokens` are those of its micro-batches.
    pub(crate) fn begin_pulls<'a>(
        &mut self,
        step: u64,
        tokens: impl Iterator<Item = View<'a>>,
    ) -> Result<(), CommError> {
        self.step_context.version = u64::MAX;
        if let Some(client) = &mut self.client {
            client.forget_lost_parts();
        }
        if self.step_context.pulls_rows {
            let tokens = tokens.map(|tokens| tokens.as_slice::<u32>());
            let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
            self.set_batch_rows(step, tokens.into_iter().flatten().copied())?;
        }
        Ok(())
    }

    /// Whether the step was over when this worker had pulled its weights.
    pub(crate) fn is_step_over(&self) -> bool {
        let StepContext { version, last_version, .. } = self.step_context;
        last_version.is_some_and(|last| version >= last)
    }

    /// Prepares a push; the gradients of a Byzantine worker change first.
    pub(crate) fn prepare_push(&mut self, step: u64) {
        let Self { client: Some(client), store, .. } = self else { return };
        if let Some(compressor) = &mut client.compressor {
            compressor.begin();
        }
        if let Some(byzantine) = &mut client.byzantine {
            for bucket in 0..client.ranges.list.len() {
                byzantine.corrupt(step, bucket, store.own_grads_mut(bucket));
            }
        }
    }

    /// Runs a task of a worker; without an update its gradients are not pushed.
    pub(crate) fn run_server_task(
        &mut self,
        cpu: &Cpu,
        step: u64,
        update: Option<&Update>,
        op: TaskOp,
    ) -> Result<(), CommError> {
        match (op, update) {
            (TaskOp::Broadcast { part: 0 }, _) => self.share_version(),
            (TaskOp::Broadcast { part }, _) => self.share_bucket(part as usize - 1),
            (TaskOp::Reduce { bucket }, _) => self.reduce_in_host(bucket as usize),
            (TaskOp::Clip, Some(update)) => {
                self.clip_gradients(update);
                Ok(())
            }
            (TaskOp::Encode { bucket: number }, Some(_)) => {
                self.compress_part(cpu, step, number as usize);
                Ok(())
            }
            (TaskOp::Send(Message { kind: MessageKind::Request(call), peer, .. }), _) => {
                self.send_to_server(cpu, step, update.is_some(), call, peer)
            }
            (TaskOp::Recv(Message { kind: MessageKind::Reply(ServerCall::Push), peer, .. }), _) => {
                self.finish_push(self.server_at(peer), step)
            }
            _ => Ok(()),
        }
    }

    /// Makes a request to the server at a rank of the run, and completes those that need not wait.
    fn send_to_server(
        &mut self,
        cpu: &Cpu,
        step: u64,
        has_gradient: bool,
        call: ServerCall,
        peer: u32,
    ) -> Result<(), CommError> {
        let (server, is_over) = (self.server_at(peer), self.is_step_over());
        let Self { client: Some(client), store, .. } = self else { return Ok(()) };
        match call {
            ServerCall::Pull => {
                let is_by_parts = client.order.pulls_parts;
                let kind = if is_by_parts { RequestKind::PullByParts } else { RequestKind::Pull };
                self.pull_shard(kind, server, step)
            }
            ServerCall::PullPart(bucket) if !is_over => {
                let bucket = bucket as usize;
                if client.is_first_of(bucket, peer) {
                    client.start_pull(store, bucket)?;
                }
                Ok(())
            }
            ServerCall::PushPart(bucket) if has_gradient => {
                if client.is_first_of(bucket as usize, peer) {
                    store.mark_pending();
                    client.push_bucket(store, bucket as usize)?;
                }
                Ok(())
            }
            ServerCall::Push => {
                if server == 0 && has_gradient && client.sends_complete_parts() {
                    store.wait_for_grads(cpu)?;
                }
                self.send_push(server, step, has_gradient)
            }
            _ => Ok(()),
        }
    }

    /// Number of the server at a rank of the run.
    fn server_at(&self, rank: u32) -> usize {
        rank as usize - self.client.as_ref().map_or(0, |client| client.first_server)
    }

    /// Scales the gradients to the largest norm allowed.
    fn clip_gradients(&mut self, update: &Update) {
        let scale = update.clip.scale(0);
        if scale < 1.0 && self.client.is_some() {
            for bucket in 0..self.store.buckets.list.len() {
                self.store.own_grads_mut(bucket).iter_mut().for_each(|grad| *grad *= scale);
            }
        }
    }

    /// Compresses a bucket for all servers at the task of the first that has a part of it, since
    /// parts are compressed side by side.
    fn compress_part(&mut self, cpu: &Cpu, step: u64, number: usize) {
        let Self { client: Some(client), store, .. } = self else { return };
        let (num_servers, worker) = (client.shard_servers.len(), client.comm.group_rank());
        let Some(compressor) = &mut client.compressor else { return };
        let (server, bucket) =
            (number / client.ranges.list.len(), number % client.ranges.list.len());
        let ranges = &client.ranges.list[bucket];
        let first = (0..num_servers).find(|server| !ranges.part(*server).is_empty());
        if first == Some(server) {
            let cuts: Vec<_> = (0..num_servers).map(|server| ranges.part(server)).collect();
            compressor.compress(cpu, bucket, &cuts, store.own_grads_mut(bucket), (step, worker));
        }
    }
}

impl Client {
    /// Whether gradients leave part by part once all of them are complete.
    fn sends_complete_parts(&self) -> bool {
        self.order.pushes_parts && !self.order.pushes_early
    }
}
