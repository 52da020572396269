//! How long a step takes on a cluster, and what of it is what.
//!
//! # Layout
//! - [`product`]: matrix products by shape
//! - [`collective`]: messages on the cluster's links
//! - `shared`: how many of them share a link
//! - [`layer`]: a layer's passes, by device and by host
//! - [`pipeline`]: stages, played event by event
//! - [`common`]: what layouts of one question have in common
//!
//! A step is the pipeline, gradients that did not leave beside it, and the update. Where ZeRO
//! fetches weights it does so beside the passes, and only what is longer than them counts.

pub mod collective;
pub mod common;
pub mod layer;
pub mod pipeline;
pub mod product;
mod shared;

use crate::calibration::Calibration;
use crate::hardware::{Cluster, Shared};
use crate::layout::Job;
use crate::memory;
use crate::model::Model;
use collective::{Group, Links};
use common::{Common, Parts};
use layer::{Pass, Passes, Prices};
use lockstep_schedule::pipeline::Kind;
use lockstep_timeline::Timeline;
use pipeline::Pipelines;
use product::Product;

/// Bytes of gradients that leave together, at least and for each copy: rings of many ranks need
/// long messages.
const BUCKET: f64 = 128e6;
const BUCKET_PER_COPY: f64 = 4e6;
/// Part of the time of messages beside computing by which computing gets longer: they take some of
/// the device's units and of its memory's bandwidth.
const CONTENTION: f64 = 0.15;
/// What a host may take for each second of its device, by our price, and still be ahead of it.
const HOST_AT_MOST: f64 = 1.3;
/// Bytes of a parameter's gradient on its way to the host; its weight comes back beside it.
const OFFLOADED: f64 = 4.0;
/// Tensors of a layer: two norms and four matrices.
const TENSORS: u64 = 6;
/// Seconds of a rank's turn in the scatter or gather of one tensor, many of which start together.
const TURN: f64 = 3e-6;

/// Seconds of a step, by part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// All of it.
    pub seconds: f64,
    /// Computing, on the busiest device.
    pub compute: f64,
    /// Waiting for messages inside passes and for gradients behind them.
    pub exposed: f64,
    /// The part of that which is gradients and weights of other copies.
    pub data_exposed: f64,
    /// All messages between copies at the end of a step, hidden or not.
    pub data_all: f64,
    /// Idle in the pipeline.
    pub bubble: f64,
    /// Waiting for the host to start kernels.
    pub host: f64,
    /// Updating parameters.
    pub update: f64,
    /// Waiting for text: what storage takes longer for a batch than the rest of a step.
    pub loading: f64,
}

/// Prices a step.
pub fn step(job: &Job<'_>, calibration: &Calibration, pipelines: &mut Pipelines) -> Option<Step> {
    step_of_many(job, calibration, pipelines, &mut Common::default())
}

/// Prices a step of one of many layouts of a question, whose layers may be priced already.
pub fn step_of_many(
    job: &Job<'_>,
    calibration: &Calibration,
    pipelines: &mut Pipelines,
    common: &mut Common,
) -> Option<Step> {
    let prices = Prices { job, calibration, links: Links::new(job.cluster, calibration) };
    let layout = &job.layout;
    let (devices, m) = (layout.pipeline, job.num_microbatches());
    let (stages, hop) = (stages(&prices, common.parts(&prices)), hop(&prices));
    let played = pipelines.seconds(layout.schedule, devices as usize, &stages, m as usize, hop)?;
    let busiest = busiest(&stages, devices as usize);
    let update = update_seconds(job, calibration);
    let backward = busiest.input_grad.then(busiest.weight_grad).seconds();
    let (data, data_all) = data_exposed(&prices, backward);
    let all = busiest.forward.then(busiest.input_grad).then(busiest.weight_grad);
    let (compute, messages) = (all.compute * m as f64, all.exposed * m as f64);
    let busy = (busiest.forward.seconds() + backward) * m as f64;
    let trained = played + data + update;
    // The next batch is read while this one is trained on.
    let loading = (loading_seconds(job.model, job.cluster, job.batch) - trained).max(0.0);
    Some(Step {
        seconds: trained + loading,
        compute,
        exposed: messages + data,
        data_exposed: data,
        data_all,
        bubble: (played - busy).max(0.0),
        host: (busy - compute - messages).max(0.0),
        update,
        loading,
    })
}

