//! Behaviour of published training frameworks: facts about their source, not fitted constants.
//!
//! Each was read in the framework's source or documentation: tensors it saves, gradients it widens
//! for the optimizer step, bytes per logit during the loss, and which allocator figure it logs on
//! which rank.

use crate::framework::{Framework, LayerSplit, ReportedMemory};
use crate::job::Job;
use crate::layout::Layout;

/// Columns of a row that identify its framework.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunDescription<'a> {
    /// Framework name, perhaps with a version.
    pub(super) program: &'a str,
    /// Source of the row; an arXiv number contains its year.
    pub(super) source: &'a str,
    /// Notes column.
    pub(super) notes: &'a str,
    /// Precision of matmuls.
    pub(super) precision: &'a str,
}

/// Publication year of a source, from an arXiv number or a year in the text.
fn year(source: &str) -> Option<u64> {
    let digits = |text: &str| text.get(..4).and_then(|four| four.parse::<u64>().ok());
    if let Some(at) = source.find("arXiv:") {
        return digits(&source[at + 6..]).map(|number| 2000 + number / 100);
    }
    source.match_indices("20").find_map(|(at, _)| digits(&source[at..]))
}

/// Framework behaviour for a row.
pub(super) fn framework(run: &RunDescription<'_>, layout: &Layout) -> Framework {
    let (program, notes) = (run.program.to_lowercase(), run.notes.to_lowercase());
    let precision = run.precision;
    let is_fp8 = [precision.to_lowercase().as_str(), notes.as_str()]
        .iter()
        .any(|text| text.contains("float8") || text.contains("fp8"));
    // fp16 gradients accumulate in 16 bits, others in 32.
    let bytes = if precision.to_lowercase().starts_with("fp16") { 2 } else { 4 };
    let common = Framework {
        gradient_bytes: bytes,
        wire_bytes: bytes,
        fp8: is_fp8,
        overlap: !(notes.contains("no tp/pp/dp overlap") || notes.contains("no overlap")),
        gathers_by_tensor: program.contains("deepspeed"),
        ..Framework::MODERN
    };
    match program.as_str() {
        name if name.contains("megatron") => megatron(common, name, &notes, year(run.source)),
        name if name.contains("nanotron") => nanotron(common, layout.zero),
        name if name.contains("internevo") => internevo(common, layout.zero),
        name if name.contains("torchtitan") => torchtitan(common, name, &notes, layout),
        _ => common,
    }
}

/// A fused cross-entropy keeps no 32-bit logits beside their softmax. Megatron-LM fuses gradient
/// accumulation into the matmul since 2022.
fn megatron(common: Framework, name: &str, notes: &str, year: Option<u64>) -> Framework {
    let logit_bytes = if notes.contains("ce fusion") { 6 } else { common.logit_bytes };
    let adds_apart = name.contains("deepspeed") || year.is_some_and(|year| year < 2022);
    let accumulation_bytes = if adds_apart { 3 * common.gradient_bytes } else { 0 };
    Framework { overlap: false, logit_bytes, accumulation_bytes, ..common }
}

/// Gradients accumulate in 32 bits beside DDP's 16-bit buckets; softmax is a second 32-bit copy of
/// the logits; the log has the reserved memory of rank 0.
fn nanotron(common: Framework, zero: u8) -> Framework {
    Framework {
        // DDP reduces buckets of 25 MB of 16-bit gradients in 32 bits, overlapped with backward;
        // with ZeRO the reduce-scatters and all-gathers of all tensors start together after it.
        bucket_cap_bytes: Some(if zero > 0 { 1 << 50 } else { 50 << 20 }),
        overlap: zero == 0,
        layer_split: LayerSplit::ByCost,
        // Reads a 16-bit gradient, reads and writes a 32-bit sum.
        accumulation_bytes: 2 + 4 + 4,
        eager: true,
        logit_bytes: 8,
        bucket_buffer_bytes: 2,
        syncs_hosts_in_stages: true,
        shards_by_tensor: true,
        // Inferred: layouts of the published sweep that fill more than 68 of 80 GiB failed.
        extra_bytes: 11 << 30,
        reported_memory: ReportedMemory::ReservedOnFirstStage,
        ..common
    }
}

/// Gradients stay in 16 bits. The unfused optimizer step widens them and keeps a root and a sum
/// beside the moments. ZeRO-1 flattens gradients first.
fn internevo(common: Framework, zero: u8) -> Framework {
    Framework {
        gradient_bytes: 2,
        wire_bytes: 2,
        shards_by_tensor: true,
        accumulation_bytes: 2 + 2 + 2,
        layer_split: LayerSplit::ExtraAtEnd,
        bucket_cap_bytes: Some(512 << 20),
        eager: true,
        update_bytes: if zero < 3 { 4 + 8 + 2 } else { 4 + 8 },
        reported_memory: ReportedMemory::Reserved,
        ..common
    }
}

/// Parameters are sharded in 32 bits. An uncompiled loss has three 32-bit copies of the logits
/// (log-softmax, its gradient, theirs), and four with vocabulary-parallel logits, where log-softmax
/// and its gradient are separate kernels.
fn torchtitan(common: Framework, name: &str, notes: &str, layout: &Layout) -> Framework {
    let is_compiled = notes.contains("compile");
    // Later versions compile the loss with the model.
    let has_compiled_loss = is_compiled && !name.contains("9dec370");
    Framework {
        eager: !is_compiled,
        saves_alternate_matmuls: true,
        accumulation_bytes: 2 + 4 + 4,
        casts_gathered_weights: true,
        async_tensor_parallel: notes.contains("asynctp") || notes.contains("async tp"),
        logit_bytes: match layout.tensor {
            _ if has_compiled_loss => 4,
            1 => 12,
            _ => 16,
        },
        keeps_stage_messages: true,
        // FSDP with a pipeline does not reshard between micro-batches, and reduces with the last.
        keeps_gathered_in_stages: true,
        reported_memory: ReportedMemory::Reserved,
        ..common
    }
}

/// Reason that a framework rejects a layout regardless of memory. Such failures say nothing about
/// memory.
pub(super) fn rejects_layout(program: &str, job: &Job<'_>) -> Option<&'static str> {
    let (layout, stages) = (&job.layout, job.layout.pipeline);
    if !program.to_lowercase().contains("nanotron") || stages == 1 {
        return None;
    }
    if job.num_microbatches() + 1 < stages {
        return Some(
            "failed: its framework needs at least as many micro-batches as stages, less one",
        );
    }
    // One stage may hold only the loss.
    let empty = (1..stages - 1).filter(|stage| job.layers_of(stages, *stage).1 == 0).count();
    (empty > 1 && (layout.data > 1 || stages > job.model.layers))
        .then_some("failed: its framework rejects stages without parameters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_year_is_read_from_a_source() {
        assert_eq!(year("Narayanan et al SC21 arXiv:2104.04473 Table 2"), Some(2021));
        assert_eq!(year("images/tables.tex (git history, 2020)"), Some(2020));
        assert_eq!(year("docs/b200/summary.json"), None);
    }
}
