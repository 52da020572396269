//! Memory of the fullest device of a layout, by part.
//!
//! Model states follow from parameter counts, activations from the tensors that each kernel saves
//! and from the number of live micro-batches in the pipeline. The peak is at the start of the last
//! layer's backward pass, with the logits or a full weight gradient beside all saved activations.

use super::activations;
use super::zero::PerParameter;
use crate::calibration::Calibration;
use crate::hardware::Cluster;
use crate::job::{Job, Workload};
use crate::layout::{OffloadTier, OffloadedStates};
use crate::pipeline::live_microbatches;
use lockstep_config::Recompute;
use lockstep_schedule::pipeline::{Kind, Shape};

/// Memory of one device in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StageMemory {
    /// Index of the pipeline stage.
    pub stage: u64,
    /// Weights in compute precision, in every version that the schedule keeps.
    pub weights: f64,
    /// Gradients.
    pub gradients: f64,
    /// Master weights and Adam moments.
    pub optimizer: f64,
    /// Activations saved for backward.
    pub activations: f64,
    /// Logits and their gradient, or a weight gradient before accumulation.
    pub peak: f64,
    /// Gathered activations and weights, messages between stages.
    pub buffers: f64,
    /// Activations that the host allocated ahead of the device; released when memory is short.
    pub run_ahead: f64,
    /// Offloaded model states in host memory.
    pub host: f64,
    /// Offloaded model states on NVMe drives.
    pub nvme: f64,
}

/// Bytes of a 16-bit weight.
const WEIGHT: f64 = PerParameter::MIXED_ADAM.weight as f64;
/// Bytes per parameter of a 32-bit master weight and two moments.
const OPTIMIZER: f64 = PerParameter::MIXED_ADAM.optimizer as f64;
/// Fragmentation: reserved over allocated memory, mean of published runs.
const FRAGMENTATION: f64 = 1.048;
/// Activations (in rows of a micro-batch) that the host allocates ahead of the device when kernels
/// are launched one by one. A device queue holds about a thousand kernels, of which this many
/// gather activations. With a single micro-batch the host waits at the end of every step and runs
/// less far ahead; so it does in a pipeline, where it waits for neighbouring stages, and not at all
/// where a step ends before the queue is full.
const RUN_AHEAD: f64 = 55.0;
const RUN_AHEAD_SINGLE: f64 = 35.0;
const RUN_AHEAD_PIPELINE: f64 = 45.0;
/// Layer passes that fill the queue.
const QUEUE_PASSES: u64 = 38;

impl StageMemory {
    /// Allocated memory.
    pub fn total(&self) -> f64 {
        self.weights + self.gradients + self.optimizer + self.activations + self.peak + self.buffers
    }

    /// Memory reserved by the allocator, fragmentation included. The host runs ahead only if there
    /// is room: an allocator that runs out waits for the device and frees its cache.
    pub fn reserved(&self, capacity: f64) -> f64 {
        let needed = self.total() * FRAGMENTATION;
        if needed + self.run_ahead <= 0.9 * capacity { needed + self.run_ahead } else { needed }
    }

    /// Required device memory: allocated, fragmentation, and library overhead.
    pub fn needed(&self, calibration: &Calibration) -> f64 {
        self.total() * FRAGMENTATION + calibration.library_bytes()
    }

    /// Whether the devices and the hosts of the workload have this memory, with the reserve free.
    pub fn fits(&self, workload: &Workload<'_>) -> bool {
        let job = &workload.job;
        let needed = self.needed(workload.calibration) + job.framework.extra_bytes as f64;
        needed <= workload.usable_bytes()
            && self.host_of_node(job.cluster) <= job.cluster.host_memory_bytes()
    }

    /// Offloaded states of all devices of a node in its host's memory.
    pub fn host_of_node(&self, cluster: &Cluster) -> f64 {
        self.host * cluster.per_node.min(cluster.devices) as f64
    }
}

