//! Enumeration of all valid layouts.
//!
//! Tensor parallelism stays inside a node, since it never pays between nodes. Everything else is
//! tried in all combinations.

use crate::job::Job;
use crate::layout::Layout;
use crate::model::Attention;
use lockstep_config::Recompute;
use lockstep_schedule::pipeline::Kind;

/// Micro-batch sizes, virtual stages and context degrees that are tried.
const MICROBATCH_SIZES: [u64; 6] = [1, 2, 4, 8, 16, 32];
const CHUNKS: [u64; 7] = [1, 2, 3, 4, 6, 8, 12];
const CONTEXTS: [u64; 4] = [1, 2, 4, 8];
/// Fewest tokens of a context-parallel rank.
const MIN_CONTEXT_TOKENS: u64 = 256;
/// Layers by which the first and last stage may fall short.
const MAX_MISSING_LAYERS: u64 = 2;

/// All tensor, context, pipeline and data degrees of the job's devices.
pub(crate) fn degree_sets(job: &Job<'_>) -> Vec<Layout> {
    let mut degree_sets = Vec::new();
    let (model, devices) = (job.model, job.cluster.devices);
    let tensor_degrees = divisors(job.cluster.per_node.min(model.heads));
    for tensor in tensor_degrees.into_iter().filter(|t| devices.is_multiple_of(*t)) {
        if !(model.heads.is_multiple_of(tensor) && model.ffn.is_multiple_of(tensor)) {
            continue;
        }
        for context in CONTEXTS {
            let is_long = context == 1 || model.context / context >= MIN_CONTEXT_TOKENS;
            if !(is_long && (devices / tensor).is_multiple_of(context)) {
                continue;
            }
            let rest = devices / tensor / context;
            for pipeline in (1..=model.layers).filter(|p| rest.is_multiple_of(*p)) {
                let data = rest / pipeline;
                if data <= job.batch && job.batch.is_multiple_of(data) {
                    degree_sets.push(Layout { tensor, pipeline, context, data, ..Layout::ONE });
                }
            }
        }
    }
    degree_sets
}

/// All memory options and schedules for given degrees.
pub(crate) fn switches(job: &Job<'_>, degrees: Layout, each: &mut dyn FnMut(Layout)) {
    let per_copy = job.batch / degrees.data;
    let experts = job.model.experts.map_or(1, |experts| experts.num);
    let groups: Vec<u64> =
        divisors(experts).into_iter().filter(|e| degrees.data.is_multiple_of(*e)).collect();
    for microbatch in MICROBATCH_SIZES.into_iter().filter(|b| per_copy.is_multiple_of(*b)) {
        for (schedule, chunks) in schedules(job, &degrees, per_copy / microbatch) {
            for &expert in &groups {
                // The search tries more with a pipeline where this does not fit.
                let most = if degrees.pipeline > 1 { 1 } else { 3 };
                let most = if degrees.data > 1 { most } else { 0 };
                for zero in 0..=most {
                    for sequence in [false, true] {
                        if sequence && degrees.tensor == 1 {
                            continue;
                        }
                        let layout = Layout { chunks, schedule, expert, microbatch, ..degrees };
                        for recompute in recompute_modes(job) {
                            each(Layout { sequence, zero, recompute, ..layout });
                        }
                    }
                }
            }
        }
    }
}

/// Recomputation modes that differ: fused attention saves no scores to recompute.
fn recompute_modes(job: &Job<'_>) -> Vec<Recompute> {
    match job.model.attention {
        Attention::Materialised => vec![Recompute::None, Recompute::Selective, Recompute::Full],
        Attention::Fused => vec![Recompute::None, Recompute::Full],
    }
}

/// Schedules and virtual stages for a pipeline degree.
fn schedules(job: &Job<'_>, degrees: &Layout, microbatches: u64) -> Vec<(Kind, u64)> {
    if degrees.pipeline == 1 {
        return vec![(Kind::OneFOneB, 1)];
    }
    let layers = job.model.layers;
    let mut schedules = vec![(Kind::GPipe, 1), (Kind::OneFOneB, 1)];
    schedules.extend([(Kind::ZeroBubble, 1), (Kind::ZeroBubbleTwice, 1)]);
    let is_round = microbatches.is_multiple_of(degrees.pipeline);
    for chunks in CHUNKS.into_iter().skip(1).filter(|_| is_round) {
        let stages = degrees.pipeline * chunks;
        if stages <= layers && layers.div_ceil(stages) * stages - layers <= MAX_MISSING_LAYERS {
            schedules.push((Kind::Interleaved, chunks));
        }
    }
    schedules
}

/// Divisors in ascending order.
fn divisors(number: u64) -> Vec<u64> {
    (1..=number).filter(|divisor| number.is_multiple_of(*divisor)).collect()
}
