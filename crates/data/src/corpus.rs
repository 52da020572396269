//! A text becomes one stream of tokens, the front of it for training and the end for validation.
//!
//! The stream lies in memory (bytes, or what a tokenizer made of a text) or in mapped shards; what
//! is cut from it does not know which. The validation split is the *last* part of the stream and
//! not a random choice of windows, so no validation token is ever inside a training window; or it
//! is a text of its own. A worker that needs only some stretches of the stream reads the text
//! twice, first to learn how long it is, and keeps what is its own.
//!
//! # Layout
//!
//! - `tokens`: where tokens lie
//! - `stretch`: a part of a stream, and how sequences are cut from it
//! - `text`: a text as a stream that can be read again
//! - `stream`: a stream before it is split: read whole, or looked through for what is wanted
//! - `census`: what is found out about a stream as it passes by

mod census;
mod stream;
mod stretch;
mod text;
mod tokens;

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use lockstep_config::{Data, Documents, HeldOut, Order, Recipe, Source};
use lockstep_platform::World;

use crate::bundled;
use crate::documents::DocumentError;
use crate::error::{DataError, Split};
use crate::problem;
use crate::shards::ShardSet;
use crate::tokenizer::Tokenizer;
use crate::validation::reach;
use census::Census;
use stream::{Stream, Whole, edge, held_out_text, new_fold, tokenizer_of, with_documents};
use text::Text;
use tokens::{Run, Tokens};

pub(crate) use stream::{combined, open_whole};

pub use stretch::Stretch;

/// A token stream and where it is split.
pub struct Corpus {
    name: String,
    train: Stretch,
    validation: Stretch,
    tokenizer: Tokenizer,
    vocab: usize,
    cut: Documents,
    fingerprint: OnceLock<String>,
    /// Known where the stream passed by and is not held.
    entropy: Option<f64>,
}

/// What a worker keeps of a corpus.
#[derive(Debug, Clone)]
pub(crate) enum Keep {
    /// All of it.
    Everything,
    /// The parts of these leaves, and what validation needs.
    Leaves(Vec<usize>),
}

impl Corpus {
    /// Reads the text that a recipe names and proves that its context fits into both splits.
    pub fn load(recipe: &Recipe, world: &World) -> Result<Self, DataError> {
        if recipe.model.family.is_problem() {
            return problem::corpus(recipe);
        }
        let source = recipe.data.source.to_string();
        Self::read(recipe, &source, &recipe.data.validation, &Keep::Everything, world)
    }

    /// Reads a text as a recipe says; `source` and `held_out` are where it lies for this worker.
    pub(crate) fn read(
        recipe: &Recipe,
        source: &str,
        held_out: &HeldOut,
        keep: &Keep,
        world: &World,
    ) -> Result<Self, DataError> {
        let read = Self::read_from(recipe, source, held_out, keep, world);
        read.map_err(|error| match error {
            // Said in the words of a recipe.
            DataError::Documents(DocumentError::Missing { path }) if path == Path::new(source) => {
                DataError::Missing { path }
            }
            other => other,
        })
    }

