//! Gossip: every worker averages its weights with its neighbours', and there is no centre.
//!
//! Each worker steps by the gradients of its own part of the batch, with its own optimizer, and
//! then replaces its weights by a weighted mean of its neighbours' and its own (Lian et al. 2017,
//! in the order adapt, then combine). A worker sends its weights to its neighbours and to nobody
//! else, so a step costs degree × S bytes however many workers there are. On the complete graph
//! that mean is everybody's, and plain SGD is data-parallel SGD but for rounding.
//!
//! On sparse graphs weights differ from worker to worker; how much, the mean of
//! ‖xᵢ − x̄‖², is the *consensus distance*. Averaging alone shrinks it by the square of
//! the graph's [rate](Graph::rate) in every step, steps by different gradients widen it. What is
//! judged, saved and handed on at the end is the mean x̄; only for that is anything summed over
//! all.
//!
//! Sums are in `f64` in the order of workers and rounded once, so what all agree on stays as it is
//! to the bit, and bits depend on nothing but the graph.
//!
//! - [`graph`]: who averages with whom
//! - [`mixer`]: the exchange with neighbours
//! - [`guarded`]: the same where some of them may lie
//! - [`push`]: what is corrected where edges go one way

pub mod graph;
pub mod guarded;
pub mod mixer;
pub mod push;

use crate::liars::Liar;
use crate::replica::Replica;
use crate::robust::Combine;
use crate::words;
pub use graph::Graph;
use guarded::Guard;
use lockstep_comm::{Comm, CommError, Reduction, Traffic};
use mixer::Mixer;
use push::PushSum;

/// What a worker keeps for gossip.
pub struct Gossip {
    mixer: Mixer,
    /// For what concerns all: the mean that is judged.
    comm: Comm,
    push: Option<PushSum>,
    /// What is done about lies, where there may be any.
    guard: Option<Guard>,
    /// This worker's own weights, by bucket, while the mean stands in their place.
    aside: Vec<Vec<f32>>,
    is_mean_in: bool,
    /// The sum of a bucket on its way.
    room: Vec<f64>,
    rate: f64,
    found: Option<Consensus>,
}

/// How far workers are apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Consensus {
    /// The mean over workers of ‖xᵢ − x̄‖².
    pub mean: f64,
    /// The largest of them.
    pub max: f64,
    /// The worker that it is of.
    pub worker: usize,
}

impl Replica {
    /// Gets ready to gossip; all workers do so together. Only where each of them holds the whole
    /// model.
    pub fn gossip(&mut self, graph: Graph) -> Result<(), CommError> {
        assert!(self.plan.is_replicated(), "a worker that gossips has all of the model");
        let data = self.groups.data();
        assert_eq!(graph.num_workers(), data.group_size(), "a place for every worker");
        let each: Vec<_> = (0..data.group_size()).map(|worker| worker..worker + 1).collect();
        let zeros = || self.all.list.iter().map(|bucket| vec![0.0; bucket.len]).collect();
        self.gossip = Some(Gossip {
            guard: None,
            push: graph.is_directed().then(|| PushSum::new(zeros())),
            aside: zeros(),
            is_mean_in: false,
            room: vec![0.0; self.all.max_len()],
            rate: graph.rate(),
            found: None,
            comm: data.summing(&each, "mean")?.canonical(),
            mixer: Mixer::new(data.summing(&each, "gossip")?, graph),
        });
        Ok(())
    }

    /// Combines with neighbours by a rule that bears lies, and tells some where `liar` says so.
    /// Before the first step; only where edges go both ways.
    pub fn guard_gossip(&mut self, rule: Combine, liar: Option<Liar>) {
        let Self { gossip: Some(gossip), store, .. } = self else { return };
        assert!(gossip.push.is_none(), "what goes one way comes with a correction");
        let all = (0..gossip.aside.len()).flat_map(|bucket| store.own_params(bucket));
        let mut guard = Guard::new(rule, liar);
        guard.begin(&all.copied().collect::<Vec<_>>());
        gossip.guard = Some(guard);
    }

    /// Averages with neighbours, after every worker has taken its step.
    pub fn mix(&mut self, step: u64) -> Result<(), CommError> {
        let Self { gossip: Some(gossip), store, device, .. } = self else { return Ok(()) };
        if let Some(guard) = &mut gossip.guard {
            let buckets = 0..gossip.aside.len();
            let all = buckets.clone().flat_map(|bucket| store.own_params(bucket));
            let mut all: Vec<f32> = all.copied().collect();
            guard.mix(&mut gossip.mixer, step, &mut all)?;
            let mut rest = &all[..];
            for bucket in buckets {
                let params = store.own_params_mut(bucket);
                let (own, others) = rest.split_at(params.len());
                params.copy_from_slice(own);
                rest = others;
            }
        } else if let Some(push) = &mut gossip.push {
            for bucket in 0..gossip.aside.len() {
                push.follow(bucket, store.own_params(bucket));
                gossip.mixer.mix(step, &mut push.biased[bucket])?;
            }
            push.set_weight(gossip.mixer.mix_weight(step, push.weight)?);
            for bucket in 0..gossip.aside.len() {
                push.correct(bucket, store.own_params_mut(bucket));
            }
        } else {
            for bucket in 0..gossip.aside.len() {
                gossip.mixer.mix(step, store.own_params_mut(bucket))?;
            }
        }
        store.publish(&mut device.link)
    }

