//! Decentralized SGD by gossip (D-PSGD, Lian et al. 2017): every rank averages its weights with its
//! neighbors'.
//!
//! Each rank steps by the gradients of its own part of the batch, with its own optimizer, and then
//! replaces its weights by a weighted mean of its own and its neighbors' (adapt, then combine). A
//! rank sends its weights to its neighbors only, so a step costs degree × S bytes for any number of
//! ranks. On the complete graph the mean is global, and plain SGD equals data-parallel SGD but for
//! rounding.
//!
//! On sparse graphs weights differ between ranks; the mean of ‖xᵢ − x̄‖² is the *consensus
//! distance*. Mixing alone shrinks it by the square of the graph's [rate](Graph::rate) every step,
//! steps by different gradients widen it. Evaluation, checkpoints and the final model use the mean
//! x̄, the only global reduction.
//!
//! Sums are in `f64` in rank order and rounded once, so a consensus stays bit-identical, and
//! results depend only on the graph.
//!
//! - [`graph`]: mixing matrices
//! - [`mixer`]: the exchange with neighbors
//! - [`robust_mixing`]: the exchange with Byzantine neighbors
//! - [`push_sum`]: bias correction on directed graphs

pub mod graph;
pub mod mixer;
pub mod push_sum;
pub mod robust_mixing;
mod state;

use crate::byzantine::ByzantineWorker;
use crate::replica::Replica;
use crate::robust_aggregation::Aggregator;
use crate::u64_as_f32;
pub use graph::Graph;
use lockstep_comm::{CommError, Reduction, Traffic};
use mixer::Mixer;
use push_sum::PushSum;
use robust_mixing::RobustMixer;
pub use state::{ConsensusDistance, Gossip};

impl Replica {
    /// Enables gossip. Collective; requires that each rank holds the whole model.
    pub fn enable_gossip(&mut self, graph: Graph) -> Result<(), CommError> {
        assert!(self.plan.is_replicated(), "gossip requires a whole replica on each rank");
        let data = self.groups.data();
        assert_eq!(graph.num_workers(), data.group_size(), "one node per rank");
        let each: Vec<_> = (0..data.group_size()).map(|worker| worker..worker + 1).collect();
        let zeros = || self.all.list.iter().map(|bucket| vec![0.0; bucket.len]).collect();
        self.gossip = Some(Gossip {
            robust: None,
            push: graph.is_directed().then(|| PushSum::new(zeros())),
            own_weights: zeros(),
            is_mean_installed: false,
            buffer: vec![0.0; self.all.max_len()],
            rate: graph.rate(),
            found: None,
            comm: data.summing(&each, "mean")?.canonical(),
            mixer: Mixer::new(data.summing(&each, "gossip")?, graph),
        });
        Ok(())
    }

    /// Enables Byzantine-robust mixing by `rule`; `byzantine` makes this rank an attacker. Before
    /// the first step; only on undirected graphs.
    pub fn enable_robust_gossip(&mut self, rule: Aggregator, byzantine: Option<ByzantineWorker>) {
        let Self { gossip: Some(gossip), store, .. } = self else { return };
        assert!(gossip.push.is_none(), "robust mixing requires an undirected graph");
        let all = (0..gossip.own_weights.len()).flat_map(|bucket| store.own_params(bucket));
        let mut robust = RobustMixer::new(rule, byzantine);
        robust.begin(&all.copied().collect::<Vec<_>>());
        gossip.robust = Some(robust);
    }

    /// Averages with neighbors, after every rank has stepped.
    pub fn mix(&mut self, step: u64) -> Result<(), CommError> {
        let Self { gossip: Some(gossip), store, device, .. } = self else { return Ok(()) };
        if let Some(robust) = &mut gossip.robust {
            let buckets = 0..gossip.own_weights.len();
            let all = buckets.clone().flat_map(|bucket| store.own_params(bucket));
            let mut all: Vec<f32> = all.copied().collect();
            robust.mix(&mut gossip.mixer, step, &mut all)?;
            let mut rest = &all[..];
            for bucket in buckets {
                let params = store.own_params_mut(bucket);
                let (own, others) = rest.split_at(params.len());
                params.copy_from_slice(own);
                rest = others;
            }
        } else if let Some(push) = &mut gossip.push {
            for bucket in 0..gossip.own_weights.len() {
                push.follow(bucket, store.own_params(bucket));
                gossip.mixer.mix(step, &mut push.biased[bucket])?;
            }
            push.set_weight(gossip.mixer.mix_weight(step, push.weight)?);
            for bucket in 0..gossip.own_weights.len() {
                push.correct(bucket, store.own_params_mut(bucket));
            }
        } else {
            for bucket in 0..gossip.own_weights.len() {
                gossip.mixer.mix(step, store.own_params_mut(bucket))?;
            }
        }
        store.publish(&mut device.link)
    }