    fn read_from(
        recipe: &Recipe,
        source: &str,
        held_out: &HeldOut,
        keep: &Keep,
        world: &World,
    ) -> Result<Self, DataError> {
        if recipe.data.source == Source::Zipf {
            let whole = Whole::drawn(recipe.model.vocab, recipe.data.zipf);
            let corpus = Self::split(whole, Tokenizer::bytes(), held_out, world, &recipe.data)?;
            corpus.require(recipe.model.context)?;
            return Ok(corpus);
        }
        let files = world.files();
        let has_shards = ShardSet::is_at(Path::new(source), files);
        let set = if has_shards { Some(ShardSet::open(Path::new(source), files)?) } else { None };
        let tokenizer = tokenizer_of(recipe, set.as_ref(), world)?;
        let cut = recipe.data.documents;
        let field = &recipe.data.field;
        let corpus = match (keep, set) {
            (Keep::Everything, Some(set)) => {
                Self::split(Whole::mapped(set, cut), tokenizer, held_out, world, &recipe.data)?
            }
            (Keep::Everything, None) => {
                let whole = Whole::read(&Text { source, field, tokenizer: &tokenizer, world })?;
                Self::split(whole, tokenizer, held_out, world, &recipe.data)?
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

    /// The text inside the binary, with its last `validation` fraction held out.
    pub fn bundled(validation: f64) -> Self {
        Self::of_bytes(bundled::NAME, bundled::text(), validation)
    }

    /// A text that is already in memory; `name` stands for it in messages.
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
        let stretch = |range| Stretch { tokens: Arc::clone(&tokens), range, ends: ends.clone() };
        Self {
            name: name.to_owned(),
            train: stretch(0..edge),
            validation: stretch(edge..num_tokens),
            tokenizer: Tokenizer::bytes(),
            vocab: Tokenizer::bytes().vocab(),
            cut: Documents::Packed,
            fingerprint: OnceLock::new(),
            entropy: None,
        }
    }

    /// Splits a stream that is there as a whole.
    fn split(
        whole: Whole,
        tokenizer: Tokenizer,
        held_out: &HeldOut,
        world: &World,
        data: &Data,
    ) -> Result<Self, DataError> {
        let (cut, field) = (data.documents, &data.field);
        let Whole { name, tokens, num_tokens, ends, vocab, shards, .. } = whole;
        let tokens = Arc::new(tokens);
        let stretch = |range| Stretch { tokens: Arc::clone(&tokens), range, ends: ends.clone() };
        let (train, validation, other) = match held_out {
            HeldOut::Fraction(fraction) => {
                let edge = edge(num_tokens, *fraction, &ends, cut);
                (stretch(0..edge), stretch(edge..num_tokens), None)
            }
            HeldOut::Path(path) => {
                let text = Text { source: path, field, tokenizer: &tokenizer, world };
                let (validation, fingerprint) = held_out_text(&text, cut)?;
                (stretch(0..num_tokens), validation, Some(fingerprint))
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
        };
        if shards.is_some() || other.is_some() {
            let own = match shards {
                Some(set) => stream::of_shards(&set, corpus.train.len()),
                None => corpus.fold()?,
            };
            let whole = other.map_or(own.clone(), |other| combined([own, other]));
            corpus.fingerprint.set(whole).expect("it is new");
        }
        Ok(corpus)
    }

    /// Reads a stream and keeps only what some leaves need.
    fn keep(
        recipe: &Recipe,
        stream: &Stream<'_>,
        tokenizer: &Tokenizer,
        held_out: &HeldOut,
        leaves: &[usize],
        world: &World,
    ) -> Result<Self, DataError> {
        let (cut, context) = (recipe.data.documents, recipe.model.context);
        let outline = stream.outline()?;
        let nothing = Arc::new(Tokens::Parts(Vec::new()));
        let stretch = |range| Stretch {
            tokens: Arc::clone(&nothing),
            range,
            ends: Arc::clone(&outline.ends),
        };
        let (edge, other) = match held_out {
            HeldOut::Fraction(fraction) => {
                (edge(outline.num_tokens, *fraction, &outline.ends, cut), None)
            }
            HeldOut::Path(path) => {
                let text = Text { source: path, field: &recipe.data.field, tokenizer, world };
                (outline.num_tokens, Some(held_out_text(&text, cut)?))
            }
        };
        let mut train = stretch(0..edge);
        let mut validation = stretch(edge..outline.num_tokens);
        let parts = train.parts(recipe.num_leaves(), cut);
        let mut wanted: Vec<_> = leaves.iter().map(|&leaf| parts[leaf].range()).collect();
        wanted.sort_by_key(|range| range.start);
        let limit = recipe.train.eval_batches * recipe.train.batch;
        wanted.push(edge..edge + reach(context, limit, &validation, cut));
        let seen = stream.keep(&outline, wanted, edge, tokenizer.vocab())?;
        let tokens = Arc::new(seen.tokens);
        train.tokens = Arc::clone(&tokens);
        validation.tokens = tokens;
        let mut fingerprint = seen.fingerprint;
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
            entropy: Some(seen.entropy),
        })
    }

    /// Checks that each split holds a window.
    pub fn require(&self, context: usize) -> Result<(), DataError> {
        let shorter = self.train.len().min(self.validation.len());
        for (split, tokens) in [(Split::Train, &self.train), (Split::Validation, &self.validation)]
        {
            let has_window = match self.cut {
                Documents::Packed => tokens.len() > context,
                Documents::Padded => tokens.num_windows(context, self.cut, Order::Sequential) > 0,
            };
            if has_window {
                continue;
            }
            let name = self.name.clone();
            return Err(match self.cut {
                Documents::Padded => DataError::NoDocument { name, split },
                Documents::Packed => DataError::TooShort {
                    name,
                    split,
                    num_tokens: tokens.len(),
                    context,
                    longest_context: shorter.saturating_sub(1),
                },
            });
        }
        Ok(())
    }

    /// The path, or a few words for a text that has none.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many tokens there are, over both splits.
    pub fn num_tokens(&self) -> usize {
        self.train.len() + self.validation.len()
    }

    /// The front of the stream, which the model learns from.
    pub fn train(&self) -> &Stretch {
        &self.train
    }

    /// The end of the stream, or a text of its own, which the model is judged by.
    pub fn validation(&self) -> &Stretch {
        &self.validation
    }

    /// What made tokens of the text.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// How its documents become sequences.
    pub(crate) fn cut(&self) -> Documents {
        self.cut
    }

    /// How many different tokens there are.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Memory that the tokens take in this process, without what is mapped.
    pub fn held_bytes(&self) -> usize {
        let (train, validation) = (&self.train.tokens, &self.validation.tokens);
        let other = if Arc::ptr_eq(train, validation) { 0 } else { validation.held_bytes() };
        train.held_bytes() + other
    }

    /// A short name of the content and the split: equal for equal corpora, almost surely different
    /// for others. Sixteen hexadecimal digits. It guards against mistakes, not against forgery.
    pub fn fingerprint(&self) -> String {
        let fold = || self.fold().expect("tokens in memory can be read");
        self.fingerprint.get_or_init(fold).clone()
    }

    /// The fingerprint of a stream that is held as a whole.
    fn fold(&self) -> Result<String, DataError> {
        let whole = Stretch { range: 0..self.stream_len(), ..self.train.clone() };
        let fold = &mut new_fold(whole.len(), self.train.len(), self.vocab);
        match &*whole.tokens {
            Tokens::Whole(Run::Bytes(bytes)) => fold.bytes(bytes),
            _ => whole.visit(|tokens| fold.tokens(tokens))?,
        }
        let own = fold.clone().finish();
        Ok(with_documents(own, &self.train.ends, self.cut))
    }

    /// How many tokens the stream has that the training text is the front of.
    fn stream_len(&self) -> usize {
        let is_one = Arc::ptr_eq(&self.train.tokens, &self.validation.tokens);
        if is_one { self.validation.range.end } else { self.train.range.end }
    }

    /// The loss of a model that knows frequencies only; see [`crate::baseline`].
    pub(crate) fn entropy(&self) -> f64 {
        self.entropy.unwrap_or_else(|| {
            // A damaged shard ends the run where it is trained on; here it is only a figure.
            if let Tokens::Shards(set) = &*self.train.tokens {
                return stream::census_of(set).map_or(f64::NAN, |census| census.entropy());
            }
            let whole = Stretch { range: 0..self.stream_len(), ..self.train.clone() };
            let mut census = Census::new(self.vocab);
            let _ = whole.visit(|tokens| census.take(tokens.iter().copied()));
            census.entropy()
        })
    }
}

/// The content stays out of debug output: it is megabytes long.
impl fmt::Debug for Corpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Corpus({}, {} tokens)", self.name, self.num_tokens())
    }
}

#[cfg(test)]
mod tests;