    /// Puts the mean of all workers' weights in the place of this one's, until
    /// [`Self::hide_mean`], and notes how far they were apart. All workers do so together.
    pub fn show_mean(&mut self) -> Result<(), CommError> {
        let Self { gossip: Some(gossip), store, device, .. } = self else { return Ok(()) };
        if std::mem::replace(&mut gossip.is_mean_in, true) {
            return Ok(());
        }
        let (n, mut apart) = (gossip.comm.group_size(), 0.0);
        for (bucket, own) in gossip.aside.iter_mut().enumerate() {
            let params = store.own_params_mut(bucket);
            own.copy_from_slice(params);
            if params.is_empty() {
                continue;
            }
            // In f64, so that the mean of equal weights is what they are.
            let sum = &mut gossip.room[..params.len()];
            sum.iter_mut().zip(&*params).for_each(|(sum, param)| *sum = f64::from(*param));
            gossip.comm.all_reduce(sum, Reduction::Sum)?;
            params.iter_mut().zip(&*sum).for_each(|(mean, sum)| *mean = (*sum / n as f64) as f32);
            let square = |(own, mean): (&f32, &f32)| {
                let difference = f64::from(*own) - f64::from(*mean);
                difference * difference
            };
            apart += own.iter().zip(&*params).map(square).fold(0.0, |sum, square| sum + square);
        }
        store.publish(&mut device.link)?;
        let mut all = vec![0.0; n];
        gossip.comm.all_gather(&[apart], &mut all)?;
        let (worker, &max) =
            all.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("at least one worker");
        let mean = all.iter().sum::<f64>() / n as f64;
        gossip.found = Some(Consensus { mean, max, worker });
        Ok(())
    }

    /// Gives every worker its own weights back.
    pub fn hide_mean(&mut self) -> Result<(), CommError> {
        let Self { gossip: Some(gossip), store, device, .. } = self else { return Ok(()) };
        if !std::mem::replace(&mut gossip.is_mean_in, false) {
            return Ok(());
        }
        for (bucket, own) in gossip.aside.iter().enumerate() {
            store.own_params_mut(bucket).copy_from_slice(own);
        }
        store.publish(&mut device.link)
    }

    /// Goes on with what [`Self::visit_gossip`] has filled in.
    pub fn resume_gossip(&mut self) -> Result<(), CommError> {
        if let Some(gossip) = &mut self.gossip {
            gossip.is_mean_in = true;
            if let Some(guard) = &mut gossip.guard {
                guard.begin(&gossip.aside.concat());
            }
        }
        self.hide_mean()
    }

    /// How far workers were apart when the mean was shown last.
    pub fn consensus(&self) -> Option<Consensus> {
        self.gossip.as_ref()?.found
    }

    /// By what disagreement shrinks in a step, where workers gossip.
    pub fn gossip_rate(&self) -> Option<f64> {
        Some(self.gossip.as_ref()?.rate)
    }

    /// Gives what this worker keeps of every bucket, to save or to fill in: its own weights, what
    /// they are before the correction, and the correction. Only while the mean is shown.
    pub fn visit_gossip<E>(
        &mut self,
        mut visit: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { gossip: Some(gossip), blueprint, store, .. } = self else { return Ok(()) };
        for (block, param) in blueprint.params() {
            let (bucket, range) = store.buckets.place(block, param);
            visit(&format!("{}.own", param.name), &mut gossip.aside[bucket][range.clone()])?;
            if let Some(push) = &mut gossip.push {
                visit(&format!("{}.pushed", param.name), &mut push.biased[bucket][range])?;
            }
        }
        let Some(push) = &mut gossip.push else { return Ok(()) };
        let mut weight = words::of(push.weight.to_bits());
        visit("gossip.weight", &mut weight)?;
        push.set_weight(f64::from_bits(words::bits(weight)));
        Ok(())
    }

    /// What gossip has weighed on this worker's wires; the mean that is judged is no part of it.
    pub(crate) fn traffic_of_gossip(&self) -> Traffic {
        self.gossip.as_ref().map_or(Traffic::default(), |gossip| gossip.mixer.traffic())
    }

    /// Elements that are held for gossip.
    pub(crate) fn len_of_gossip(&self) -> usize {
        let len = |buckets: &[Vec<f32>]| buckets.iter().map(Vec::len).sum::<usize>();
        let of = |gossip: &Gossip| {
            let push = gossip.push.as_ref().map_or(0, |push| len(&push.biased));
            let push = push + gossip.guard.as_ref().map_or(0, Guard::num_elements);
            len(&gossip.aside) + push + 2 * gossip.room.len() + gossip.mixer.num_elements()
        };
        self.gossip.as_ref().map_or(0, of)
    }
}
