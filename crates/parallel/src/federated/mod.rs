//! Federated learning (`FedAvg`, `McMahan` et al. 2017): clients keep their data and send updates;
//! a coordinator aggregates them.
//!
//! In a round some clients are sampled. Each takes the coordinator's weights, makes K steps on its
//! own samples with a fresh optimizer, and sends the change of its weights. The coordinator (rank
//! 0) aggregates the changes, takes a server-optimizer step, and broadcasts the new weights. The
//! ranks simulate the clients assigned to them one after the other. A client's work is a function
//! of its number and the round, and updates are aggregated in client order, so unlike in
//! [`crate::local_sgd`] results do not depend on the number of ranks.
//!
//! Clients with different data drift apart within a round, and their mean is not where the mean
//! gradient leads. Two corrections: `FedProx` pulls each client toward the round's initial weights
//! (Li et al. 2020); SCAFFOLD adds the difference between the global and the client's own control
//! variate to each gradient (Karimireddy et al. 2020), for twice the bytes.
//!
//! - `rounds`: its steps, task by task; `round`: what clients and coordinator do in a round
//! - [`server_optimizer`]: the coordinator's step
//! - [`arrival`]: lost and delayed updates, Byzantine clients
//! - [`secure_aggregation`]: masked sums
//! - [`privacy`]: differential-privacy accounting
//! - [`crate::robust_aggregation`]: Byzantine-robust aggregation rules

pub mod arrival;
pub mod privacy;
mod round;
mod rounds;
pub mod secure_aggregation;
pub mod server_optimizer;

use crate::flat_weights::places_of;
use crate::from_recipe::blueprint_of_rank;
use crate::leaves::Leaves;
use crate::measurements::RoundSummary;
use crate::replica::Replica;
use crate::replica_plan::ReplicaPlan;
use crate::robust_aggregation::Aggregator;
use crate::strategy::{KeepGradients, StrategyStart};
use arrival::COORDINATOR;
use arrival::{ArrivalModel, DelayedUpdates};
use lockstep_comm::{Comm, CommError, Options};
use lockstep_config::{AggregationRule, BatchPlan, FederatedMethod, Optim, Recipe};
use lockstep_mesh::Group;
use lockstep_optim::{ClipPlan, LearningRate, Optimizer};
use lockstep_tensor::device::Compute;
use lockstep_tensor::{Cpu, Isa};
use round::RoundUpdates;
use server_optimizer::ServerOptimizer;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub use rounds::FederatedRounds;

/// Drift correction of client gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Correction {
    /// No correction.
    None,
    /// `FedProx`: adds μ times the distance from the round's initial weights.
    Prox {
        /// Proximal coefficient μ.
        mu: f32,
    },
    /// SCAFFOLD control variates.
    Scaffold,
}

/// Federated settings of a run.
#[derive(Clone, Debug)]
pub struct FederatedPlan {
    /// Number of clients assigned to each rank.
    pub by_worker: Vec<usize>,
    /// Clients per round.
    pub sampled: usize,
    /// Micro-batches of a client per step.
    pub microbatches_per_client: usize,
    /// Drift correction.
    pub correction: Correction,
    /// Smallest fraction of a round's steps that a client takes.
    pub least_steps: f64,
    /// The coordinator's optimizer.
    pub server: ServerOptimizer,
    /// Aggregation rule.
    pub aggregator: Aggregator,
    /// Limit on the norm of an update, if any.
    pub clip: Option<f64>,
    /// Noise on the sum of updates, in units of that limit.
    pub noise: f64,
    /// δ of (ε, δ)-differential privacy.
    pub delta: f64,
    /// Whether updates are masked by secure aggregation.
    pub secure: bool,
    /// Simulated losses, delays and attacks.
    pub arrivals: ArrivalModel,
    /// Seed of all draws.
    pub seed: u64,
    /// Client optimizer.
    pub optim: Optim,
}

