//! Learning a vocabulary: byte-level BPE, by the `tokenizers` crate.
//!
//! Byte-pair encoding starts from the 256 bytes and joins, again and again, the two neighbouring
//! tokens that are most frequent within words, until the vocabulary has its size. What must be in
//! memory is the words of the text with their counts, which a sample of some hundred megabytes
//! knows well enough; it is drawn evenly over the corpus, as a function of the piece's number, so
//! the same corpus always gives the same vocabulary.

use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::{AddedToken, ProgressFormat, Tokenizer};

use super::error::{TokenizerError, one_line};
use crate::documents::Documents;
use crate::error::DataError;
use crate::permutation::mix;

/// The token that ends a document.
pub const END: &str = "<|endoftext|>";

/// The bytes and the token that ends a document.
const LEAST_VOCAB: usize = 257;

/// More than any vocabulary in use.
const MOST_VOCAB: usize = 1 << 20;

/// A pair that occurs once is not worth a token.
const MIN_FREQUENCY: u64 = 2;

/// What to learn.
#[derive(Debug, Clone, Copy)]
pub struct TrainOptions {
    /// The size of the vocabulary.
    pub vocab: usize,
    /// How much text to learn from, about; a smaller corpus is taken whole.
    pub sample_bytes: u64,
}

/// How far the reading has come; the merging that follows cannot be watched.
#[derive(Debug, Clone, Copy, Default)]
pub struct TrainProgress {
    /// Bytes read from the disk.
    pub read_bytes: u64,
    /// Bytes to read from the disk.
    pub total_bytes: u64,
    /// Bytes of text in the sample.
    pub sample_bytes: u64,
}

/// A vocabulary.
#[derive(Debug, Clone)]
pub struct Trained {
    /// The `tokenizer.json`.
    pub json: String,
    /// How many tokens it has: fewer than asked for where the text has no more to join.
    pub vocab: usize,
    /// Bytes of text it was learnt from.
    pub sample_bytes: u64,
}

/// Learns a vocabulary from a corpus. `progress` hears of every piece that is read.
pub fn train(
    documents: Documents,
    options: TrainOptions,
    progress: &mut (dyn FnMut(TrainProgress) + Send),
) -> Result<Trained, DataError> {
    let (vocab, least, most) = (options.vocab, LEAST_VOCAB, MOST_VOCAB);
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
        .special_tokens(vec![AddedToken::from(END, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let mut failed = None;
    let mut told =
        TrainProgress { total_bytes: documents.total_bytes(), ..TrainProgress::default() };
    let sample = Sample {
        stride: documents.total_bytes().div_ceil(options.sample_bytes.max(1)).max(1),
        limit_bytes: options.sample_bytes.saturating_mul(2),
        documents,
        num_pieces: 0,
        told: &mut told,
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
    Ok(Trained { json, vocab, sample_bytes: told.sample_bytes })
}

/// The pieces to learn from. The trainer cannot be told of an error, so the first is kept aside
/// and ends the sample.
struct Sample<'a> {
    documents: Documents,
    /// One of this many pieces is taken.
    stride: u64,
    /// Compressed files are larger than they seem; the sample ends here in any case.
    limit_bytes: u64,
    num_pieces: u64,
    told: &'a mut TrainProgress,
    failed: &'a mut Option<DataError>,
    progress: &'a mut (dyn FnMut(TrainProgress) + Send),
}

impl Iterator for Sample<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut text = String::new();
        while self.told.sample_bytes < self.limit_bytes {
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
            self.told.read_bytes = self.documents.position_bytes();
            (self.progress)(*self.told);
            // The first is always taken, so that no sample is empty.
            if number == 0 || mix(number, self.stride).is_multiple_of(self.stride) {
                self.told.sample_bytes += text.len() as u64;
                return Some(text);
            }
        }
        None
    }
}