/// What no schedule can beat: all passes of the device with most layers, without a pause.
pub(crate) fn least_of_many(job: &Job<'_>, calibration: &Calibration, common: &mut Common) -> f64 {
    let prices = Prices { job, calibration, links: Links::new(job.cluster, calibration) };
    let parts = common.parts(&prices);
    let seconds = |passes: Passes| {
        let all = passes.forward.then(passes.input_grad).then(passes.weight_grad);
        all.compute + all.exposed
    };
    let each = match job.model.dense_layers() {
        0 => seconds(parts.routed),
        dense if dense == job.model.layers => seconds(parts.dense),
        _ => seconds(parts.dense).min(seconds(parts.routed)),
    };
    let layers = job.model.layers.div_ceil(job.layout.pipeline);
    (layers * job.num_microbatches()) as f64 * each
}

/// What storage takes for a batch, at two bytes a token or four where the vocabulary is large.
pub fn loading_seconds(model: &Model, cluster: &Cluster, batch: u64) -> f64 {
    let tokens = (batch * model.context) as f64;
    tokens * model.token_bytes() / (cluster.storage_gbps * 1e9)
}

/// Ranks that exchange in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exchange {
    /// What they exchange.
    pub what: &'static str,
    /// Who.
    pub group: Group,
    /// The links that are full when they do; none are those inside a node.
    pub fullest: Option<Shared>,
}

/// Everybody that exchanges in a step, with the links that are full then.
pub fn exchanges(job: &Job<'_>, calibration: &Calibration) -> Vec<Exchange> {
    let layout = &job.layout;
    let links = Links::new(job.cluster, calibration);
    let prices = Prices { job, calibration, links };
    let stages =
        Group { ranks: layout.pipeline, stride: layout.tensor * layout.context * layout.data };
    [
        ("slices", prices.tensor_group()),
        ("experts", Group { ranks: layout.expert, stride: layout.tensor }),
        ("stages", stages),
        ("copies", data_group(job)),
    ]
    .into_iter()
    .filter(|(_, group)| group.ranks > 1)
    .map(|(what, group)| Exchange { what, group, fullest: links.fullest(group) })
    .collect()
}

/// Whether the first stage's device takes longer than its host, so that the host gets ahead of it:
/// by our price of a host's kernels, which is nearer to the most than to the mean.
pub fn hosts_get_ahead(job: &Job<'_>, calibration: &Calibration) -> bool {
    let prices = Prices { job, calibration, links: Links::new(job.cluster, calibration) };
    let Some(first) = stages(&prices, &Parts::new(&prices)).first().copied() else { return false };
    let all = first.forward.then(first.input_grad).then(first.weight_grad);
    all.host <= HOST_AT_MOST * (all.compute + all.exposed)
}

/// A step's first microbatches on every device of the pipeline, for a picture.
pub fn timeline(job: &Job<'_>, calibration: &Calibration) -> Option<Timeline> {
    let prices = Prices { job, calibration, links: Links::new(job.cluster, calibration) };
    let (kind, devices) = (job.layout.schedule, job.layout.pipeline as usize);
    let microbatches = job.num_microbatches() as usize;
    let stages = stages(&prices, &Parts::new(&prices));
    pipeline::drawn(kind, devices, &stages, microbatches, hop(&prices))
}

/// A message from one stage to the next.
fn hop(prices: &Prices<'_>) -> f64 {
    let (job, layout) = (prices.job, &prices.job.layout);
    let numbers = job.tokens() * job.model.width as f64 / layout.tensor as f64;
    prices.links.hop(layout.tensor * layout.context * layout.data, 2.0 * numbers)
}

