//! The loss of a trained model on any text.
//!
//! The whole text is cut into windows ([`Windows`]), the windows into micro-batches of a fixed size, and
//! the micro-batches' losses are added in order in `f64`: the same text, weights and stride give the same
//! bits on any number of threads, however the weights were trained. Bits per byte divide by the
//! bytes of the *text*, so models with different tokenizers can be compared.

use crate::pretrained::Pretrained;
use crate::saved::{plan_at, tokenizer_in};
use crate::train::microbatch_shape;
use crate::{TrainError, device};
use lockstep_comm::Comm;
use lockstep_config::{PipelineSchedule, Recipe, Recompute};
use lockstep_data::windows::{Passage, Windows};
use lockstep_data::{IGNORE, PAD, Tokenizer};
use lockstep_model::Microbatch;
use lockstep_parallel::Replica;
use lockstep_parallel::asked::blueprint_of;
use lockstep_platform::World;
use lockstep_tensor::Cpu;
use lockstep_tensor::math::scalar;
use serde::Serialize;
use std::path::Path;

/// Windows that go through the model at once.
const MICROBATCH_SEQUENCES: usize = 4;

/// A trained model that reads.
pub struct Judge {
    recipe: Recipe,
    tokenizer: Tokenizer,
    cpu: Cpu,
    replica: Replica,
    is_run: bool,
}

/// What a model makes of a text. Names are stable: scripts rely on them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judgement {
    /// The text, or several.
    pub data: String,
    /// Mean loss in nats a token.
    pub loss: f64,
    /// `exp` of the loss.
    pub perplexity: f64,
    /// Bits for each byte of the text that was predicted.
    pub bits_per_byte: f64,
    /// Tokens of the text.
    pub num_tokens: u64,
    /// Tokens that were predicted: all but the first of each text.
    pub num_targets: u64,
    /// Bytes of the text that were predicted.
    pub num_bytes: u64,
    /// Sum of all losses in nats.
    pub nats: f64,
}

impl Judge {
    /// Loads a model, of a run or of Hugging Face.
    pub fn open(folder: &Path, world: &World) -> Result<Self, TrainError> {
        let pretrained = Pretrained::open(folder, world)?;
        let mut recipe = pretrained.recipe(world)?;
        let family = recipe.model.family;
        if family.is_problem() {
            let (dir, family) = (folder.display().to_string(), family.name());
            return Err(TrainError::NoText { dir, family });
        }
        let tokenizer = tokenizer_in(folder, world)?;
        tokenizer.require(recipe.model.vocab)?;
        alone(&mut recipe);
        let cpu = device::open(&recipe, world)?;
        let settings = lockstep_comm::Options {
            arena_bytes: crate::saved::arena_bytes(&recipe),
            ..lockstep_comm::Options::default()
        };
        let ends = Comm::threads(world, 1, &settings)?;
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

    /// The most tokens that the model looks at.
    pub fn context(&self) -> usize {
        self.recipe.model.context
    }

    /// A text, for this model's tokenizer.
    pub fn passage(&self, source: &str, world: &World) -> Result<Passage, TrainError> {
        Ok(Passage::open(source, &self.tokenizer, self.recipe.model.vocab, world)?)
    }

    /// What the run held out; nothing where the model is not of a run.
    pub fn held_out(&self, world: &World) -> Result<Option<Passage>, TrainError> {
        if !self.is_run {
            return Ok(None);
        }
        Ok(Some(Passage::held_out(&self.recipe, world)?))
    }

    /// Judges a text; `progress` hears how many windows are done, and of how many.
    pub fn judge(
        &mut self,
        passage: &Passage,
        stride: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Judgement, TrainError> {
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
                inputs: &inputs,
                targets: &targets,
                first_sample: 0,
                num_targets: 1,
            };
            nats += self.replica.evaluate(&self.cpu, 1, &microbatch)?;
            progress((first + shape.sequences).min(num_windows), num_windows);
        }
        Ok(Judgement::of(
            passage.name.clone(),
            nats,
            passage.tokens.len() as u64,
            windows.num_targets(),
            passage.num_bytes,
        ))
    }
}

impl Judgement {
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

    /// Several texts as one, in this order.
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

/// The same model on one worker that only looks: one leaf, one micro-batch, nothing kept for a step.
fn alone(recipe: &mut Recipe) {
    use PipelineSchedule::OneFOneB;
    recipe.run.workers = 1;
    recipe.numerics.invariant_up_to = 1;
    (recipe.train.microbatch_size, recipe.train.batch) =
        (MICROBATCH_SEQUENCES, MICROBATCH_SEQUENCES);
    let parallel = &mut recipe.parallel;
    (parallel.pipeline, parallel.virtual_stages, parallel.stages) = (1, 1, Vec::new());
    (parallel.schedule, parallel.tensor, parallel.sequence) = (OneFOneB, 1, false);
    (parallel.data, parallel.zero, parallel.overlap) = (1, 0, false);
    (parallel.recompute, parallel.shares) = (Recompute::Full, Vec::new());
}
