//! All layouts that divide.
//!
//! Slices stay inside a node, since between nodes they never pay. Everything else is tried in all
//! combinations.

use super::Question;
use crate::layout::{Layout, Recompute};
use crate::model::Attention;
use lockstep_schedule::pipeline::Kind;

/// Sequences of a microbatch, stages of a device and parts of a sequence that are tried.
const MICROBATCHES: [u64; 6] = [1, 2, 4, 8, 16, 32];
const CHUNKS: [u64; 7] = [1, 2, 3, 4, 6, 8, 12];
const CONTEXTS: [u64; 4] = [1, 2, 4, 8];
/// The fewest tokens of a part of a sequence.
const SHORTEST: u64 = 256;
/// Layers that a pipeline's first and last stage may be short of.
const SHORT: u64 = 2;

/// Calls `each` with every layout of the question's devices.
pub fn layouts(question: &Question<'_>, each: &mut dyn FnMut(Layout)) {
    for cut in cuts(question) {
        switches(question, cut, each);
    }
}

/// Every way to divide the question's devices among slices, parts of sequences, stages and copies.
pub(crate) fn cuts(question: &Question<'_>) -> Vec<Layout> {
    let mut cuts = Vec::new();
    let (model, devices) = (question.model, question.cluster.devices);
    let slices = divisors(question.cluster.per_node.min(model.heads));
    for tensor in slices.into_iter().filter(|t| devices.is_multiple_of(*t)) {
        if !(model.heads.is_multiple_of(tensor) && model.ffn.is_multiple_of(tensor)) {
            continue;
        }
        for context in CONTEXTS {
            let is_long = context == 1 || model.context / context >= SHORTEST;
            if !(is_long && (devices / tensor).is_multiple_of(context)) {
                continue;
            }
            let rest = devices / tensor / context;
            for pipeline in (1..=model.layers).filter(|p| rest.is_multiple_of(*p)) {
                let data = rest / pipeline;
                if data <= question.batch && question.batch.is_multiple_of(data) {
                    cuts.push(Layout { tensor, pipeline, context, data, ..Layout::ONE });
                }
            }
        }
    }
    cuts
}

/// Every switch of a cut.
pub(crate) fn switches(question: &Question<'_>, cut: Layout, each: &mut dyn FnMut(Layout)) {
    let per_copy = question.batch / cut.data;
    let experts = question.model.experts.map_or(1, |experts| experts.num);
    let groups: Vec<u64> =
        divisors(experts).into_iter().filter(|e| cut.data.is_multiple_of(*e)).collect();
    for microbatch in MICROBATCHES.into_iter().filter(|b| per_copy.is_multiple_of(*b)) {
        for (schedule, chunks) in orders(question, &cut, per_copy / microbatch) {
            for &expert in &groups {
                // A pipeline keeps weights and gradients in full anyway.
                let most = if cut.pipeline > 1 { 1 } else { 3 };
                let most = if cut.data > 1 { most } else { 0 };
                for zero in 0..=most {
                    for sequence in [false, true] {
                        if sequence && cut.tensor == 1 {
                            continue;
                        }
                        let layout = Layout { chunks, schedule, expert, microbatch, ..cut };
                        for recompute in recomputes(question) {
                            each(Layout { sequence, zero, recompute, ..layout });
                        }
                    }
                }
            }
        }
    }
}

/// Ways to compute again that differ: without scores in memory there are none to compute again.
fn recomputes(question: &Question<'_>) -> Vec<Recompute> {
    match question.model.attention {
        Attention::Materialised => vec![Recompute::None, Recompute::Selective, Recompute::Full],
        Attention::Fused => vec![Recompute::None, Recompute::Full],
    }
}

/// Schedules and numbers of stages that a pipeline may have.
fn orders(question: &Question<'_>, cut: &Layout, microbatches: u64) -> Vec<(Kind, u64)> {
    if cut.pipeline == 1 {
        return vec![(Kind::OneFOneB, 1)];
    }
    let layers = question.model.layers;
    let mut orders = vec![(Kind::GPipe, 1), (Kind::OneFOneB, 1)];
    orders.extend([(Kind::ZeroBubble, 1), (Kind::ZeroBubbleTwice, 1)]);
    let is_round = microbatches.is_multiple_of(cut.pipeline);
    for chunks in CHUNKS.into_iter().skip(1).filter(|_| is_round) {
        let stages = cut.pipeline * chunks;
        if stages <= layers && layers.div_ceil(stages) * stages - layers <= SHORT {
            orders.push((Kind::Interleaved, chunks));
        }
    }
    orders
}

/// Divisors, ascending.
fn divisors(number: u64) -> Vec<u64> {
    (1..=number).filter(|divisor| number.is_multiple_of(*divisor)).collect()
}
