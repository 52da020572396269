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

use crate::from_recipe;
use crate::measurements::{ConsensusDistance, Topology};
use crate::step_program::{ELEMENT, StepBuilder, StepKind, StepTasks};
use crate::strategy::{StateLayout, Strategy, StrategyContext, StrategyPlan, StrategyStart};
use crate::u64_as_f32;
pub use graph::Graph;
use lockstep_comm::{Comm, CommError, Counters, Reduction};
use lockstep_config::Recipe;
use lockstep_mesh::Axis;
use lockstep_schedule::step::{Contents, Message, MessageKind, Queue, TaskOp};
use lockstep_tensor::Cpu;
use mixer::Mixer;
use push_sum::PushSum;
use robust_mixing::RobustMixer;
use std::collections::BTreeMap;

const LINK: Queue = Queue::Link(Axis::Data);

/// Numbers of a push-sum weight, which is an `f64`.
const PUSH_SUM_LEN: u64 = 2;

/// Gossip of a run.
pub struct GossipPlan {
    recipe: Recipe,
    graph: Graph,
}

impl GossipPlan {
    /// Gossip of a recipe.
    pub fn new(recipe: &Recipe) -> Self {
        Self { recipe: recipe.clone(), graph: from_recipe::graph_from_recipe(recipe) }
    }

    /// Neighbors to which a rank sends in a turn of the graph, and those from which it receives.
    fn neighbors(&self, turn: u64, rank: usize) -> [Vec<usize>; 2] {
        let graph = &self.graph;
        let others = || (0..graph.num_workers()).filter(move |other| *other != rank);
        [
            others().filter(|to| graph.has_edge(turn, rank, *to)).collect(),
            others().filter(|from| graph.has_edge(turn, *from, rank)).collect(),
        ]
    }

    /// Adds the exchange of some buckets with the neighbors, and their mixing.
    fn mix(&self, step: &mut StepBuilder<'_>, turn: u64, buckets: &[(usize, usize)]) {
        let [to, from] = self.neighbors(turn, step.rank());
        let bucket = buckets[0].0 as u32;
        let len: usize = buckets.iter().map(|(_, len)| len).sum();
        let params: Vec<_> = buckets.iter().map(|(bucket, _)| step.params_of(*bucket)).collect();
        let message = |peer: usize| Message {
            kind: MessageKind::Weights { bucket },
            peer: peer as u32,
            len: len as u64,
            element: ELEMENT.0 as u32,
        };
        for &peer in &to {
            let mut task = step.task(TaskOp::Send(message(peer)), LINK);
            for params in &params {
                task = task.reads(*params);
            }
        }
        let mut received = Vec::new();
        for &peer in &from {
            let buffer = step.buffer(Contents::Received { peer: peer as u32, bucket }, len);
            step.task(TaskOp::Recv(message(peer)), LINK).writes(buffer);
            received.push(buffer);
        }
        let biased = self.graph.is_directed().then(|| step.buffer(Contents::Biased, 0));
        let mut task = step.task(TaskOp::Mix { bucket }, Queue::Compute);
        for params in params {
            task = task.updates(params);
        }
        for buffer in received {
            task = task.takes(buffer);
        }
        if let Some(biased) = biased {
            let _ = task.adds(biased);
        }
    }

    /// Adds the exchange of push-sum weights and the division by them.
    fn debias(&self, step: &mut StepBuilder<'_>, turn: u64) {
        let [to, from] = self.neighbors(turn, step.rank());
        let message = |peer: usize| Message {
            kind: MessageKind::PushSumWeight,
            peer: peer as u32,
            len: PUSH_SUM_LEN,
            element: ELEMENT.0 as u32,
        };
        let weight = step.persistent(Contents::PushSumWeight, 1);
        for &peer in &to {
            step.task(TaskOp::Send(message(peer)), LINK).reads(weight);
        }
        for &peer in &from {
            step.task(TaskOp::Recv(message(peer)), LINK).updates(weight);
        }
        let biased = step.buffer(Contents::Biased, 0);
        let params: Vec<_> =
            step.full_buckets().into_iter().map(|(bucket, _)| step.params_of(bucket)).collect();
        let mut task = step.task(TaskOp::Debias, Queue::Compute).reads(weight).takes(biased);
        for params in params {
            task = task.updates(params);
        }
    }
}

