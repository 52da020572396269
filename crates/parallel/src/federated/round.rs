//! One round: clients take their seats, take their steps, send their changes; all is combined.

use super::arrival::Arrival;
use super::{COORDINATOR, Correction, Federation, Seat, masks, privacy, read, write};
use crate::local::squared_distance;
use crate::replica::Replica;
use crate::robust::{combine, norm, scale_to};
use lockstep_comm::{CommError, Reduction};
use lockstep_model::Microbatch;
use lockstep_optim::{Optimizer, Update};
use lockstep_tensor::Cpu;
use lockstep_tensor::random::Key;

/// What a round came to, on the coordinator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aggregated {
    /// Clients that were drawn.
    pub sampled: usize,
    /// Changes that counted, late ones included.
    pub counted: usize,
    /// Those of them that were late.
    pub late: usize,
    /// The mean of ‖Δᵢ − Δ‖² over them, Δ being what they became.
    pub drift: f64,
    /// The largest of them, and the client it is of.
    pub drift_max: (f64, usize),
    /// ‖Δ‖².
    pub moved: f64,
    /// The privacy that all rounds so far leave, where there is noise.
    pub epsilon: Option<f64>,
}

/// The losses of a step over all clients that took it, and what they are divided by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalLoss {
    /// The sum of token losses.
    pub sum: f64,
    /// Targets.
    pub targets: f64,
    /// The mean norm of their gradients.
    pub norm: f64,
}

impl Federation {
    /// Gives every client of the round that lives here the weights of all.
    pub fn begin_round(&mut self, round: u64, clients: &[usize], num_steps: u64) {
        let own = Self::own_clients(&self.plan, self.comm.group_rank());
        let Self { plan, seats, anchor, before, solo, .. } = self;
        let here = clients.iter().enumerate().filter(|(_, client)| own.contains(client));
        let slots = solo.slots();
        let seat = |(index, &client): (usize, &usize)| {
            let key = Key::new(plan.seed, "federated.steps").with(round);
            // One takes all of them, so that every step is somebody's.
            let less = if index == 0 { 0.0 } else { key.uniform_f64(client as u64) };
            let most = 1.0 - (1.0 - plan.least_steps) * less;
            let is_stale = !before.is_empty() && plan.arrivals.lies(plan.seed, client);
            Seat {
                client,
                index,
                weights: if is_stale { before.clone() } else { anchor.clone() },
                optimizer: Optimizer::new(&plan.optim, &slots),
                allowed: ((num_steps as f64 * most).ceil() as u64).clamp(1, num_steps),
                taken: 0,
                rates: 0.0,
                is_sound: true,
            }
        };
        *seats = here.map(seat).collect();
    }