/// Every stage's passes of one microbatch, in the order of the model.
fn stages(prices: &Prices<'_>, parts: &Parts) -> Vec<Passes> {
    let (job, calibration) = (prices.job, prices.calibration);
    let chunks = if job.layout.schedule == Kind::Interleaved { job.layout.chunks } else { 1 };
    let count = job.layout.pipeline * chunks;
    let (dense, routed) = (parts.dense, parts.routed);
    let holders = job.layout.tensor as f64;
    let skew = if count > 1 { 1e-6 * calibration.skew_us * holders * holders } else { 0.0 };
    let host = 0.5e-6 * calibration.microbatch_us;
    let host = Pass { host, exposed: 0.5 * skew, ..Pass::default() };
    let each = Passes { forward: host, input_grad: host, weight_grad: Pass::default() };
    (0..count)
        .map(|stage| {
            let (done, layers) = job.layers_of(count, stage);
            let narrow = job.model.dense_layers().saturating_sub(done).min(layers);
            let mut passes = each.then(dense.times(narrow as f64));
            if layers > narrow {
                passes = passes.then(routed.times((layers - narrow) as f64));
            }
            if stage == 0 {
                passes = passes.then(parts.embedding);
            }
            if stage + 1 == count {
                passes = passes.then(parts.head);
            }
            if job.layout.zero == 3 { fetched(prices, passes, layers) } else { passes }
        })
        .collect()
}

/// Rows of the table, positions and dropout; holders of slices add up their rows.
fn embedding(prices: &Prices<'_>) -> Passes {
    let bytes = prices.job.tokens() * prices.job.model.width as f64;
    let launch = prices.calibration.launch_us * 1e-6;
    let pass = Pass {
        compute: prices.stream(8.0 * bytes),
        exposed: prices.links.all_reduce(prices.tensor_group(), 2.0 * bytes),
        host: 8.0 * launch,
    };
    Passes {
        forward: pass,
        input_grad: Pass { exposed: 0.0, ..pass },
        weight_grad: Pass::default(),
    }
}

/// The last norm, the logits and the loss.
fn head(prices: &Prices<'_>) -> Passes {
    let (job, model) = (prices.job, prices.job.model);
    let vocab = model.vocab as f64 / job.layout.tensor as f64;
    let product = Product::one(job.tokens(), model.width as f64, vocab);
    let (forward, input, weight) = prices.matrix(product);
    let launch = prices.calibration.launch_us * 1e-6;
    // Logits are cast, and pass for their maximum, their sum and their gradient.
    let stream = prices.stream(14.0 * job.tokens() * vocab);
    let sums = 3.0 * prices.links.all_reduce(prices.tensor_group(), 4.0 * job.tokens());
    let rows =
        prices.links.all_reduce(prices.tensor_group(), 2.0 * job.tokens() * model.width as f64);
    Passes {
        forward: Pass { compute: forward + stream, exposed: sums, host: 20.0 * launch },
        input_grad: Pass { compute: input + stream, exposed: rows, host: 12.0 * launch },
        weight_grad: Pass { compute: weight, exposed: 0.0, host: 2.0 * launch },
    }
}

/// Copies that hold the same slices.
fn data_group(job: &Job<'_>) -> Group {
    let layout = &job.layout;
    Group { ranks: layout.data * layout.context, stride: layout.tensor }
}

