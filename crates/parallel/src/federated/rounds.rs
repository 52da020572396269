//! Steps of federated rounds, task by task: clients take turns in the model of their rank and
//! report their losses; at the end of a round the coordinator aggregates their updates.

use super::Federation;
use crate::measurements::Measurements;
use crate::step_program::{FederatedStep, RankPlan, StepKind, StepTasks, federated_program};
use crate::strategy::{
    Passes, StateLayout, StepLoss, Strategy, StrategyContext, StrategyPlan, StrategyStart,
};
use lockstep_comm::{CommError, Counters, Reduction};
use lockstep_config::Recipe;
use lockstep_schedule::step::{Message, MessageKind, Program, TaskOp};
use lockstep_tensor::Cpu;
use std::collections::BTreeMap;

/// Federated rounds of a run.
pub struct FederatedRounds {
    recipe: Recipe,
}

impl FederatedRounds {
    /// Rounds of a recipe.
    pub fn new(recipe: &Recipe) -> Self {
        Self { recipe: recipe.clone() }
    }
}

impl StepTasks for FederatedRounds {
    fn program(&self, at: &RankPlan<'_>, kind: &StepKind) -> Option<Program> {
        Some(federated_program(at, &self.recipe, kind.federated.as_ref()?))
    }
}

impl StrategyPlan for FederatedRounds {
    fn kind_at(&self, step: u64) -> StepKind {
        StepKind { federated: Some(FederatedStep::at(&self.recipe, step)), ..StepKind::local() }
    }

    fn step_counts(&self, _steps: u64) -> BTreeMap<StepKind, u64> {
        let kind = |step| StepKind { federated: Some(step), ..StepKind::local() };
        let steps = FederatedStep::of_run(&self.recipe).into_iter();
        steps.map(|(step, count)| (kind(step), count)).collect()
    }

    fn start(&self, at: &StrategyStart<'_>) -> Result<Option<Box<dyn Strategy>>, CommError> {
        Ok(Some(Box::new(Federation::new(&self.recipe, at)?)))
    }
}

impl Strategy for Federation {
    fn begin_step(&mut self, at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        let round = self.recipe.round_at(at.step);
        if at.step == round.start {
            let clients = self.recipe.clients_at(at.step);
            self.begin_round(round.start, &clients, round.end - round.start)?;
        }
        self.report.fill(0.0);
        Ok(())
    }

    fn run_passes(&mut self, passes: &Passes<'_, '_>) -> Result<bool, CommError> {
        if let Some(turn) = self.turn {
            self.replica_of_client.begin_passes(passes.step)?;
            let first = turn * self.plan.microbatches_per_client;
            self.replica_of_client.run_passes(passes, first)?;
        } else {
            passes.spans.end_all(passes.tasks.clone());
        }
        Ok(true)
    }

    fn run(
        &mut self,
        cpu: &Cpu,
        op: TaskOp,
        at: &mut StrategyContext<'_>,
    ) -> Result<(), CommError> {
        let step = at.step;
        match op {
            TaskOp::LoadClient { client } => self.load_client(client as usize),
            TaskOp::ClientStep { .. } => self.step_client(cpu, step),
            // Each number comes from one rank, so the sum is exact.
            TaskOp::Report { part: 0 } => self.comm.all_reduce(&mut self.report, Reduction::Sum),
            TaskOp::Report { .. } => self.prepare_updates(step),
            TaskOp::Send(Message { kind: MessageKind::ClientUpdate { client, part }, .. }) => {
                self.exchange_update(self.comm.group_rank(), client as usize, part)
            }
            TaskOp::Recv(Message {
                kind: MessageKind::ClientUpdate { client, part },
                peer,
                ..
            }) => self.exchange_update(peer as usize, client as usize, part),
            TaskOp::Aggregate { part: 0 } => {
                self.aggregate_updates(step);
                Ok(())
            }
            TaskOp::Aggregate { .. } => {
                self.aggregate_controls();
                Ok(())
            }
            TaskOp::Broadcast { part } => {
                self.broadcast(part)?;
                if part == 0 {
                    at.set_params(&self.places, &self.anchor);
                }
                Ok(())
            }
            op => unreachable!("{op} is not a task of federated rounds"),
        }
    }

    fn loss(&self) -> Option<StepLoss> {
        let sum = |values: &[f64]| values.iter().fold(0.0, |sum, value| sum + value);
        let [losses, targets, norms] =
            [0, 1, 2].map(|kind| &self.report[kind * self.plan.sampled..][..self.plan.sampled]);
        let num = targets.iter().filter(|targets| **targets > 0.0).count();
        Some(StepLoss {
            sum: sum(losses),
            num_targets: Some(sum(targets)),
            norm: Some(sum(norms) / num as f64),
        })
    }

    fn microbatches_per_client(&self) -> Option<usize> {
        Some(self.plan.microbatches_per_client)
    }

    fn resume(&mut self, _num_steps: u64, at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        at.read_params(&self.places, &mut self.anchor);
        Ok(())
    }

    /// All state may move to other ranks with its clients.
    fn visit(&mut self, _: &StateLayout<'_>, _: &mut dyn FnMut(&str, bool, &mut [f32]) -> bool) {}

    fn visit_movable(&mut self, visit: &mut dyn FnMut(&str, bool, &mut [f32]) -> bool) {
        self.visit_state(visit);
    }

    fn counters(&self) -> Counters {
        self.comm.counters()
    }

    /// Clients are simulated, so that their memory is no part of a rank's.
    fn num_elements(&self) -> [usize; 2] {
        [0, 0]
    }

    fn take_measurements(&mut self) -> Measurements {
        Measurements { aggregation: self.outcome.take(), ..Measurements::default() }
    }
}
