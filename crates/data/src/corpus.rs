//! Corpus: one token stream, split into training and validation.
//!
//! The stream is in memory (bytes or tokens) or in mapped shards. The validation split is the
//! *last* part of the stream, so no validation token is inside a training window; or it is a
//! separate text. A worker that needs only some spans of the stream reads the text twice: first for
//! its length, then to keep its own spans.
//!
//! # Layout
//!
//! - `tokens`: storage of tokens
//! - `token_span`: a range of the stream, and its windows
//! - `conversations`: chat data as a stream with a loss mask; `loss_mask`: the mask;
//!   `conversation_counts`: numbers of what was read
//! - `text`: a text as a repeatable stream of tokens
//! - `stream`: reading a stream, whole or in spans
//! - `stream_stats`: fingerprint and token counts of a stream

mod conversation_counts;
mod conversations;
mod loss_mask;
mod stream;
mod stream_stats;
mod text;
mod token_span;
mod tokens;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use lockstep_config::{Data, Documents, Order, Recipe, Source, ValidationSource};
use lockstep_platform::World;

use crate::bundled;
use crate::documents::DocumentError;
use crate::error::{DataError, Split};
use crate::shards::ShardSet;
use crate::tokenizer::Tokenizer;
use conversations::ConversationReader;
use stream::{
    Stream, Whole, edge, edge_of_conversations, held_out_of, held_out_text, new_fold,
    with_documents, with_mask,
};
use text::Text;
use tokens::Tokens;

pub(crate) use stream::{combined, held_out_span, open_whole, same_tokenizer, tokenizer_of};
pub(crate) use stream_stats::TokenCounts;
pub(crate) use tokens::Run;

pub use conversation_counts::ConversationCounts;
pub use token_span::TokenSpan;

/// Token stream with its split.
pub struct Corpus {
    name: String,
    train: TokenSpan,
    validation: TokenSpan,
    tokenizer: Tokenizer,
    vocab: usize,
    cut: Documents,
    fingerprint: OnceLock<String>,
    /// Entropy, if it was counted while the stream was read.
    entropy: Option<f64>,
    /// Numbers of conversations, if it has some.
    conversations: Option<ConversationCounts>,
}

/// Part of a corpus that a worker keeps in memory.
#[derive(Debug, Clone)]
pub(crate) enum Keep {
    /// The whole corpus.
    Everything,
    /// Spans of these leaves, and those of the validation.
    Leaves(Vec<usize>),
}

impl Corpus {
    /// Reads the recipe's corpus and checks that its context fits into both splits.
    pub fn load(recipe: &Recipe, world: &World) -> Result<Self, DataError> {
        if recipe.model.family.is_problem() {
            return Self::of_problem(recipe);
        }
        let source = recipe.data.source.to_string();
        Self::read(recipe, &source, &recipe.data.validation, &Keep::Everything, world)
    }

    /// Stand-in corpus of a small problem, whose fingerprint identifies the samples.
    pub(crate) fn of_problem(recipe: &Recipe) -> Result<Self, DataError> {
        let text = format!("{} {:?}", recipe.model.family, recipe.model.problem);
        // Keep the fingerprint of runs older than the `density` setting.
        let text = text.replace(" density: 1.0,", "");
        Self::from_text("the samples", &text, 0.5)
    }

    /// Reads a corpus; `source` and `held_out` are the paths for this worker.
    pub(crate) fn read(
        recipe: &Recipe,
        source: &str,
        held_out: &ValidationSource,
        keep: &Keep,
        world: &World,
    ) -> Result<Self, DataError> {
        let read = Self::read_from(recipe, source, held_out, keep, world);
        read.map_err(|error| match error {
            // Name the recipe key in the error.
            DataError::Documents(DocumentError::Missing { path }) if path == Path::new(source) => {
                DataError::Missing { path }
            }
            other => other,
        })
    }

