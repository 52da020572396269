//! Text from trained weights, token by token, with the past in a cache.
//!
//! When the context is full, the newest half of the text becomes the past of the next token: a
//! model has learned nothing about positions beyond its context.

use crate::sampling::{Sampler, Sampling};
use crate::{RunFolder, TrainError, device, saved};
use lockstep_checkpoint::weights;
use lockstep_config::Recipe;
use lockstep_data::Tokenizer;
use lockstep_model::{Blueprint, Decoder, describe};
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
        let blueprint = describe(&recipe.model);
        let saved = weights::load(world, &folder.weights())?;
        let params = saved::load_params(&blueprint, &saved)?;
        let tokenizer = saved::tokenizer_of(folder, world)?;
        tokenizer.require(recipe.model.vocab)?;
        Ok(Self { cpu: device::open(recipe, world)?, blueprint, params, tokenizer })
    }

    /// What makes text of the tokens.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
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
