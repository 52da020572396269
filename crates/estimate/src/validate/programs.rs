//! What published training programs do beside their layout: facts about programs, not constants.
//!
//! Each was read in the program's source or documentation: what it keeps, what it widens for the
//! update, in how many numbers a logit stands while its loss is computed, which of the allocator's
//! figures it logs and on which device.

use crate::layout::{Habits, Job, Reported};

/// Habits of a program by its name, the row's notes and its precision.
pub(super) fn habits(program: &str, notes: &str, precision: &str, zero: u8) -> Habits {
    let (program, notes) = (program.to_lowercase(), notes.to_lowercase());
    let is_fp8 = [precision.to_lowercase().as_str(), notes.as_str()]
        .iter()
        .any(|text| text.contains("float8") || text.contains("fp8"));
    // Sums of 16-bit floats with a short exponent stay 16 bits wide; others are kept in 32.
    let bytes = if precision.to_lowercase().starts_with("fp16") { 2 } else { 4 };
    let common = Habits {
        gradient_bytes: bytes,
        wire_bytes: bytes,
        fp8: is_fp8,
        overlap: !(notes.contains("no tp/pp/dp overlap") || notes.contains("no overlap")),
        fetches_by_tensor: program.contains("deepspeed"),
        ..Habits::MODERN
    };
    match program.as_str() {
        name if name.contains("megatron") => megatron(common, &notes),
        name if name.contains("nanotron") => nanotron(common, zero),
        name if name.contains("internevo") => internevo(common, zero),
        name if name.contains("torchtitan") => torchtitan(common, name, &notes),
        _ => common,
    }
}

/// A fused loss has no logits in 32 bits beside their softmax.
fn megatron(common: Habits, notes: &str) -> Habits {
    let logit_bytes = if notes.contains("ce fusion") { 6 } else { common.logit_bytes };
    Habits { overlap: false, logit_bytes, ..common }
}

/// Gradients are added up in 32 bits beside PyTorch's 16-bit buckets; softmax is a second copy of
/// the logits in 32 bits; the log has what rank 0 reserved.
fn nanotron(common: Habits, zero: u8) -> Habits {
    Habits {
        // ZeRO's scatters and gathers of all tensors start together.
        together_bytes: (zero > 0).then_some(1 << 50),
        cuts_by_cost: true,
        eager: true,
        logit_bytes: 8,
        bucket_bytes: 2,
        waits_in_stages: true,
        shards_by_tensor: true,
        reports: Reported::ReservedByFirst,
        ..common
    }
}

/// Gradients stay in 16 bits; the update widens them, and is no single kernel: a root and a sum of
/// everything stand beside the moments. ZeRO's first stage lays gradients out in a row before.
fn internevo(common: Habits, zero: u8) -> Habits {
    Habits {
        gradient_bytes: 2,
        together_bytes: Some(512 << 20),
        eager: true,
        update_bytes: if zero < 3 { 4 + 8 + 2 } else { 4 + 8 },
        reports: Reported::Reserved,
        ..common
    }
}

/// Parameters are divided in 32 bits; a loss that is not compiled has three copies of the logits
/// in 32 bits (their logarithms, its gradient and theirs).
fn torchtitan(common: Habits, name: &str, notes: &str) -> Habits {
    let is_compiled = notes.contains("compile");
    // The loss is compiled with the model since this version.
    let has_compiled_loss = is_compiled && !name.contains("9dec370");
    Habits {
        eager: !is_compiled,
        keeps_products: true,
        casts_fetched: true,
        slices_piecewise: notes.contains("asynctp") || notes.contains("async tp"),
        logit_bytes: if has_compiled_loss { 4 } else { 12 },
        reports: Reported::Reserved,
        ..common
    }
}

/// Why a program refuses a layout whatever the memory: such failures say nothing about memory.
pub(super) fn refuses(program: &str, job: &Job<'_>) -> Option<&'static str> {
    let (layout, stages) = (&job.layout, job.layout.pipeline);
    if !program.to_lowercase().contains("nanotron") || stages == 1 {
        return None;
    }
    if job.num_microbatches() + 1 < stages {
        return Some("failed: its program takes as many microbatches as stages, less one");
    }
    // One stage may hold the loss alone.
    let empty = (1..stages - 1).filter(|stage| job.layers_of(stages, *stage).1 == 0).count();
    (empty > 1 && (layout.data > 1 || stages > job.model.layers))
        .then_some("failed: its program refuses stages without parameters")
}