    fn read_from(
        recipe: &Recipe,
        source: &str,
        held_out: &ValidationSource,
        keep: &Keep,
        world: &World,
    ) -> Result<Self, DataError> {
        if recipe.data.source == Source::Zipf {
            let whole = Whole::drawn(recipe.model.vocab, recipe.data.zipf);
            let corpus =
                Self::split(whole, Tokenizer::bytes(), held_out, world, &recipe.data, None)?;
            corpus.require(recipe.model.context)?;
            return Ok(corpus);
        }
        let files = world.files();
        if let Some(reader) = ConversationReader::of(recipe, world)? {
            let tokenizer = tokenizer_of(recipe, None, world)?;
            let whole = reader.read(source, &tokenizer, world)?;
            let corpus =
                Self::split(whole, tokenizer, held_out, world, &recipe.data, Some(&reader))?;
            corpus.require(recipe.model.context)?;
            return Ok(corpus);
        }
        let has_shards = ShardSet::is_at(Path::new(source), files);
        let set = if has_shards { Some(ShardSet::open(Path::new(source), files)?) } else { None };
        let tokenizer = tokenizer_of(recipe, set.as_ref(), world)?;
        let cut = recipe.data.documents;
        let field = &recipe.data.field;
        let corpus = match (keep, set) {
            (Keep::Everything, Some(set)) => Self::split(
                Whole::mapped(set, cut),
                tokenizer,
                held_out,
                world,
                &recipe.data,
                None,
            )?,
            (Keep::Everything, None) => {
                let whole = Whole::read(&Text { source, field, tokenizer: &tokenizer, world })?;
                Self::split(whole, tokenizer, held_out, world, &recipe.data, None)?
            }
            (Keep::Leaves(leaves), set) => {
                let stream = match set {
                    Some(set) => Stream::Shards(Box::new(Whole::mapped(set, cut))),
                    None => Stream::Text(Text { source, field, tokenizer: &tokenizer, world }),
                };
                Self::keep(recipe, &stream, &tokenizer, held_out, leaves, world)?
            }
        };
        corpus.require(recipe.model.context)?;
        Ok(corpus)
    }

    /// The bundled corpus, with its last `validation` fraction held out.
    pub fn bundled(validation: f64) -> Self {
        Self::of_bytes(bundled::NAME, bundled::text(), validation)
    }

    /// Corpus from text in memory; `name` identifies it in messages.
    pub fn from_text(name: &str, text: &str, validation: f64) -> Result<Self, DataError> {
        if text.is_empty() {
            return Err(DataError::EmptyFile { path: name.into() });
        }
        Ok(Self::of_bytes(name, text.as_bytes().to_vec(), validation))
    }

    fn of_bytes(name: &str, bytes: Vec<u8>, validation: f64) -> Self {
        let num_tokens = bytes.len();
        let tokens = Arc::new(Tokens::Whole(Run::Bytes(bytes)));
        let ends: Arc<[u64]> = [num_tokens as u64].into();
        let edge = edge(num_tokens, validation, &ends, Documents::Packed);
        let span = |range| TokenSpan {
            tokens: Arc::clone(&tokens),
            range,
            ends: ends.clone(),
            mask: None,
            group: 1,
            references: None,
        };
        Self {
            name: name.to_owned(),
            train: span(0..edge),
            validation: span(edge..num_tokens),
            tokenizer: Tokenizer::bytes(),
            vocab: Tokenizer::bytes().vocab(),
            cut: Documents::Packed,
            fingerprint: OnceLock::new(),
            entropy: None,
            conversations: None,
        }
    }

