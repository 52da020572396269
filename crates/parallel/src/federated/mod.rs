//! Federated learning: clients keep their data and send changes; a coordinator combines them.
//!
//! In a round some clients are drawn. Each takes the coordinator's weights, makes K steps on its
//! own samples with an optimizer of its own that begins anew, and sends how its weights have
//! changed. The coordinator (the first worker) combines the changes, takes a step of its own by
//! what comes out, and shows the new weights to all. The other workers are homes of clients, whom
//! they play one after the other; where a client lives never matters: what it does is a function
//! of its number and the round, and changes are combined in the order of clients. So unlike in
//! [`crate::local`] the bits do not depend on the number of workers.
//!
//! Clients whose samples differ drift apart within a round, and their mean is not where the mean
//! of their gradients leads. Two corrections: `FedProx` pulls each back to where it started (Li et
//! al., 2020); SCAFFOLD adds to each gradient what everybody's differs from its own, as far as
//! that is known from the last rounds (Karimireddy et al., 2020), for twice the bytes.
//!
//! - [`server`]: the coordinator's step
//! - [`arrival`]: changes that are lost or late, and clients that lie
//! - [`masks`]: secure aggregation
//! - [`privacy`]: what noise is worth
//! - [`crate::robust`]: combining changes of which some are lies

pub mod arrival;
pub mod masks;
pub mod privacy;
mod round;
pub mod server;

use crate::leaves::Leaves;
use crate::replica::{Replica, ReplicaPlan};
use crate::robust::Combine;
use arrival::{Arrivals, Shelf};
use lockstep_comm::{Comm, CommError, Options};
use lockstep_config::Optim;
use lockstep_mesh::Group;
use lockstep_model::Blueprint;
use lockstep_optim::{ClipPlan, Optimizer};
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use server::ServerStep;
use std::collections::BTreeMap;
use std::ops::Range;

pub use round::{Aggregated, LocalLoss};

/// The worker that combines.
pub(crate) const COORDINATOR: usize = 0;

/// What a client's gradients are corrected by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Correction {
    /// Nothing.
    None,
    /// μ times the way from where the round began.
    Prox {
        /// μ.
        mu: f32,
    },
    /// Control variates.
    Scaffold,
}

/// How clients learn, and what becomes of it.
#[derive(Clone, Debug)]
pub struct FederatedPlan {
    /// Clients that each worker is the home of.
    pub by_worker: Vec<usize>,
    /// How many take part in a round.
    pub sampled: usize,
    /// Micro-batches of a client in a step.
    pub microbatches_per_client: usize,
    /// What their gradients are corrected by.
    pub correction: Correction,
    /// The smallest share of a round's steps that one takes.
    pub least_steps: f64,
    /// The coordinator's step.
    pub server: ServerStep,
    /// How changes become one.
    pub combine: Combine,
    /// The most that a change may be long, if there is a limit.
    pub clip: Option<f64>,
    /// Noise on their sum, in units of that.
    pub noise: f64,
    /// The chance at which privacy may fail.
    pub delta: f64,
    /// Whether the coordinator sees sums only.
    pub secure: bool,
    /// What becomes of changes on their way.
    pub arrivals: Arrivals,
    /// Decides all that is random.
    pub seed: u64,
    /// How a client steps.
    pub optim: Optim,
}

impl FederatedPlan {
    fn num_clients(&self) -> usize {
        self.by_worker.iter().sum()
    }

    /// The worker that a client lives on.
    fn home(&self, client: usize) -> usize {
        let mut end = 0;
        let is_home = |(_, num): &(usize, &usize)| {
            end += **num;
            client < end
        };
        self.by_worker.iter().enumerate().find(is_home).map_or(COORDINATOR, |(worker, _)| worker)
    }
}

/// What a worker keeps for its clients, and the coordinator for all of them.
pub struct Federation {
    plan: FederatedPlan,
    comm: Comm,
    /// The model that clients of this worker take turns in.
    solo: Replica,
    clip: ClipPlan,
    /// Where each tensor lies among all weights one behind the other.
    places: BTreeMap<String, Range<usize>>,
    /// The weights of all, as the coordinator showed them last.
    anchor: Vec<f32>,
    /// Those before; only where a stale client might start from them.
    before: Vec<f32>,
    /// This worker's clients that take part in the round.
    seats: Vec<Seat>,
    /// Control variates: of everybody, and of each client that lives here.
    control: Vec<f32>,
    controls: BTreeMap<usize, Vec<f32>>,
    /// The coordinator's moments.
    moments: Vec<Vec<f32>>,
    /// Changes that arrived before their time, at the coordinator.
    shelf: Shelf,
}

