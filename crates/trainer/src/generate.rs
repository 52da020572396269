//! Autoregressive text generation with a KV cache.
//!
//! When the context is full, the newest half of the text becomes the new prefix: the model has no
//! positions beyond its context.

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
    compute: Compute,
    blueprint: Blueprint,
    params: Vec<DualBuffer>,
    tokenizer: Tokenizer,
}

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
        let blueprint = blueprint_of(recipe);
        let compute = device::open_alone(recipe, world)?;
        let placed = |params| DualBuffer::of(compute.accelerator(), params);
        let params = pretrained.params(&blueprint)?.into_iter().map(placed);
        let params = params.collect::<lockstep_tensor::device::Result<_>>()?;
        let tokenizer = load_tokenizer(pretrained.path(), world)?;
        tokenizer.require(recipe.model.vocab)?;
        Ok(Self { compute, blueprint, params, tokenizer })
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
    fn views(&self) -> Result<Vec<View<'_>>, TrainError> {
        let dtype = self.blueprint.activations;
        let views = self.params.iter().map(|params| match dtype {
            Dtype::F32 => params.view(),
            _ => params.view_with_copy(dtype),
        });
        Ok(views.collect::<lockstep_tensor::device::Result<_>>()?)
    }

    /// Continues `prompt` by `num_tokens` tokens. `on_step` is called after each step and returns
    /// whether to continue.
    pub fn generate(
        &self,
        prompt: &str,
        num_tokens: usize,
        sampling: Sampling,
        mut on_step: impl FnMut(Step) -> bool,
    ) -> Result<Generated, TrainError> {
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
        let (prompt_len, params) = (text.len(), self.views()?);
        let mut sampler = Sampler::new(sampling);
        let context = self.blueprint.context;
        let mut decoder = Decoder::new(&self.blueprint, self.compute.device(), context)?;
        let mut fed = text.len().saturating_sub(context);
        for _ in 0..num_tokens {
            if decoder.num_remaining() < text.len() - fed {
                decoder.reset();
                fed = text.len() - context.div_ceil(2).min(text.len());
            }
            decoder.queue(&params, &text[fed..])?;
            fed = text.len();
            let mut continues = on_step(Step::Queued);
            let logits = decoder.logits()?;
            continues &= on_step(Step::Computed);
            let token = sampler.draw(logits);
            text.push(token);
            continues &= on_step(Step::Drawn(token));
            if !continues {
                break;
            }
        }
        Ok(Generated { tokens: text.split_off(prompt_len), prompt_len })
    }
}

/// Steps of every token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The work of the device is queued; on a CPU it is done.
    Queued,
    /// The logits are on the host.
    Computed,
    /// The token is drawn.
    Drawn(u32),
}

/// Result of a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// All generated tokens.
    pub tokens: Vec<u32>,
    /// Tokens in front of them.
    pub prompt_len: usize,
}
