//! Step time of a layout on a cluster, by part.
//!
//! # Layout
//! - [`matmul`]: matrix products by shape
//! - [`group`]: communication groups
//! - [`collective`]: collectives on the cluster's links
//! - `contention`: messages that share a link
//! - [`layer`]: passes of a layer, by device and by host
//! - [`layer_cache`]: layer costs shared by the layouts of a search
//! - [`pipeline`]: pipeline schedules, simulated event by event
//!
//! A step is the pipeline, the exposed gradient group, and the optimizer step. ZeRO-3 gathers
//! weights beside the passes; only the part that is longer than the passes counts.

pub mod collective;
mod contention;
pub mod group;
pub mod layer;
pub mod layer_cache;
pub mod matmul;
pub mod pipeline;

use crate::calibration::Calibration;
use crate::hardware::{Cluster, SharedLink};
use crate::layout::Job;
use crate::memory;
use crate::model::Model;
use collective::Links;
use group::Group;
use layer::{CostModel, Pass, Passes};
use layer_cache::{LayerCache, ModelPasses};
use lockstep_schedule::pipeline::Kind;
use lockstep_timeline::Timeline;
use matmul::MatMul;
use pipeline::Pipelines;

/// Bucket size of gradient group, at least and per data-parallel rank: rings of many ranks need
/// long messages.
const BUCKET: f64 = 128e6;
const BUCKET_PER_RANK: f64 = 4e6;
/// Slowdown of computation by overlapped communication, as a share of the communication time:
/// collectives occupy multiprocessors and memory bandwidth.
const CONTENTION: f64 = 0.15;
/// Host time per second of device time below which the host still runs ahead. Modelled host times
/// are closer to the maximum than to the mean.
const HOST_SLACK: f64 = 1.3;
/// Bytes per parameter of a gradient sent to the host; the weight returns in the other direction.
const OFFLOAD_BYTES: f64 = 4.0;
/// Tensors per layer: two norms and four matrices.
const TENSORS: u64 = 6;
/// Seconds per rank in the reduce-scatter or all-gather of one tensor, many of which start
/// together.
const ROOT_TURN: f64 = 3e-6;

/// Step time in seconds, by part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Step time.
    pub seconds: f64,
    /// Computation on the busiest device.
    pub compute: f64,
    /// Exposed communication, inside passes and of gradients.
    pub exposed: f64,
    /// Exposed part of gradient reduction and weight gathering over the data axis.
    pub data_exposed: f64,
    /// Communication over the data axis at the end of a step, hidden or not.
    pub data_all: f64,
    /// Pipeline bubble.
    pub bubble: f64,
    /// Device time lost to kernel launches.
    pub host: f64,
    /// Optimizer step.
    pub update: f64,
    /// Data loading that is longer than the rest of the step.
    pub loading: f64,
}

/// Prices a step.
pub fn step(job: &Job<'_>, calibration: &Calibration, pipelines: &mut Pipelines) -> Option<Step> {
    step_cached(job, calibration, pipelines, &mut LayerCache::default())
}

