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
//! - [`server_optimizer`]: the coordinator's step
//! - [`arrival`]: lost and delayed updates, Byzantine clients
//! - [`secure_aggregation`]: masked sums
//! - [`privacy`]: differential-privacy accounting
//! - [`crate::robust_aggregation`]: Byzantine-robust aggregation rules

pub mod arrival;
pub mod privacy;
mod round;
pub mod secure_aggregation;
pub mod server_optimizer;

use crate::leaves::Leaves;
use crate::replica::Replica;
use crate::replica_plan::ReplicaPlan;
use crate::robust_aggregation::Aggregator;
use arrival::COORDINATOR;
use arrival::{ArrivalModel, DelayedUpdates};
use lockstep_comm::{Comm, CommError, Options};
use lockstep_config::Optim;
use lockstep_mesh::Group;
use lockstep_model::Blueprint;
use lockstep_optim::{ClipPlan, Optimizer};
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use server_optimizer::ServerOptimizer;
use std::collections::BTreeMap;
use std::ops::Range;

pub use round::{LocalLoss, RoundSummary};

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
pub struct Federation {
    plan: FederatedPlan,
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
    /// Initializes from the weights that all ranks hold; `blueprint` describes the same model.
    /// Collective.
    pub fn new(
        plan: FederatedPlan,
        blueprint: Blueprint,
        replica: &mut Replica,
        clip: ClipPlan,
        cpu: &Cpu,
        world: &World,
    ) -> Result<Self, CommError> {
        assert!(replica.plan.is_replicated(), "a client requires a whole replica");
        let all = Group::all(replica.groups.world().group_size());
        let comm = replica.groups.world().split(&[all], "federated")?;
        // A client's replica is a group of one.
        let own = Comm::threads(world, 1, &Options::default())?.remove(0);
        let leaves = Leaves { num_leaves: 1, microbatches_per_leaf: plan.microbatches_per_client };
        let ReplicaPlan { microbatch, recompute, phases, phase, .. } = replica.plan.clone();
        let alone = ReplicaPlan {
            recompute,
            phases,
            phase,
            ..ReplicaPlan::single_rank(microbatch, leaves)
        };
        let replica_of_client =
            Replica::materialize(blueprint, plan.seed, cpu, alone, &own, world)?;
        let (mut places, mut len) = (BTreeMap::new(), 0);
        for (_, param) in replica.blueprint.tensors() {
            places.insert(param.name.clone(), len..len + param.len());
            len += param.len();
        }
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
        let mut federation = Self {
            before: zeros(plan.arrivals.may_be_stale()),
            delayed_updates: DelayedUpdates::new(
                &plan.arrivals,
                plan.sampled,
                if is_coordinator { len } else { 0 },
            ),
            control: zeros(has_controls),
            anchor: zeros(true),
            active_clients: Vec::new(),
            plan,
            comm,
            replica_of_client,
            clip,
            places,
            controls,
            moments,
        };
        federation.restart(replica)?;
        Ok(federation)
    }

    /// Clients that a rank simulates.
    fn own_clients(plan: &FederatedPlan, worker: usize) -> Range<usize> {
        let first = plan.by_worker[..worker].iter().sum();
        first..first + plan.by_worker[worker]
    }

    /// Restarts from the weights of `replica`, for example after a checkpoint was loaded.
    pub fn restart(&mut self, replica: &mut Replica) -> Result<(), CommError> {
        read_weights(replica, &self.places, &mut self.anchor)?;
        if !self.before.is_empty() {
            self.before.copy_from_slice(&self.anchor);
        }
        Ok(())
    }

    /// Visits all state besides the weights by name, to save it (the flag says whether this rank
    /// saves it) or to restore it.
    pub fn visit<E>(
        &mut self,
        mut visit: impl FnMut(&str, bool, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_coordinator = self.comm.group_rank() == COORDINATOR;
        for (name, values) in [("control", &mut self.control), ("before", &mut self.before)] {
            if !values.is_empty() {
                visit(&format!("federated.{name}"), is_coordinator, values)?;
            }
        }
        for (client, values) in &mut self.controls {
            visit(&format!("federated.client.{client}.control"), true, values)?;
        }
        if is_coordinator {
            for (index, values) in self.moments.iter_mut().enumerate() {
                visit(&format!("federated.moment.{index}"), true, values)?;
            }
            for (index, slot) in self.delayed_updates.slots.iter_mut().enumerate() {
                visit(&format!("federated.late.{index}"), true, slot)?;
            }
        }
        Ok(())
    }

    /// Adds the bytes sent for updates and weights to the replica's traffic.
    pub fn report_traffic(&self, replica: &mut Replica) {
        replica.external_traffic = self.comm.counters().total().traffic;
    }
}

/// Copies all weights of a replica into a flat buffer.
pub(crate) fn read_weights(
    replica: &mut Replica,
    places: &BTreeMap<String, Range<usize>>,
    into: &mut [f32],
) -> Result<(), CommError> {
    replica.visit_params(|param, values| {
        into[places[&param.name].clone()].copy_from_slice(values);
        Ok(())
    })
}

/// Sets all weights of a replica from a flat buffer.
pub(crate) fn write_weights(
    replica: &mut Replica,
    places: &BTreeMap<String, Range<usize>>,
    from: &[f32],
) -> Result<(), CommError> {
    replica.fill(|param, first, values| {
        let name = param.mirror_of.as_ref().unwrap_or(&param.name);
        values.copy_from_slice(&from[places[name].clone()][first..][..values.len()]);
        Ok(())
    })
}
