//! What published training programs do beside their layout: facts about programs, not constants.
//!
//! Each was read in the program's source or documentation: what it keeps, what it widens for the
//! update, in how many numbers a logit stands while its loss is computed, which of the allocator's
//! figures it logs and on which device.

use crate::layout::{Cut, Habits, Job, Layout, Reported};

/// What a row says of its program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told<'a> {
    /// Its name, perhaps with a version.
    pub(super) program: &'a str,
    /// Where the row is from: a paper's number has its year.
    pub(super) source: &'a str,
    /// Remarks.
    pub(super) notes: &'a str,
    /// Of products.
    pub(super) precision: &'a str,
}

/// The year in which a source was published: of a paper's number, or a number of this century.
fn year(source: &str) -> Option<u64> {
    let digits = |text: &str| text.get(..4).and_then(|four| four.parse::<u64>().ok());
    if let Some(at) = source.find("arXiv:") {
        return digits(&source[at + 6..]).map(|number| 2000 + number / 100);
    }
    source.match_indices("20").find_map(|(at, _)| digits(&source[at..]))
}

/// Habits of a program by what a row says of it.
pub(super) fn habits(told: &Told<'_>, layout: &Layout) -> Habits {
    let (program, notes) = (told.program.to_lowercase(), told.notes.to_lowercase());
    let precision = told.precision;
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
        name if name.contains("megatron") => megatron(common, name, &notes, year(told.source)),
        name if name.contains("nanotron") => nanotron(common, layout.zero),
        name if name.contains("internevo") => internevo(common, layout.zero),
        name if name.contains("torchtitan") => torchtitan(common, name, &notes, layout),
        _ => common,
    }
}

/// A fused loss has no logits in 32 bits beside their softmax. Products add up gradients by
/// themselves since 2022, in the original.
fn megatron(common: Habits, name: &str, notes: &str, year: Option<u64>) -> Habits {
    let logit_bytes = if notes.contains("ce fusion") { 6 } else { common.logit_bytes };
    let adds_apart = name.contains("deepspeed") || year.is_some_and(|year| year < 2022);
    let adding_bytes = if adds_apart { 3 * common.gradient_bytes } else { 0 };
    Habits { overlap: false, logit_bytes, adding_bytes, ..common }
}

/// Gradients are added up in 32 bits beside PyTorch's 16-bit buckets; softmax is a second copy of
/// the logits in 32 bits; the log has what rank 0 reserved.
fn nanotron(common: Habits, zero: u8) -> Habits {
    Habits {
        // Copies add up buckets of 25 MB of 16-bit gradients, in 32 bits, while backward goes on;
        // ZeRO's scatters and gathers of all tensors start together behind it.
        together_bytes: Some(if zero > 0 { 1 << 50 } else { 50 << 20 }),
        overlap: zero == 0,
        cut: Cut::ByCost,
        // A 16-bit gradient is read, and a 32-bit sum read and written.
        adding_bytes: 2 + 4 + 4,
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
        wire_bytes: 2,
        shards_by_tensor: true,
        adding_bytes: 2 + 2 + 2,
        cut: Cut::LongerAtEnd,
        together_bytes: Some(512 << 20),
        eager: true,
        update_bytes: if zero < 3 { 4 + 8 + 2 } else { 4 + 8 },
        reports: Reported::Reserved,
        ..common
    }
}

/// Parameters are divided in 32 bits; a loss that is not compiled has three copies of the logits
/// in 32 bits (their logarithms, its gradient and theirs), and four where holders of slices have
/// parts of the vocabulary, since logarithms and their gradient are no single kernel then.
fn torchtitan(common: Habits, name: &str, notes: &str, layout: &Layout) -> Habits {
    let is_compiled = notes.contains("compile");
    // The loss is compiled with the model since this version.
    let has_compiled_loss = is_compiled && !name.contains("9dec370");
    Habits {
        eager: !is_compiled,
        keeps_products: true,
        adding_bytes: 2 + 4 + 4,
        casts_fetched: true,
        slices_piecewise: notes.contains("asynctp") || notes.contains("async tp"),
        logit_bytes: match layout.tensor {
            _ if has_compiled_loss => 4,
            1 => 12,
            _ => 16,
        },
        keeps_messages: true,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_has_a_year_if_it_says_one() {
        assert_eq!(year("Narayanan et al SC21 arXiv:2104.04473 Table 2"), Some(2021));
        assert_eq!(year("images/tables.tex (git history, 2020)"), Some(2020));
        assert_eq!(year("docs/b200/summary.json"), None);
    }
}
