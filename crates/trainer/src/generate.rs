//! Autoregressive text generation with a KV cache.
//!
//! Several prompts are continued together on a CPU: their new tokens pass the model at once, and
//! the text of each is that of its own generation.
//!
//! A text ends at a token that the model's folder names as an end, at a text that the caller names,
//! or at a number of tokens.
//!
//! When the context is full, the newest half of the text becomes the new prefix: the model has no
//! positions beyond its context.

use crate::frozen_base::dequantised;
use crate::operation_profile::Floor;
use crate::pretrained::Pretrained;
use crate::run_folder::load_tokenizer;
use crate::vocabulary::stops;
use crate::{RunFolder, TrainError, device};
use lockstep_config::Recipe;
use lockstep_data::Tokenizer;
use lockstep_model::sampling::Sampler;
use lockstep_model::{BlockIo, Blueprint, Decoder};
use lockstep_parallel::from_recipe::blueprint_of;
use lockstep_platform::World;
use lockstep_tensor::device::{Compute, Dtype, DualBuffer, View};

pub use lockstep_model::sampling::Sampling;

/// A loaded model for generation.
pub struct Generator {
    pub(crate) compute: Compute,
    pub(crate) blueprint: Blueprint,
    params: Vec<DualBuffer>,
    tokenizer: Tokenizer,
    /// Tokens that end a text.
    stops: Vec<u32>,
    /// Whether new tokens of several sequences may pass together.
    is_batched: bool,
}

/// Most prompts whose caches exist at a time.
const MAX_BATCH: usize = 16;

impl Generator {
    /// Loads the weights of a finished run.
    pub fn open(folder: &RunFolder, recipe: &Recipe, world: &World) -> Result<Self, TrainError> {
        let pretrained = Pretrained::open(folder.path(), world)?;
        Self::load(&pretrained, recipe, world)
    }

    /// Loads the weights of a model folder; the recipe sets device and precision.
    pub fn load(
        pretrained: &Pretrained,
        recipe: &Recipe,
        world: &World,
    ) -> Result<Self, TrainError> {
        let model = dequantised(&recipe.model);
        let blueprint = blueprint_of(&Recipe { model, ..recipe.clone() });
        let compute = device::open_alone(recipe, world)?;
        let placed = |params| DualBuffer::of(compute.accelerator(), params);
        let params = pretrained.params(&blueprint)?.into_iter().map(placed);
        let params = params.collect::<lockstep_tensor::device::Result<_>>()?;
        let tokenizer = load_tokenizer(pretrained.path(), world)?;
        tokenizer.require(recipe.model.vocab)?;
        // Accelerators have kernels of their own for one row, and shards lie one after another.
        let is_batched = compute.accelerator().is_none() && recipe.num_tensor_shards() == 1;
        let stops = stops(pretrained.path(), &tokenizer, world);
        Ok(Self { compute, blueprint, params, tokenizer, stops, is_batched })
    }

    /// Tokenizer of the model.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens after which the model ends a text, by the files of its folder.
    pub fn stops(&self) -> &[u32] {
        &self.stops
    }

    /// Bytes that the device reads for a token after `num_positions` others: the weights of every
    /// product in their type, one row of each embedding, and the cached keys and values.
    pub fn bytes_per_token(&self, num_positions: usize) -> usize {
        let (context, dtype) = (self.blueprint.context, self.blueprint.activations);
        let blocks = self.blueprint.blocks.iter().zip(&self.params);
        let bytes = blocks.map(|(block, params)| {
            if let BlockIo::TokensToStream { output } = block.io() {
                return output * dtype.size();
            }
            let cached = block.cache_len(num_positions.min(context)) * Dtype::F32.size();
            params.len() * dtype.size() + cached
        });
        bytes.sum()
    }

    /// Measured bandwidth of a long copy on the accelerator, bytes read and written; `None` without
    /// one.
    pub fn copy_bytes_per_second(&self, world: &World) -> Result<Option<f64>, TrainError> {
        let Some(device) = self.compute.accelerator() else { return Ok(None) };
        Ok(Some(Floor::measure(&**device, world)?.copy_bytes_per_second()))
    }

    /// Logits after each token, one row per token.
    ///
    /// # Panics
    /// With more tokens than the context holds, or one that is not in the vocabulary.
    pub fn logits(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, TrainError> {
        let vocab = self.blueprint.vocab;
        assert!(tokens.iter().all(|token| (*token as usize) < vocab), "a vocabulary of {vocab}");
        let mut decoder = Decoder::new(&self.blueprint, self.compute.device(), 1)?;
        let params = self.views()?;
        let mut row = |token: &u32| Ok(decoder.feed(&params, &[*token])?.to_vec());
        tokens.iter().map(&mut row).collect()
    }

    /// Parameters of each block on the device.
    pub(crate) fn views(&self) -> Result<Vec<View<'_>>, TrainError> {
        let dtype = self.blueprint.activations;
        let views = self.params.iter().map(|params| match dtype {
            Dtype::F32 => params.view(),
            _ => params.view_with_copy(dtype),
        });
        Ok(views.collect::<lockstep_tensor::device::Result<_>>()?)
    }

