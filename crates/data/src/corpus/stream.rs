//! Reading a token stream before it is split: whole, or only some spans.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use lockstep_config::{self as config, Documents, Recipe};
use lockstep_platform::World;

use super::conversation_counts::ConversationCounts;
use super::loss_mask::LossMask;
use super::stream_stats::{FingerprintHasher, TokenCounts};
use super::text::{Part, Text};
use super::token_span::TokenSpan;
use super::tokens::{Run, SpanCollector, Tokens};
use crate::bundled;
use crate::documents::{BUNDLED, ReadOptions};
use crate::error::DataError;
use crate::permutation::mix;
use crate::shards::{ShardError, ShardSet};
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::zipf;

/// A whole stream, in memory or mapped.
pub(super) struct Whole {
    pub(super) name: String,
    pub(super) tokens: Tokens,
    pub(super) num_tokens: usize,
    /// Ends of the documents; shards load them only for masked and padded documents.
    pub(super) ends: Arc<[u64]>,
    pub(super) vocab: usize,
    /// Fingerprint of a shard set, from its manifest.
    pub(super) shards: Option<String>,
    /// Number of bytes of text.
    pub(super) num_bytes: u64,
    /// Tokens that are targets; without it all are.
    pub(super) mask: Option<LossMask>,
    /// Documents that stay together: two of a pair, else one.
    pub(super) group: usize,
    /// Numbers of conversations, if it has some.
    pub(super) conversations: Option<ConversationCounts>,
}

impl Whole {
    /// All of it as one span.
    fn into_span(self) -> TokenSpan {
        let Self { tokens, num_tokens, ends, mask, group, .. } = self;
        let (tokens, mask, references) = (Arc::new(tokens), mask.map(Arc::new), None);
        TokenSpan { tokens, range: 0..num_tokens, ends, mask, group, references }
    }

    /// Mapped shards.
    pub(super) fn mapped(set: ShardSet, cut: Documents) -> Self {
        let ends: Arc<[u64]> = match cut {
            Documents::Packed => Arc::new([]),
            Documents::Masked | Documents::Padded => {
                (0..set.num_documents()).map(|i| set.document(i).end).collect()
            }
        };
        Self {
            name: set.folder().display().to_string(),
            num_tokens: usize::try_from(set.num_tokens()).expect("a mapped file has an address"),
            ends,
            vocab: set.vocab(),
            shards: Some(set.fingerprint()),
            num_bytes: set.num_bytes(),
            mask: None,
            group: 1,
            conversations: None,
            tokens: Tokens::Shards(set),
        }
    }

    /// A text, read into memory.
    pub(super) fn read(text: &Text<'_>) -> Result<Self, DataError> {
        let vocab = text.tokenizer.vocab();
        let mut run = Run::for_vocab(vocab);
        // The length is known, so allocate once.
        if text.source == BUNDLED && text.tokenizer.is_bytes() {
            run.reserve(bundled::length_bytes());
        }
        let mut ends = Vec::new();
        let num_bytes = text.visit(&mut |part| match part {
            Part::Bytes(bytes) => run.extend_bytes(bytes),
            Part::Tokens(tokens) => run.extend(tokens),
            Part::End => ends.push(run.len() as u64),
        })?;
        run.shrink();
        let num_tokens = run.len();
        if num_tokens == 0 {
            return Err(DataError::EmptyFile { path: text.source.into() });
        }
        Ok(Self {
            name: name_of(text.source),
            tokens: Tokens::Whole(run),
            num_tokens,
            ends: ends.into(),
            vocab,
            shards: None,
            num_bytes,
            mask: None,
            group: 1,
            conversations: None,
        })
    }
}

impl Whole {
    /// A synthetic Zipf stream in memory.
    pub(super) fn drawn(vocab: usize, exponent: f64) -> Self {
        let drawn = zipf::tokens(vocab, exponent);
        let mut run = Run::for_vocab(vocab);
        run.reserve(drawn.len());
        run.extend(&drawn);
        let (num_tokens, num_bytes) = (run.len(), run.len() as u64);
        let (name, ends) = (zipf::NAME.to_owned(), Arc::from([num_tokens as u64]));
        let (tokens, shards, mask) = (Tokens::Whole(run), None, None);
        Self {
            name,
            tokens,
            num_tokens,
            ends,
            vocab,
            shards,
            num_bytes,
            mask,
            group: 1,
            conversations: None,
        }
    }
}