/// Prices a step of one of the many layouts of a workload, with cached layer costs.
pub fn step_cached(
    job: &Job<'_>,
    calibration: &Calibration,
    pipelines: &mut Pipelines,
    cache: &mut LayerCache,
) -> Option<Step> {
    let costs = CostModel { job, calibration, links: Links::new(job.cluster, calibration) };
    let layout = &job.layout;
    let (devices, m) = (layout.pipeline, job.num_microbatches());
    let (stages, hop) = (stages(&costs, cache.passes(&costs)), hop(&costs));
    let played = pipelines.seconds(layout.schedule, devices as usize, &stages, m as usize, hop)?;
    let busiest = busiest(&stages, devices as usize);
    let update = update_seconds(job, calibration);
    let backward = busiest.input_grad.then(busiest.weight_grad).seconds();
    let (data, data_all) = data_exposed(&costs, backward);
    let all = busiest.forward.then(busiest.input_grad).then(busiest.weight_grad);
    let (compute, messages) = (all.compute * m as f64, all.exposed * m as f64);
    let busy = (busiest.forward.seconds() + backward) * m as f64;
    let trained = played + data + update;
    // The next batch loads during the current step.
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

/// Lower bound of the step time: all passes of the device with most layers, without idle time.
pub(crate) fn min_seconds_cached(
    job: &Job<'_>,
    calibration: &Calibration,
    cache: &mut LayerCache,
) -> f64 {
    let costs = CostModel { job, calibration, links: Links::new(job.cluster, calibration) };
    let parts = cache.passes(&costs);
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

/// Seconds to read a batch from storage, at two bytes per token, or four for a large vocabulary.
pub fn loading_seconds(model: &Model, cluster: &Cluster, batch: u64) -> f64 {
    let tokens = (batch * model.context) as f64;
    tokens * model.token_bytes() / (cluster.storage_gbps * 1e9)
}

/// Communication group of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CommGroup {
    /// Parallel axis.
    pub name: &'static str,
    /// Ranks of the group.
    pub group: Group,
    /// Bottleneck links; `None` for those inside a node.
    pub bottleneck: Option<SharedLink>,
}

/// Communication groups of a step, with their bottleneck links.
pub fn comm_groups(job: &Job<'_>, calibration: &Calibration) -> Vec<CommGroup> {
    let layout = &job.layout;
    let links = Links::new(job.cluster, calibration);
    let costs = CostModel { job, calibration, links };
    let stages =
        Group { ranks: layout.pipeline, stride: layout.tensor * layout.context * layout.data };
    [
        ("tensor", costs.tensor_group()),
        ("expert", Group { ranks: layout.expert, stride: layout.tensor }),
        ("pipeline", stages),
        ("data", data_group(job)),
    ]
    .into_iter()
    .filter(|(_, group)| group.ranks > 1)
    .map(|(name, group)| CommGroup { name, group, bottleneck: links.bottleneck(group) })
    .collect()
}

/// Whether the first stage's device is slower than its host, so that the host runs ahead.
pub fn host_runs_ahead(job: &Job<'_>, calibration: &Calibration) -> bool {
    let costs = CostModel { job, calibration, links: Links::new(job.cluster, calibration) };
    let Some(first) = stages(&costs, &ModelPasses::new(&costs)).first().copied() else {
        return false;
    };
    let all = first.forward.then(first.input_grad).then(first.weight_grad);
    all.host <= HOST_SLACK * (all.compute + all.exposed)
}

/// Timeline of a step's first micro-batches on every pipeline rank.
pub fn timeline(job: &Job<'_>, calibration: &Calibration) -> Option<Timeline> {
    let costs = CostModel { job, calibration, links: Links::new(job.cluster, calibration) };
    let (kind, devices) = (job.layout.schedule, job.layout.pipeline as usize);
    let microbatches = job.num_microbatches() as usize;
    let stages = stages(&costs, &ModelPasses::new(&costs));
    pipeline::timeline(kind, devices, &stages, microbatches, hop(&costs))
}

/// Message from one stage to the next.
fn hop(costs: &CostModel<'_>) -> f64 {
    let (job, layout) = (costs.job, &costs.job.layout);
    let numbers = job.tokens() * job.model.width as f64 / layout.tensor as f64;
    costs.links.hop(layout.tensor * layout.context * layout.data, 2.0 * numbers)
}

/// Passes of every stage for one micro-batch, in model order.
fn stages(costs: &CostModel<'_>, parts: &ModelPasses) -> Vec<Passes> {
    let (job, calibration) = (costs.job, costs.calibration);
    let chunks = if job.layout.schedule == Kind::Interleaved { job.layout.chunks } else { 1 };
    let count = job.layout.pipeline * chunks;
    let (dense, routed) = (parts.dense, parts.routed);
    let tp = job.layout.tensor as f64;
    let skew = if count > 1 { 1e-6 * calibration.skew_us * tp * tp } else { 0.0 };
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
            if job.layout.zero == 3 { fetched(costs, passes, layers) } else { passes }
        })
        .collect()
}

/// Embedding lookup, positions and dropout, with an all-reduce over tensor-parallel ranks.
fn embedding(costs: &CostModel<'_>) -> Passes {
    let bytes = costs.job.tokens() * costs.job.model.width as f64;
    let launch = costs.calibration.launch_us * 1e-6;
    let pass = Pass {
        compute: costs.stream(8.0 * bytes),
        exposed: costs.links.all_reduce(costs.tensor_group(), 2.0 * bytes),
        host: 8.0 * launch,
    };
    Passes {
        forward: pass,
        input_grad: Pass { exposed: 0.0, ..pass },
        weight_grad: Pass::default(),
    }
}

