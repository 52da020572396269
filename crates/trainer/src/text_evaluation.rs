//! Loss of a trained model on a text.
//!
//! The text is cut into windows ([`Windows`]) and the windows into micro-batches of a fixed size,
//! whose losses are added in order in `f64`. The same text, weights and stride therefore give the
//! same bits on any number of threads. Bits per byte divide by the bytes of the *text*, which makes
//! models with different tokenizers comparable.

use crate::TrainError;
use crate::adapter_folder::ModelPath;
use crate::evaluation_model::{EvaluationModel, ModelFolder};
use lockstep_config::{DeviceChoice, Recipe};
use lockstep_data::windows::{Passage, Windows};
use lockstep_data::{IGNORE, PAD, Tokenizer};
use lockstep_model::{Microbatch, MicrobatchShape};
use lockstep_platform::World;
use lockstep_tensor::device::View;
use lockstep_tensor::math::scalar;
use serde::Serialize;

/// Number of windows in a micro-batch.
const MICROBATCH_SEQUENCES: usize = 4;

/// A loaded model for evaluation.
pub struct TextEvaluator {
    recipe: Recipe,
    tokenizer: Tokenizer,
    shape: MicrobatchShape,
    model: EvaluationModel,
    is_run: bool,
}

/// Loss of a model on a text. Field names are stable: scripts rely on them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TextEvaluation {
    /// Name of the text, or of several.
    pub data: String,
    /// Mean loss in nats per token.
    pub loss: f64,
    /// `exp` of the loss.
    pub perplexity: f64,
    /// Bits per predicted byte of the text.
    pub bits_per_byte: f64,
    /// Number of tokens in the text.
    pub num_tokens: u64,
    /// Number of predicted tokens: all but the first of each text.
    pub num_targets: u64,
    /// Number of predicted bytes.
    pub num_bytes: u64,
    /// Sum of all losses in nats.
    pub nats: f64,
}

impl TextEvaluator {
    /// Loads a model from its folder.
    pub fn open<'a>(
        folder: impl Into<ModelPath<'a>>,
        device: DeviceChoice,
        world: &World,
    ) -> Result<Self, TrainError> {
        let folder = ModelFolder::open(folder, device, world)?;
        let tokens = folder.recipe.model.context;
        let shape = MicrobatchShape { sequences: MICROBATCH_SEQUENCES, tokens };
        let model = folder.load(shape, world)?;
        let is_run = folder.is_run();
        let ModelFolder { recipe, tokenizer, .. } = folder;
        Ok(Self { recipe, tokenizer, shape, model, is_run })
    }

    /// Context length of the model.
    pub fn context(&self) -> usize {
        self.recipe.model.context
    }

    /// Opens a text and tokenizes it for this model.
    pub fn passage(&self, source: &str, world: &World) -> Result<Passage, TrainError> {
        Ok(Passage::open(source, &self.tokenizer, self.recipe.model.vocab, world)?)
    }

    /// Held-out text of the run; none for a Hugging Face model.
    pub fn held_out(&self, world: &World) -> Result<Option<Passage>, TrainError> {
        if !self.is_run {
            return Ok(None);
        }
        Ok(Some(Passage::held_out(&self.recipe, world)?))
    }

    /// Evaluates a text. `progress` receives the number of windows done and the total.
    pub fn evaluate(
        &mut self,
        passage: &Passage,
        stride: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<TextEvaluation, TrainError> {
        let shape = self.shape;
        let windows = Windows::new(&passage.tokens, shape.tokens, stride);
        let num_windows = windows.num_windows();
        let (mut inputs, mut targets) = (vec![PAD; shape.rows()], vec![IGNORE; shape.rows()]);
        let mut nats = 0.0;
        for first in (0..num_windows).step_by(shape.sequences) {
            let sequences = inputs.chunks_exact_mut(shape.tokens);
            let sequences = sequences.zip(targets.chunks_exact_mut(shape.tokens));
            for (index, (inputs, targets)) in (first..).zip(sequences) {
                windows.fill(&passage.tokens, index, inputs, targets)?;
            }
            let microbatch = |_| Microbatch {
                shape,
                inputs: View::of(&inputs),
                targets: View::of(&targets),
                first_sample: 0,
                num_targets: 1,
                documents: None,
                preferences: None,
            };
            nats += self.model.replica.evaluate(&self.model.cpu, 1, &microbatch)?;
            progress((first + shape.sequences).min(num_windows), num_windows);
        }
        Ok(TextEvaluation::of(
            passage.name.clone(),
            nats,
            passage.tokens.len() as u64,
            windows.num_targets(),
            passage.num_bytes,
        ))
    }
}

impl TextEvaluation {
    fn of(data: String, nats: f64, num_tokens: u64, num_targets: u64, num_bytes: u64) -> Self {
        let loss = nats / num_targets as f64;
        Self {
            data,
            loss,
            perplexity: scalar::exp(loss),
            bits_per_byte: nats / std::f64::consts::LN_2 / num_bytes as f64,
            num_tokens,
            num_targets,
            num_bytes,
            nats,
        }
    }

    /// Combines several texts, in this order.
    pub fn together(all: &[Self]) -> Self {
        let data: Vec<&str> = all.iter().map(|one| one.data.as_str()).collect();
        Self::of(
            data.join(", "),
            all.iter().fold(0.0, |sum, one| sum + one.nats),
            all.iter().map(|one| one.num_tokens).sum(),
            all.iter().map(|one| one.num_targets).sum(),
            all.iter().map(|one| one.num_bytes).sum(),
        )
    }
}
