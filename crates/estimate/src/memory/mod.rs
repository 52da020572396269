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
use crate::layout::{Job, Recompute, Reported};
use crate::time::{hosts_get_ahead, zero_ways};
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
    /// Rows that the host has asked for ahead of the device; given back when memory is short.
    pub ahead: f64,
}

/// Bytes of a 16-bit weight.
const WEIGHT: f64 = 2.0;
/// A 32-bit master copy and two moments.
const OPTIMIZER: f64 = 12.0;
/// Allocators round, and leave holes: reserved over allocated, the mean of published runs.
const FRAGMENTATION: f64 = 1.048;
/// Rows of a microbatch that hosts ask for ahead of a device, where kernels are started one by one:
/// a device's queue takes about a thousand kernels, of which that many gather rows. With one
/// microbatch the host waits at the end of every step, and gets less far ahead; so it does in a
/// pipeline, where it waits for its neighbours, and not at all where a step is over before the
/// queue is full.
const AHEAD: f64 = 55.0;
const AHEAD_OF_ONE: f64 = 35.0;
const AHEAD_IN_PIPELINE: f64 = 45.0;
/// Passes of a layer that fill a queue.
const FILLS_QUEUE: u64 = 38;

impl Memory {
    /// Everything that is allocated.
    pub fn total(&self) -> f64 {
        self.weights + self.gradients + self.optimizer + self.activations + self.peak + self.buffers
    }

    /// What the allocator has taken, with holes. Hosts are ahead only where there is room for it:
    /// an allocator that runs out waits for the device and begins anew.
    pub fn reserved(&self, capacity: f64) -> f64 {
        let needed = self.total() * FRAGMENTATION;
        if needed + self.ahead <= 0.9 * capacity { needed + self.ahead } else { needed }
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
        Kind::ZeroBubbleTwice => 2.0 * behind - 1.0,
        Kind::Chimera => p,
        Kind::OneFOneB | Kind::ZeroBubble | Kind::Interleaved | Kind::PipeDream => behind,
    };
    most.min(m)
}

/// The fullest device. Of those with the same layers the first keeps most microbatches, so only it
/// is counted; the first of all has the embedding, and the last the logits.
pub fn fullest(job: &Job<'_>) -> Memory {
    let last = job.layout.pipeline - 1;
    let (mut most, mut seen) = (of_device(job, 0), Vec::new());
    for device in 0..=last {
        let kind = layers(job, device);
        if device == last || !seen.contains(&kind) {
            seen.push(kind);
            let memory = if device == 0 { most } else { of_device(job, device) };
            if memory.total() > most.total() {
                most = memory;
            }
        }
    }
    most
}

/// What a program would log.
pub fn reported(job: &Job<'_>, calibration: &Calibration) -> f64 {
    let held = match job.habits.reports {
        Reported::Allocated => return fullest(job).total(),
        Reported::Reserved => fullest(job),
        Reported::ReservedByFirst => of_device(job, 0),
    };
    // In a pipeline a host that is slower than its device asks for nothing ahead of it.
    let waits = job.layout.pipeline > 1 && !hosts_get_ahead(job, calibration);
    let ahead = if waits { 0.0 } else { held.ahead };
    Memory { ahead, ..held }.reserved(job.cluster.device.memory_bytes())
}

/// Layers of a pipeline's device, without experts and with them.
fn layers(job: &Job<'_>, device: u64) -> (u64, u64) {
    let (before, layers) = job.layers_of(job.layout.pipeline, device);
    let dense = job.model.dense_layers().saturating_sub(before).min(layers);
    (dense, layers - dense)
}

/// Parameters of a pipeline's device by kind: those that all copies hold, and its experts.
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

fn of_device(job: &Job<'_>, device: u64) -> Memory {
    let layout = &job.layout;
    let (shared, experts) = params(job, device);
    let (dense, routed) = layers(job, device);
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
    let is_again = layout.recompute == Recompute::Full
        || (layout.recompute == Recompute::Selective && job.habits.keeps_products);
    let again = if is_again { largest } else { 0.0 };
    let weight = if job.habits.casts_fetched && zero == 3 { 0.0 } else { WEIGHT };
    let training = live * kept + again + embedded(job, device, live);
    let at_peak = peak(job, device);
    // The update begins when activations are gone.
    let update = job.habits.update_bytes as f64 * divided(1);
    Memory {
        stage: device,
        weights: weight * divided(3),
        gradients: job.habits.gradient_bytes as f64 * divided(2),
        optimizer: if layout.offload { 0.0 } else { OPTIMIZER * divided(1) },
        activations: training,
        peak: at_peak.max(update - training),
        buffers: buffers(job, shared, device) + messages(job, device),
        ahead: ahead(job),
    }
}