/// Memory of the fullest stage. Of stages with equal layers the first keeps the most micro-batches,
/// so only that one is counted; the first stage also has the embedding, and the last the logits.
pub fn largest_stage(job: &Job<'_>) -> StageMemory {
    let last = job.layout.pipeline - 1;
    let (mut most, mut counted) = (of_stage(job, 0), Vec::new());
    for device in 0..=last {
        let layers_here = layers(job, device);
        if device == last || !counted.contains(&layers_here) {
            counted.push(layers_here);
            let memory = if device == 0 { most } else { of_stage(job, device) };
            if memory.total() > most.total() {
                most = memory;
            }
        }
    }
    most
}

/// Dense and mixture-of-experts layers of a stage.
fn layers(job: &Job<'_>, device: u64) -> (u64, u64) {
    let (before, layers) = job.layers_of(job.layout.pipeline, device);
    let dense = job.model.dense_layers().saturating_sub(before).min(layers);
    (dense, layers - dense)
}

/// Parameters of a stage: those that all data-parallel ranks hold, and its experts.
pub(crate) fn params(job: &Job<'_>, device: u64) -> (f64, f64) {
    let (model, layout) = (job.model, &job.layout);
    let (dense, routed) = layers(job, device);
    let mut shared =
        dense * model.dense_layer_params() + routed * model.expert_layer_shared_params();
    if device == 0 {
        shared += model.embedding_params();
    }
    if device + 1 == layout.pipeline {
        shared += model.head_params();
        if model.tied && device > 0 {
            shared += model.vocab * model.width;
        }
    }
    let t = layout.tensor as f64;
    let experts = routed as f64 * model.experts_params() as f64 / layout.expert as f64;
    (shared as f64 / t, experts / t)
}

/// Memory of a device of a pipeline stage.
pub fn of_stage(job: &Job<'_>, device: u64) -> StageMemory {
    let layout = &job.layout;
    let (shared, experts) = params(job, device);
    let (dense, routed) = layers(job, device);
    let shards = job.zero_shards();
    let expert_shards = (shards / layout.expert as f64).max(1.0);
    let zero = job.sharded_stage();
    let divided = |stage: u8| {
        if zero >= stage { shared / shards + experts / expert_shards } else { shared + experts }
    };
    let shape = Shape {
        num_devices: layout.pipeline as usize,
        num_chunks: layout.chunks as usize,
        num_microbatches: job.num_microbatches() as usize,
    };
    let live = live_microbatches(layout.schedule, shape, device as usize);
    let kept = dense as f64 * activations::saved_bytes(job, false)
        + routed as f64 * activations::saved_bytes(job, true);
    let largest = if routed > 0 {
        activations::full_bytes(job, true)
    } else {
        activations::full_bytes(job, false)
    };
    // One layer at a time has all its activations while it is recomputed.
    let recomputes_layers = matches!(layout.recompute, Recompute::Full | Recompute::Every(_))
        || (layout.recompute == Recompute::Selective && job.framework.saves_alternate_matmuls);
    let recomputed = if recomputes_layers { largest } else { 0.0 };
    let weight = if job.framework.casts_gathered_weights && zero == 3 { 0.0 } else { WEIGHT };
    let training = live * kept + recomputed + embedded(job, device, live);
    let at_peak = peak(job, device);
    // PipeDream runs a micro-batch backward with the weights of its forward pass.
    let versions = if layout.schedule == Kind::PipeDream { live.max(1.0) } else { 1.0 };
    let all = [
        (OffloadedStates::Weights, weight * divided(3) * versions),
        (OffloadedStates::Gradients, job.framework.gradient_bytes as f64 * divided(2)),
        (OffloadedStates::Optimizer, OPTIMIZER * divided(1)),
    ];
    let is_away = |(states, _): &&(OffloadedStates, f64)| layout.offload.has(*states);
    let away = all.iter().filter(is_away).map(|(_, bytes)| bytes).sum::<f64>();
    let [weights, gradients, optimizer] =
        all.map(|state| if is_away(&&state) { 0.0 } else { state.1 });
    // Activations are freed before the optimizer step.
    let is_updated_here = !layout.offload.is_on();
    let update = if is_updated_here { job.framework.update_bytes as f64 } else { 0.0 };
    let (host, nvme) = match layout.offload.tier {
        OffloadTier::Host => (away, 0.0),
        OffloadTier::Nvme => (0.0, away),
    };
    StageMemory {
        stage: device,
        weights,
        gradients,
        optimizer,
        activations: training,
        peak: at_peak.max(update * divided(1) - training),
        buffers: buffers(job, shared, device) + messages(job, device),
        run_ahead: run_ahead(job),
        host,
        nvme,
    }
}