impl FederatedPlan {
    /// Federated settings of a recipe.
    pub fn from_recipe(recipe: &Recipe) -> Self {
        let federated = &recipe.federated;
        Self {
            by_worker: recipe.clients_by_worker(),
            sampled: federated.sampled,
            microbatches_per_client: recipe.num_microbatches() / federated.sampled,
            correction: match federated.method {
                FederatedMethod::FedAvg => Correction::None,
                FederatedMethod::FedProx => Correction::Prox { mu: federated.mu as f32 },
                FederatedMethod::Scaffold => Correction::Scaffold,
            },
            least_steps: federated.min_steps_fraction,
            server: ServerOptimizer {
                rule: federated.server,
                lr: federated.server_lr as f32,
                momentum: federated.server_momentum as f32,
                second: federated.server_beta2 as f32,
                tau: federated.server_tau as f32,
            },
            aggregator: match federated.aggregation {
                // The coordinator clips again, since a Byzantine client may not have clipped.
                AggregationRule::Mean if federated.clip > 0.0 => {
                    Aggregator::ClippedMean { max_norm: federated.clip }
                }
                AggregationRule::Mean => Aggregator::Mean,
                AggregationRule::Median => Aggregator::Median,
                AggregationRule::TrimmedMean => {
                    Aggregator::TrimmedMean { trim: federated.assumed_byzantine }
                }
                AggregationRule::Krum => {
                    Aggregator::Krum { assumed_byzantine: federated.assumed_byzantine }
                }
            },
            clip: (federated.clip > 0.0).then_some(federated.clip),
            noise: federated.noise_multiplier,
            delta: federated.delta,
            secure: federated.secure_aggregation,
            arrivals: ArrivalModel::from_recipe(recipe),
            seed: recipe.train.seed,
            optim: recipe.optim.clone(),
        }
    }

    fn num_clients(&self) -> usize {
        self.by_worker.iter().sum()
    }

    /// Rank that simulates a client.
    fn home(&self, client: usize) -> usize {
        let mut end = 0;
        let is_home = |(_, num): &(usize, &usize)| {
            end += **num;
            client < end
        };
        self.by_worker.iter().enumerate().find(is_home).map_or(COORDINATOR, |(worker, _)| worker)
    }
}

/// Federated state of a rank, and the coordinator's state.
pub(crate) struct Federation {
    plan: FederatedPlan,
    recipe: Recipe,
    lr: LearningRate,
    batches: BatchPlan,
    comm: Comm,
    /// Model in which this rank's clients take turns.
    replica_of_client: Replica,
    clip: ClipPlan,
    /// Range of each tensor in the flat weights.
    places: BTreeMap<String, Range<usize>>,
    /// Global weights of the last broadcast.
    anchor: Vec<f32>,
    /// Global weights of the broadcast before; only where a stale client may start from them.
    before: Vec<f32>,
    /// This rank's clients of the current round.
    active_clients: Vec<ActiveClient>,
    /// Client whose turn it is, as an index into them.
    turn: Option<usize>,
    /// Loss, targets and gradient norm of each client of the step.
    report: Vec<f64>,
    /// Updates of the round that ends.
    updates: RoundUpdates,
    outcome: Option<RoundSummary>,
    /// Control variates: the global one, and that of each client of this rank.
    control: Vec<f32>,
    controls: BTreeMap<usize, Vec<f32>>,
    /// Moments of the server optimizer.
    moments: Vec<Vec<f32>>,
    /// Delayed updates, at the coordinator.
    delayed_updates: DelayedUpdates,
}

/// A client of the current round.
struct ActiveClient {
    client: usize,
    /// Index among the round's clients.
    index: usize,
    weights: Vec<f32>,
    optimizer: Optimizer,
    /// Steps allowed and taken.
    allowed: u64,
    taken: u64,
    /// Sum of its learning rates.
    rates: f64,
    /// Whether all its values were finite.
    is_finite: bool,
}

