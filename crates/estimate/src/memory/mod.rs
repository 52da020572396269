//! What the fullest device of a layout holds, by part.
//!
//! # Layout
//! - [`activations`]: what a layer keeps of a microbatch for backward
//!
//! States follow from counts of parameters; activations from what each kernel keeps for backward
//! and from how many microbatches are alive in the pipeline; the peak is where the last layer
//! begins its backward pass, with the logits or a weight's gradient in full beside everything
//! kept.

pub mod activations;

use crate::calibration::Calibration;
use crate::layout::{Job, Recompute};
use crate::time::zero_ways;
use lockstep_schedule::pipeline::Kind;

/// Bytes of one device.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Memory {
    /// The pipeline's device that holds most.
    pub stage: u64,
    /// Weights that layers compute with.
    pub weights: f64,
    /// Their gradients.
    pub gradients: f64,
    /// Master copies and moments.
    pub optimizer: f64,
    /// What is kept between forward and backward.
    pub activations: f64,
    /// Logits and their gradient, or a weight's gradient before it is added up.
    pub peak: f64,
    /// Gathered rows and weights, messages between stages.
    pub buffers: f64,
}

/// Bytes of a 16-bit weight.
const WEIGHT: f64 = 2.0;
/// A 32-bit master copy and two moments.
const OPTIMIZER: f64 = 12.0;
/// Allocators round, and leave holes: reserved over allocated, the mean of published runs.
const FRAGMENTATION: f64 = 1.048;
/// Bytes of buckets for each parameter.
const BUCKETS: f64 = 1.2;
/// Bytes of a logit: 16-bit, 32-bit, and the gradient of the latter.
const LOGIT: f64 = 9.5;

impl Memory {
    /// Everything that is allocated.
    pub fn total(&self) -> f64 {
        self.weights + self.gradients + self.optimizer + self.activations + self.peak + self.buffers
    }

    /// What the device must have for it: holes and libraries besides.
    pub fn needed(&self, calibration: &Calibration) -> f64 {
        self.total() * FRAGMENTATION + calibration.reserve_gb * f64::from(1_u32 << 30)
    }
}

/// Microbatches, in units of all its stages, of which a device keeps activations.
pub fn live_microbatches(job: &Job<'_>, device: u64) -> f64 {
    let (p, m) = (job.layout.pipeline as f64, job.num_microbatches() as f64);
    let behind = p - device as f64;
    let most = match job.layout.schedule {
        Kind::GPipe => m,
        Kind::Interleaved if job.layout.pipeline > 1 => {
            let v = job.layout.chunks as f64;
            ((v - 1.0) * p + 2.0 * (behind - 1.0) + 1.0) / v
        }
        Kind::ZeroBubble => behind,
        Kind::ZeroBubbleTwice => 2.0 * behind - 1.0,
        Kind::Chimera => p,
        Kind::OneFOneB | Kind::Interleaved | Kind::PipeDream => behind,
    };
    most.min(m)
}

/// The fullest device: the first keeps most microbatches, the last has the logits, and those behind
/// the first may have more layers, or layers with experts where the first have none.
pub fn fullest(job: &Job<'_>) -> Memory {
    let last = job.layout.pipeline - 1;
    let per_device = job.model.layers.div_ceil(job.layout.pipeline);
    let routed = job.model.dense_layers().div_ceil(per_device).min(last);
    let devices = [0, 1.min(last), routed, last.saturating_sub(1), last];
    devices
        .into_iter()
        .map(|device| of_device(job, device))
        .max_by(|a, b| a.total().total_cmp(&b.total()))
        .unwrap_or_default()
}

/// Parameters of a pipeline's device by kind: those that all copies hold, and its experts.
fn params(job: &Job<'_>, device: u64) -> (f64, f64, u64, u64) {
    let (model, layout) = (job.model, &job.layout);
    let (before, layers) = job.layers_of(layout.pipeline, device);
    let dense = model.dense_layers().saturating_sub(before).min(layers);
    let routed = layers - dense;
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
    (shared as f64 / t, experts / t, dense, routed)
}

