//! Step time of a layout on a cluster, by part.
//!
//! A step is the pipeline, the exposed gradient exchange, and the optimizer step. ZeRO-3 gathers
//! weights beside the passes; only the part that is longer than the passes counts.

use super::layer::{Pass, Passes};
use super::layer_cache::{LayerCache, ModelPasses};
use crate::collective::group::Group;
use crate::hardware::Cluster;
use crate::job::{Job, Workload};
use crate::layout::{OffloadTier, OffloadedStates};
use crate::memory::cluster as memory;
use crate::model::Model;
use crate::pipeline::{self, Pipelines};
use crate::timeline::{PassTimes, StageTimes, Timeline};
use lockstep_config::units::Seconds;
use lockstep_schedule::pipeline::Kind;

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
/// Bytes per parameter between device and host: a summed gradient, and a 16-bit gradient or weight.
const OFFLOADED_SUM: f64 = 4.0;
const OFFLOADED_HALF: f64 = 2.0;
/// Bytes per parameter of optimizer state that an update reads from NVMe and writes back.
const NVME_STATES: f64 = 24.0;
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
    /// Optimizer step, with the exposed transfer of offloaded gradients.
    pub update: f64,
    /// Data loading that is longer than the rest of the step.
    pub loading: f64,
}

/// Prices a step.
pub fn step(workload: &Workload<'_>, pipelines: &mut Pipelines) -> Option<Step> {
    step_cached(workload, pipelines, &mut LayerCache::default())
}

/// Prices a step of one of the many layouts of a workload, with cached layer costs.
pub fn step_cached(
    workload: &Workload<'_>,
    pipelines: &mut Pipelines,
    cache: &mut LayerCache,
) -> Option<Step> {
    let job = &workload.job;
    let layout = &job.layout;
    let (devices, m) = (layout.pipeline, job.num_microbatches());
    let stages = stages(workload, cache.passes(workload));
    let times = pass_times(&stages, hop(workload));
    let played = pipelines.seconds(layout.schedule, devices as usize, &times, m as usize)?;
    let busiest = busiest(&stages, devices as usize);
    let backward = busiest.backward().seconds();
    let update = update_seconds(workload) + gradients_to_host(workload, backward);
    let (data, data_all) = data_exposed(workload, backward);
    let all = busiest.total();
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
        bubble: above_rounding(played - busy, played),
        host: above_rounding(busy - compute - messages, busy),
        update,
        loading,
    })
}

/// Difference of sums of which `whole` is the largest; what rounding leaves of it is zero.
fn above_rounding(difference: f64, whole: f64) -> f64 {
    const ROUNDING: f64 = 1e-9;
    if difference > ROUNDING * whole { difference } else { 0.0 }
}

/// Lower bound of the step time: all passes of the device with most layers, without idle time.
pub(crate) fn min_seconds_cached(workload: &Workload<'_>, cache: &mut LayerCache) -> f64 {
    let job = &workload.job;
    let parts = cache.passes(workload);
    let seconds = |passes: Passes| {
        let all = passes.total();
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

/// Whether the first stage's device is slower than its host, so that the host runs ahead.
pub fn host_runs_ahead(workload: &Workload<'_>) -> bool {
    let stages = stages(workload, &ModelPasses::new(workload));
    let Some(all) = stages.first().map(|first| first.total()) else { return false };
    all.host <= HOST_SLACK * (all.compute + all.exposed)
}

/// Timeline of a step's first micro-batches on every pipeline rank.
pub fn timeline(workload: &Workload<'_>) -> Option<Timeline> {
    let job = &workload.job;
    let (kind, devices) = (job.layout.schedule, job.layout.pipeline as usize);
    let microbatches = job.num_microbatches() as usize;
    let stages = stages(workload, &ModelPasses::new(workload));
    pipeline::timeline(kind, devices, &pass_times(&stages, hop(workload)), microbatches)
}

/// Pass times of every stage for the simulation.
fn pass_times(stages: &[Passes], hop: f64) -> PassTimes {
    let stage = |passes: &Passes| {
        let backward = passes.backward().seconds();
        let weight = passes.weight_grad.seconds().min(backward);
        StageTimes {
            forward: Seconds(passes.forward.seconds()),
            input_grad: Seconds(backward - weight),
            weight_grad: Seconds(weight),
        }
    };
    PassTimes { stages: stages.iter().map(stage).collect(), hop: Seconds(hop) }
}

/// Message from one stage to the next.
fn hop(workload: &Workload<'_>) -> f64 {
    let (job, layout) = (&workload.job, &workload.job.layout);
    let numbers = job.tokens() * job.model.width as f64 / layout.tensor as f64;
    workload.links().hop(layout.tensor * layout.context * layout.data, 2.0 * numbers)
}

/// Passes of every stage for one micro-batch, in model order.
fn stages(workload: &Workload<'_>, parts: &ModelPasses) -> Vec<Passes> {
    let Workload { job, calibration, .. } = workload;
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
            let gathers = job.layout.zero == 3 || job.layout.offload.has(OffloadedStates::Weights);
            if gathers { fetched(workload, passes, layers) } else { passes }
        })
        .collect()
}

