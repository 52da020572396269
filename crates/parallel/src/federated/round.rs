//! One federated round: sampled clients train locally, send their updates, and the coordinator
//! aggregates them.

use super::arrival::Arrival;
use super::arrival::COORDINATOR;
use super::{
    ActiveClient, Correction, Federation, privacy, read_weights, secure_aggregation, write_weights,
};
use crate::distance::squared_distance;
use crate::replica::Replica;
use crate::robust_aggregation::{aggregate, norm, scale_to};
use lockstep_comm::{CommError, Reduction};
use lockstep_model::Microbatch;
use lockstep_optim::{Optimizer, Update};
use lockstep_tensor::Cpu;
use lockstep_tensor::random::Key;

/// Result of a round, on the coordinator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundSummary {
    /// Clients sampled.
    pub sampled: usize,
    /// Updates aggregated, delayed ones included.
    pub counted: usize,
    /// Delayed updates among them.
    pub delayed: usize,
    /// Mean of ‖Δᵢ − Δ‖² over them, where Δ is the aggregate.
    pub drift: f64,
    /// Largest ‖Δᵢ − Δ‖², and its client.
    pub drift_max: (f64, usize),
    /// ‖Δ‖².
    pub moved: f64,
    /// ε of all rounds so far, if there is noise.
    pub epsilon: Option<f64>,
}

/// Loss of a step over all clients that took it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalLoss {
    /// Sum of token losses.
    pub sum: f64,
    /// Number of targets.
    pub targets: f64,
    /// Mean norm of their gradients.
    pub norm: f64,
}

impl Federation {
    /// Gives the global weights to every client of the round on this rank.
    pub fn begin_round(&mut self, round: u64, clients: &[usize], num_steps: u64) {
        let own = Self::own_clients(&self.plan, self.comm.group_rank());
        let Self { plan, active_clients, anchor, before, replica_of_client, .. } = self;
        let here = clients.iter().enumerate().filter(|(_, client)| own.contains(client));
        let slots = replica_of_client.slots();
        let active = |(index, &client): (usize, &usize)| {
            let key = Key::new(plan.seed, "federated.steps").with(round);
            // The first client takes all steps, so that every step has a client.
            let less = if index == 0 { 0.0 } else { key.uniform_f64(client as u64) };
            let most = 1.0 - (1.0 - plan.least_steps) * less;
            let is_stale = !before.is_empty() && plan.arrivals.is_byzantine(plan.seed, client);
            ActiveClient {
                client,
                index,
                weights: if is_stale { before.clone() } else { anchor.clone() },
                optimizer: Optimizer::new(&plan.optim, &slots),
                allowed: ((num_steps as f64 * most).ceil() as u64).clamp(1, num_steps),
                taken: 0,
                rates: 0.0,
                is_finite: true,
            }
        };
        *active_clients = here.map(active).collect();
    }