/// Name of a source in messages.
fn name_of(source: &str) -> String {
    if source == BUNDLED { bundled::NAME.to_owned() } else { source.to_owned() }
}

/// A stream that is not kept whole.
pub(super) enum Stream<'a> {
    Text(Text<'a>),
    Shards(Box<Whole>),
}

/// Length of a stream and ends of its documents.
pub(super) struct Outline {
    pub(super) name: String,
    pub(super) num_tokens: usize,
    pub(super) ends: Arc<[u64]>,
}

/// Statistics of a stream, and the spans kept of it.
pub(super) struct KeptSpans {
    pub(super) tokens: Tokens,
    pub(super) fingerprint: String,
    pub(super) entropy: f64,
}

impl Stream<'_> {
    /// First pass: length and document ends.
    pub(super) fn outline(&self) -> Result<Outline, DataError> {
        match self {
            Stream::Shards(whole) => Ok(Outline {
                name: whole.name.clone(),
                num_tokens: whole.num_tokens,
                ends: Arc::clone(&whole.ends),
            }),
            Stream::Text(text) => {
                let (mut num_tokens, mut ends) = (0, Vec::new());
                text.visit(&mut |part| match part {
                    Part::Bytes(bytes) => num_tokens += bytes.len(),
                    Part::Tokens(tokens) => num_tokens += tokens.len(),
                    Part::End => ends.push(num_tokens as u64),
                })?;
                if num_tokens == 0 {
                    return Err(DataError::EmptyFile { path: text.source.into() });
                }
                Ok(Outline { name: name_of(text.source), num_tokens, ends: ends.into() })
            }
        }
    }

    /// Second pass: keeps these spans, in ascending order.
    pub(super) fn keep(
        &self,
        outline: &Outline,
        spans: Vec<Range<usize>>,
        num_train: usize,
        vocab: usize,
    ) -> Result<KeptSpans, DataError> {
        match self {
            Stream::Text(text) => {
                let mut keeper = SpanCollector::new(spans, vocab);
                let mut counts = TokenCounts::new(vocab);
                let mut fold = new_fold(outline.num_tokens, num_train, vocab);
                text.visit(&mut |part| match part {
                    Part::Bytes(bytes) => {
                        keeper.take_bytes(bytes);
                        counts.take(bytes.iter().map(|&byte| u32::from(byte)));
                        fold.bytes(bytes);
                    }
                    Part::Tokens(tokens) => {
                        keeper.take(tokens);
                        counts.take(tokens.iter().copied());
                        fold.tokens(tokens);
                    }
                    Part::End => {}
                })?;
                let (fingerprint, entropy) = (fold.finish(), counts.entropy());
                Ok(KeptSpans { tokens: keeper.finish(), fingerprint, entropy })
            }
            Stream::Shards(whole) => {
                let Tokens::Shards(set) = &whole.tokens else { unreachable!("shards are mapped") };
                let fingerprint = shards_fingerprint(&set.fingerprint(), num_train);
                let entropy = count_tokens(set)?.entropy();
                Ok(KeptSpans { tokens: copied(set, spans)?, fingerprint, entropy })
            }
        }
    }
}

/// Number of tokens counted for the baseline of a mapped corpus.
const MAX_COUNTED_TOKENS: u64 = 1 << 26;

/// Number of tokens copied at once.
const PORTION_TOKENS: u64 = 1 << 14;

/// Token counts of the first part of a shard set.
pub(super) fn count_tokens(set: &ShardSet) -> Result<TokenCounts, DataError> {
    let mut counts = TokenCounts::new(set.vocab());
    portions(set, 0..set.num_tokens().min(MAX_COUNTED_TOKENS), |tokens| {
        counts.take(tokens.iter().copied());
    })?;
    Ok(counts)
}

