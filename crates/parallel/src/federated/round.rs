//! One federated round: sampled clients train locally, send their updates, and the coordinator
//! aggregates them.

use super::arrival::Arrival;
use super::arrival::COORDINATOR;
use super::{ActiveClient, Correction, Federation, privacy, secure_aggregation};
use crate::distance::squared_distance;
use crate::flat_weights::{read_weights, write_weights};
use crate::measurements::RoundSummary;
use crate::robust_aggregation::{Aggregator, aggregate, norm, scale_to};
use lockstep_comm::{Comm, CommError, Element, Reduction};
use lockstep_optim::{Optimizer, Update};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::Result as DeviceResult;
use lockstep_tensor::random::Key;

/// Updates of a round that ends.
#[derive(Default)]
pub(super) struct RoundUpdates {
    /// First step of the round, and its clients.
    round: u64,
    clients: Vec<usize>,
    /// Arrival of each client's update; one that is not sound never arrives.
    arrivals: Vec<Arrival>,
    /// Updates by client, at home or at the coordinator: in the clear, or masked.
    clear: Vec<Option<Vec<f32>>>,
    masked: Vec<Option<Vec<u64>>>,
    /// Changes of control variates by client.
    controls: Vec<Option<Vec<f32>>>,
}

impl Federation {
    /// Gives the global weights to every client of the round on this rank.
    pub(super) fn begin_round(
        &mut self,
        round: u64,
        clients: &[usize],
        num_steps: u64,
    ) -> DeviceResult<()> {
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
            let on = replica_of_client.accelerator();
            Ok(ActiveClient {
                client,
                index,
                weights: if is_stale { before.clone() } else { anchor.clone() },
                optimizer: Optimizer::on_device(&plan.optim, &slots, 0, on)?,
                allowed: ((num_steps as f64 * most).ceil() as u64).clamp(1, num_steps),
                taken: 0,
                rates: 0.0,
                is_finite: true,
            })
        };
        *active_clients = here.map(active).collect::<DeviceResult<_>>()?;
        Ok(())
    }

    /// Gives a client its turn, unless it has taken its steps of the round or has stopped.
    pub(super) fn load_client(&mut self, client: usize) -> Result<(), CommError> {
        let Self { replica_of_client, active_clients, places, .. } = self;
        let active = &active_clients[client];
        let has_turn = active.is_finite && active.taken < active.allowed;
        self.turn = has_turn.then_some(client);
        if !has_turn {
            return Ok(());
        }
        write_weights(replica_of_client, places, &active.weights)
    }

    /// Steps the weights of the client whose turn it is. One with non-finite values stops, and its
    /// update does not count.
    pub(super) fn step_client(&mut self, cpu: &Cpu, step: u64) -> Result<(), CommError> {
        let Some(turn) = self.turn.take() else { return Ok(()) };
        let lr = self.lr.at(step, self.batches.at(step).batch);
        let Self { replica_of_client, plan, places, controls, control, anchor, .. } = self;
        let active = &mut self.active_clients[turn];
        let loss = replica_of_client.end_passes(cpu)?;
        let sums = replica_of_client.finish_reduce(cpu)?;
        let sums = replica_of_client.unscale(cpu, sums)?;
        let own = controls.get(&active.client);
        for slot in replica_of_client.slots() {
            let place = places[&slot.name].clone();
            let grads = &mut replica_of_client.store.own_grads_mut(slot.block)[slot.grads.clone()];
            match plan.correction {
                Correction::None => {}
                Correction::Prox { mu } => {
                    let pairs = active.weights[place.clone()].iter().zip(&anchor[place]);
                    grads
                        .iter_mut()
                        .zip(pairs)
                        .for_each(|(g, (now, then))| *g += mu * (now - then));
                }
                Correction::Scaffold => {
                    let own = &own.expect("a client of this rank")[place.clone()];
                    let pairs = control[place].iter().zip(own);
                    grads.iter_mut().zip(pairs).for_each(|(g, (all, own))| *g += all - own);
                }
            }
        }
        let clip = replica_of_client.clip(cpu, sums, &self.clip)?;
        if !loss.is_finite() || !clip.norm.is_finite() {
            active.is_finite = false;
            return Ok(());
        }
        let update = Update { count: active.taken + 1, lr, clip };
        replica_of_client.step(cpu, &mut active.optimizer, &update)?;
        read_weights(replica_of_client, places, &mut active.weights)?;
        active.taken += 1;
        active.rates += lr;
        let num_targets = replica_of_client.step_context.num_targets;
        let report = self.report.iter_mut().skip(active.index).step_by(plan.sampled);
        let own = [loss, num_targets as f64, clip.norm];
        report.zip(own).for_each(|(report, own)| *report = own);
        Ok(())
    }

    /// Ends a round: agrees on the clients whose values were finite, and turns the weights of this
    /// rank's clients into updates.
    pub(super) fn prepare_updates(&mut self, step: u64) -> Result<(), CommError> {
        let (round, clients) = (self.recipe.round_at(step).start, self.recipe.clients_at(step));
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
        let controls = self.control_changes(&active_clients, &arrivals);
        self.compute_updates(round, &mut active_clients);
        let mut clear = vec![None; clients.len()];
        let mut masked = vec![None; clients.len()];
        for active in active_clients {
            if self.plan.secure {
                let fixed =
                    active.weights.iter().map(|x| secure_aggregation::to_fixed(f64::from(*x)));
                let mut message: Vec<u64> = fixed.collect();
                let seed = self.plan.seed;
                secure_aggregation::mask(seed, round, active.client, &clients, &mut message);
                masked[active.index] = Some(message);
            } else {
                clear[active.index] = Some(active.weights);
            }
        }
        self.updates = RoundUpdates { round, clients, arrivals, clear, masked, controls };
        Ok(())
    }

    /// Sends an update of this rank to the coordinator, or receives one of another rank: the
    /// update with this number among those of its home.
    pub(super) fn exchange_update(
        &mut self,
        home: usize,
        number: usize,
        part: u32,
    ) -> Result<(), CommError> {
        let Self { plan, updates, comm, anchor, .. } = self;
        let RoundUpdates { round, clients, arrivals, clear, masked, controls } = updates;
        let is_expected = |index: &usize| {
            let arrival = plan.arrivals.of(plan.seed, *round, clients[*index]);
            plan.home(clients[*index]) == home && arrival != Arrival::Never
        };
        let index = (0..clients.len()).filter(is_expected).nth(number);
        let index = index.expect("the program counts the updates that are expected");
        // A client with values that are not finite sends nothing.
        if arrivals[index] == Arrival::Never {
            return Ok(());
        }
        let (len, tag) = (anchor.len(), index as u64);
        match part {
            0 if plan.secure => transfer(comm, &mut masked[index], len, home, tag),
            0 => transfer(comm, &mut clear[index], len, home, tag),
            _ => transfer(comm, &mut controls[index], len, home, tag + clients.len() as u64),
        }
    }

    /// Aggregates all updates and steps the global weights, at the coordinator.
    pub(super) fn aggregate_updates(&mut self, step: u64) {
        let updates = std::mem::take(&mut self.updates);
        let mut change = vec![0.0; self.anchor.len()];
        self.outcome = if self.plan.secure {
            self.unmask(&updates, &mut change)
        } else {
            self.aggregate_arrivals(&updates, &mut change)
        };
        if !self.before.is_empty() {
            self.before.copy_from_slice(&self.anchor);
        }
        if let Some(mut found) = self.outcome {
            self.add_noise(updates.round, found.counted, &mut change);
            self.plan.server.step(&change, &mut self.moments, &mut self.anchor);
            let num_rounds = || self.recipe.num_rounds(step + 1);
            let chance = self.plan.sampled as f64 / self.plan.num_clients() as f64;
            let epsilon =
                || privacy::epsilon(chance, self.plan.noise, num_rounds(), self.plan.delta);
            found.epsilon = (self.plan.noise > 0.0).then(epsilon);
            self.outcome = Some(found);
        }
        self.updates = updates;
    }

    /// Adds the changes of clients' control variates to the global one, at the coordinator.
    pub(super) fn aggregate_controls(&mut self) {
        let num_clients = self.plan.num_clients() as f32;
        for change in self.updates.controls.iter().flatten() {
            let both = self.control.iter_mut().zip(change);
            both.for_each(|(all, change)| *all += change / num_clients);
        }
    }

    /// Broadcasts the global weights, or the global control variate.
    pub(super) fn broadcast(&mut self, part: u32) -> Result<(), CommError> {
        if part > 0 {
            return self.comm.broadcast(&mut self.control, COORDINATOR);
        }
        if !self.before.is_empty() && self.comm.group_rank() != COORDINATOR {
            self.before.copy_from_slice(&self.anchor);
        }
        self.updates = RoundUpdates::default();
        self.comm.broadcast(&mut self.anchor, COORDINATOR)
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

    /// Aggregates the updates that arrive in this round, delayed ones included.
    fn aggregate_arrivals(
        &mut self,
        updates: &RoundUpdates,
        change: &mut [f32],
    ) -> Option<RoundSummary> {
        let RoundUpdates { round, clients, arrivals, clear, .. } = updates;
        let heard = clients.iter().zip(arrivals).filter(|(_, at)| **at != Arrival::Never);
        let room = clear.iter().zip(arrivals).filter(|(_, at)| **at != Arrival::Never);
        let heard: Vec<_> = heard.zip(room.filter_map(|(update, _)| update.as_ref())).collect();
        let is_now = |at: Arrival| at == Arrival::After(0);
        for ((client, at), vector) in heard.iter().filter(|((_, at), _)| !is_now(**at)) {
            if let Arrival::After(delay) = **at {
                self.delayed_updates.store(*round, delay, **client, vector);
            }
        }
        let now = heard.iter().filter(|((_, at), _)| is_now(**at));
        let mut all: Vec<(usize, u64, &[f32])> =
            now.map(|((client, _), vector)| (**client, 0, &vector[..])).collect();
        all.extend(self.delayed_updates.arriving_in(*round));
        let found = combined(self.plan.aggregator, clients.len(), &all, change);
        self.delayed_updates.clear(*round);
        found
    }

    /// Mean of masked updates.
    fn unmask(&self, updates: &RoundUpdates, change: &mut [f32]) -> Option<RoundSummary> {
        let RoundUpdates { round, clients, arrivals, masked, .. } = updates;
        let by_arrival = |is_sent: bool| -> Vec<usize> {
            let all = clients.iter().zip(arrivals);
            all.filter(|(_, at)| (**at != Arrival::Never) == is_sent).map(|(c, _)| *c).collect()
        };
        let (sent, lost) = (by_arrival(true), by_arrival(false));
        if sent.is_empty() {
            return None;
        }
        let mut sum = vec![0_u64; change.len()];
        let arrived = masked.iter().zip(arrivals).filter(|(_, at)| **at != Arrival::Never);
        for message in arrived.filter_map(|(message, _)| message.as_ref()) {
            sum.iter_mut().zip(message).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
        }
        secure_aggregation::unmask_dropouts(self.plan.seed, *round, &sent, &lost, &mut sum);
        for (change, sum) in change.iter_mut().zip(&sum) {
            *change = (secure_aggregation::from_fixed(*sum) / sent.len() as f64) as f32;
        }
        // Masks hide the distance of single updates from the mean.
        Some(RoundSummary {
            sampled: clients.len(),
            counted: sent.len(),
            delayed: 0,
            drift: f64::NAN,
            drift_max: (f64::NAN, 0),
            moved: squared_distance(change, &[]),
            epsilon: None,
        })
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

    /// Changes of the control variates of this rank's clients (SCAFFOLD, option II), whose new
    /// ones are cᵢ − c + (x − xᵢ)/(sum of its learning rates); by client of the round.
    fn control_changes(
        &mut self,
        active_clients: &[ActiveClient],
        arrivals: &[Arrival],
    ) -> Vec<Option<Vec<f32>>> {
        let Self { controls, control, anchor, .. } = self;
        let mut changes = vec![None; arrivals.len()];
        for active in active_clients.iter().filter(|active| active.is_finite && active.taken > 0) {
            // A lost update leaves both control variates unchanged.
            let Some(own) = controls.get_mut(&active.client) else { continue };
            if arrivals[active.index] == Arrival::Never {
                continue;
            }
            let per_rate = (1.0 / active.rates.max(f64::MIN_POSITIVE)) as f32;
            let ends = anchor.iter().zip(&active.weights);
            let all = own.iter().zip(&*control).zip(ends);
            let new = all.map(|((own, all), (x, end))| own - all + (x - end) * per_rate);
            let new: Vec<f32> = new.collect();
            changes[active.index] =
                Some(new.iter().zip(&*own).map(|(new, old)| new - old).collect());
            *own = new;
        }
        changes
    }
}

/// Sends a vector of this rank to the coordinator, or receives one there.
fn transfer<T: Element>(
    comm: &Comm,
    vector: &mut Option<Vec<T>>,
    len: usize,
    home: usize,
    tag: u64,
) -> Result<(), CommError> {
    if comm.group_rank() != COORDINATOR {
        let own = vector.as_ref().expect("a sound client of this rank has an update");
        return comm.send(own, COORDINATOR, tag);
    }
    let mut received = vec![T::from_small(0); len];
    comm.recv(&mut received, home, tag)?;
    *vector = Some(received);
    Ok(())
}

/// Aggregates updates, delayed ones with lower weight, and measures their drift.
fn combined(
    rule: Aggregator,
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
