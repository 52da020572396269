//! Overlapping windows over a whole text, for evaluation.
//!
//! Every token but the first is predicted exactly once. With a stride below the context each window
//! sees the end of the previous one as context and predicts only new tokens. After the first window
//! every token has at least `context - stride` tokens of context: a lower, fairer loss for `context
//! / stride` times the work. The last window may be padded.

use lockstep_config::Recipe;
use lockstep_platform::World;

use crate::batch::{IGNORE, PAD};
use crate::corpus::{Corpus, TokenSpan, open_whole};
use crate::error::DataError;
use crate::mixture::Mixture;
use crate::tokenizer::Tokenizer;

/// Number of tokens decoded at once.
const PORTION_TOKENS: usize = 1 << 16;

/// A tokenized text.
#[derive(Debug)]
pub struct Passage {
    /// Name of the source.
    pub name: String,
    /// Tokens of the text.
    pub tokens: TokenSpan,
    /// Bytes of text behind the first token.
    pub num_bytes: u64,
}

impl Passage {
    /// Opens a file, folder, glob or shard folder, for a model with this tokenizer and vocabulary.
    pub fn open(
        source: &str,
        tokenizer: &Tokenizer,
        model_vocab: usize,
        world: &World,
    ) -> Result<Self, DataError> {
        let (tokens, num_bytes) = open_whole(source, tokenizer, model_vocab, world)?;
        Self::of(source.to_owned(), tokens, tokenizer, num_bytes)
    }

    /// Validation split of a recipe.
    pub fn held_out(recipe: &Recipe, world: &World) -> Result<Self, DataError> {
        let (name, tokens, tokenizer) = if recipe.data.mixture.is_on() {
            let mixture = Mixture::open(recipe, world)?;
            (mixture.name(), mixture.validation().clone(), mixture.tokenizer().clone())
        } else {
            let corpus = Corpus::load(recipe, world)?;
            let (tokens, tokenizer) = (corpus.validation().clone(), corpus.tokenizer().clone());
            (corpus.name().to_owned(), tokens, tokenizer)
        };
        let num_bytes = if tokenizer.is_bytes() {
            tokens.len() as u64
        } else {
            let end = tokenizer.end_of_document();
            let mut num_bytes = 0;
            tokens.visit_portions(PORTION_TOKENS, |tokens| {
                let text: Vec<u32> =
                    tokens.iter().copied().filter(|token| Some(*token) != end).collect();
                num_bytes += tokenizer.decode(&text).len() as u64;
            })?;
            num_bytes
        };
        let name = format!("the validation split of {name}");
        Self::of(name, tokens, &tokenizer, num_bytes)
    }

    /// The first token is not predicted, so its bytes do not count.
    fn of(
        name: String,
        tokens: TokenSpan,
        tokenizer: &Tokenizer,
        num_bytes: u64,
    ) -> Result<Self, DataError> {
        if tokens.len() < 2 {
            return Err(DataError::NothingToPredict { name, num_tokens: tokens.len() });
        }
        let mut first = [0];
        tokens.copy(tokens.range().start, &mut first)?;
        let given = if tokenizer.is_bytes() { 1 } else { tokenizer.decode(&first).len() as u64 };
        Ok(Self { name, tokens, num_bytes: num_bytes.saturating_sub(given).max(1) })
    }
}

/// Windows of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    context: usize,
    stride: usize,
    num_tokens: usize,
    first: usize,
}

impl Windows {
    /// Windows of `context` inputs, `stride` apart, over a span.
    ///
    /// # Panics
    /// If the stride is not from 1 to the context.
    pub fn new(tokens: &TokenSpan, context: usize, stride: usize) -> Self {
        assert!((1..=context).contains(&stride), "a stride of {stride} in windows of {context}");
        Self { context, stride, num_tokens: tokens.len(), first: tokens.range().start }
    }

    /// Number of predicted tokens.
    pub fn num_targets(&self) -> u64 {
        self.num_tokens.saturating_sub(1) as u64
    }

    /// Number of windows.
    pub fn num_windows(&self) -> usize {
        match self.num_tokens.saturating_sub(1) {
            0 => 0,
            targets if targets <= self.context => 1,
            targets => 1 + (targets - self.context).div_ceil(self.stride),
        }
    }

    /// Writes a window, or padding after the last one; returns its number of targets.
    pub fn fill(
        &self,
        tokens: &TokenSpan,
        index: usize,
        inputs: &mut [u32],
        targets: &mut [u32],
    ) -> Result<usize, DataError> {
        inputs.fill(PAD);
        targets.fill(IGNORE);
        if index >= self.num_windows() {
            return Ok(0);
        }
        let start = index * self.stride;
        let len = self.context.min(self.num_tokens - 1 - start);
        tokens.copy(self.first + start, &mut inputs[..len])?;
        tokens.copy(self.first + start + 1, &mut targets[..len])?;
        let known = if index == 0 { 0 } else { self.context - self.stride };
        targets[..known].fill(IGNORE);
        Ok(len - known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_but_the_first_is_predicted_once_whatever_the_stride() {
        for num_tokens in 0..40_u8 {
            let tokens = TokenSpan::of_bytes((0..num_tokens).collect(), &[]);
            for context in 1..=9 {
                for stride in 1..=context {
                    let windows = Windows::new(&tokens, context, stride);
                    let mut predicted = Vec::new();
                    for index in 0..windows.num_windows() + 2 {
                        let (mut inputs, mut targets) = (vec![9; context], vec![9; context]);
                        let counted =
                            windows.fill(&tokens, index, &mut inputs, &mut targets).unwrap();
                        let before = predicted.len();
                        for (input, target) in inputs.iter().zip(&targets) {
                            if *target != IGNORE {
                                assert_eq!(input + 1, *target);
                                predicted.push(*target);
                            }
                        }
                        assert_eq!(counted, predicted.len() - before);
                    }
                    let expected: Vec<u32> = (1..u32::from(num_tokens.max(1))).collect();
                    assert_eq!(predicted, expected, "{num_tokens}, {context}, {stride}");
                    assert_eq!(windows.num_targets() as usize, expected.len());
                }
            }
        }
    }
}
