//! Local SGD (Stich 2019) and DiLoCo (Douillard et al. 2023): ranks step locally and average their
//! weights once a round.
//!
//! A round of K steps starts from weights that all ranks share. Each rank steps by the gradients of
//! its own part of every batch, with its own optimizer and without communication. At the end of the
//! round the weight *changes* are averaged, weighted by the ranks' parts of the batch; averaging
//! changes instead of weights keeps unchanged weights bit-identical. Bytes sent per step are 1/K of
//! an all-reduce in every step. The outer optimizer either applies the mean change directly or uses
//! its negative as the gradient of Nesterov momentum (DiLoCo).
//!
//! The replica *drift* ‖xᵢ − x̄‖² is measured at the end of every round.
//!
//! With two levels (*hierarchical* local SGD, Lin et al. 2020) ranks of a group, such as those of a
//! host, also average among themselves several times a round over their fast links.
//!
//! A round of one step averages nothing: with all-reduced gradients all ranks take the same step,
//! which for plain SGD is the mean of their separate steps without its rounding. So K = 1 is the
//! data-parallel run, bit for bit, with any optimizer.

mod state;
mod streaming;

pub use state::{Drift, LocalSgd, LocalSgdPlan, OuterOptimizer};
pub use streaming::params_of_fragment;

use crate::distance::squared_distance;
use crate::replica::Replica;
use crate::traffic::add_traffic;
use lockstep_comm::{Comm, CommError, Reduction, Traffic};
use lockstep_mesh::Group;
use lockstep_optim::Optimizer;
use lockstep_tensor::{Cpu, nesterov};
use state::AveragingGroup;

impl Replica {
    /// Enables local SGD. Collective; requires that each rank holds the whole model.
    pub fn enable_local_sgd(&mut self, plan: LocalSgdPlan) -> Result<(), CommError> {
        assert!(self.plan.is_replicated(), "local SGD requires a whole replica on each rank");
        let LocalSgdPlan { rule, averages_state, group } = plan;
        let (data, shares) = (self.groups.data(), &self.plan.shares);
        let (worker, num_workers) = (data.group_rank(), data.group_size());
        let each: Vec<_> = (0..num_workers).map(|worker| worker..worker + 1).collect();
        let averaging_group = |comm: Comm, workers_of: std::ops::Range<usize>| AveragingGroup {
            comm: comm.canonical(),
            weight: shares[worker] as f32 / shares[workers_of].iter().sum::<usize>() as f32,
        };
        let group = match group {
            0 | 1 => None,
            size => {
                let workers_of = |first: usize| first..(first + size).min(num_workers);
                let ranks = |first| workers_of(first).map(|worker| data.ranks()[worker]);
                let partition = (0..num_workers).step_by(size);
                let partition: Vec<_> = partition.map(|n| Group::new(ranks(n).collect())).collect();
                let comm = data.split(&partition, "group")?;
                Some(averaging_group(comm, workers_of(worker / size * size)))
            }
        };
        let zeros = || self.all.list.iter().map(|bucket| vec![0.0; bucket.len]).collect();
        let velocity = match rule {
            OuterOptimizer::Average => Vec::new(),
            OuterOptimizer::Nesterov { .. } => zeros(),
        };
        self.local_sgd = Some(LocalSgd {
            all: averaging_group(data.summing(&each, "rounds")?, 0..num_workers),
            group,
            rule,
            averages_state,
            anchors: zeros(),
            velocity,
            buffer: vec![0.0; self.all.max_len()],
        });
        Ok(())
    }

    /// Sets whether the gradients of the next step stay on this rank.
    pub fn set_local_step(&mut self, is_alone: bool) {
        self.store.set_alone(is_alone);
    }

    /// Numbers of the micro-batches that this rank runs.
    pub fn own_microbatches(&self) -> &[usize] {
        self.losses.own_microbatches()
    }

    /// Whether a condition holds on all ranks. Collective.
    pub fn holds_on_all_ranks(&mut self, holds: bool) -> Result<bool, CommError> {
        let mut fails = [u32::from(!holds)];
        self.store.overlap.call(|comm| comm.all_reduce(&mut fails, Reduction::Max))?;
        Ok(fails[0] == 0)
    }