    /// Tokens of a prompt, at least one.
    fn prompt_tokens(&self, prompt: &str) -> Result<Vec<u32>, TrainError> {
        let mut text = Vec::new();
        self.tokenizer.encode(prompt, &mut text)?;
        if text.is_empty() {
            // An empty prompt starts a document: after the end-of-document token, or after a line
            // break.
            text.extend(self.tokenizer.end_of_document());
        }
        if text.is_empty() {
            self.tokenizer.encode("\n", &mut text)?;
        }
        if text.is_empty() {
            text.push(0);
        }
        Ok(text)
    }

    /// Continues several prompts, each as [`Self::generate`] does. `on_token` receives the number
    /// of tokens of all prompts so far.
    pub fn generate_batch(
        &self,
        prompts: &[String],
        ends: &Ends,
        sampling: Sampling,
        on_token: &mut dyn FnMut(usize),
    ) -> Result<Vec<Generated>, TrainError> {
        let mut generated: Vec<Generated> = Vec::new();
        for prompts in prompts.chunks(if self.is_batched { MAX_BATCH } else { 1 }) {
            let before: usize = generated.iter().map(|one| one.tokens.len()).sum();
            let mut count = |num: usize| on_token(before + num);
            if let [prompt] = prompts {
                let mut num = 0;
                generated.push(self.generate(prompt, ends, sampling, |step| {
                    if let Step::Drawn(tokens) = step {
                        num += tokens.len();
                        count(num);
                    }
                    true
                })?);
            } else {
                generated.append(&mut self.generate_together(prompts, ends, sampling, &mut count)?);
            }
        }
        Ok(generated)
    }

    fn generate_together(
        &self,
        prompts: &[String],
        ends: &Ends,
        sampling: Sampling,
        count: &mut dyn FnMut(usize),
    ) -> Result<Vec<Generated>, TrainError> {
        let (context, vocab, num) = (self.blueprint.context, self.blueprint.vocab, prompts.len());
        let texts = prompts.iter().map(|prompt| self.prompt_tokens(prompt));
        let mut texts: Vec<Vec<u32>> = texts.collect::<Result<_, _>>()?;
        let prompt_lens: Vec<usize> = texts.iter().map(Vec::len).collect();
        let mut fed: Vec<usize> =
            prompt_lens.iter().map(|len| len.saturating_sub(context)).collect();
        let mut samplers: Vec<Sampler> = prompts.iter().map(|_| Sampler::new(sampling)).collect();
        let params = self.views()?;
        let device = self.compute.device();
        let mut decoder = Decoder::of_sequences(&self.blueprint, device, context, num)?;
        let mut together = Vec::with_capacity(num);
        let mut endings = vec![None; num];
        for _ in 0..ends.num_tokens {
            together.clear();
            for (sequence, text) in texts.iter_mut().enumerate() {
                if endings[sequence].is_some() {
                    continue;
                }
                decoder.select(sequence);
                if decoder.num_remaining() < text.len() - fed[sequence] {
                    decoder.reset();
                    fed[sequence] = text.len() - context.div_ceil(2).min(text.len());
                }
                let new = &text[fed[sequence]..];
                fed[sequence] = text.len();
                match new {
                    [token] => together.push((sequence, *token)),
                    // A prompt, or the newest half of a text: it passes by itself.
                    new => {
                        let token = samplers[sequence].draw(decoder.feed(&params, new)?);
                        text.push(token);
                    }
                }
            }
            if !together.is_empty() {
                let logits = decoder.feed_each(&params, &together)?;
                for ((sequence, _), logits) in together.iter().zip(logits.chunks_exact(vocab)) {
                    texts[*sequence].push(samplers[*sequence].draw(logits));
                }
            }
            for ((text, prompt_len), ending) in texts.iter_mut().zip(&prompt_lens).zip(&mut endings)
            {
                if ending.is_none() {
                    *ending = ends.cut(text, *prompt_len, text.len() - 1, &self.tokenizer);
                }
            }
            count(texts.iter().zip(&prompt_lens).map(|(text, len)| text.len() - len).sum());
            if endings.iter().all(Option::is_some) {
                break;
            }
        }
        let texts = texts.into_iter().zip(prompt_lens).zip(endings);
        let generated = |((text, prompt_len), ending)| self.generated(text, prompt_len, ending);
        Ok(texts.map(generated).collect())
    }