fn of_device(job: &Job<'_>, device: u64) -> Memory {
    let layout = &job.layout;
    let (shared, experts, dense, routed) = params(job, device);
    let ways = zero_ways(job);
    let expert_ways = (ways / layout.expert as f64).max(1.0);
    // In a pipeline weights stay once they are fetched, and gradients are added up in full.
    let zero = if layout.pipeline > 1 { layout.zero.min(1) } else { layout.zero };
    let divided = |stage: u8| {
        if zero >= stage { shared / ways + experts / expert_ways } else { shared + experts }
    };
    let live = live_microbatches(job, device);
    let kept =
        dense as f64 * activations::kept(job, false) + routed as f64 * activations::kept(job, true);
    let largest =
        if routed > 0 { activations::whole(job, true) } else { activations::whole(job, false) };
    // One layer at a time is there in full while it is computed again.
    let again = if layout.recompute == Recompute::Full { largest } else { 0.0 };
    Memory {
        stage: device,
        weights: WEIGHT * divided(3),
        gradients: job.habits.gradient_bytes as f64 * divided(2),
        optimizer: OPTIMIZER * divided(1),
        activations: live * kept + again + embedded(job, device, live),
        peak: peak(job, device),
        buffers: buffers(job, shared),
    }
}

/// What the embedding's dropout keeps.
fn embedded(job: &Job<'_>, device: u64, live: f64) -> f64 {
    let rows = if job.layout.sequence { job.layout.tensor as f64 } else { 1.0 };
    let mask = if job.model.dropout && device == 0 { 1.0 } else { 0.0 };
    live * mask * job.tokens() * job.model.width as f64 / rows
}

/// Logits on the last device; elsewhere and there, if it is more, the gradient of the largest
/// matrix in the precision of products and of sums, where these differ.
fn peak(job: &Job<'_>, device: u64) -> f64 {
    let (model, layout) = (job.model, &job.layout);
    let t = layout.tensor as f64;
    let is_last = device + 1 == layout.pipeline;
    let logits = if is_last { LOGIT * job.tokens() * model.vocab as f64 / t } else { 0.0 };
    let sums = job.habits.gradient_bytes as f64;
    let inner = if model.experts.is_some() { 0 } else { model.ffn };
    let matrix = (model.ffn_inputs() * model.width * inner) as f64 / t;
    let gradient = if sums > WEIGHT { (WEIGHT + sums) * matrix } else { 0.0 };
    logits.max(gradient)
}

/// Rows gathered for a product, weights gathered by ZeRO, and what is on its way between stages.
fn buffers(job: &Job<'_>, shared: f64) -> f64 {
    let (model, layout) = (job.model, &job.layout);
    let row = 2.0 * job.tokens() * model.width as f64;
    let gathered = if job.habits.eager && layout.pipeline == 1 { 40.0 } else { 3.0 };
    let rows = if layout.sequence && layout.tensor > 1 { gathered * row } else { row };
    let layers = model.layers.div_ceil(layout.pipeline).max(1) as f64;
    // Two layers are on their way or in use, and their gradients.
    // Gradients that leave beside backward are copied into buckets.
    let buckets = if layout.data > 1 && job.habits.overlap && layout.zero < 3 {
        BUCKETS * shared
    } else {
        0.0
    };
    let fetched = if layout.zero == 3 { 4.0 * WEIGHT * shared / layers } else { 0.0 };
    rows + buckets + fetched
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::named;
    use crate::layout::{Habits, Layout};
    use crate::model::{Model, preset};

    fn total_gib(model: &Model, layout: Layout, batch: u64) -> f64 {
        let cluster = named(&format!("{}xb200-180gb", layout.devices())).expect("a cluster");
        // No gradient leaves beside backward in these runs.
        let habits = Habits { overlap: false, ..Habits::MODERN };
        let job = Job { model, cluster: &cluster, layout, batch, habits };
        fullest(&job).total() / f64::from(1_u32 << 30)
    }

    #[test]
    fn states_are_those_of_the_zero_paper() {
        // Table 1: 7.5B parameters on 64 devices take 31.4, 16.6 and 1.88 GB.
        let model = Model::gpt("7.5B", 36, 4096, 32, 51_200, 2048);
        let cluster = named("64xa100-80gb").expect("a cluster");
        let habits = Habits { gradient_bytes: 2, ..Habits::MODERN };
        let scale = 7.5e9 / model.num_params() as f64;
        for (zero, gigabytes) in [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.88)] {
            let layout = Layout { data: 64, zero, ..Layout::ONE };
            let job = Job { model: &model, cluster: &cluster, layout, batch: 64, habits };
            let memory = fullest(&job);
            let states = (memory.weights + memory.gradients + memory.optimizer) * scale / 1e9;
            assert!((states / gigabytes - 1.0).abs() < 0.01, "{zero}: {states}");
        }
    }

    #[test]
    fn the_lectures_figures_of_weights_and_states_hold() {
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
}