impl Federation {
    /// Initializes from the weights that all ranks hold. Collective.
    fn new(recipe: &Recipe, at: &StrategyStart<'_>) -> Result<Self, CommError> {
        let plan = FederatedPlan::from_recipe(recipe);
        let all = Group::all(at.groups.world().group_size());
        let comm = at.groups.world().split(&[all], "federated")?;
        // A client's replica is a group of one.
        let own = Comm::threads(at.world, 1, &Options::default())?.remove(0);
        let leaves = Leaves { num_leaves: 1, microbatches_per_leaf: plan.microbatches_per_client };
        let ReplicaPlan { microbatch, recompute, phases, phase, update_inputs, .. } =
            at.plan.clone();
        let alone = ReplicaPlan {
            recompute,
            phases,
            phase,
            update_inputs,
            ..ReplicaPlan::single_rank(microbatch, leaves)
        };
        // A client's weights replace the initial ones.
        let accelerator = at.accelerator();
        let cpu = Cpu::single(Isa::detect());
        let compute = match accelerator {
            Some(device) => Compute::accelerated(cpu, Arc::clone(device)),
            None => cpu.into(),
        };
        let blueprint = blueprint_of_rank(recipe, 0);
        let tensors = blueprint.tensors();
        let clip = ClipPlan::new(&recipe.optim, tensors.iter().map(|(_, p)| p.name.as_str()));
        let (places, len) = places_of(&blueprint);
        let mut replica_of_client =
            Replica::materialize(blueprint, plan.seed, &compute, alone, &own, at.world)?;
        replica_of_client.adopt(Box::new(KeepGradients))?;
        let is_coordinator = comm.group_rank() == COORDINATOR;
        let zeros = |is_used: bool| vec![0.0; if is_used { len } else { 0 }];
        let has_controls = plan.correction == Correction::Scaffold;
        let mut moments: Vec<_> =
            (0..plan.server.num_moments()).map(|_| zeros(is_coordinator)).collect();
        if let Some(second) = moments.get_mut(1) {
            second.fill(plan.server.first_second_moment());
        }
        let own_clients = Self::own_clients(&plan, comm.group_rank());
        let controls = own_clients.filter(|_| has_controls).map(|c| (c, zeros(true))).collect();
        let mut anchor = zeros(true);
        at.read_params(&places, &mut anchor);
        Ok(Self {
            before: if plan.arrivals.may_be_stale() { anchor.clone() } else { Vec::new() },
            delayed_updates: DelayedUpdates::new(
                &plan.arrivals,
                plan.sampled,
                if is_coordinator { len } else { 0 },
            ),
            control: zeros(has_controls),
            anchor,
            active_clients: Vec::new(),
            turn: None,
            report: vec![0.0; 3 * plan.sampled],
            updates: RoundUpdates::default(),
            outcome: None,
            lr: LearningRate::new(&recipe.optim, recipe.train.steps),
            batches: recipe.batch_plan(),
            recipe: recipe.clone(),
            plan,
            comm,
            replica_of_client,
            clip,
            places,
            controls,
            moments,
        })
    }

    /// Clients that a rank simulates.
    fn own_clients(plan: &FederatedPlan, worker: usize) -> Range<usize> {
        let first = plan.by_worker[..worker].iter().sum();
        first..first + plan.by_worker[worker]
    }

    /// Visits all state besides the weights by name, to save it (the flag says whether this rank
    /// saves it) or to restore it; ends early where `visit` returns false.
    fn visit_state(&mut self, visit: &mut dyn FnMut(&str, bool, &mut [f32]) -> bool) -> bool {
        let is_coordinator = self.comm.group_rank() == COORDINATOR;
        for (name, values) in [("control", &mut self.control), ("before", &mut self.before)] {
            if !values.is_empty() && !visit(&format!("federated.{name}"), is_coordinator, values) {
                return false;
            }
        }
        let mut controls = self.controls.iter_mut();
        let name = |client: &usize| format!("federated.client.{client}.control");
        if !controls.all(|(client, values)| visit(&name(client), true, values)) {
            return false;
        }
        let mut moments = self.moments.iter_mut().enumerate().filter(|_| is_coordinator);
        let mut slots = self.delayed_updates.slots.iter_mut().enumerate();
        moments.all(|(index, values)| visit(&format!("federated.moment.{index}"), true, values))
            && slots.all(|(index, slot)| {
                !is_coordinator || visit(&format!("federated.late.{index}"), true, slot)
            })
    }
}