    /// Every client that has steps left takes one; `microbatch` gives a micro-batch of one of the round's
    /// clients. Clients whose numbers are not finite stop, and their change will not count.
    pub fn step<'a>(
        &mut self,
        cpu: &Cpu,
        step: u64,
        lr: f64,
        microbatch: &dyn Fn(usize, usize) -> Microbatch<'a>,
    ) -> Result<LocalLoss, CommError> {
        let sampled = self.plan.sampled;
        let mut told = vec![0.0_f64; 3 * sampled];
        let mut seats = std::mem::take(&mut self.seats);
        for seat in seats.iter_mut().filter(|seat| seat.is_sound && seat.taken < seat.allowed) {
            let index = seat.index;
            let targets = std::cell::Cell::new(0);
            let microbatch = |number| {
                let microbatch = microbatch(index, number);
                targets.set(microbatch.num_targets);
                microbatch
            };
            let (loss, norm) = self.step_one(cpu, step, lr, seat, &microbatch)?;
            if seat.is_sound {
                let told = told.iter_mut().skip(index).step_by(sampled);
                told.zip([loss, targets.get() as f64, norm]).for_each(|(told, own)| *told = own);
            }
        }
        self.seats = seats;
        // Each number is told by one worker, so nothing is rounded.
        self.comm.all_reduce(&mut told, Reduction::Sum)?;
        let sum = |values: &[f64]| values.iter().fold(0.0, |sum, value| sum + value);
        let [losses, targets, norms] = [0, 1, 2].map(|kind| &told[kind * sampled..][..sampled]);
        let num = targets.iter().filter(|targets| **targets > 0.0).count();
        let norm = sum(norms) / num as f64;
        Ok(LocalLoss { sum: sum(losses), targets: sum(targets), norm })
    }

    fn step_one<'a>(
        &mut self,
        cpu: &Cpu,
        step: u64,
        lr: f64,
        seat: &mut Seat,
        microbatch: &dyn Fn(usize) -> Microbatch<'a>,
    ) -> Result<(f64, f64), CommError> {
        let solo = &mut self.solo;
        write(solo, &self.places, &seat.weights)?;
        let loss = solo.run_microbatches(cpu, self.plan.seed, step, microbatch)?;
        let sums = solo.finish_reduce(cpu)?;
        let sums = solo.unscale(cpu, sums);
        let start = &self.anchor;
        let own = self.controls.get(&seat.client);
        for slot in solo.slots() {
            let place = self.places[&slot.name].clone();
            let grads = &mut solo.store.own_grads_mut(slot.block)[slot.grads.clone()];
            match self.plan.correction {
                Correction::None => {}
                Correction::Prox { mu } => {
                    let way = seat.weights[place.clone()].iter().zip(&start[place]);
                    grads.iter_mut().zip(way).for_each(|(g, (now, then))| *g += mu * (now - then));
                }
                Correction::Scaffold => {
                    let own = &own.expect("a client that lives here")[place.clone()];
                    let way = self.control[place].iter().zip(own);
                    grads.iter_mut().zip(way).for_each(|(g, (all, own))| *g += all - own);
                }
            }
        }
        let clip = solo.clip(cpu, sums, &self.clip)?;
        if !loss.is_finite() || !clip.norm.is_finite() {
            seat.is_sound = false;
            return Ok((loss, clip.norm));
        }
        let update = Update { count: seat.taken + 1, lr, clip };
        solo.step(cpu, &mut seat.optimizer, &update)?;
        read(solo, &self.places, &mut seat.weights)?;
        seat.taken += 1;
        seat.rates += lr;
        Ok((loss, clip.norm))
    }

    /// Sends all changes, combines them, and gives `replica` the weights that come of it.
    pub fn end_round(
        &mut self,
        round: u64,
        num_rounds: impl Fn() -> u64,
        clients: &[usize],
        replica: &mut Replica,
    ) -> Result<Option<Aggregated>, CommError> {
        let mut sound = vec![0_u32; clients.len()];
        for seat in &self.seats {
            sound[seat.index] = u32::from(seat.is_sound);
        }
        self.comm.all_reduce(&mut sound, Reduction::Sum)?;
        let arrival = |index: usize| match sound[index] {
            0 => Arrival::Never,
            _ => self.plan.arrivals.of(self.plan.seed, round, clients[index]),
        };
        let arrivals: Vec<_> = (0..clients.len()).map(arrival).collect();
        let mut seats = std::mem::take(&mut self.seats);
        let new_controls = self.finish_controls(&seats);
        self.make_changes(round, &mut seats);
        let (mut outcome, mut change) = (None, vec![0.0; self.anchor.len()]);
        if self.plan.secure {
            outcome = self.gather_hidden(round, clients, &arrivals, &seats, &mut change)?;
        } else {
            let room = self.gather(clients, &arrivals, &seats)?;
            if self.comm.group_rank() == COORDINATOR {
                outcome = self.combine_all(round, clients, &arrivals, &room, &mut change);
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
        write(replica, &self.places, &self.anchor)?;
        Ok(outcome)
    }

    /// Turns the weights of every seat into its change, as it will be told.
    fn make_changes(&self, round: u64, seats: &mut [Seat]) {
        let plan = &self.plan;
        for seat in seats {
            let lies = plan.arrivals.lies(plan.seed, seat.client);
            let start = if lies && !self.before.is_empty() { &self.before } else { &self.anchor };
            seat.weights.iter_mut().zip(start).for_each(|(now, then)| *now -= then);
            if lies {
                let key = Key::new(plan.seed, "federated.lies").with(round);
                plan.arrivals.pretend(key.with(seat.client as u64), &mut seat.weights);
            } else if let Some(most) = plan.clip {
                // An honest client shortens its own; of a liar nobody can tell.
                let scale = scale_to(most, norm(&seat.weights)) as f32;
                if scale < 1.0 {
                    seat.weights.iter_mut().for_each(|x| *x *= scale);
                }
            }
        }
    }

    /// The changes of all clients that are heard of, at the coordinator, in their order.
    fn gather(
        &self,
        clients: &[usize],
        arrivals: &[Arrival],
        seats: &[Seat],
    ) -> Result<Vec<Vec<f32>>, CommError> {
        let own = |index: usize| seats.iter().find(|seat| seat.index == index);
        self.collect(clients, arrivals, 0, |index| own(index).map(|seat| &seat.weights[..]))
    }

    /// Moves one vector for every client that is heard of to the coordinator.
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

    /// Combines what is there in time, and what was late for rounds before.
    fn combine_all(
        &mut self,
        round: u64,
        clients: &[usize],
        arrivals: &[Arrival],
        room: &[Vec<f32>],
        change: &mut [f32],
    ) -> Option<Aggregated> {
        let heard = clients.iter().zip(arrivals).filter(|(_, at)| **at != Arrival::Never);
        let heard: Vec<_> = heard.zip(room).collect();
        let is_now = |at: Arrival| at == Arrival::After(0);
        for ((client, at), vector) in heard.iter().filter(|((_, at), _)| !is_now(**at)) {
            if let Arrival::After(late) = **at {
                self.shelf.put(round, late, **client, vector);
            }
        }
        let now = heard.iter().filter(|((_, at), _)| is_now(**at));
        let mut all: Vec<(usize, u64, &[f32])> =
            now.map(|((client, _), vector)| (**client, 0, &vector[..])).collect();
        all.extend(self.shelf.due(round));
        let found = combined(self.plan.combine, clients.len(), &all, change);
        self.shelf.clear(round);
        found
    }

    /// The mean of changes that nobody can see one by one.
    fn gather_hidden(
        &self,
        round: u64,
        clients: &[usize],
        arrivals: &[Arrival],
        seats: &[Seat],
        change: &mut [f32],
    ) -> Result<Option<Aggregated>, CommError> {
        let mut messages: Vec<Option<Vec<u64>>> = vec![None; clients.len()];
        for seat in seats {
            let fixed = seat.weights.iter().map(|x| masks::to_fixed(f64::from(*x)));
            let mut message: Vec<u64> = fixed.collect();
            masks::hide(self.plan.seed, round, seat.client, clients, &mut message);
            messages[seat.index] = Some(message);
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
        masks::forgive(self.plan.seed, round, &sent, &lost, &mut sum);
        for (change, sum) in change.iter_mut().zip(&sum) {
            *change = (masks::from_fixed(*sum) / sent.len() as f64) as f32;
        }
        // How far single changes are from the mean is what masks hide.
        Ok(Some(Aggregated {
            sampled: clients.len(),
            counted: sent.len(),
            late: 0,
            drift: f64::NAN,
            drift_max: (f64::NAN, 0),
            moved: squared_distance(change, &[]),
            epsilon: None,
        }))
    }

    /// Adds what hides whether a client took part.
    fn add_noise(&self, round: u64, num: usize, change: &mut [f32]) {
        let deviation = self.plan.noise * self.plan.clip.unwrap_or(0.0) / num.max(1) as f64;
        if deviation > 0.0 {
            let key = Key::new(self.plan.seed, "federated.noise").with(round);
            for (index, x) in (0..).zip(change) {
                *x += key.normal(index) * deviation as f32;
            }
        }
    }

    /// The control variates that this worker's clients end the round with, by the mean of the
    /// gradients that they have seen: cᵢ − c + (x − xᵢ)/(the sum of its learning rates).
    fn finish_controls(&self, seats: &[Seat]) -> Vec<(usize, usize, Vec<f32>)> {
        if self.controls.is_empty() {
            return Vec::new();
        }
        let new = |seat: &Seat| {
            let own = &self.controls[&seat.client];
            let per_rate = (1.0 / seat.rates.max(f64::MIN_POSITIVE)) as f32;
            let ends = self.anchor.iter().zip(&seat.weights);
            let controls = own.iter().zip(&self.control).zip(ends);
            let new = controls.map(|((own, all), (x, end))| own - all + (x - end) * per_rate);
            (seat.index, seat.client, new.collect())
        };
        seats.iter().filter(|seat| seat.is_sound && seat.taken > 0).map(new).collect()
    }

    /// Tells the coordinator how control variates changed, and everybody what they are on average.
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
            // A change that does not arrive leaves both sides as they were.
            if arrivals[index] == Arrival::Never {
                continue;
            }
            let own = self.controls.get_mut(&client).expect("it lives here");
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

/// What changes become, and how far they were from it; late ones count less.
fn combined(
    rule: crate::robust::Combine,
    sampled: usize,
    all: &[(usize, u64, &[f32])],
    change: &mut [f32],
) -> Option<Aggregated> {
    if all.is_empty() {
        return None;
    }
    let vectors: Vec<_> = all.iter().map(|(_, _, vector)| *vector).collect();
    let weights: Vec<_> = all.iter().map(|(_, late, _)| 1.0 / (1.0 + *late as f64)).collect();
    combine(rule, &vectors, &weights, change);
    let drifts: Vec<_> = vectors.iter().map(|vector| squared_distance(vector, change)).collect();
    let largest = drifts.iter().zip(all).max_by(|a, b| a.0.total_cmp(b.0));
    Some(Aggregated {
        sampled,
        counted: all.len(),
        late: all.iter().filter(|(_, late, _)| *late > 0).count(),
        drift: drifts.iter().sum::<f64>() / drifts.len() as f64,
        drift_max: largest.map_or((0.0, 0), |(drift, (client, _, _))| (*drift, *client)),
        moved: squared_distance(change, &[]),
        epsilon: None,
    })
}
