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
}

impl Generator {
    /// Loads the weights of a finished run.
    pub fn open(folder: &RunFolder, recipe: &Recipe, world: &World) -> Result<Self, TrainError> {
        let blueprint = describe(&recipe.model);
        let saved = weights::load(world, &folder.weights())?;
        let params = saved::load_params(&blueprint, &saved)?;
        Ok(Self { cpu: device::open(recipe, world)?, blueprint, params })
    }

    /// Continues `prompt` by `num_tokens` tokens; `on_token` sees each as it comes and says whether
    /// to go on. Returns all generated tokens.
    pub fn generate(
        &self,
        prompt: &str,
        num_tokens: usize,
        sampling: Sampling,
        mut on_token: impl FnMut(u32) -> bool,
    ) -> Vec<u32> {
        let mut text = Vec::new();
        let bytes = Tokenizer::bytes();
        bytes.encode(prompt, &mut text).expect("every text has bytes");
        if text.is_empty() {
            // A line break is how every part of a text begins.
            bytes.encode("\n", &mut text).expect("every text has bytes");
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
        text.split_off(prompt_len)
    }
}
