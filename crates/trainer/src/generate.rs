//! Autoregressive text generation with a KV cache.
//!
//! Several prompts are continued together on a CPU: their new tokens pass the model at once, and
//! the text of each is that of its own generation.
//!
//! When the context is full, the newest half of the text becomes the new prefix: the model has no
//! positions beyond its context.

use crate::frozen_base::dequantised;
use crate::operation_profile::Floor;
use crate::pretrained::Pretrained;
use crate::run_folder::load_tokenizer;
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
        Ok(Self { compute, blueprint, params, tokenizer, is_batched })
    }

    /// Tokenizer of the model.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
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

    /// Continues several prompts by `num_tokens` tokens, each as [`Self::generate`] does.
    /// `on_token` receives the number of tokens of all prompts so far.
    pub fn generate_batch(
        &self,
        prompts: &[String],
        num_tokens: usize,
        sampling: Sampling,
        on_token: &mut dyn FnMut(usize),
    ) -> Result<Vec<Generated>, TrainError> {
        let mut generated = Vec::new();
        for prompts in prompts.chunks(if self.is_batched { MAX_BATCH } else { 1 }) {
            let before = generated.len() * num_tokens;
            let mut count = |num: usize| on_token(before + num);
            if let [prompt] = prompts {
                let mut num = 0;
                generated.push(self.generate(prompt, num_tokens, sampling, |step| {
                    if let Step::Drawn(tokens) = step {
                        num += tokens.len();
                        count(num);
                    }
                    true
                })?);
            } else {
                generated.append(
                    &mut self.generate_together(prompts, num_tokens, sampling, &mut count)?,
                );
            }
        }
        Ok(generated)
    }

    fn generate_together(
        &self,
        prompts: &[String],
        num_tokens: usize,
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
        for index in 0..num_tokens {
            together.clear();
            for (sequence, text) in texts.iter_mut().enumerate() {
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
            count((index + 1) * num);
        }
        let generated = |(mut text, prompt_len): (Vec<u32>, usize)| Generated {
            tokens: text.split_off(prompt_len),
            prompt_len,
        };
        Ok(texts.into_iter().zip(prompt_lens).map(generated).collect())
    }

    /// Continues `prompt` by `num_tokens` tokens. `on_step` is called after each step and returns
    /// whether to continue.
    pub fn generate(
        &self,
        prompt: &str,
        num_tokens: usize,
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
            continues &= on_step(Step::Drawn(&text[first_new..]));
            if !continues {
                break;
            }
        }
        Ok(Generated { tokens: text.split_off(prompt_len), prompt_len })
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

/// Result of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// All generated tokens.
    pub tokens: Vec<u32>,
    /// Tokens in front of them.
    pub prompt_len: usize,
}
