//! Text from trained weights, token by token, with the past in a cache.
//!
//! When the context is full, the newest half of the text becomes the past of the next token: a
//! model has learned nothing about positions beyond its context.

use crate::pretrained::Pretrained;
use crate::sampling::{Sampler, Sampling};
use crate::{RunFolder, TrainError, device, saved};
use lockstep_config::Recipe;
use lockstep_data::Tokenizer;
use lockstep_model::{Blueprint, Decoder};
use lockstep_parallel::asked::blueprint_of;
use lockstep_platform::World;
use lockstep_tensor::Cpu;

/// A trained model, ready to write.
pub struct Generator {
    cpu: Cpu,
    blueprint: Blueprint,
    params: Vec<Vec<f32>>,
    tokenizer: Tokenizer,
}

impl Generator {
    /// Loads the weights of a finished run.
    pub fn open(folder: &RunFolder, recipe: &Recipe, world: &World) -> Result<Self, TrainError> {
        let pretrained = Pretrained::open(folder.path(), world)?;
        Self::load(&pretrained, recipe, world)
    }

    /// Loads the weights of a model in a folder; the recipe says how to compute with them.
    pub fn load(
        pretrained: &Pretrained,
        recipe: &Recipe,
        world: &World,
    ) -> Result<Self, TrainError> {
        let blueprint = blueprint_of(recipe);
        let params = pretrained.params(&blueprint)?;
        let tokenizer = saved::tokenizer_in(pretrained.path(), world)?;
        tokenizer.require(recipe.model.vocab)?;
        Ok(Self { cpu: device::open(recipe, world)?, blueprint, params, tokenizer })
    }

    /// What makes text of the tokens.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The logits after each of these tokens, a row for each.
    ///
    /// # Panics
    /// With more tokens than the context holds, or one that is not in the vocabulary.
    pub fn logits(&self, tokens: &[u32]) -> Vec<Vec<f32>> {
        let mut decoder = Decoder::new(&self.blueprint, 1);
        let mut row = |token: &u32| decoder.feed(&self.cpu, &self.params, &[*token]).to_vec();
        tokens.iter().map(&mut row).collect()
    }

    /// Continues `prompt` by `num_tokens` tokens; `on_token` sees each as it comes and says whether
    /// to go on. Returns all generated tokens.
    pub fn generate(
        &self,
        prompt: &str,
        num_tokens: usize,
        sampling: Sampling,
        mut on_token: impl FnMut(u32) -> bool,
    ) -> Result<Vec<u32>, TrainError> {
        let mut text = Vec::new();
        self.tokenizer.encode(prompt, &mut text)?;
        if text.is_empty() {
            // A document begins where another has ended; bytes begin with a line break.
            text.extend(self.tokenizer.end_of_document());
        }
        if text.is_empty() {
            self.tokenizer.encode("\n", &mut text)?;
        }
        if text.is_empty() {
            text.push(0);
        }
        let prompt_len = text.len();
        let mut sampler = Sampler::new(sampling);
        let context = self.blueprint.context;
        let mut decoder = Decoder::new(&self.blueprint, context);
        let mut fed = text.len().saturating_sub(context);
        for _ in 0..num_tokens {
            if decoder.room() < text.len() - fed {
                decoder.reset();
                fed = text.len() - context.div_ceil(2).min(text.len());
            }
            let logits = decoder.feed(&self.cpu, &self.params, &text[fed..]);
            fed = text.len();
            let token = sampler.draw(logits);
            text.push(token);
            if !on_token(token) {
                break;
            }
        }
        Ok(text.split_off(prompt_len))
    }
}