/// Final norm, logits and loss.
fn head(costs: &CostModel<'_>) -> Passes {
    let (job, model) = (costs.job, costs.job.model);
    let vocab = model.vocab as f64 / job.layout.tensor as f64;
    let matmul = MatMul::one(job.tokens(), model.width as f64, vocab);
    let (forward, input, weight) = costs.matrix(matmul);
    let launch = costs.calibration.launch_us * 1e-6;
    // Logits are cast, and read for their maximum, their sum and their gradient.
    let stream = costs.stream(14.0 * job.tokens() * vocab);
    let sums = 3.0 * costs.links.all_reduce(costs.tensor_group(), 4.0 * job.tokens());
    let rows =
        costs.links.all_reduce(costs.tensor_group(), 2.0 * job.tokens() * model.width as f64);
    Passes {
        forward: Pass { compute: forward + stream, exposed: sums, host: 20.0 * launch },
        input_grad: Pass { compute: input + stream, exposed: rows, host: 12.0 * launch },
        weight_grad: Pass { compute: weight, exposed: 0.0, host: 2.0 * launch },
    }
}

/// Data-parallel group; context-parallel ranks also average their gradients.
fn data_group(job: &Job<'_>) -> Group {
    let layout = &job.layout;
    Group { ranks: layout.data * layout.context, stride: layout.tensor }
}

/// Passes of a stage under ZeRO-3, whose weights are gathered while it computes.
fn fetched(costs: &CostModel<'_>, passes: Passes, layers: u64) -> Passes {
    let job = costs.job;
    let params = (job.model.num_params() / job.model.layers) as f64 / job.layout.tensor as f64;
    let group = data_group(job);
    let calls = if job.framework.gathers_by_tensor { 12.0 } else { 1.0 };
    let bytes = 2.0 * params / calls;
    // A pipeline keeps gathered weights, and reduces gradients with the last micro-batch.
    let refetches = if job.layout.pipeline > 1 { 1.0 / job.num_microbatches() as f64 } else { 1.0 };
    let calls = layers as f64 * calls * refetches;
    let gather = calls * costs.links.all_gather(group, bytes);
    let wire = job.framework.wire_bytes as f64;
    let scatter = calls * costs.links.all_gather(group, bytes * wire / 2.0);
    let wait = |pass: Pass, fetch: f64| {
        let beside = costs.calibration.data_hidden * (pass.compute + pass.exposed);
        let exposed_fraction = (fetch - beside).max(0.0) + CONTENTION * fetch.min(beside);
        Pass { exposed: pass.exposed + exposed_fraction, ..pass }
    };
    Passes {
        forward: wait(passes.forward, gather),
        input_grad: wait(passes.input_grad, gather),
        weight_grad: wait(passes.weight_grad, scatter),
    }
}

/// Passes of the busiest device, over all its stages.
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

/// Parameters of the largest stage: those replicated over the data axis, and its experts.
fn held_params(job: &Job<'_>) -> (f64, f64) {
    let of = |device: u64| memory::params(job, device);
    let first = of(0);
    let more = |most: (f64, f64), next: (f64, f64)| {
        if next.0 + next.1 > most.0 + most.1 { next } else { most }
    };
    (1..job.layout.pipeline).map(of).fold(first, more)
}