    /// Takes one step on every client that has steps left; `microbatch` returns a micro-batch of
    /// one of the round's clients. A client with non-finite values stops, and its update does not
    /// count.
    pub fn step<'a>(
        &mut self,
        cpu: &Cpu,
        step: u64,
        lr: f64,
        microbatch: &dyn Fn(usize, usize) -> Microbatch<'a>,
    ) -> Result<LocalLoss, CommError> {
        let sampled = self.plan.sampled;
        let mut report = vec![0.0_f64; 3 * sampled];
        let mut active_clients = std::mem::take(&mut self.active_clients);
        for active in active_clients
            .iter_mut()
            .filter(|active| active.is_finite && active.taken < active.allowed)
        {
            let index = active.index;
            let targets = std::cell::Cell::new(0);
            let microbatch = |number| {
                let microbatch = microbatch(index, number);
                targets.set(microbatch.num_targets);
                microbatch
            };
            let (loss, norm) = self.step_one(cpu, step, lr, active, &microbatch)?;
            if active.is_finite {
                let report = report.iter_mut().skip(index).step_by(sampled);
                report
                    .zip([loss, targets.get() as f64, norm])
                    .for_each(|(report, own)| *report = own);
            }
        }
        self.active_clients = active_clients;
        // Each number comes from one rank, so the sum is exact.
        self.comm.all_reduce(&mut report, Reduction::Sum)?;
        let sum = |values: &[f64]| values.iter().fold(0.0, |sum, value| sum + value);
        let [losses, targets, norms] = [0, 1, 2].map(|kind| &report[kind * sampled..][..sampled]);
        let num = targets.iter().filter(|targets| **targets > 0.0).count();
        let norm = sum(norms) / num as f64;
        Ok(LocalLoss { sum: sum(losses), targets: sum(targets), norm })
    }

    fn step_one<'a>(
        &mut self,
        cpu: &Cpu,
        step: u64,
        lr: f64,
        active: &mut ActiveClient,
        microbatch: &dyn Fn(usize) -> Microbatch<'a>,
    ) -> Result<(f64, f64), CommError> {
        let replica_of_client = &mut self.replica_of_client;
        write_weights(replica_of_client, &self.places, &active.weights)?;
        let loss = replica_of_client.run_microbatches(cpu, self.plan.seed, step, microbatch)?;
        let sums = replica_of_client.finish_reduce(cpu)?;
        let sums = replica_of_client.unscale(cpu, sums);
        let start = &self.anchor;
        let own = self.controls.get(&active.client);
        for slot in replica_of_client.slots() {
            let place = self.places[&slot.name].clone();
            let grads = &mut replica_of_client.store.own_grads_mut(slot.block)[slot.grads.clone()];
            match self.plan.correction {
                Correction::None => {}
                Correction::Prox { mu } => {
                    let pairs = active.weights[place.clone()].iter().zip(&start[place]);
                    grads
                        .iter_mut()
                        .zip(pairs)
                        .for_each(|(g, (now, then))| *g += mu * (now - then));
                }
                Correction::Scaffold => {
                    let own = &own.expect("a client of this rank")[place.clone()];
                    let pairs = self.control[place].iter().zip(own);
                    grads.iter_mut().zip(pairs).for_each(|(g, (all, own))| *g += all - own);
                }
            }
        }
        let clip = replica_of_client.clip(cpu, sums, &self.clip)?;
        if !loss.is_finite() || !clip.norm.is_finite() {
            active.is_finite = false;
            return Ok((loss, clip.norm));
        }
        let update = Update { count: active.taken + 1, lr, clip };
        replica_of_client.step(cpu, &mut active.optimizer, &update)?;
        read_weights(replica_of_client, &self.places, &mut active.weights)?;
        active.taken += 1;
        active.rates += lr;
        Ok((loss, clip.norm))
    }

    /// Sends all updates, aggregates them, and writes the new weights to `replica`.
    pub fn end_round(
        &mut self,
        round: u64,
        num_rounds: impl Fn() -> u64,
        clients: &[usize],
        replica: &mut Replica,
    ) -> Result<Option<RoundSummary>, CommError> {
        let mut sound = vec![0_u32; clients.len()];
        for active in &self.active_clients {
            sound[active.index] = u32::from(active.is_finite);
        }
        self.comm.all_reduce(&mut sound, Reduction::Sum)?;
        let arrival = |index: usize| match sound[index] {
            0 => Arrival::Never,
            _ => self.plan.arrivals.of(self.plan.seed, round, clients[index]),
        };
        let arrivals: Vec<_> = (0..clients.len()).map(arrival).collect();
        let mut active_clients = std::mem::take(&mut self.active_clients);
        let new_controls = self.new_control_variates(&active_clients);
        self.compute_updates(round, &mut active_clients);
        let (mut outcome, mut change) = (None, vec![0.0; self.anchor.len()]);
        if self.plan.secure {
            outcome =
                self.gather_masked(round, clients, &arrivals, &active_clients, &mut change)?;
        } else {
            let room = self.gather(clients, &arrivals, &active_clients)?;
            if self.comm.group_rank() == COORDINATOR {
                outcome = self.aggregate_arrivals(round, clients, &arrivals, &room, &mut change);
            }
        }
        self.gather_controls(clients, &arrivals, new_controls)?;
        if !self.before.is_empty() {
            self.before.copy_from_slice(&self.anchor);
        }
        if let Some(found) = &mut outcome {
            self.add_noise(round, found.counted, &mut change);
            self.plan.server.step(&change, &mut self.moments, &mut self.anchor);
            let chance = self.plan.sampled as f64 / self.plan.num_clients() as f64;
            let epsilon =
                || privacy::epsilon(chance, self.plan.noise, num_rounds(), self.plan.delta);
            found.epsilon = (self.plan.noise > 0.0).then(epsilon);
        }
        self.comm.broadcast(&mut self.anchor, COORDINATOR)?;
        write_weights(replica, &self.places, &self.anchor)?;
        Ok(outcome)
    }

    /// Turns the weights of every client into its update.
    fn compute_updates(&self, round: u64, active_clients: &mut [ActiveClient]) {
        let plan = &self.plan;
        for active in active_clients {
            let is_byzantine = plan.arrivals.is_byzantine(plan.seed, active.client);
            let start =
                if is_byzantine && !self.before.is_empty() { &self.before } else { &self.anchor };
            active.weights.iter_mut().zip(start).for_each(|(now, then)| *now -= then);
            if is_byzantine {
                let key = Key::new(plan.seed, "federated.lies").with(round);
                plan.arrivals.corrupt(key.with(active.client as u64), &mut active.weights);
            } else if let Some(most) = plan.clip {
                // An honest client clips its own update; a Byzantine one does not.
                let scale = scale_to(most, norm(&active.weights)) as f32;
                if scale < 1.0 {
                    active.weights.iter_mut().for_each(|x| *x *= scale);
                }
            }
        }
    }

    /// Updates of all clients that are not lost, at the coordinator, in client order.
    fn gather(
        &self,
        clients: &[usize],
        arrivals: &[Arrival],
        active_clients: &[ActiveClient],
    ) -> Result<Vec<Vec<f32>>, CommError> {
        let own = |index: usize| active_clients.iter().find(|active| active.index == index);
        self.collect(clients, arrivals, 0, |index| own(index).map(|active| &active.weights[..]))
    }

    /// Sends one vector per client that is not lost to the coordinator.
    fn collect<'a, T: lockstep_comm::Element>(
        &self,
        clients: &[usize],
        arrivals: &[Arrival],
        first_tag: usize,
        own: impl Fn(usize) -> Option<&'a [T]>,
    ) -> Result<Vec<Vec<T>>, CommError> {
        let is_coordinator = self.comm.group_rank() == COORDINATOR;
        let mut room = Vec::new();
        for (index, &client) in clients.iter().enumerate() {
            if arrivals[index] == Arrival::Never {
                continue;
            }
            let (home, tag) = (self.plan.home(client), (first_tag + index) as u64);
            match own(index) {
                Some(own) if is_coordinator => room.push(own.to_vec()),
                Some(own) => self.comm.send(own, COORDINATOR, tag)?,
                None if is_coordinator => {
                    let mut change = vec![T::from_small(0); self.anchor.len()];
                    self.comm.recv(&mut change, home, tag)?;
                    room.push(change);
                }
                None => {}
            }
        }
        Ok(room)
    }

    /// Aggregates the updates that arrive in this round, delayed ones included.
    fn aggregate_arrivals(
        &mut self,
        round: u64,
        clients: &[usize],
        arrivals: &[Arrival],
        room: &[Vec<f32>],
        change: &mut [f32],
    ) -> Option<RoundSummary> {
        let heard = clients.iter().zip(arrivals).filter(|(_, at)| **at != Arrival::Never);
        let heard: Vec<_> = heard.zip(room).collect();
        let is_now = |at: Arrival| at == Arrival::After(0);
        for ((client, at), vector) in heard.iter().filter(|((_, at), _)| !is_now(**at)) {
            if let Arrival::After(delay) = **at {
                self.delayed_updates.store(round, delay, **client, vector);
            }
        }
        let now = heard.iter().filter(|((_, at), _)| is_now(**at));
        let mut all: Vec<(usize, u64, &[f32])> =
            now.map(|((client, _), vector)| (**client, 0, &vector[..])).collect();
        all.extend(self.delayed_updates.arriving_in(round));
        let found = combined(self.plan.aggregator, clients.len(), &all, change);
        self.delayed_updates.clear(round);
        found
    }

    /// Mean of masked updates.
    fn gather_masked(
        &self,
        round: u64,
        clients: &[usize],
        arrivals: &[Arrival],
        active_clients: &[ActiveClient],
        change: &mut [f32],
    ) -> Result<Option<RoundSummary>, CommError> {
        let mut messages: Vec<Option<Vec<u64>>> = vec![None; clients.len()];
        for active in active_clients {
            let fixed = active.weights.iter().map(|x| secure_aggregation::to_fixed(f64::from(*x)));
            let mut message: Vec<u64> = fixed.collect();
            secure_aggregation::mask(self.plan.seed, round, active.client, clients, &mut message);
            messages[active.index] = Some(message);
        }
        let room = self.collect(clients, arrivals, 0, |index| messages[index].as_deref())?;
        if self.comm.group_rank() != COORDINATOR || room.is_empty() {
            return Ok(None);
        }
        let mut sum = vec![0_u64; change.len()];
        for message in &room {
            sum.iter_mut().zip(message).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
        }
        let by_arrival = |is_sent: bool| -> Vec<usize> {
            let all = clients.iter().zip(arrivals);
            all.filter(|(_, at)| (**at != Arrival::Never) == is_sent).map(|(c, _)| *c).collect()
        };
        let (sent, lost) = (by_arrival(true), by_arrival(false));
        secure_aggregation::unmask_dropouts(self.plan.seed, round, &sent, &lost, &mut sum);
        for (change, sum) in change.iter_mut().zip(&sum) {
            *change = (secure_aggregation::from_fixed(*sum) / sent.len() as f64) as f32;
        }
        // Masks hide the distance of single updates from the mean.
        Ok(Some(RoundSummary {
            sampled: clients.len(),
            counted: sent.len(),
            delayed: 0,
            drift: f64::NAN,
            drift_max: (f64::NAN, 0),
            moved: squared_distance(change, &[]),
            epsilon: None,
        }))
    }

    /// Adds the noise of differential privacy.
    fn add_noise(&self, round: u64, num: usize, change: &mut [f32]) {
        let deviation = self.plan.noise * self.plan.clip.unwrap_or(0.0) / num.max(1) as f64;
        if deviation > 0.0 {
            let key = Key::new(self.plan.seed, "federated.noise").with(round);
            for (index, x) in (0..).zip(change) {
                *x += key.normal(index) * deviation as f32;
            }
        }
    }

    /// New control variates of this rank's clients (SCAFFOLD, option II): cᵢ − c + (x − xᵢ)/(sum of
    /// its learning rates).
    fn new_control_variates(
        &self,
        active_clients: &[ActiveClient],
    ) -> Vec<(usize, usize, Vec<f32>)> {
        if self.controls.is_empty() {
            return Vec::new();
        }
        let new = |active: &ActiveClient| {
            let own = &self.controls[&active.client];
            let per_rate = (1.0 / active.rates.max(f64::MIN_POSITIVE)) as f32;
            let ends = self.anchor.iter().zip(&active.weights);
            let controls = own.iter().zip(&self.control).zip(ends);
            let new = controls.map(|((own, all), (x, end))| own - all + (x - end) * per_rate);
            (active.index, active.client, new.collect())
        };
        active_clients
            .iter()
            .filter(|active| active.is_finite && active.taken > 0)
            .map(new)
            .collect()
    }

    /// Sends changes of control variates to the coordinator and broadcasts the global one.
    fn gather_controls(
        &mut self,
        clients: &[usize],
        arrivals: &[Arrival],
        new: Vec<(usize, usize, Vec<f32>)>,
    ) -> Result<(), CommError> {
        if self.control.is_empty() {
            return Ok(());
        }
        let mut changes = vec![None; clients.len()];
        for (index, client, new) in new {
            // A lost update leaves both control variates unchanged.
            if arrivals[index] == Arrival::Never {
                continue;
            }
            let own = self.controls.get_mut(&client).expect("a client of this rank");
            let change: Vec<f32> = new.iter().zip(&*own).map(|(new, old)| new - old).collect();
            changes[index] = Some(change);
            *own = new;
        }
        let room =
            self.collect(clients, arrivals, clients.len(), |index| changes[index].as_deref())?;
        let num_clients = self.plan.num_clients() as f32;
        for change in &room {
            let both = self.control.iter_mut().zip(change);
            both.for_each(|(all, change)| *all += change / num_clients);
        }
        self.comm.broadcast(&mut self.control, COORDINATOR)
    }
}

/// Aggregates updates, delayed ones with lower weight, and measures their drift.
fn combined(
    rule: crate::robust_aggregation::Aggregator,
    sampled: usize,
    all: &[(usize, u64, &[f32])],
    change: &mut [f32],
) -> Option<RoundSummary> {
    if all.is_empty() {
        return None;
    }
    let vectors: Vec<_> = all.iter().map(|(_, _, vector)| *vector).collect();
    let weights: Vec<_> = all.iter().map(|(_, delay, _)| 1.0 / (1.0 + *delay as f64)).collect();
    aggregate(rule, &vectors, &weights, change);
    let drifts: Vec<_> = vectors.iter().map(|vector| squared_distance(vector, change)).collect();
    let largest = drifts.iter().zip(all).max_by(|a, b| a.0.total_cmp(b.0));
    Some(RoundSummary {
        sampled,
        counted: all.len(),
        delayed: all.iter().filter(|(_, delay, _)| *delay > 0).count(),
        drift: drifts.iter().sum::<f64>() / drifts.len() as f64,
        drift_max: largest.map_or((0.0, 0), |(drift, (client, _, _))| (*drift, *client)),
        moved: squared_distance(change, &[]),
        epsilon: None,
    })
}