/// Dropout mask of the embedding.
fn embedded(job: &Job<'_>, device: u64, live: f64) -> f64 {
    let rows = if job.layout.sequence { job.layout.tensor as f64 } else { 1.0 };
    let mask = if job.model.dropout && device == 0 { 1.0 } else { 0.0 };
    live * mask * job.tokens() * job.model.width as f64 / rows
}

/// Transient memory: logits, the gradient of the head, or the output of the first matmul in a
/// layer's backward pass.
fn peak(job: &Job<'_>, device: u64) -> f64 {
    let (model, layout) = (job.model, &job.layout);
    let (t, tokens) = (layout.tensor as f64, job.tokens());
    let is_last = device + 1 == layout.pipeline;
    // Offloaded gradients accumulate on the host, so that the device has them in 16 bits only.
    let is_summed_here = !layout.offload.has(OffloadedStates::Gradients);
    let sums = if is_summed_here { job.framework.gradient_bytes as f64 } else { WEIGHT };
    let (mut logits, mut head) = (0.0, 0.0);
    if is_last {
        logits = job.framework.logit_bytes as f64 * tokens * model.vocab as f64 / t;
        // Where gradients accumulate in a wider type, one exists in both precisions.
        let widened = if sums > WEIGHT && layout.zero < 3 { WEIGHT + sums } else { 0.0 };
        head = widened * (model.vocab * model.width) as f64 / t;
    }
    let inner = if model.experts.is_some() { 0 } else { model.ffn };
    let matrix = (model.ffn_inputs() * model.width * inner) as f64;
    let given = tokens * (8.0 * inner as f64 + 8.0 * model.width as f64);
    let layer = if sums > WEIGHT { (WEIGHT * matrix + given) / t } else { 0.0 };
    logits.max(head).max(layer)
}

/// Activations gathered for a matmul, weights gathered by ZeRO, and messages between stages.
fn buffers(job: &Job<'_>, shared: f64, device: u64) -> f64 {
    let (model, layout) = (job.model, &job.layout);
    let row = 2.0 * job.tokens() * model.width as f64;
    let is_gathered = layout.sequence && layout.tensor > 1;
    let rows = match () {
        () if !is_gathered => row,
        // Full activations sent to or received from neighbouring stages.
        () if layout.pipeline > 1 && job.framework.eager => 6.0 * row,
        () => 3.0 * row,
    };
    let layers = model.layers.div_ceil(layout.pipeline).max(1) as f64;
    let buckets = if layout.data > 1 && layout.zero < 3 {
        job.framework.bucket_buffer_bytes as f64 * shared
    } else {
        0.0
    };
    let mut tables = if device == 0 { model.embedding_params() } else { 0 };
    if device + 1 == layout.pipeline {
        tables += model.head_params();
    }
    let tables = tables as f64 / layout.tensor as f64;
    let layer = WEIGHT * (shared - tables).max(0.0) / layers;
    let fetched = match layout.offload.states {
        // Two layers are in transfer or in use, with their gradients; embedding tables stay for the
        // step.
        OffloadedStates::Weights => WEIGHT * tables + 4.0 * layer,
        _ if job.sharded_stage() == 3 => WEIGHT * tables + 4.0 * layer,
        // Gradients leave for the host as soon as a layer has them.
        OffloadedStates::Gradients => layer,
        OffloadedStates::Nothing | OffloadedStates::Optimizer => 0.0,
    };
    rows + buckets + fetched
}

