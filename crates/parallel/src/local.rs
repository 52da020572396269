//! Local SGD: workers take steps of their own and average their weights once a round.
//!
//! A round of K steps starts from weights that all workers share. Each steps by the gradients of
//! its own part of every batch, with its own optimizer, and nothing travels. At the end of the
//! round the *changes* since its start are averaged, weighted by the parts of the batch, so what
//! nobody changed stays as it is to the bit; a K-th of the bytes of an all-reduce in every step.
//! What becomes of the mean change is up to the outer optimizer: it is taken as it is, or its
//! negative is the gradient of Nesterov's method (DiLoCo, Douillard et al. 2023).
//!
//! How far workers went apart, the *drift* ‖xᵢ − x̄‖², is measured at the end of every round: the
//! price of a long one.
//!
//! With two levels (*hierarchical* local SGD) workers that are close to each other, such as those
//! of a host, average among themselves several times in a round: what is cheap is done often.
//!
//! A round of one step need not average anything: by the sum of all gradients all workers take the
//! same step, and for plain SGD that is the mean of their separate steps, without its rounding. So
//! K = 1 is the data-parallel run to the bit, whatever the optimizer.

mod streaming;

pub use streaming::params_of_fragment;

use crate::replica::Replica;
use lockstep_comm::{Comm, CommError, Reduction, Traffic};
use lockstep_mesh::Group;
use lockstep_optim::Optimizer;
use lockstep_tensor::{Cpu, nesterov};

/// The optimizer of rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OuterRule {
    /// The mean change is the change.
    Average,
    /// Nesterov's method.
    Nesterov {
        /// Learning rate.
        lr: f32,
        /// Momentum.
        momentum: f32,
    },
}

/// What a run asks of rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundPlan {
    /// What becomes of the mean change.
    pub rule: OuterRule,
    /// Whether the optimizer's state is averaged too.
    pub averages_state: bool,
    /// Consecutive workers that also average among themselves; 1 has no such groups.
    pub group: usize,
}

/// Workers that average, and what this one counts for among them: its part of their batch.
struct Circle {
    comm: Comm,
    weight: f32,
}

/// What a worker keeps for rounds.
pub struct Rounds {
    all: Circle,
    /// Those that are close.
    group: Option<Circle>,
    rule: OuterRule,
    /// Whether the optimizer's state is averaged too.
    averages_state: bool,
    /// The weights at the start of the round, by bucket.
    anchors: Vec<Vec<f32>>,
    /// The outer optimizer's momentum, by bucket; equal on all workers.
    velocity: Vec<Vec<f32>>,
    /// The mean change of a bucket on its way.
    room: Vec<f32>,
}

/// How far the workers were apart at the end of a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// The mean over workers of ‖xᵢ − x̄‖².
    pub mean: f64,
    /// The largest of them.
    pub max: f64,
    /// The worker that it is of.
    pub worker: usize,
    /// The square of the length of the mean change, ‖x̄ − x₀‖².
    pub moved: f64,
}

impl Replica {
    /// Gets ready to work in rounds; all workers do so together. Only where each of them holds the
    /// whole model.
    pub fn work_in_rounds(&mut self, plan: RoundPlan) -> Result<(), CommError> {
        assert!(self.plan.is_replicated(), "a worker that steps alone has all of the model");
        let RoundPlan { rule, averages_state, group } = plan;
        let (data, shares) = (self.groups.data(), &self.plan.shares);
        let (worker, num_workers) = (data.group_rank(), data.group_size());
        let each: Vec<_> = (0..num_workers).map(|worker| worker..worker + 1).collect();
        let circle = |comm: Comm, members: std::ops::Range<usize>| Circle {
            comm: comm.canonical(),
            weight: shares[worker] as f32 / shares[members].iter().sum::<usize>() as f32,
        };
        let group = match group {
            0 | 1 => None,
            size => {
                let members = |first: usize| first..(first + size).min(num_workers);
                let ranks = |first| members(first).map(|worker| data.ranks()[worker]);
                let partition = (0..num_workers).step_by(size);
                let partition: Vec<_> = partition.map(|n| Group::new(ranks(n).collect())).collect();
                let comm = data.split(&partition, "close")?;
                Some(circle(comm, members(worker / size * size)))
            }
        };
        let zeros = || self.all.list.iter().map(|bucket| vec![0.0; bucket.len]).collect();
        let velocity = match rule {
            OuterRule::Average => Vec::new(),
            OuterRule::Nesterov { .. } => zeros(),
        };
        self.rounds = Some(Rounds {
            all: circle(data.summing(&each, "rounds")?, 0..num_workers),
            group,
            rule,
            averages_state,
            anchors: zeros(),
            velocity,
            room: vec![0.0; self.all.max_len()],
        });
        Ok(())
    }