/// A client that takes part in a round.
struct Seat {
    client: usize,
    /// Which of the round's clients it is.
    index: usize,
    weights: Vec<f32>,
    optimizer: Optimizer,
    /// Steps that it may take, and has taken.
    allowed: u64,
    taken: u64,
    /// The sum of its learning rates.
    rates: f64,
    /// Whether all its numbers were finite.
    is_sound: bool,
}

impl Federation {
    /// Gets ready, from the weights that all workers hold; `blueprint` is that of the same model.
    /// All of them do so together.
    pub fn new(
        plan: FederatedPlan,
        blueprint: Blueprint,
        replica: &mut Replica,
        clip: ClipPlan,
        cpu: &Cpu,
        world: &World,
    ) -> Result<Self, CommError> {
        assert!(replica.plan.is_replicated(), "a client has all of the model");
        let all = Group::all(replica.groups.world().group_size());
        let comm = replica.groups.world().split(&[all], "federated")?;
        // Clients know nobody.
        let own = Comm::threads(world, 1, &Options::default())?.remove(0);
        let leaves = Leaves { num_leaves: 1, microbatches_per_leaf: plan.microbatches_per_client };
        let ReplicaPlan { microbatch, recompute, phases, phase, .. } = replica.plan.clone();
        let alone =
            ReplicaPlan { recompute, phases, phase, ..ReplicaPlan::alone(microbatch, leaves) };
        let solo = Replica::materialize(blueprint, plan.seed, cpu, alone, &own, world)?;
        let (mut places, mut len) = (BTreeMap::new(), 0);
        for (_, param) in replica.blueprint.tensors() {
            places.insert(param.name.clone(), len..len + param.len());
            len += param.len();
        }
        let is_coordinator = comm.group_rank() == COORDINATOR;
        let zeros = |wanted: bool| vec![0.0; if wanted { len } else { 0 }];
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
            shelf: Shelf::new(&plan.arrivals, plan.sampled, if is_coordinator { len } else { 0 }),
            control: zeros(has_controls),
            anchor: zeros(true),
            seats: Vec::new(),
            plan,
            comm,
            solo,
            clip,
            places,
            controls,
            moments,
        };
        federation.restart(replica)?;
        Ok(federation)
    }

    /// The clients that live on a worker.
    fn own_clients(plan: &FederatedPlan, worker: usize) -> Range<usize> {
        let first = plan.by_worker[..worker].iter().sum();
        first..first + plan.by_worker[worker]
    }

    /// Starts from the weights of `replica`, which may have come from a checkpoint.
    pub fn restart(&mut self, replica: &mut Replica) -> Result<(), CommError> {
        read(replica, &self.places, &mut self.anchor)?;
        if !self.before.is_empty() {
            self.before.copy_from_slice(&self.anchor);
        }
        Ok(())
    }

    /// Gives everything that going on takes besides the weights, by name, to save (`is_mine` says
    /// whether this worker is the one to do so) or to fill in.
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
            for (index, slot) in self.shelf.slots.iter_mut().enumerate() {
                visit(&format!("federated.late.{index}"), true, slot)?;
            }
        }
        Ok(())
    }

    /// Lets a replica count what changes and weights have weighed on this worker's wires.
    pub fn tell_traffic(&self, replica: &mut Replica) {
        replica.elsewhere = self.comm.counters().total().traffic;
    }
}

/// Copies all weights of a model, tensor by tensor.
pub(crate) fn read(
    replica: &mut Replica,
    places: &BTreeMap<String, Range<usize>>,
    into: &mut [f32],
) -> Result<(), CommError> {
    replica.visit_params(|param, values| {
        into[places[&param.name].clone()].copy_from_slice(values);
        Ok(())
    })
}

/// Sets them.
pub(crate) fn write(
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