/// Exposed and total time of gradient reduction, with the all-gather of weights under ZeRO.
fn data_exposed(costs: &CostModel<'_>, backward: f64) -> (f64, f64) {
    let job = costs.job;
    let (shared, experts) = held_params(job);
    let wire = job.framework.wire_bytes as f64;
    let group = data_group(job);
    let expert_group =
        Group { ranks: group.ranks / job.layout.expert, stride: group.stride * job.layout.expert };
    let links = &costs.links;
    // Overlapped gradients are reduced in buckets, each with its own rounds.
    let usual = BUCKET.max(BUCKET_PER_RANK * group.ranks as f64);
    let bucket = job.framework.bucket_cap_bytes.map_or(usual, |bytes| bytes as f64);
    let buckets =
        if job.framework.overlap { (wire * shared / bucket).ceil().max(1.0) } else { 1.0 };
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
            let inner = Group { ranks: (job.zero_shards() as u64).max(1), ..group };
            let outer =
                Group { ranks: group.ranks / inner.ranks, stride: group.stride * inner.ranks };
            let share = wire * shared / inner.ranks as f64;
            (
                buckets * links.all_gather(inner, wire * shared / buckets)
                    + buckets * links.all_reduce(outer, share / buckets)
                    + links.all_gather(expert_group, wire * experts),
                buckets * links.all_gather(inner, 2.0 * shared / buckets)
                    + links.all_gather(expert_group, 2.0 * experts),
            )
        }
    };
    // Sharded tensor by tensor, every rank is the root of its share of reduce-scatters and
    // all-gathers.
    let by_tensor = if job.framework.shards_by_tensor && matches!(job.layout.zero, 1 | 2) {
        let tensors = (TENSORS * job.model.layers.div_ceil(job.layout.pipeline)) as f64;
        2.0 * tensors * (job.zero_shards() - 1.0).max(0.0) * ROOT_TURN
    } else {
        0.0
    };
    let beside = if job.framework.overlap { costs.calibration.data_hidden * backward } else { 0.0 };
    let behind = weights + tied + by_tensor;
    ((gradients - beside).max(0.1 * gradients) + behind, gradients + behind)
}

/// Gradient norm, clipping and optimizer step.
fn update_seconds(job: &Job<'_>, calibration: &Calibration) -> f64 {
    let (shared, experts) = held_params(job);
    let shards = if job.layout.zero > 0 { job.zero_shards() } else { 1.0 };
    let expert_shards = (shards / job.layout.expert as f64).max(1.0);
    let params = shared / shards + experts / expert_shards;
    let start = 1e-3 * calibration.step_ms;
    if job.layout.offload {
        // Gradients go to the host and weights return, in pieces beside the host's update.
        let link = OFFLOAD_BYTES * params / (job.cluster.host_gbps * 1e9);
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
    use crate::layout::{Framework, Layout};
    use crate::model::preset;

    #[test]
    fn data_loading_counts_only_where_storage_is_slower_than_training() {
        let model = preset("llama3-8b").expect("a model");
        let mut cluster = named("8xh100-80gb").expect("a cluster");
        let layout = Layout { data: 8, zero: 3, ..Layout::ONE };
        let calibration = Calibration::of("h100").expect("it is there");
        let mut priced = |gbps: f64| {
            cluster.storage_gbps = gbps;
            let (cluster, framework) = (&cluster, Framework::MODERN);
            let job = Job { model: &model, cluster, layout, batch: 64, framework };
            step(&job, &calibration, &mut Pipelines::default()).expect("a step")
        };
        let quick = priced(10.0);
        assert!(quick.loading <= 0.0, "{quick:?}");
        // 64 sequences of 8,192 tokens of four bytes, read at 0.1 MB/s.
        let slow = priced(1e-4);
        let bytes = 64.0 * 8192.0 * 4.0;
        assert!((slow.seconds - bytes / 1e5).abs() < 1e-9, "{slow:?}");
        assert!((slow.loading - (slow.seconds - quick.seconds)).abs() < 1e-9, "{slow:?}");
    }

    #[test]
    fn comm_groups_name_their_bottleneck_links() {
        let model = preset("gpt3-175b").expect("a model");
        let cluster = named("1024xa100-80gb").expect("a cluster");
        let layout = Layout { tensor: 8, pipeline: 16, data: 8, ..Layout::ONE };
        let framework = Framework::MODERN;
        let job = Job { model: &model, cluster: &cluster, layout, batch: 64, framework };
        let calibration = Calibration::of("a100").expect("it is there");
        let groups = comm_groups(&job, &calibration);
        let names: Vec<&str> = groups.iter().map(|group| group.name).collect();
        assert_eq!(names, ["tensor", "pipeline", "data"]);
        let bottleneck = groups.iter().map(|group| group.bottleneck);
        let nics = Some(SharedLink::Nics);
        assert_eq!(bottleneck.collect::<Vec<_>>(), [None, nics, nics]);
    }
}