    /// Result of the tokens of a prompt and its continuation.
    fn generated(
        &self,
        mut tokens: Vec<u32>,
        prompt_len: usize,
        ending: Option<Ending>,
    ) -> Generated {
        let tokens = tokens.split_off(prompt_len);
        let mut text = self.tokenizer.decode(&tokens);
        if let Some(Ending::Text { len }) = ending {
            text.truncate(len);
        }
        Generated { tokens, text, prompt_len, ending: ending.unwrap_or(Ending::Limit) }
    }

    /// Continues `prompt` until one of the ends. `on_step` is called after each step and returns
    /// whether to continue.
    pub fn generate(
        &self,
        prompt: &str,
        ends: &Ends,
        sampling: Sampling,
        mut on_step: impl FnMut(Step<'_>) -> bool,
    ) -> Result<Generated, TrainError> {
        let mut text = self.prompt_tokens(prompt)?;
        let (prompt_len, params) = (text.len(), self.views()?);
        let mut sampler = Sampler::new(sampling);
        let context = self.blueprint.context;
        let mut decoder = Decoder::new(&self.blueprint, self.compute.device(), context)?;
        let mut fed = text.len().saturating_sub(context);
        let is_chosen_on_device =
            sampling.temperature <= 0.0 && self.compute.accelerator().is_some();
        let (num_tokens, mut ending) = (ends.num_tokens, None);
        while text.len() < prompt_len + num_tokens {
            if decoder.num_remaining() < text.len() - fed {
                decoder.reset();
                fed = text.len() - context.div_ceil(2).min(text.len());
            }
            decoder.queue(&params, &text[fed..])?;
            fed = text.len();
            let first_new = text.len();
            let mut continues;
            if is_chosen_on_device {
                let num_left = prompt_len + num_tokens - first_new;
                let num = num_left.min(decoder.num_remaining() + 1).min(Decoder::MAX_GREEDY);
                decoder.queue_greedy(&params, num)?;
                continues = on_step(Step::Queued);
                text.extend(decoder.chosen()?);
                fed += num - 1;
                continues &= on_step(Step::Computed);
            } else {
                continues = on_step(Step::Queued);
                let logits = decoder.logits()?;
                continues &= on_step(Step::Computed);
                text.push(sampler.draw(logits));
            }
            ending = ends.cut(&mut text, prompt_len, first_new, &self.tokenizer);
            continues &= on_step(Step::Drawn(&text[first_new..]));
            if !continues || ending.is_some() {
                break;
            }
        }
        Ok(self.generated(text, prompt_len, ending))
    }
}

/// Steps of every token, or of several that an accelerator chooses without the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// The work of the device is queued; on a CPU it is done.
    Queued,
    /// The logits, or the chosen tokens, are on the host.
    Computed,
    /// Tokens are drawn.
    Drawn(&'a [u32]),
}

/// Ends of a generated text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// Most new tokens.
    pub num_tokens: usize,
    /// Tokens that end the text; they are no part of it.
    pub tokens: Vec<u32>,
    /// Texts that end it where they begin.
    pub texts: Vec<String>,
}

impl Ends {
    /// No end but this number of tokens.
    pub fn after(num_tokens: usize) -> Self {
        Self { num_tokens, ..Self::default() }
    }

    /// Cuts new tokens, those from `first_new` on, at the first end.
    fn cut(
        &self,
        tokens: &mut Vec<u32>,
        prompt_len: usize,
        first_new: usize,
        tokenizer: &Tokenizer,
    ) -> Option<Ending> {
        for index in first_new..tokens.len() {
            if self.tokens.contains(&tokens[index]) {
                tokens.truncate(index);
                return Some(Ending::Token);
            }
            // A token has a byte or more, except for those that are not printed.
            let longest = self.texts.iter().map(String::len).max().unwrap_or(0);
            let tail = (index + 1).saturating_sub(longest + TAIL_TOKENS).max(prompt_len);
            let tail = tokenizer.decode(&tokens[tail..=index]);
            if self.texts.iter().any(|text| tail.contains(text)) {
                let text = tokenizer.decode(&tokens[prompt_len..=index]);
                if let Some(len) = self.texts.iter().filter_map(|end| text.find(end)).min() {
                    tokens.truncate(index + 1);
                    return Some(Ending::Text { len });
                }
            }
        }
        None
    }
}

/// Tokens in front of an end text that a search for it decodes.
const TAIL_TOKENS: usize = 8;

/// Why a text has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The model has ended it, by a token of [`Ends::tokens`].
    Token,
    /// It has come to one of [`Ends::texts`].
    Text {
        /// Bytes of the text before it.
        len: usize,
    },
    /// It has the largest number of tokens, or the caller has ended it.
    Limit,
}

/// Result of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// All generated tokens, without one that ended the text.
    pub tokens: Vec<u32>,
    /// Their text, up to one that ended it.
    pub text: String,
    /// Why it ended.
    pub ending: Ending,
    /// Tokens in front of them.
    pub prompt_len: usize,
}