/// A stage whose weights come from other copies while it computes: what is longer than the passes
/// is waited for.
fn fetched(prices: &Prices<'_>, passes: Passes, layers: u64) -> Passes {
    let job = prices.job;
    let params = (job.model.num_params() / job.model.layers) as f64 / job.layout.tensor as f64;
    let group = data_group(job);
    let calls = if job.habits.fetches_by_tensor { 12.0 } else { 1.0 };
    let bytes = 2.0 * params / calls;
    // In a pipeline weights stay once they are there, and gradients leave with the last microbatch.
    let often = if job.layout.pipeline > 1 { 1.0 / job.num_microbatches() as f64 } else { 1.0 };
    let calls = layers as f64 * calls * often;
    let gather = calls * prices.links.half(group, bytes);
    let wire = job.habits.wire_bytes as f64;
    let scatter = calls * prices.links.half(group, bytes * wire / 2.0);
    let wait = |pass: Pass, fetch: f64| {
        let beside = prices.calibration.data_hidden * (pass.compute + pass.exposed);
        let waited = (fetch - beside).max(0.0) + CONTENTION * fetch.min(beside);
        Pass { exposed: pass.exposed + waited, ..pass }
    };
    Passes {
        forward: wait(passes.forward, gather),
        input_grad: wait(passes.input_grad, gather),
        weight_grad: wait(passes.weight_grad, scatter),
    }
}

/// The device whose stages take longest, all of them together.
fn busiest(stages: &[Passes], devices: usize) -> Passes {
    let of = |device: usize| {
        stages.iter().skip(device).step_by(devices).fold(Passes::default(), |all, s| all.then(*s))
    };
    let total = |passes: &Passes| {
        passes.forward.seconds() + passes.input_grad.then(passes.weight_grad).seconds()
    };
    let mut devices = (0..devices).map(of);
    let first = devices.next().unwrap_or_default();
    devices.fold(first, |most, next| if total(&next) > total(&most) { next } else { most })
}

/// Parameters of the device that has most: those that its copies also hold, and experts that fewer
/// hold.
fn held_params(job: &Job<'_>) -> (f64, f64) {
    let of = |device: u64| memory::params(job, device);
    let first = of(0);
    let more = |most: (f64, f64), next: (f64, f64)| {
        if next.0 + next.1 > most.0 + most.1 { next } else { most }
    };
    (1..job.layout.pipeline).map(of).fold(first, more)
}

/// Copies among which the optimizer's states are divided.
pub(crate) fn zero_ways(job: &Job<'_>) -> f64 {
    let all = (job.layout.data * job.layout.context) as f64;
    job.habits.zero_group.map_or(all, |group| (group as f64).min(all))
}

/// Gradients to other copies, and weights back where each updates a share, as far as backward does
/// not hide them; and all of them.
fn data_exposed(prices: &Prices<'_>, backward: f64) -> (f64, f64) {
    let job = prices.job;
    let (shared, experts) = held_params(job);
    let wire = job.habits.wire_bytes as f64;
    let group = data_group(job);
    let expert_group =
        Group { ranks: group.ranks / job.layout.expert, stride: group.stride * job.layout.expert };
    let links = &prices.links;
    // What leaves while backward goes on leaves in buckets, each with its own rounds.
    let usual = BUCKET.max(BUCKET_PER_COPY * group.ranks as f64);
    let bucket = job.habits.together_bytes.map_or(usual, |bytes| bytes as f64);
    let buckets = if job.habits.overlap { (wire * shared / bucket).ceil().max(1.0) } else { 1.0 };
    let tied = if job.model.tied && job.layout.pipeline > 1 {
        let bytes = wire * (job.model.vocab * job.model.width) as f64 / job.layout.tensor as f64;
        let stride = job.layout.tensor * job.layout.context * job.layout.data;
        links.all_reduce(Group { ranks: 2, stride }, bytes)
    } else {
        0.0
    };
    let (gradients, weights) = match job.layout.zero {
        0 => (
            buckets * links.all_reduce(group, wire * shared / buckets)
                + links.all_reduce(expert_group, wire * experts),
            0.0,
        ),
        3 => (0.0, 0.0),
        _ => {
            let near = Group { ranks: (zero_ways(job) as u64).max(1), ..group };
            let far = Group { ranks: group.ranks / near.ranks, stride: group.stride * near.ranks };
            let share = wire * shared / near.ranks as f64;
            (
                buckets * links.half(near, wire * shared / buckets)
                    + buckets * links.all_reduce(far, share / buckets)
                    + links.half(expert_group, wire * experts),
                buckets * links.half(near, 2.0 * shared / buckets)
                    + links.half(expert_group, 2.0 * experts),
            )
        }
    };
    // Tensor by tensor every rank has its turn in a scatter and a gather of each.
    let by_tensor = if job.habits.shards_by_tensor && matches!(job.layout.zero, 1 | 2) {
        let tensors = (TENSORS * job.model.layers.div_ceil(job.layout.pipeline)) as f64;
        2.0 * tensors * (zero_ways(job) - 1.0).max(0.0) * TURN
    } else {
        0.0
    };
    let beside = if job.habits.overlap { prices.calibration.data_hidden * backward } else { 0.0 };
    let behind = weights + tied + by_tensor;
    ((gradients - beside).max(0.1 * gradients) + behind, gradients + behind)
}

