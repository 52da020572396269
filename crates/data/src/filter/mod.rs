//! Quality rules for web text, each from a published pipeline, as one table.
//!
//! A rule is a measurement of a document and a limit. A document is removed by the first rule that
//! it breaks, in the order of the table; the report also counts every rule by itself.
//!
//! # Layout
//!
//! - [`document`]: lines, paragraphs and terms of a document
//! - [`gopher`]: rules of MassiveText; [`repetition`]: its repeated lines and n-grams
//! - [`c4`]: rules of C4

pub mod c4;
pub mod document;
pub mod gopher;
pub mod repetition;

use std::path::Path;

use lockstep_platform::World;

use crate::documents::{DocumentWriter, Documents};
use crate::error::DataError;
use document::Document;

/// Largest document; a longer one is refused with its source.
pub const MAX_DOCUMENT_BYTES: usize = 256 << 20;

/// Side of a limit on which documents are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Below the limit.
    Below,
    /// Above the limit.
    Above,
}

/// A rule.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Name on the command line and in reports.
    pub name: &'static str,
    /// Description of the measurement.
    pub meaning: &'static str,
    /// Side of the limit on which documents are removed.
    pub side: Side,
    /// Limit of the published pipeline.
    pub limit: f64,
    /// Pipeline that the rule comes from.
    pub origin: Origin,
    measure: fn(&Document<'_>) -> f64,
}

/// Published pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// MassiveText: Rae et al. 2021, "Scaling Language Models: Methods, Analysis & Insights from
    /// Training Gopher", section A.1.1.
    Gopher,
    /// C4: Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a Unified
    /// Text-to-Text Transformer", section 2.2.
    C4,
}

impl Origin {
    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gopher => "gopher",
            Self::C4 => "c4",
        }
    }

    /// Citation.
    pub const fn citation(self) -> &'static str {
        match self {
            Self::Gopher => "Rae et al. 2021, section A.1.1",
            Self::C4 => "Raffel et al. 2020, section 2.2",
        }
    }
}

impl Rule {
    /// Whether a document breaks the rule with this limit.
    fn is_broken(&self, limit: f64, document: &Document<'_>) -> bool {
        let measured = (self.measure)(document);
        match self.side {
            Side::Below => measured < limit,
            Side::Above => measured > limit,
        }
    }
}

/// All rules, in the order in which they are applied.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    [gopher::RULES, repetition::RULES, c4::RULES].into_iter().flatten()
}

/// A rule with its limit.
#[derive(Debug, Clone, Copy)]
pub struct ActiveRule {
    /// The rule.
    pub rule: &'static Rule,
    /// Limit in place of the published one, or the same.
    pub limit: f64,
}

/// Counters of a filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FilterProgress {
    /// Number of bytes read from disk.
    pub read_bytes: u64,
    /// Size of the corpus on disk.
    pub total_bytes: u64,
    /// Number of bytes of text read.
    pub text_bytes: u64,
    /// Number of documents read.
    pub num_documents: u64,
    /// Number of documents kept.
    pub num_kept: u64,
    /// Number of bytes of text kept.
    pub kept_bytes: u64,
    /// Number of documents that each rule removed as the first one.
    pub removed: Vec<u64>,
    /// Number of documents that break each rule.
    pub broken: Vec<u64>,
}

/// Writes the documents of a corpus that break no rule to `target`. `progress` is called for every
/// document.
pub fn filter(
    mut documents: Documents,
    target: &Path,
    active: &[ActiveRule],
    field: &str,
    world: &World,
    progress: &mut dyn FnMut(&FilterProgress),
) -> Result<FilterProgress, DataError> {
    let mut writer = DocumentWriter::create(target, field, world)?;
    let mut counters = FilterProgress {
        total_bytes: documents.total_bytes(),
        removed: vec![0; active.len()],
        broken: vec![0; active.len()],
        ..FilterProgress::default()
    };
    let mut text = String::new();
    while documents.next_document_within(&mut text, MAX_DOCUMENT_BYTES)? {
        counters.num_documents += 1;
        counters.text_bytes += text.len() as u64;
        if judge(&text, active, &mut counters) {
            counters.num_kept += 1;
            counters.kept_bytes += text.len() as u64;
            writer.push(&text)?;
        }
        counters.read_bytes = documents.position_bytes();
        progress(&counters);
    }
    writer.finish()?;
    Ok(counters)
}

/// Counts the rules that a document breaks; true if there are none.
fn judge(text: &str, active: &[ActiveRule], counters: &mut FilterProgress) -> bool {
    let document = Document::of(text);
    let mut is_kept = true;
    for (index, ActiveRule { rule, limit }) in active.iter().enumerate() {
        if rule.is_broken(*limit, &document) {
            counters.broken[index] += 1;
            counters.removed[index] += u64::from(is_kept);
            is_kept = false;
        }
    }
    is_kept
}

#[cfg(test)]
mod tests;