impl StepTasks for GossipPlan {
    fn add_after_update(&self, kind: &StepKind, step: &mut StepBuilder<'_>) {
        let (turn, buckets) = (kind.due[0], step.full_buckets());
        if self.recipe.sync.has_byzantine_settings() {
            // Robust rules need all buckets of a neighbor at once.
            return self.mix(step, turn, &buckets);
        }
        buckets.chunks(1).for_each(|bucket| self.mix(step, turn, bucket));
        if self.graph.is_directed() {
            self.debias(step, turn);
        }
    }
}

impl StrategyPlan for GossipPlan {
    fn kind_at(&self, step: u64) -> StepKind {
        StepKind { due: vec![step % self.graph.period() as u64], ..StepKind::local() }
    }

    fn step_counts(&self, steps: u64) -> BTreeMap<StepKind, u64> {
        let turns = self.graph.period() as u64;
        let count = |turn: u64| (self.kind_at(turn), (steps - turn).div_ceil(turns));
        (0..turns.min(steps)).map(count).collect()
    }

    /// All turns need the same memory.
    fn union(&self, _steps: u64) -> StepKind {
        self.kind_at(0)
    }

    fn start(&self, at: &StrategyStart<'_>) -> Result<Option<Box<dyn Strategy>>, CommError> {
        let (data, graph) = (at.groups.data(), self.graph.clone());
        assert_eq!(graph.num_workers(), data.group_size(), "one node per rank");
        let each: Vec<_> = (0..data.group_size()).map(|worker| worker..worker + 1).collect();
        let buckets = &at.buckets.list;
        let zeros = || buckets.iter().map(|bucket| vec![0.0; bucket.len]).collect();
        let robust = self.recipe.sync.has_byzantine_settings().then(|| {
            assert!(!graph.is_directed(), "robust mixing requires an undirected graph");
            let attack = from_recipe::attack_of(&self.recipe, at.groups.rank());
            let mut robust = RobustMixer::new(from_recipe::aggregation_rule(&self.recipe), attack);
            let all = (0..buckets.len()).flat_map(|bucket| at.store.own_params(bucket));
            robust.begin(&all.copied().collect::<Vec<_>>());
            robust
        });
        Ok(Some(Box::new(Gossip {
            robust,
            push: graph.is_directed().then(|| PushSum::new(zeros())),
            own_weights: zeros(),
            is_mean_installed: false,
            buffer: vec![0.0; at.buckets.max_len()],
            found: None,
            topology: Topology {
                name: self.recipe.sync.gossip.graph.name().to_owned(),
                max_degree: graph.max_degree(),
                spectral_gap: 1.0 - graph.rate(),
            },
            comm: data.summing(&each, "mean")?.canonical(),
            mixer: Mixer::new(data.summing(&each, "gossip")?, graph),
        })))
    }
}

/// Gossip state of a rank.
struct Gossip {
    mixer: Mixer,
    /// Communicator of the global mean.
    comm: Comm,
    push: Option<PushSum>,
    /// Byzantine-robust mixing, if enabled.
    robust: Option<RobustMixer>,
    /// This rank's own weights, by bucket, while the mean is installed.
    own_weights: Vec<Vec<f32>>,
    is_mean_installed: bool,
    /// Sum of a bucket in flight.
    buffer: Vec<f64>,
    found: Option<ConsensusDistance>,
    topology: Topology,
}

impl Gossip {
    /// Averages a bucket, or all of them at once, with the neighbors.
    fn mix(&mut self, bucket: usize, at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        let (step, store) = (at.step, &mut *at.store);
        if let Some(push) = &mut self.push {
            push.follow(bucket, store.own_params(bucket));
            return self.mixer.mix(step, &mut push.biased[bucket]);
        }
        let Some(robust) = &mut self.robust else {
            return self.mixer.mix(step, store.own_params_mut(bucket));
        };
        let buckets = 0..self.own_weights.len();
        let all = buckets.clone().flat_map(|bucket| store.own_params(bucket));
        let mut all: Vec<f32> = all.copied().collect();
        robust.mix(&mut self.mixer, step, &mut all)?;
        let mut rest = &all[..];
        for bucket in buckets {
            let params = store.own_params_mut(bucket);
            let (own, others) = rest.split_at(params.len());
            params.copy_from_slice(own);
            rest = others;
        }
        Ok(())
    }

    /// Mixes the push-sum weight and divides by it.
    fn debias(&mut self, at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        let Some(push) = &mut self.push else { return Ok(()) };
        push.set_weight(self.mixer.mix_weight(at.step, push.weight)?);
        for bucket in 0..self.own_weights.len() {
            push.correct(bucket, at.store.own_params_mut(bucket));
        }
        Ok(())
    }
}