/// Norm, clipping and update of what a device updates.
fn update_seconds(job: &Job<'_>, calibration: &Calibration) -> f64 {
    let (shared, experts) = held_params(job);
    let ways = if job.layout.zero > 0 { zero_ways(job) } else { 1.0 };
    let expert_ways = (ways / job.layout.expert as f64).max(1.0);
    let params = shared / ways + experts / expert_ways;
    let start = 1e-3 * calibration.step_ms;
    if job.layout.offload {
        // Gradients go to the host and weights come back, each in parts beside the host's update.
        let link = OFFLOADED * params / (job.cluster.host_gbps * 1e9);
        let bytes = calibration.optimizer_bytes * params;
        return start + link.max(bytes / (job.cluster.host_memory_gbps * 1e9));
    }
    let bandwidth = job.cluster.device.memory_gbps * 1e9 * calibration.memory_share;
    calibration.optimizer_bytes * params / bandwidth + start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::named;
    use crate::layout::{Habits, Layout};
    use crate::model::preset;

    #[test]
    fn a_step_waits_for_text_only_where_storage_is_slower_than_training() {
        let model = preset("llama3-8b").expect("a model");
        let mut cluster = named("8xh100-80gb").expect("a cluster");
        let layout = Layout { data: 8, zero: 3, ..Layout::ONE };
        let calibration = Calibration::of("h100").expect("it is there");
        let mut priced = |gbps: f64| {
            cluster.storage_gbps = gbps;
            let (cluster, habits) = (&cluster, Habits::MODERN);
            let job = Job { model: &model, cluster, layout, batch: 64, habits };
            step(&job, &calibration, &mut Pipelines::default()).expect("a step")
        };
        let quick = priced(10.0);
        assert!(quick.loading <= 0.0, "{quick:?}");
        // 64 sequences of 8,192 tokens of four bytes, from storage of a tenth of a megabyte.
        let slow = priced(1e-4);
        let bytes = 64.0 * 8192.0 * 4.0;
        assert!((slow.seconds - bytes / 1e5).abs() < 1e-9, "{slow:?}");
        assert!((slow.loading - (slow.seconds - quick.seconds)).abs() < 1e-9, "{slow:?}");
    }

    #[test]
    fn everybody_who_exchanges_is_told_with_the_links_that_are_full() {
        let model = preset("gpt3-175b").expect("a model");
        let cluster = named("1024xa100-80gb").expect("a cluster");
        let layout = Layout { tensor: 8, pipeline: 16, data: 8, ..Layout::ONE };
        let habits = Habits::MODERN;
        let job = Job { model: &model, cluster: &cluster, layout, batch: 64, habits };
        let calibration = Calibration::of("a100").expect("it is there");
        let told = exchanges(&job, &calibration);
        let names: Vec<&str> = told.iter().map(|exchange| exchange.what).collect();
        assert_eq!(names, ["slices", "stages", "copies"]);
        let fullest = told.iter().map(|exchange| exchange.fullest);
        let cards = Some(Shared::Cards);
        assert_eq!(fullest.collect::<Vec<_>>(), [None, cards, cards]);
    }
}