    /// Fraction of the batch of each rank.
    pub fn batch_fractions(&self) -> impl Iterator<Item = f64> + use<'_> {
        let all = self.plan.shares.iter().sum::<usize>() as f64;
        self.plan.shares.iter().map(move |share| *share as f64 / all)
    }

    /// Saves the weights that all ranks start the round from.
    pub fn begin_round(&mut self) {
        let Self { local_sgd: Some(local_sgd), store, .. } = self else { return };
        for (bucket, anchor) in local_sgd.anchors.iter_mut().enumerate() {
            anchor.copy_from_slice(store.own_params(bucket));
        }
    }

    /// Averages weights within the group, inside a round. Collective over the group.
    pub fn average_in_group(&mut self, optimizer: &mut Optimizer) -> Result<(), CommError> {
        let Self { local_sgd: Some(local_sgd), store, device, .. } = self else { return Ok(()) };
        let LocalSgd { group: Some(group), anchors, buffer, averages_state, .. } = local_sgd else {
            return Ok(());
        };
        for (bucket, anchor) in anchors.iter().enumerate().filter(|(_, anchor)| !anchor.is_empty())
        {
            let params = store.own_params_mut(bucket);
            let mean = &mut buffer[..params.len()];
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

    /// Ends a round: all ranks hold the same weights afterwards. `change_scale` is `Some` if the
    /// ranks stepped locally; it multiplies this rank's change, by more than 1 where the rank took
    /// fewer steps than others.
    pub fn end_round(
        &mut self,
        cpu: &Cpu,
        optimizer: &mut Optimizer,
        change_scale: Option<f32>,
    ) -> Result<Option<Drift>, CommError> {
        let Some(mut local_sgd) = self.local_sgd.take() else { return Ok(None) };
        if change_scale.is_none() && local_sgd.rule == OuterOptimizer::Average {
            // Adding the change to the anchor again would round it.
            self.local_sgd = Some(local_sgd);
            return Ok(None);
        }
        let drift = self.apply_outer_step(cpu, &mut local_sgd, change_scale)?;
        if change_scale.is_some() && local_sgd.averages_state {
            local_sgd.all.average_state(optimizer)?;
        }
        self.local_sgd = Some(local_sgd);
        self.store.publish(&mut self.device.link)?;
        Ok(drift)
    }

    /// Replaces the weights by the outer optimizer's step on all ranks' changes.
    fn apply_outer_step(
        &mut self,
        cpu: &Cpu,
        local_sgd: &mut LocalSgd,
        change_scale: Option<f32>,
    ) -> Result<Option<Drift>, CommError> {
        let (mut distance, mut moved) = (0.0, 0.0);
        for bucket in 0..local_sgd.anchors.len() {
            let params = self.store.own_params_mut(bucket);
            let anchor = &mut local_sgd.anchors[bucket][..];
            local_sgd.buffer.resize(local_sgd.buffer.len().max(params.len()), 0.0);
            let mean = &mut local_sgd.buffer[..params.len()];
            if params.is_empty() {
                continue;
            }
            // From here on `params` holds this rank's change.
            params.iter_mut().zip(&*anchor).for_each(|(param, start)| *param -= start);
            mean.copy_from_slice(params);
            if let Some(factor) = change_scale {
                let weight = local_sgd.all.weight * factor;
                for change in &mut *mean {
                    *change *= weight;
                }
                local_sgd.all.comm.all_reduce(mean, Reduction::Sum)?;
                distance += squared_distance(params, mean);
                moved += squared_distance(mean, &[]);
            }
            match local_sgd.rule {
                OuterOptimizer::Average => {
                    anchor.iter_mut().zip(&*mean).for_each(|(param, change)| *param += change);
                }
                OuterOptimizer::Nesterov { lr, momentum } => {
                    for change in &mut *mean {
                        *change = -*change;
                    }
                    let velocity = &mut local_sgd.velocity[bucket];
                    nesterov::step(cpu, lr, momentum, 0.0, 1.0, anchor, mean, velocity);
                }
            }
            params.copy_from_slice(anchor);
        }
        if change_scale.is_none() {
            return Ok(None);
        }
        let mut all = vec![0.0; local_sgd.all.comm.group_size()];
        self.store.overlap.call(|comm| comm.all_gather(&[distance], &mut all))?;
        let by_size = all.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        let (worker, &max) = by_size.expect("at least one worker");
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        Ok(Some(Drift { mean, max, worker, moved }))
    }

    /// Bytes that this rank sent for averaging.
    pub(crate) fn local_sgd_traffic(&self) -> Traffic {
        let groups = |local_sgd: &LocalSgd| {
            let groups = [Some(&local_sgd.all), local_sgd.group.as_ref()];
            let of =
                |averaging_group: &AveragingGroup| averaging_group.comm.counters().total().traffic;
            groups.into_iter().flatten().map(of).fold(Traffic::default(), add_traffic)
        };
        self.local_sgd.as_ref().map_or(Traffic::default(), groups)
    }

    /// Numbers of elements held: anchors with the mean change in flight, and the outer momentum.
    pub(crate) fn local_sgd_len(&self) -> [usize; 2] {
        let len = |buckets: &[Vec<f32>]| buckets.iter().map(Vec::len).sum::<usize>();
        let of = |local_sgd: &LocalSgd| {
            [len(&local_sgd.anchors) + local_sgd.buffer.capacity(), len(&local_sgd.velocity)]
        };
        self.local_sgd.as_ref().map_or([0, 0], of)
    }

    /// Visits the outer momentum of every parameter, to save or to restore it; equal on all ranks
    /// between rounds.
    pub fn visit_outer_momentum<E>(
        &mut self,
        mut visit: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { local_sgd: Some(local_sgd), blueprint, store, .. } = self else { return Ok(()) };
        if local_sgd.velocity.is_empty() {
            return Ok(());
        }
        for (block, param) in blueprint.params() {
            let (bucket, range) = store.buckets.place(block, param);
            visit(&param.name, &mut local_sgd.velocity[bucket][range])?;
        }
        Ok(())
    }
}