/// Copies spans out of mapped files.
fn copied(set: &ShardSet, spans: Vec<Range<usize>>) -> Result<Tokens, DataError> {
    let copy = |range: Range<usize>| {
        let mut run = Run::for_vocab(set.vocab());
        run.reserve(range.len());
        portions(set, range.start as u64..range.end as u64, |tokens| run.extend(tokens))?;
        Ok((range.start, run))
    };
    Ok(Tokens::Parts(spans.into_iter().map(copy).collect::<Result<_, DataError>>()?))
}

fn portions(
    set: &ShardSet,
    range: Range<u64>,
    mut each: impl FnMut(&[u32]),
) -> Result<(), DataError> {
    let mut portion = vec![0; PORTION_TOKENS as usize];
    for start in range.clone().step_by(PORTION_TOKENS as usize) {
        let tokens = &mut portion[..(range.end - start).min(PORTION_TOKENS) as usize];
        set.copy(start, tokens)?;
        each(tokens);
    }
    Ok(())
}

/// Position of the split: at the fraction, or at the previous document boundary for padded
/// documents.
pub(super) fn edge(num_tokens: usize, fraction: f64, ends: &[u64], cut: Documents) -> usize {
    let even = even_edge(num_tokens, fraction);
    match cut {
        Documents::Packed | Documents::Masked => even,
        Documents::Padded => {
            let before = ends.partition_point(|&end| end as usize <= even);
            // A document longer than the training split is cut anyway.
            before.checked_sub(1).map_or(even, |index| ends[index] as usize)
        }
    }
}

/// As [`edge`], between whole conversations: `group` of them are one, as the two of a pair are.
/// Both splits have at least one.
pub(super) fn edge_of_conversations(
    name: &str,
    fraction: f64,
    ends: &[u64],
    group: usize,
) -> Result<usize, DataError> {
    let num_tokens = ends.last().map_or(0, |&end| end as usize);
    let even = even_edge(num_tokens, fraction);
    let num_groups = ends.len() / group;
    let before = ends.partition_point(|&end| end as usize <= even) / group;
    // The first conversation may be longer than the training split.
    let before = before.max(1);
    if before >= num_groups {
        let unit = if group == 2 { "pair" } else { "conversation" };
        return Err(DataError::Undivided {
            name: name.to_owned(),
            num: num_groups,
            unit,
            fraction,
        });
    }
    Ok(ends[before * group - 1] as usize)
}

fn even_edge(num_tokens: usize, fraction: f64) -> usize {
    assert!((0.0..1.0).contains(&fraction), "resolve proved the validation fraction");
    num_tokens - (num_tokens as f64 * fraction) as usize
}

/// Opens a text or shards as one span, for a model with this tokenizer and vocabulary; also returns
/// the bytes of its text.
pub(crate) fn open_whole(
    source: &str,
    tokenizer: &Tokenizer,
    model_vocab: usize,
    world: &World,
) -> Result<(TokenSpan, u64), DataError> {
    tokenizer.require(model_vocab)?;
    let field = &ReadOptions::default().field;
    let whole = whole_of(&Text { source, field, tokenizer, world }, Documents::Packed)?;
    let num_bytes = whole.num_bytes;
    Ok((whole.into_span(), num_bytes))
}

/// Opens a text, or shards of this tokenizer.
fn whole_of(text: &Text<'_>, cut: Documents) -> Result<Whole, DataError> {
    let (path, files) = (Path::new(text.source), text.world.files());
    if !ShardSet::is_at(path, files) {
        return Whole::read(text);
    }
    let set = ShardSet::open(path, files)?;
    same_tokenizer(&set, text.tokenizer, text.world)?;
    Ok(Whole::mapped(set, cut))
}

/// Opens a separate validation text, with its fingerprint.
pub(super) fn held_out_text(
    text: &Text<'_>,
    cut: Documents,
) -> Result<(TokenSpan, String), DataError> {
    held_out_of(whole_of(text, cut)?, cut)
}

/// A separate validation text with its fingerprint.
pub(super) fn held_out_of(
    mut whole: Whole,
    cut: Documents,
) -> Result<(TokenSpan, String), DataError> {
    let (num_tokens, vocab, shards) = (whole.num_tokens, whole.vocab, whole.shards.take());
    let span = whole.into_span();
    let fingerprint = if let Some(set) = shards {
        shards_fingerprint(&set, 0)
    } else {
        let mut fold = new_fold(num_tokens, 0, vocab);
        span.visit(|tokens| fold.tokens(tokens))?;
        with_mask(with_documents(fold.finish(), &span.ends, cut), span.mask.as_deref())
    };
    Ok((span, fingerprint))
}