    /// Says whether the gradients of the next step are this worker's alone.
    pub fn step_alone(&mut self, is_alone: bool) {
        self.store.set_alone(is_alone);
    }

    /// The numbers of the micro-batches that this worker runs.
    pub fn own_microbatches(&self) -> &[usize] {
        self.losses.own_microbatches()
    }

    /// Whether something is so on all workers; all of them ask together.
    pub fn holds_everywhere(&mut self, holds: bool) -> Result<bool, CommError> {
        let mut fails = [u32::from(!holds)];
        self.store.overlap.call(|comm| comm.all_reduce(&mut fails, Reduction::Max))?;
        Ok(fails[0] == 0)
    }

    /// The part of a batch that is each worker's.
    pub fn parts(&self) -> impl Iterator<Item = f64> + use<'_> {
        let all = self.plan.shares.iter().sum::<usize>() as f64;
        self.plan.shares.iter().map(move |share| *share as f64 / all)
    }

    /// Takes note of the weights that all workers start the round from.
    pub fn begin_round(&mut self) {
        let Self { rounds: Some(rounds), store, .. } = self else { return };
        for (bucket, anchor) in rounds.anchors.iter_mut().enumerate() {
            anchor.copy_from_slice(store.own_params(bucket));
        }
    }

    /// Averages among workers that are close; all of them do so together, inside a round.
    pub fn meet_in_group(&mut self, optimizer: &mut Optimizer) -> Result<(), CommError> {
        let Self { rounds: Some(rounds), store, device, .. } = self else { return Ok(()) };
        let Rounds { group: Some(group), anchors, room, averages_state, .. } = rounds else {
            return Ok(());
        };
        for (bucket, anchor) in anchors.iter().enumerate().filter(|(_, anchor)| !anchor.is_empty())
        {
            let params = store.own_params_mut(bucket);
            let mean = &mut room[..params.len()];
            for ((mean, param), start) in mean.iter_mut().zip(&*params).zip(anchor) {
                *mean = (param - start) * group.weight;
            }
            group.comm.all_reduce(mean, Reduction::Sum)?;
            for ((param, start), mean) in params.iter_mut().zip(anchor).zip(&*mean) {
                *param = start + mean;
            }
        }
        if *averages_state {
            group.average_state(optimizer)?;
        }
        store.publish(&mut device.link)
    }

    /// Ends a round: all workers hold the same weights afterwards. Where they took steps of their
    /// own there is something to average, and `apart` is what this worker's change is multiplied
    /// by: more than 1 where it took fewer steps than others.
    pub fn end_round(
        &mut self,
        cpu: &Cpu,
        optimizer: &mut Optimizer,
        apart: Option<f32>,
    ) -> Result<Option<Drift>, CommError> {
        let Some(mut rounds) = self.rounds.take() else { return Ok(None) };
        if apart.is_none() && rounds.rule == OuterRule::Average {
            // The change is what it is; adding it to the start again would round it.
            self.rounds = Some(rounds);
            return Ok(None);
        }
        let drift = self.agree(cpu, &mut rounds, apart)?;
        if apart.is_some() && rounds.averages_state {
            rounds.all.average_state(optimizer)?;
        }
        self.rounds = Some(rounds);
        self.store.publish(&mut self.device.link)?;
        Ok(drift)
    }

    /// Replaces the weights by what the outer rule makes of all workers' changes.
    fn agree(
        &mut self,
        cpu: &Cpu,
        rounds: &mut Rounds,
        apart: Option<f32>,
    ) -> Result<Option<Drift>, CommError> {
        let (mut distance, mut moved) = (0.0, 0.0);
        for bucket in 0..rounds.anchors.len() {
            let params = self.store.own_params_mut(bucket);
            let anchor = &mut rounds.anchors[bucket][..];
            rounds.room.resize(rounds.room.len().max(params.len()), 0.0);
            let mean = &mut rounds.room[..params.len()];
            if params.is_empty() {
                continue;
            }
            // From here on `params` is this worker's change.
            params.iter_mut().zip(&*anchor).for_each(|(param, start)| *param -= start);
            mean.copy_from_slice(params);
            if let Some(factor) = apart {
                let weight = rounds.all.weight * factor;
                for change in &mut *mean {
                    *change *= weight;
                }
                rounds.all.comm.all_reduce(mean, Reduction::Sum)?;
                distance += squared_distance(params, mean);
                moved += squared_distance(mean, &[]);
            }
            match rounds.rule {
                OuterRule::Average => {
                    anchor.iter_mut().zip(&*mean).for_each(|(param, change)| *param += change);
                }
                OuterRule::Nesterov { lr, momentum } => {
                    for change in &mut *mean {
                        *change = -*change;
                    }
                    let velocity = &mut rounds.velocity[bucket];
                    nesterov::step(cpu, lr, momentum, 0.0, 1.0, anchor, mean, velocity);
                }
            }
            params.copy_from_slice(anchor);
        }
        if apart.is_none() {
            return Ok(None);
        }
        let mut all = vec![0.0; rounds.all.comm.group_size()];
        self.store.overlap.call(|comm| comm.all_gather(&[distance], &mut all))?;
        let by_size = all.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        let (worker, &max) = by_size.expect("at least one worker");
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        Ok(Some(Drift { mean, max, worker, moved }))
    }

    /// What rounds have weighed on this worker's wires.
    pub(crate) fn traffic_of_rounds(&self) -> Traffic {
        let circles = |rounds: &Rounds| {
            let circles = [Some(&rounds.all), rounds.group.as_ref()];
            let of = |circle: &Circle| circle.comm.counters().total().traffic;
            circles.into_iter().flatten().map(of).fold(Traffic::default(), both)
        };
        self.rounds.as_ref().map_or(Traffic::default(), circles)
    }

    /// Elements that are held for rounds: weights of their start with the mean change on its way,
    /// and the outer momentum.
    pub(crate) fn len_of_rounds(&self) -> [usize; 2] {
        let len = |buckets: &[Vec<f32>]| buckets.iter().map(Vec::len).sum::<usize>();
        let of = |rounds: &Rounds| {
            [len(&rounds.anchors) + rounds.room.capacity(), len(&rounds.velocity)]
        };
        self.rounds.as_ref().map_or([0, 0], of)
    }

    /// Gives the outer momentum of every parameter, where there is any, to save or to fill in: the
    /// same on all workers between rounds.
    pub fn visit_outer<E>(
        &mut self,
        mut visit: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { rounds: Some(rounds), blueprint, store, .. } = self else { return Ok(()) };
        if rounds.velocity.is_empty() {
            return Ok(());
        }
        for (block, param) in blueprint.params() {
            let (bucket, range) = store.buckets.place(block, param);
            visit(&param.name, &mut rounds.velocity[bucket][range])?;
        }
        Ok(())
    }
}

