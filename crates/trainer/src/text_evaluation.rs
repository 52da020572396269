//! Loss of a trained model on a text.
//!
//! The text is cut into windows ([`Windows`]) and the windows into micro-batches of a fixed size,
//! whose losses are added in order in `f64`. The same text, weights and stride therefore give the
//! same bits on any number of threads. Bits per byte divide by the bytes of the *text*, which makes
//! models with different tokenizers comparable.

use crate::microbatch::microbatch_shape;
use crate::pretrained::Pretrained;
use crate::run_folder::load_tokenizer;
use crate::{TrainError, device};
use lockstep_comm::Comm;
use lockstep_config::{DeviceChoice, PipelineSchedule, Recipe, Recompute};
use lockstep_data::windows::{Passage, Windows};
use lockstep_data::{IGNORE, PAD, Tokenizer};
use lockstep_model::Microbatch;
use lockstep_parallel::Replica;
use lockstep_parallel::from_recipe::{arena_bytes, blueprint_of, plan_at};
use lockstep_platform::World;
use lockstep_tensor::device::{Compute, View};
use lockstep_tensor::math::scalar;
use serde::Serialize;
use std::path::Path;

/// Number of windows in a micro-batch.
const MICROBATCH_SEQUENCES: usize = 4;

/// A loaded model for evaluation.
pub struct TextEvaluator {
    recipe: Recipe,
    tokenizer: Tokenizer,
    cpu: Compute,
    replica: Replica,
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
    /// Loads a model from a run folder or a Hugging Face folder.
    pub fn open(folder: &Path, device: DeviceChoice, world: &World) -> Result<Self, TrainError> {
        let pretrained = Pretrained::open(folder, world)?;
        let mut recipe = pretrained.recipe(world)?;
        let family = recipe.model.family;
        if family.is_problem() {
            let (dir, family) = (folder.display().to_string(), family.name());
            return Err(TrainError::NoText { dir, family });
        }
        let tokenizer = load_tokenizer(folder, world)?;
        tokenizer.require(recipe.model.vocab)?;
        use_one_worker(&mut recipe);
        recipe.run.device = device;
        let settings = lockstep_comm::Options {
            arena_bytes: arena_bytes(&recipe),
            ..lockstep_comm::Options::default()
        };
        let ends = Comm::threads(world, 1, &settings)?;
        let cpu = device::open(&recipe, world, &ends[0])?;
        let blueprint = blueprint_of(&recipe);
        let plan = plan_at(&recipe, &blueprint, 0);
        pretrained.prove(&blueprint)?;
        let seed = recipe.train.seed;
        let mut replica = Replica::materialize(blueprint, seed, &cpu, plan, &ends[0], world)?;
        replica.fill(|param, first, values| {
            Ok::<_, TrainError>(pretrained.read_piece(param, first, values)?)
        })?;
        let is_run = pretrained.hugging_face().is_none();
        Ok(Self { recipe, tokenizer, cpu, replica, is_run })
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
        let shape = microbatch_shape(&self.recipe);
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
            };
            nats += self.replica.evaluate(&self.cpu, 1, &microbatch)?;
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

/// Reduces the recipe to one worker with one leaf and one micro-batch, for evaluation only.
fn use_one_worker(recipe: &mut Recipe) {
    use PipelineSchedule::OneFOneB;
    recipe.run.workers = 1;
    recipe.numerics.invariant_up_to = 1;
    (recipe.train.microbatch_size, recipe.train.batch) =
        (MICROBATCH_SEQUENCES, MICROBATCH_SEQUENCES);
    let parallel = &mut recipe.parallel;
    (parallel.pipeline, parallel.virtual_stages, parallel.stage_layers) = (1, 1, Vec::new());
    (parallel.schedule, parallel.tensor, parallel.sequence) = (OneFOneB, 1, false);
    (parallel.data, parallel.zero, parallel.overlap) = (1, 0, false);
    (parallel.recompute, parallel.leaf_shares) = (Recompute::Full, Vec::new());
}
