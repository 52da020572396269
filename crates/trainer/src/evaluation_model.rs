//! A trained model loaded for evaluation, on one worker.

use crate::adapter_folder::ModelPath;
use crate::pretrained::{FROM, Pretrained};
use crate::run_folder::load_tokenizer;
use crate::{TrainError, device};
use lockstep_comm::Comm;
use lockstep_config::{DeviceChoice, PipelineSchedule, Recipe, Recompute};
use lockstep_data::Tokenizer;
use lockstep_model::{MicrobatchShape, lora};
use lockstep_parallel::Replica;
use lockstep_parallel::from_recipe::{arena_bytes, blueprint_of, plan_at};
use lockstep_platform::World;
use lockstep_tensor::device::Compute;

/// An opened model folder.
pub(crate) struct ModelFolder {
    pretrained: Pretrained,
    pub(crate) recipe: Recipe,
    pub(crate) tokenizer: Tokenizer,
}

/// A model in memory.
pub(crate) struct EvaluationModel {
    pub(crate) cpu: Compute,
    pub(crate) replica: Replica,
}

impl ModelFolder {
    /// Opens a folder of a language model, without its weights.
    pub(crate) fn open<'a>(
        folder: impl Into<ModelPath<'a>>,
        device: DeviceChoice,
        world: &World,
    ) -> Result<Self, TrainError> {
        let path @ ModelPath { folder, .. } = folder.into();
        let pretrained = Pretrained::open(path, world)?;
        let mut recipe = pretrained.recipe(world)?;
        let family = recipe.model.family;
        if family.is_problem() {
            let (dir, family) = (folder.display().to_string(), family.name());
            return Err(TrainError::NoText { dir, family });
        }
        let tokenizer = load_tokenizer(pretrained.path(), world)?;
        tokenizer.require(recipe.model.vocab)?;
        use_one_worker(&mut recipe);
        recipe.run.device = device;
        Ok(Self { pretrained, recipe, tokenizer })
    }

    /// Whether it is a run, which has a validation set.
    pub(crate) fn is_run(&self) -> bool {
        let pretrained = &self.pretrained;
        pretrained.hugging_face().is_none() && pretrained.base_of_adapters().is_none()
    }

    /// Loads the weights, with memory for micro-batches of a shape.
    pub(crate) fn load(
        &self,
        shape: MicrobatchShape,
        world: &World,
    ) -> Result<EvaluationModel, TrainError> {
        let mut model = self.materialize(shape, world)?;
        self.pretrained.prove(model.replica.blueprint())?;
        model
            .replica
            .fill(|param, first, values| self.pretrained.read_piece(param, first, values))?;
        Ok(model)
    }

    /// Loads the model before training: the reference of preferences.
    pub(crate) fn load_reference(
        &self,
        shape: MicrobatchShape,
        world: &World,
    ) -> Result<EvaluationModel, TrainError> {
        let mut model = self.materialize(shape, world)?;
        if self.pretrained.is_quantised() {
            // The adapters began at zero beside the base that they were trained with.
            let read =
                |param: &_, first, values: &mut _| self.pretrained.read_piece(param, first, values);
            model.replica.fill(read)?;
        } else if !self.recipe.from.is_empty() {
            let initial = Pretrained::of_key(FROM, &self.recipe.from, world)?;
            let overlap = if self.recipe.partial {
                Some(initial.overlap(model.replica.blueprint())?)
            } else {
                None
            };
            model.replica.fill(|param, first, values| {
                let is_there = match &overlap {
                    Some(overlap) => overlap.taken.contains(&param.name),
                    None => initial.has(&param.name),
                };
                if is_there {
                    initial.read_piece(param, first, values)?;
                }
                Ok::<_, TrainError>(())
            })?;
        }
        model.replica.fill(|param, _, values| {
            if lora::is_output(&param.name) {
                values.fill(0.0);
            }
            Ok::<_, TrainError>(())
        })?;
        Ok(model)
    }

    /// Allocates the model, with the initial weights of the recipe.
    fn materialize(
        &self,
        shape: MicrobatchShape,
        world: &World,
    ) -> Result<EvaluationModel, TrainError> {
        let recipe = &self.recipe;
        let settings = lockstep_comm::Options {
            arena_bytes: arena_bytes(recipe),
            ..lockstep_comm::Options::default()
        };
        let ends = Comm::threads(world, 1, &settings)?;
        let cpu = device::open(recipe, world, &ends[0])?;
        let blueprint = blueprint_of(recipe);
        let mut plan = plan_at(recipe, &blueprint, 0);
        plan.microbatch = shape;
        let seed = recipe.train.seed;
        let replica = Replica::materialize(blueprint, seed, &cpu, plan, &ends[0], world)?;
        Ok(EvaluationModel { cpu, replica })
    }
}

/// Reduces the recipe to one worker with one leaf and one micro-batch, for evaluation only.
fn use_one_worker(recipe: &mut Recipe) {
    use PipelineSchedule::OneFOneB;
    recipe.run.workers = 1;
    recipe.numerics.invariant_up_to = 1;
    (recipe.train.microbatch_size, recipe.train.batch) = (1, 1);
    let parallel = &mut recipe.parallel;
    (parallel.pipeline, parallel.virtual_stages, parallel.stage_layers) = (1, 1, Vec::new());
    (parallel.schedule, parallel.tensor, parallel.sequence) = (OneFOneB, 1, false);
    (parallel.data, parallel.zero, parallel.overlap) = (1, 0, false);
    (parallel.recompute, parallel.leaf_shares) = (Recompute::Full, Vec::new());
}