impl Circle {
    /// Replaces all optimizer state by its mean over the workers.
    fn average_state(&self, optimizer: &mut Optimizer) -> Result<(), CommError> {
        for slot in optimizer.slots().to_vec() {
            for kind in 0..optimizer.kinds().len() {
                let Some(state) = optimizer.state_mut(&slot.name, slot.piece, kind) else {
                    continue;
                };
                for value in &mut *state {
                    *value *= self.weight;
                }
                self.comm.all_reduce(state, Reduction::Sum)?;
            }
        }
        Ok(())
    }
}

/// What two groups have weighed on the wires.
pub(crate) fn both(one: Traffic, other: Traffic) -> Traffic {
    Traffic {
        messages: one.messages + other.messages,
        sent_bytes: one.sent_bytes + other.sent_bytes,
        received_bytes: one.received_bytes + other.received_bytes,
        read_bytes: one.read_bytes + other.read_bytes,
        written_bytes: one.written_bytes + other.written_bytes,
    }
}

/// ‖a − b‖², in `f64`, element after element; an empty `b` is zero.
pub(crate) fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    let of = |(index, &a): (usize, &f32)| {
        let difference = f64::from(a) - f64::from(b.get(index).copied().unwrap_or(0.0));
        difference * difference
    };
    a.iter().enumerate().map(of).fold(0.0, |sum, square| sum + square)
}