/// Data-parallel group; context-parallel ranks also average their gradients.
pub(super) fn data_group(job: &Job<'_>) -> Group {
    let layout = &job.layout;
    Group { ranks: layout.data * layout.context, stride: layout.tensor }
}

/// Passes of a stage whose weights arrive while it computes: from other ranks under ZeRO-3, from
/// the host where they are offloaded.
fn fetched(workload: &Workload<'_>, passes: Passes, layers: u64) -> Passes {
    let (job, links) = (&workload.job, workload.links());
    let params = (job.model.num_params() / job.model.layers) as f64 / job.layout.tensor as f64;
    let group = data_group(job);
    let calls = if job.framework.gathers_by_tensor { 12.0 } else { 1.0 };
    let bytes = 2.0 * params / calls;
    // Weights that stay gathered arrive once, and their gradients leave with the last micro-batch.
    let refetches = if job.keeps_gathered() { 1.0 / job.num_microbatches() as f64 } else { 1.0 };
    let calls = layers as f64 * calls * refetches;
    let wire = job.framework.wire_bytes as f64;
    let is_sharded = job.layout.zero == 3;
    let gather_from = |bytes: f64| if is_sharded { links.all_gather(group, bytes) } else { 0.0 };
    let mut gather = calls * gather_from(bytes);
    let scatter = calls * gather_from(bytes * wire / 2.0);
    if job.layout.offload.has(OffloadedStates::Weights) {
        // Every rank reads its shard.
        let shard = bytes / if is_sharded { job.zero_shards() } else { 1.0 };
        gather += calls * shard / offload_bytes_per_second(job);
    }
    let wait = |pass: Pass, fetch: f64| {
        let beside = workload.calibration.data_hidden * (pass.compute + pass.exposed);
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
    let total = |passes: &Passes| passes.forward.seconds() + passes.backward().seconds();
    // Of equal ones the first.
    let most = (0..devices).rev().map(of).max_by(|a, b| total(a).total_cmp(&total(b)));
    most.unwrap_or_default()
}

/// Parameters of the largest stage: those replicated over the data axis, and its experts.
fn held_params(job: &Job<'_>) -> (f64, f64) {
    let total = |(shared, experts): &(f64, f64)| shared + experts;
    // Of equal ones the first.
    let all = (0..job.layout.pipeline).rev().map(|device| memory::params(job, device));
    all.max_by(|a, b| total(a).total_cmp(&total(b))).unwrap_or_default()
}

/// Exposed and total time of gradient reduction, with the all-gather of weights under ZeRO.
fn data_exposed(workload: &Workload<'_>, backward: f64) -> (f64, f64) {
    let (job, links) = (&workload.job, workload.links());
    let (shared, experts) = held_params(job);
    let wire = job.framework.wire_bytes as f64;
    let group = data_group(job);
    let expert_group =
        Group { ranks: group.ranks / job.layout.expert, stride: group.stride * job.layout.expert };
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
    let beside =
        if job.framework.overlap { workload.calibration.data_hidden * backward } else { 0.0 };
    let behind = weights + tied + by_tensor;
    // Sharded gradients leave with every micro-batch, since no rank keeps a whole sum.
    let times = if job.sharded_stage() == 2 { job.num_microbatches() as f64 } else { 1.0 };
    (times * (gradients - beside).max(0.1 * gradients) + behind, times * gradients + behind)
}

/// Bandwidth between a device and its offloaded states.
fn offload_bytes_per_second(job: &Job<'_>) -> f64 {
    let host = job.cluster.host_gbps;
    1e9 * match job.layout.offload.tier {
        OffloadTier::Host => host,
        OffloadTier::Nvme => host.min(job.cluster.nvme_gbps),
    }
}

/// Exposed transfer of offloaded gradients, which leave with every micro-batch beside its backward
/// pass.
fn gradients_to_host(workload: &Workload<'_>, backward: f64) -> f64 {
    let job = &workload.job;
    if !job.layout.offload.has(OffloadedStates::Gradients) {
        return 0.0;
    }
    let (shared, experts) = held_params(job);
    let shards = if job.sharded_stage() >= 2 { job.zero_shards() } else { 1.0 };
    let expert_shards = (shards / job.layout.expert as f64).max(1.0);
    let bytes = OFFLOADED_HALF * (shared / shards + experts / expert_shards);
    let beside = workload.calibration.data_hidden * backward;
    let exposed = (bytes / offload_bytes_per_second(job) - beside).max(0.0);
    exposed * job.num_microbatches() as f64
}

/// Gradient norm, clipping and optimizer step.
fn update_seconds(workload: &Workload<'_>) -> f64 {
    let Workload { job, calibration, .. } = workload;
    let (shared, experts) = held_params(job);
    let shards = if job.layout.zero > 0 { job.zero_shards() } else { 1.0 };
    let expert_shards = (shards / job.layout.expert as f64).max(1.0);
    let params = shared / shards + experts / expert_shards;
    let start = 1e-3 * calibration.step_ms;
    let offload = job.layout.offload;
    if offload.is_on() {
        // Gradients go to the host and weights return, in pieces beside the host's update.
        let moved = match offload.states {
            OffloadedStates::Weights => 0.0,
            OffloadedStates::Gradients => OFFLOADED_HALF,
            OffloadedStates::Optimizer | OffloadedStates::Nothing => OFFLOADED_SUM,
        };
        let link = moved * params / (job.cluster.host_gbps * 1e9);
        let host = calibration.optimizer_bytes * params / (job.cluster.host_memory_gbps * 1e9);
        let drives = match offload.tier {
            OffloadTier::Host => 0.0,
            OffloadTier::Nvme => NVME_STATES * params / (job.cluster.nvme_gbps * 1e9),
        };
        return start + link.max(host).max(drives);
    }
    let bandwidth = job.cluster.device.memory_gbps * 1e9 * calibration.memory_share;
    calibration.optimizer_bytes * params / bandwidth + start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::scenario::Scenario;

    #[test]
    fn data_loading_counts_only_where_storage_is_slower_than_training() {
        let mut scenario = Scenario::of("llama3-8b", "8xh100-80gb", 64);
        let layout = Layout { data: 8, zero: 3, ..Layout::ONE };
        let mut priced = |gbps: f64| {
            scenario.cluster.storage_gbps = gbps;
            step(&scenario.workload().with(layout), &mut Pipelines::default()).expect("a step")
        };
        let quick = priced(10.0);
        assert!(quick.loading <= 0.0, "{quick:?}");
        // 64 sequences of 8,192 tokens of four bytes, read at 0.1 MB/s.
        let slow = priced(1e-4);
        let bytes = 64.0 * 8192.0 * 4.0;
        assert!((slow.seconds - bytes / 1e5).abs() < 1e-9, "{slow:?}");
        assert!((slow.loading - (slow.seconds - quick.seconds)).abs() < 1e-9, "{slow:?}");
    }
}
