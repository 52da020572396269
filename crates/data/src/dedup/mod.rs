//! Removes repeated documents: exact copies, and near-duplicates by their shingles.
//!
//! Documents are read once, in order, and each is compared with those that were kept before it. The
//! first of several equal documents is kept, and every removed one resembles a kept one.
//!
//! # Layout
//!
//! - [`normalize`]: text with equal case and white space; [`exact`]: hashes of normalised texts
//! - [`minhash`]: signatures of shingles; [`banding`]: documents with an equal band
//! - [`hash_set`]: a set of hashes with a memory limit

pub mod banding;
pub mod exact;
pub mod hash_set;
pub mod minhash;
pub mod normalize;

use std::path::Path;

use lockstep_platform::World;

use crate::documents::{DocumentWriter, Documents};
use crate::error::DataError;
use banding::Bands;
use exact::ExactSet;

pub use banding::BandShape;
pub use minhash::MinHash;

/// Largest document; a longer one is refused with its source.
pub const MAX_DOCUMENT_BYTES: usize = 256 << 20;

/// Options of a deduplication.
#[derive(Debug, Clone)]
pub struct DedupOptions {
    /// Near-duplicates, besides exact copies.
    pub similar: Option<SimilarityOptions>,
    /// Largest memory of all hashes in bytes.
    pub memory_bytes: u64,
    /// Field of the text in the written lines.
    pub field: String,
}

/// Options of near-duplicates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimilarityOptions {
    /// Number of permutations: hashes in a signature.
    pub num_permutations: usize,
    /// Bands of a signature.
    pub shape: BandShape,
    /// Number of words in a shingle.
    pub shingle_terms: usize,
    /// Seed of the permutations.
    pub seed: u64,
}

/// Counters of a deduplication.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DedupProgress {
    /// Number of bytes read from disk.
    pub read_bytes: u64,
    /// Size of the corpus on disk.
    pub total_bytes: u64,
    /// Number of bytes of text read.
    pub text_bytes: u64,
    /// Number of documents read.
    pub num_documents: u64,
    /// Number of removed exact copies.
    pub num_exact: u64,
    /// Number of removed near-duplicates.
    pub num_similar: u64,
    /// Number of bytes of text kept.
    pub kept_bytes: u64,
    /// Memory of all hashes.
    pub memory_bytes: u64,
}

/// Writes the documents of a corpus without duplicates to `target`. `progress` is called for every
/// document.
pub fn dedup(
    mut documents: Documents,
    target: &Path,
    options: &DedupOptions,
    world: &World,
    progress: &mut dyn FnMut(DedupProgress),
) -> Result<DedupProgress, DataError> {
    let mut writer = DocumentWriter::create(target, &options.field, world)?;
    let mut exact = ExactSet::default();
    let mut similar =
        options.similar.map(|similar| (MinHash::new(similar), Bands::new(similar.shape)));
    let mut counters =
        DedupProgress { total_bytes: documents.total_bytes(), ..DedupProgress::default() };
    let (mut text, mut normal) = (String::new(), String::new());
    while documents.next_document_within(&mut text, MAX_DOCUMENT_BYTES)? {
        counters.num_documents += 1;
        counters.text_bytes += text.len() as u64;
        normalize::normalize(&text, &mut normal);
        // Room for one more document is made first, so that the limit is never exceeded.
        let used = similar.as_ref().map_or(0, |(_, bands)| bands.memory_bytes());
        exact.reserve(options.memory_bytes.saturating_sub(used))?;
        if let Some((_, bands)) = &mut similar {
            bands.reserve(options.memory_bytes.saturating_sub(exact.memory_bytes()))?;
        }
        let mut is_new = exact.insert(&normal);
        counters.num_exact += u64::from(!is_new);
        if let Some((minhash, bands)) = similar.as_mut().filter(|_| is_new) {
            is_new = bands.insert(minhash.signature(&normal));
            counters.num_similar += u64::from(!is_new);
        }
        if is_new {
            counters.kept_bytes += text.len() as u64;
            writer.push(&text)?;
        }
        counters.memory_bytes =
            exact.memory_bytes() + similar.as_ref().map_or(0, |(_, bands)| bands.memory_bytes());
        counters.read_bytes = documents.position_bytes();
        progress(counters);
    }
    writer.finish()?;
    Ok(counters)
}

#[cfg(test)]
mod tests;