/// What the embedding's dropout keeps.
fn embedded(job: &Job<'_>, device: u64, live: f64) -> f64 {
    let rows = if job.layout.sequence { job.layout.tensor as f64 } else { 1.0 };
    let mask = if job.model.dropout && device == 0 { 1.0 } else { 0.0 };
    live * mask * job.tokens() * job.model.width as f64 / rows
}

/// What is there for a moment: logits, the gradient of the head's matrix, or what the first product
/// of a layer's backward pass gives.
fn peak(job: &Job<'_>, device: u64) -> f64 {
    let (model, layout) = (job.model, &job.layout);
    let (t, tokens) = (layout.tensor as f64, job.tokens());
    let is_last = device + 1 == layout.pipeline;
    let sums = job.habits.gradient_bytes as f64;
    let (mut logits, mut head) = (0.0, 0.0);
    if is_last {
        logits = job.habits.logit_bytes as f64 * tokens * model.vocab as f64 / t;
        // Where sums are wider than products a gradient stands in both precisions.
        let widened = if sums > WEIGHT && layout.zero < 3 { WEIGHT + sums } else { 0.0 };
        head = widened * (model.vocab * model.width) as f64 / t;
    }
    let inner = if model.experts.is_some() { 0 } else { model.ffn };
    let matrix = (model.ffn_inputs() * model.width * inner) as f64;
    let given = tokens * (8.0 * inner as f64 + 8.0 * model.width as f64);
    let layer = if sums > WEIGHT { (WEIGHT * matrix + given) / t } else { 0.0 };
    logits.max(head).max(layer)
}

/// Rows gathered for a product, weights gathered by ZeRO, and what is on its way between stages.
fn buffers(job: &Job<'_>, shared: f64, device: u64) -> f64 {
    let (model, layout) = (job.model, &job.layout);
    let row = 2.0 * job.tokens() * model.width as f64;
    let is_gathered = layout.sequence && layout.tensor > 1;
    let rows = match () {
        () if !is_gathered => row,
        // Besides those of a layer, whole rows that come from a stage's neighbours or go there.
        () if layout.pipeline > 1 && job.habits.eager => 6.0 * row,
        () => 3.0 * row,
    };
    let layers = model.layers.div_ceil(layout.pipeline).max(1) as f64;
    let buckets = if layout.data > 1 && layout.zero < 3 {
        job.habits.bucket_bytes as f64 * shared
    } else {
        0.0
    };
    let mut fetched = 0.0;
    if layout.zero == 3 && layout.pipeline == 1 {
        // Two layers are on their way or in use, and their gradients; tables stay for a step.
        let tables = if device == 0 { model.embedding_params() + model.head_params() } else { 0 };
        let tables = tables as f64 / layout.tensor as f64;
        fetched = WEIGHT * tables + 4.0 * WEIGHT * (shared - tables).max(0.0) / layers;
    }
    rows + buckets + fetched
}

/// Messages between stages, where every microbatch has its place: rows that come from both sides
/// and those that were sent, or logits.
fn messages(job: &Job<'_>, device: u64) -> f64 {
    let (layout, model) = (&job.layout, job.model);
    if !job.habits.keeps_messages || layout.pipeline == 1 {
        return 0.0;
    }
    let slices = layout.tensor as f64;
    let row = model.width as f64 / if layout.sequence { slices } else { 1.0 };
    let chunks = layout.chunks as f64;
    let ends = [device == 0, device + 1 == layout.pipeline];
    let received = 2.0 * chunks - ends.iter().filter(|end| **end).count() as f64;
    let logits = model.vocab as f64 / slices;
    let given = if ends[1] { (chunks - 1.0) * row + logits } else { chunks * row };
    2.0 * job.num_microbatches() as f64 * job.tokens() * (received * row + given)
}

/// Rows that hosts ask for ahead of the device.
fn ahead(job: &Job<'_>) -> f64 {
    let layout = &job.layout;
    let row = 2.0 * job.tokens() * job.model.width as f64;
    let is_far = job.habits.eager && layout.sequence && layout.tensor > 1;
    let microbatches = job.num_microbatches();
    let passes = microbatches * job.layers_of(layout.pipeline, 0).1;
    let rows = match layout.pipeline {
        _ if !is_far => 0.0,
        1 if microbatches > 1 => AHEAD,
        1 => AHEAD_OF_ONE,
        _ if passes > FILLS_QUEUE => AHEAD_IN_PIPELINE,
        _ => 0.0,
    };
    rows * row
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

    #[test]
    fn no_device_of_a_pipeline_holds_more_than_the_fullest() {
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
            let model = preset(model).expect("it is one");
            let cluster = named(&format!("{}xh100-80gb", layout.devices())).expect("a cluster");
            let habits = Habits::MODERN;
            let job = Job { model: &model, cluster: &cluster, layout, batch, habits };
            let all = (0..layout.pipeline).map(|device| of_device(&job, device).total());
            let most = all.max_by(f64::total_cmp).expect("it has devices");
            assert!((fullest(&job).total() - most).abs() < 1.0, "{}", model.name);
        }
    }
}