    /// Splits a stream that is in memory or mapped.
    fn split(
        whole: Whole,
        tokenizer: Tokenizer,
        held_out: &ValidationSource,
        world: &World,
        data: &Data,
        reader: Option<&ConversationReader>,
    ) -> Result<Self, DataError> {
        let (cut, field) = (data.documents, &data.field);
        let Whole { name, tokens, num_tokens, ends, vocab, shards, mask, group, .. } = whole;
        let mut conversations = whole.conversations;
        let (tokens, mask) = (Arc::new(tokens), mask.map(Arc::new));
        let span = |range| TokenSpan {
            tokens: Arc::clone(&tokens),
            range,
            ends: ends.clone(),
            mask: mask.clone(),
            group,
            references: None,
        };
        let (train, validation, other) = match held_out {
            ValidationSource::Fraction(fraction) => {
                let edge = if reader.is_some() {
                    edge_of_conversations(&name, *fraction, &ends, group)?
                } else {
                    edge(num_tokens, *fraction, &ends, cut)
                };
                let num_before = ends.partition_point(|&end| end as usize <= edge) / group;
                if let Some(counts) = &mut conversations {
                    counts.num_train = num_before as u64;
                }
                (span(0..edge), span(edge..num_tokens), None)
            }
            ValidationSource::Path(path) => {
                let text = Text { source: path, field, tokenizer: &tokenizer, world };
                let (validation, fingerprint) = match reader {
                    Some(reader) => {
                        let held_out = reader.read(path, &tokenizer, world)?;
                        let both = conversations.zip(held_out.conversations);
                        conversations = both.map(|(own, other)| own.with_held_out(other));
                        held_out_of(held_out, cut)?
                    }
                    None => held_out_text(&text, cut)?,
                };
                (span(0..num_tokens), validation, Some(fingerprint))
            }
        };
        let corpus = Self {
            name,
            train,
            validation,
            tokenizer,
            vocab,
            cut,
            fingerprint: OnceLock::new(),
            entropy: None,
            conversations,
        };
        if shards.is_some() || other.is_some() {
            let own = match shards {
                Some(set) => stream::shards_fingerprint(&set, corpus.train.len()),
                None => corpus.fold()?,
            };
            let whole = other.map_or(own.clone(), |other| combined([own, other]));
            corpus.fingerprint.set(whole).expect("it is new");
        }
        Ok(corpus)
    }

    /// Reads a stream and keeps only the spans of some leaves.
    fn keep(
        recipe: &Recipe,
        stream: &Stream<'_>,
        tokenizer: &Tokenizer,
        held_out: &ValidationSource,
        leaves: &[usize],
        world: &World,
    ) -> Result<Self, DataError> {
        let (cut, context) = (recipe.data.documents, recipe.model.context);
        let outline = stream.outline()?;
        let nothing = Arc::new(Tokens::Parts(Vec::new()));
        let span = |range| TokenSpan {
            tokens: Arc::clone(&nothing),
            range,
            ends: Arc::clone(&outline.ends),
            mask: None,
            group: 1,
            references: None,
        };
        let (edge, other) = match held_out {
            ValidationSource::Fraction(fraction) => {
                (edge(outline.num_tokens, *fraction, &outline.ends, cut), None)
            }
            ValidationSource::Path(path) => {
                let text = Text { source: path, field: &recipe.data.field, tokenizer, world };
                (outline.num_tokens, Some(held_out_text(&text, cut)?))
            }
        };
        let mut train = span(0..edge);
        let mut validation = span(edge..outline.num_tokens);
        let parts = train.parts(recipe.num_leaves(), cut);
        let mut spans: Vec<_> = leaves.iter().map(|&leaf| parts[leaf].range()).collect();
        spans.sort_by_key(|range| range.start);
        let limit = recipe.train.eval_batches * recipe.train.batch;
        spans.push(edge..edge + validation.evaluation_len(context, limit, cut));
        let kept = stream.keep(&outline, spans, edge, tokenizer.vocab())?;
        let tokens = Arc::new(kept.tokens);
        train.tokens = Arc::clone(&tokens);
        validation.tokens = tokens;
        let mut fingerprint = kept.fingerprint;
        if !matches!(stream, Stream::Shards(_)) {
            fingerprint = with_documents(fingerprint, &outline.ends, cut);
        }
        if let Some((text, other)) = other {
            validation = text;
            fingerprint = combined([fingerprint, other]);
        }
        Ok(Self {
            name: outline.name,
            train,
            validation,
            tokenizer: tokenizer.clone(),
            vocab: tokenizer.vocab(),
            cut,
            fingerprint: OnceLock::from(fingerprint),
            entropy: Some(kept.entropy),
            conversations: None,
        })
    }