    /// Installs the mean of all ranks' weights, until [`Self::restore_own_weights`], and measures
    /// the consensus distance. Collective.
    pub fn install_mean_weights(&mut self) -> Result<(), CommError> {
        let Self { gossip: Some(gossip), store, device, .. } = self else { return Ok(()) };
        if std::mem::replace(&mut gossip.is_mean_installed, true) {
            return Ok(());
        }
        let (n, mut apart) = (gossip.comm.group_size(), 0.0);
        for (bucket, own) in gossip.own_weights.iter_mut().enumerate() {
            let params = store.own_params_mut(bucket);
            own.copy_from_slice(params);
            if params.is_empty() {
                continue;
            }
            // In f64, so that the mean of equal weights is exact.
            let sum = &mut gossip.buffer[..params.len()];
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
        gossip.found = Some(ConsensusDistance { mean, max, worker });
        Ok(())
    }

    /// Restores every rank's own weights.
    pub fn restore_own_weights(&mut self) -> Result<(), CommError> {
        let Self { gossip: Some(gossip), store, device, .. } = self else { return Ok(()) };
        if !std::mem::replace(&mut gossip.is_mean_installed, false) {
            return Ok(());
        }
        for (bucket, own) in gossip.own_weights.iter().enumerate() {
            store.own_params_mut(bucket).copy_from_slice(own);
        }
        store.publish(&mut device.link)
    }

    /// Resumes from the state that [`Self::visit_gossip`] has restored.
    pub fn resume_gossip(&mut self) -> Result<(), CommError> {
        if let Some(gossip) = &mut self.gossip {
            gossip.is_mean_installed = true;
            if let Some(robust) = &mut gossip.robust {
                robust.begin(&gossip.own_weights.concat());
            }
        }
        self.restore_own_weights()
    }

    /// Consensus distance when the mean was installed last.
    pub fn consensus(&self) -> Option<ConsensusDistance> {
        self.gossip.as_ref()?.found
    }

    /// Rate at which disagreement shrinks per step, with gossip.
    pub fn gossip_rate(&self) -> Option<f64> {
        Some(self.gossip.as_ref()?.rate)
    }

    /// Visits this rank's gossip state, to save or to restore it: its own weights and, on directed
    /// graphs, its biased weights and push-sum weight. Only while the mean is installed.
    pub fn visit_gossip<E>(
        &mut self,
        mut visit: impl FnMut(&str, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Self { gossip: Some(gossip), blueprint, store, .. } = self else { return Ok(()) };
        for (block, param) in blueprint.params() {
            let (bucket, range) = store.buckets.place(block, param);
            visit(&format!("{}.own", param.name), &mut gossip.own_weights[bucket][range.clone()])?;
            if let Some(push) = &mut gossip.push {
                visit(&format!("{}.pushed", param.name), &mut push.biased[bucket][range])?;
            }
        }
        let Some(push) = &mut gossip.push else { return Ok(()) };
        let mut weight = u64_as_f32::encode(push.weight.to_bits());
        visit("gossip.weight", &mut weight)?;
        push.set_weight(f64::from_bits(u64_as_f32::decode(weight)));
        Ok(())
    }

    /// Bytes that this rank sent for gossip; the global mean is not included.
    pub(crate) fn gossip_traffic(&self) -> Traffic {
        self.gossip.as_ref().map_or(Traffic::default(), |gossip| gossip.mixer.traffic())
    }

    /// Number of elements held.
    pub(crate) fn gossip_len(&self) -> usize {
        let len = |buckets: &[Vec<f32>]| buckets.iter().map(Vec::len).sum::<usize>();
        let of = |gossip: &Gossip| {
            let push = gossip.push.as_ref().map_or(0, |push| len(&push.biased));
            let push = push + gossip.robust.as_ref().map_or(0, RobustMixer::num_elements);
            len(&gossip.own_weights) + push + 2 * gossip.buffer.len() + gossip.mixer.num_elements()
        };
        self.gossip.as_ref().map_or(0, of)
    }
}