impl Strategy for Gossip {
    fn run(
        &mut self,
        _cpu: &Cpu,
        op: TaskOp,
        at: &mut StrategyContext<'_>,
    ) -> Result<(), CommError> {
        match op {
            // Messages leave in pieces while a bucket is mixed, so that buffers stay short.
            TaskOp::Send(_) | TaskOp::Recv(_) => Ok(()),
            TaskOp::Mix { bucket } => self.mix(bucket as usize, at),
            TaskOp::Debias => self.debias(at),
            op => unreachable!("gossip has no task {op}"),
        }
    }

    fn install_mean(&mut self, at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        if std::mem::replace(&mut self.is_mean_installed, true) {
            return Ok(());
        }
        let (n, mut apart) = (self.comm.group_size(), 0.0);
        for (bucket, own) in self.own_weights.iter_mut().enumerate() {
            let params = at.store.own_params_mut(bucket);
            own.copy_from_slice(params);
            if params.is_empty() {
                continue;
            }
            // In f64, so that the mean of equal weights is exact.
            let sum = &mut self.buffer[..params.len()];
            sum.iter_mut().zip(&*params).for_each(|(sum, param)| *sum = f64::from(*param));
            self.comm.all_reduce(sum, Reduction::Sum)?;
            params.iter_mut().zip(&*sum).for_each(|(mean, sum)| *mean = (*sum / n as f64) as f32);
            let square = |(own, mean): (&f32, &f32)| {
                let difference = f64::from(*own) - f64::from(*mean);
                difference * difference
            };
            apart += own.iter().zip(&*params).map(square).fold(0.0, |sum, square| sum + square);
        }
        let mut all = vec![0.0; n];
        self.comm.all_gather(&[apart], &mut all)?;
        let (worker, &max) =
            all.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).expect("at least one worker");
        let mean = all.iter().sum::<f64>() / n as f64;
        self.found = Some(ConsensusDistance { mean, max, worker });
        Ok(())
    }

    fn restore_own(&mut self, at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        if std::mem::replace(&mut self.is_mean_installed, false) {
            for (bucket, own) in self.own_weights.iter().enumerate() {
                at.store.own_params_mut(bucket).copy_from_slice(own);
            }
        }
        Ok(())
    }

    fn resume(&mut self, _num_steps: u64, at: &mut StrategyContext<'_>) -> Result<(), CommError> {
        self.is_mean_installed = true;
        if let Some(robust) = &mut self.robust {
            robust.begin(&self.own_weights.concat());
        }
        self.restore_own(at)
    }

    /// This rank's own weights and, on directed graphs, its biased weights and push-sum weight;
    /// only while the mean is installed.
    fn visit(
        &mut self,
        at: &StateLayout<'_>,
        visit: &mut dyn FnMut(&str, bool, &mut [f32]) -> bool,
    ) {
        for (block, param) in at.blueprint.params() {
            let (bucket, range) = at.buckets.place(block, param);
            let own = &mut self.own_weights[bucket][range.clone()];
            if !visit(&format!("{}.own", param.name), true, own) {
                return;
            }
            let Some(push) = &mut self.push else { continue };
            if !visit(&format!("{}.pushed", param.name), true, &mut push.biased[bucket][range]) {
                return;
            }
        }
        let Some(push) = &mut self.push else { return };
        let mut weight = u64_as_f32::encode(push.weight.to_bits());
        if visit("gossip.weight", true, &mut weight) {
            push.set_weight(f64::from_bits(u64_as_f32::decode(weight)));
        }
    }

    /// Without the global mean.
    fn counters(&self) -> Counters {
        self.mixer.counters()
    }

    fn num_elements(&self) -> [usize; 2] {
        let len = |buckets: &[Vec<f32>]| buckets.iter().map(Vec::len).sum::<usize>();
        let push = self.push.as_ref().map_or(0, |push| len(&push.biased));
        let push = push + self.robust.as_ref().map_or(0, RobustMixer::num_elements);
        let own = len(&self.own_weights) + push;
        [0, own + 2 * self.buffer.len() + self.mixer.num_elements()]
    }

    fn consensus(&self) -> Option<ConsensusDistance> {
        self.found
    }

    fn topology(&self) -> Option<Topology> {
        Some(self.topology.clone())
    }
}