    /// Checks that each split holds a window.
    pub fn require(&self, context: usize) -> Result<(), DataError> {
        let shorter = self.train.len().min(self.validation.len());
        for (split, tokens) in [(Split::Train, &self.train), (Split::Validation, &self.validation)]
        {
            if tokens.num_windows(context, self.cut, Order::Sequential) > 0 {
                continue;
            }
            let name = self.name.clone();
            return Err(if tokens.is_cut_anywhere(self.cut) {
                let (num_tokens, longest_context) = (tokens.len(), shorter.saturating_sub(1));
                DataError::TooShort { name, split, num_tokens, context, longest_context }
            } else {
                DataError::NoDocument { name, split }
            });
        }
        Ok(())
    }

    /// Path, or a description if it has none.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of tokens in both splits.
    pub fn num_tokens(&self) -> usize {
        self.train.len() + self.validation.len()
    }

    /// Training split.
    pub fn train(&self) -> &TokenSpan {
        &self.train
    }

    /// Validation split.
    pub fn validation(&self) -> &TokenSpan {
        &self.validation
    }

    /// Sets the losses of the training and the validation documents under a reference model.
    pub(crate) fn set_references(&mut self, [train, validation]: [Arc<[f64]>; 2]) {
        self.train.references = Some(train);
        self.validation.references = Some(validation);
    }

    /// Tokenizer of the corpus.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Packed or padded documents.
    pub(crate) fn cut(&self) -> Documents {
        self.cut
    }

    /// Numbers of its conversations; none where the data are text.
    pub fn conversations(&self) -> Option<ConversationCounts> {
        self.conversations
    }

    /// Vocabulary size.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Memory of the tokens in this process, without mapped files.
    pub fn held_bytes(&self) -> usize {
        let (train, validation) = (&self.train.tokens, &self.validation.tokens);
        let other = if Arc::ptr_eq(train, validation) { 0 } else { validation.held_bytes() };
        let masks = [&self.train.mask, &self.validation.mask];
        // Both splits of one stream have one mask.
        let num_masks = if other == 0 { 1 } else { 2 };
        let masks = masks.into_iter().take(num_masks).flatten();
        train.held_bytes() + other + masks.map(|mask| mask.num_bytes()).sum::<usize>()
    }

    /// Fingerprint of content and split: 16 hexadecimal digits. It detects mistakes, not forgery.
    pub fn fingerprint(&self) -> String {
        let fold = || self.fold().expect("tokens in memory can be read");
        self.fingerprint.get_or_init(fold).clone()
    }

    /// Fingerprint of a stream in memory.
    fn fold(&self) -> Result<String, DataError> {
        let whole = TokenSpan { range: 0..self.stream_len(), ..self.train.clone() };
        let fold = &mut new_fold(whole.len(), self.train.len(), self.vocab);
        match &*whole.tokens {
            Tokens::Whole(Run::Bytes(bytes)) => fold.bytes(bytes),
            _ => whole.visit(|tokens| fold.tokens(tokens))?,
        }
        let own = fold.clone().finish();
        let own = with_documents(own, &self.train.ends, self.cut);
        Ok(with_mask(own, self.train.mask.as_deref()))
    }

    /// Number of tokens in the stream that the training split starts.
    fn stream_len(&self) -> usize {
        let is_one = Arc::ptr_eq(&self.train.tokens, &self.validation.tokens);
        if is_one { self.validation.range.end } else { self.train.range.end }
    }

    /// Baseline entropy; [`crate::baseline`] defines it.
    pub(crate) fn entropy(&self) -> f64 {
        self.entropy.unwrap_or_else(|| {
            // A damaged shard ends the run in training; here it only affects a figure.
            if let Tokens::Shards(set) = &*self.train.tokens {
                return stream::count_tokens(set).map_or(f64::NAN, |counts| counts.entropy());
            }
            let whole = TokenSpan { range: 0..self.stream_len(), ..self.train.clone() };
            let mut counts = TokenCounts::new(self.vocab);
            let _ = whole.visit(|tokens| counts.take(tokens.iter().copied()));
            counts.entropy()
        })
    }
}

/// Debug output without the content, which is megabytes long.
impl fmt::Debug for Corpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Corpus({}, {} tokens)", self.name, self.num_tokens())
    }
}

#[cfg(test)]
mod tests;