/// Messages between stages, kept for every micro-batch: activations and gradients received, and
/// outputs sent or logits.
fn messages(job: &Job<'_>, device: u64) -> f64 {
    let (layout, model) = (&job.layout, job.model);
    if !job.framework.keeps_stage_messages || layout.pipeline == 1 {
        return 0.0;
    }
    let t = layout.tensor as f64;
    let row = model.width as f64 / if layout.sequence { t } else { 1.0 };
    let chunks = layout.chunks as f64;
    let ends = [device == 0, device + 1 == layout.pipeline];
    let received = 2.0 * chunks - ends.iter().filter(|end| **end).count() as f64;
    let logits = model.vocab as f64 / t;
    let given = if ends[1] { (chunks - 1.0) * row + logits } else { chunks * row };
    2.0 * job.num_microbatches() as f64 * job.tokens() * (received * row + given)
}

/// Activations that the host allocates ahead of the device.
fn run_ahead(job: &Job<'_>) -> f64 {
    let layout = &job.layout;
    let row = 2.0 * job.tokens() * job.model.width as f64;
    let runs_ahead = job.framework.eager && layout.sequence && layout.tensor > 1;
    let microbatches = job.num_microbatches();
    let passes = microbatches * job.layers_of(layout.pipeline, 0).1;
    let rows = match layout.pipeline {
        _ if !runs_ahead => 0.0,
        1 if microbatches > 1 => RUN_AHEAD,
        1 => RUN_AHEAD_SINGLE,
        _ if passes > QUEUE_PASSES => RUN_AHEAD_PIPELINE,
        _ => 0.0,
    };
    rows * row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Framework;
    use crate::hardware::named;
    use crate::layout::Layout;
    use crate::model::{Model, preset};
    use crate::scenario::Scenario;

    fn total_gib(model: &Model, layout: Layout, batch: u64) -> f64 {
        let cluster = named(&format!("{}xb200-180gb", layout.devices())).expect("a cluster");
        // No overlapped gradient exchange in these runs.
        let framework = Framework { overlap: false, ..Framework::MODERN };
        let job = Job { model, cluster: &cluster, layout, batch, framework };
        largest_stage(&job).total() / f64::from(1_u32 << 30)
    }

    #[test]
    fn states_are_those_of_the_zero_paper() {
        // ZeRO (Rajbhandari et al. 2020), Table 1: 7.5B parameters on 64 GPUs take 31.4, 16.6 and
        // 1.88 GB.
        let model = Model::gpt("7.5B", 36, 4096, 32, 51_200, 2048);
        let cluster = named("64xa100-80gb").expect("a cluster");
        let framework = Framework { gradient_bytes: 2, ..Framework::MODERN };
        let scale = 7.5e9 / model.num_params() as f64;
        for (zero, gigabytes) in [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.88)] {
            let layout = Layout { data: 64, zero, ..Layout::ONE };
            let job = Job { model: &model, cluster: &cluster, layout, batch: 64, framework };
            let memory = largest_stage(&job);
            let states = (memory.weights + memory.gradients + memory.optimizer) * scale / 1e9;
            assert!((states / gigabytes - 1.0).abs() < 0.01, "{zero}: {states}");
        }
    }

    #[test]
    fn weights_take_2_bytes_and_adam_training_16_per_parameter() {
        // 350 GB and 2.8 TB of 175B, 130 GB and 1.04 TB of 65B, 15 and 120 GB of 7.5B.
        for (params, weights, states) in
            [(175e9, 350e9, 2.8e12), (65e9, 130e9, 1.04e12), (7.5e9, 15e9, 120e9)]
        {
            assert!((WEIGHT * params - weights).abs() < 1.0);
            assert!(((WEIGHT + 2.0 + OPTIMIZER) * params - states).abs() < 1.0);
        }
        // 64,000 tokens of 5,120 numbers of 32 bits are 1,250 MiB; 700 GB 128 times are 89.6 TB.
        assert_eq!(64_000 * 5_120 * 4, 1_250 * 1_048_576_u64);
        assert_eq!(700 * 128, 89_600);
    }

    #[test]
    fn published_peaks_on_b200_are_met_within_a_percent() {
        // SimuMax's measured maxima of a Llama 3 70B cut to 12 layers, GiB.
        let model = Model { layers: 12, context: 4096, ..preset("llama3-70b").expect("it is one") };
        for (tensor, data, gib) in [(2, 4, 60.68), (4, 2, 39.07), (8, 1, 28.29)] {
            let layout = Layout { tensor, data, sequence: true, zero: 1, ..Layout::ONE };
            let said = total_gib(&model, layout, 4 * data);
            assert!((said / gib - 1.0).abs() < 0.01, "t{tensor}: {said} for {gib}");
        }
    }

    #[test]
    fn llama_3_405b_fits_in_its_published_layout_with_sharded_gradients_only() {
        // Llama 3 (2024, arXiv:2407.21783, section 3.3.2 and Table 4): 16,384 H100, TP8 PP16 DP128,
        // 16 sequences of 8,192 tokens per replica, 32-bit gradients; FSDP shards optimizer states
        // and gradients and keeps the weights; no activation is recomputed.
        let scenario = Scenario::of("llama3-405b", "16384xh100-80gb", 2048);
        let fits = |zero: u8, schedule: Kind, chunks: u64| {
            let layout = Layout {
                tensor: 8,
                sequence: true,
                pipeline: 16,
                data: 128,
                zero,
                schedule,
                chunks,
                ..Layout::ONE
            };
            let workload = scenario.workload().with(layout);
            assert!(workload.job.problems().is_empty(), "{:?}", workload.job.problems());
            let workload = Workload { reserve: 0.0, ..workload };
            largest_stage(&workload.job).fits(&workload)
        };
        assert!(fits(2, Kind::OneFOneB, 1));
        assert!(fits(2, Kind::Interleaved, 4), "as published");
        assert!(!fits(1, Kind::OneFOneB, 1), "whole 32-bit gradients leave no room");
    }

    #[test]
    fn pipedream_keeps_a_version_of_its_weights_for_every_micro_batch_in_flight() {
        let scenario = Scenario::of("gpt3-6.7b", "8xa100-80gb", 16);
        let weights = |schedule: Kind, device: u64| {
            let layout = Layout { pipeline: 4, data: 2, schedule, ..Layout::ONE };
            of_stage(&scenario.workload().with(layout).job, device).weights
        };
        for device in 0..4 {
            let versions = weights(Kind::PipeDream, device) / weights(Kind::OneFOneB, device);
            assert!((versions - (4 - device) as f64).abs() < 1e-9, "{device}: {versions}");
        }
    }

    #[test]
    fn no_device_of_a_pipeline_holds_more_than_the_largest_stage() {
        for (model, layout, batch) in [
            // Ten stages of 96 layers: some have ten.
            ("gpt3-175b", Layout { tensor: 8, pipeline: 10, sequence: true, ..Layout::ONE }, 4),
            // Three layers without experts lie in the first two of 32 stages.
            (
                "deepseek-v3",
                Layout { tensor: 2, pipeline: 32, data: 32, expert: 4, zero: 1, ..Layout::ONE },
                928,
            ),
        ] {
            let scenario = Scenario::of(model, &format!("{}xh100-80gb", layout.devices()), batch);
            let job = scenario.workload().with(layout).job;
            let all = (0..layout.pipeline).map(|device| of_stage(&job, device).total());
            let most = all.max_by(f64::total_cmp).expect("it has devices");
            assert!((largest_stage(&job).total() - most).abs() < 1.0, "{model}");
        }
    }
}