/// Opens the separate validation text of a recipe, with its fingerprint.
pub(crate) fn held_out_span(
    recipe: &Recipe,
    path: &str,
    tokenizer: &Tokenizer,
    world: &World,
) -> Result<(TokenSpan, String), DataError> {
    let text = Text { source: path, field: &recipe.data.field, tokenizer, world };
    held_out_text(&text, recipe.data.documents)
}

/// Tokenizer of the recipe or of the shards. The model's vocabulary must cover it.
pub(crate) fn tokenizer_of(
    recipe: &Recipe,
    set: Option<&ShardSet>,
    world: &World,
) -> Result<Tokenizer, DataError> {
    let model_vocab = recipe.model.vocab;
    let end = recipe.data.end_of_document.parse().unwrap_or_default();
    let named = match &recipe.data.tokenizer {
        config::Tokenizer::Byte => None,
        config::Tokenizer::File(path) => Some(Tokenizer::open(path, world.files())?),
    };
    let Some(set) = set else {
        let tokenizer = named.unwrap_or_else(Tokenizer::bytes).with_end_of_document(&end)?;
        tokenizer.require(model_vocab)?;
        return Ok(tokenizer);
    };
    if let Some(named) = named {
        same_tokenizer(set, &named, world)?;
    }
    if set.vocab() > model_vocab {
        let tokenizer = set.folder().display().to_string();
        let vocab = set.vocab();
        return Err(TokenizerError::VocabTooLarge { tokenizer, vocab, model_vocab }.into());
    }
    let own = set.tokenizer(world.files())?;
    let with_end = own.clone().with_end_of_document(&end)?;
    if with_end.end_of_document() != own.end_of_document() {
        let folder = set.folder().to_owned();
        let found = own.end_of_document_text().unwrap_or_else(|| "none".to_owned());
        return Err(ShardError::OtherEnd { folder, found, requested: end.to_string() }.into());
    }
    Ok(own)
}

/// Refuses shards of another tokenizer.
pub(crate) fn same_tokenizer(
    set: &ShardSet,
    tokenizer: &Tokenizer,
    world: &World,
) -> Result<(), DataError> {
    let own = set.tokenizer(world.files())?;
    if own.json() == tokenizer.json() {
        return Ok(());
    }
    Err(DataError::OtherTokenizer { shards: set.folder().to_owned(), tokenizer: tokenizer.name() })
}

/// Fingerprint hasher seeded with size, split, and the vocabulary of sub-word tokens.
pub(super) fn new_fold(num_tokens: usize, num_train: usize, vocab: usize) -> FingerprintHasher {
    let fold = FingerprintHasher::new(num_tokens as u64, num_train as u64);
    if vocab <= 256 { fold } else { fold.fact(vocab as u64) }
}

/// Adds document ends to the fingerprint, if a mask or padding makes them part of the data.
pub(super) fn with_documents(fingerprint: String, ends: &[u64], cut: Documents) -> String {
    match cut {
        Documents::Packed => fingerprint,
        Documents::Masked | Documents::Padded => {
            let ends = ends.iter().fold(ends.len() as u64, |state, &end| mix(state, end));
            combined([fingerprint, format!("{ends:016x}")])
        }
    }
}

/// Adds the loss mask to the fingerprint.
pub(super) fn with_mask(fingerprint: String, mask: Option<&LossMask>) -> String {
    match mask {
        Some(mask) => combined([fingerprint, mask.fingerprint()]),
        None => fingerprint,
    }
}

/// Fingerprint of a shard set with a split.
pub(super) fn shards_fingerprint(set: &str, num_train: usize) -> String {
    combined([set.to_owned(), format!("{num_train:016x}")])
}

/// Combines fingerprints, in this order.
pub(crate) fn combined(fingerprints: impl IntoIterator<Item = String>) -> String {
    let number = |text: String| u64::from_str_radix(&text, 16).unwrap_or_default();
    let state = fingerprints.into_iter().map(number).fold(0, mix);
    format!("{state:016x}")
}
