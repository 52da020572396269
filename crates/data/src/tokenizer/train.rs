//! Trains a byte-level BPE vocabulary (Sennrich et al. 2016), by the `tokenizers` crate.
//!
//! Byte-pair encoding starts from 256 bytes and repeatedly merges the most frequent pair of
//! adjacent tokens within words, until the vocabulary has its size. The words of the text with
//! their counts must fit in memory, so training uses a sample of a few hundred megabytes. The
//! sample is spread evenly over the corpus by piece number, so the same corpus always gives the
//! same vocabulary.

use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::{AddedToken, ProgressFormat, Tokenizer};

use super::error::{TokenizerError, one_line};
use super::sentinels::SENTINELS;
use crate::documents::Documents;
use crate::error::DataError;
use crate::permutation::mix;

/// End-of-document token.
pub const END: &str = "<|endoftext|>";

/// The bytes and the end-of-document token.
const LEAST_VOCAB: usize = 257;

/// Larger than any vocabulary in use.
const MOST_VOCAB: usize = 1 << 20;

/// A pair that occurs once is not worth a token.
const MIN_FREQUENCY: u64 = 2;

/// Options of tokenizer training.
#[derive(Debug, Clone, Copy)]
pub struct TrainOptions {
    /// Vocabulary size.
    pub vocab: usize,
    /// Approximate size of the training sample; a smaller corpus is used whole.
    pub sample_bytes: u64,
    /// Whether the vocabulary gets sentinel tokens for fill-in-the-middle.
    pub has_sentinels: bool,
}

/// Progress of reading; the merges that follow report none.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrainProgress {
    /// Number of bytes read from disk.
    pub read_bytes: u64,
    /// Size of the corpus on disk.
    pub total_bytes: u64,
    /// Bytes of text in the sample.
    pub sample_bytes: u64,
}

/// A trained vocabulary.
#[derive(Debug, Clone)]
pub struct Trained {
    /// Content of `tokenizer.json`.
    pub json: String,
    /// Vocabulary size: smaller than requested if no pairs are left to merge.
    pub vocab: usize,
    /// Bytes of text in the training sample.
    pub sample_bytes: u64,
}

/// Trains a vocabulary on a corpus. `progress` is called for every piece.
pub fn train(
    documents: Documents,
    options: TrainOptions,
    progress: &mut (dyn FnMut(TrainProgress) + Send),
) -> Result<Trained, DataError> {
    let sentinels: &[&str] = if options.has_sentinels { &SENTINELS[0] } else { &[] };
    let special = [END].iter().chain(sentinels).map(|text| AddedToken::from(*text, true));
    let (vocab, least, most) = (options.vocab, LEAST_VOCAB + sentinels.len(), MOST_VOCAB);
    if !(least..=most).contains(&vocab) {
        return Err(TokenizerError::VocabOutOfRange { vocab, end: END, least, most }.into());
    }
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    tokenizer.with_post_processor(Some(ByteLevel::default().trim_offsets(false)));
    let trainer = BpeTrainer::builder()
        .vocab_size(vocab)
        .min_frequency(MIN_FREQUENCY)
        .show_progress(false)
        .progress_format(ProgressFormat::Silent)
        .special_tokens(special.collect())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let mut failed = None;
    let mut counters =
        TrainProgress { total_bytes: documents.total_bytes(), ..TrainProgress::default() };
    let sample = Sample {
        stride: documents.total_bytes().div_ceil(options.sample_bytes.max(1)).max(1),
        limit_bytes: options.sample_bytes.saturating_mul(2),
        documents,
        num_pieces: 0,
        counters: &mut counters,
        failed: &mut failed,
        progress,
    };
    let trained = tokenizer.train(&mut TrainerWrapper::from(trainer), sample).map(|_| ());
    if let Some(error) = failed {
        return Err(error);
    }
    let wrong = |error: tokenizers::Error| TokenizerError::Training { reason: one_line(&error) };
    trained.map_err(wrong)?;
    let json = tokenizer.to_string(true).map_err(wrong)?;
    let vocab = tokenizer.get_vocab_size(true);
    Ok(Trained { json, vocab, sample_bytes: counters.sample_bytes })
}

/// Pieces of the training sample. The trainer cannot report errors, so the first one is stored and
/// ends the sample.
struct Sample<'a> {
    documents: Documents,
    /// One of `stride` pieces is taken.
    stride: u64,
    /// Bound on the sample, since compressed files are larger than their size on disk.
    limit_bytes: u64,
    num_pieces: u64,
    counters: &'a mut TrainProgress,
    failed: &'a mut Option<DataError>,
    progress: &'a mut (dyn FnMut(TrainProgress) + Send),
}

impl Iterator for Sample<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut text = String::new();
        while self.counters.sample_bytes < self.limit_bytes {
            match self.documents.next_into(&mut text) {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => {
                    *self.failed = Some(error);
                    return None;
                }
            }
            let number = self.num_pieces;
            self.num_pieces += 1;
            self.counters.read_bytes = self.documents.position_bytes();
            (self.progress)(*self.counters);
            // Always take the first piece, so that no sample is empty.
            if number == 0 || mix(number, self.stride).is_multiple_of(self.stride) {
                self.counters.sample_bytes += text.len() as u64;
                return Some(text);
            }
        }
        None
    }
}
