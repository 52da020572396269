//! Trainable state of one rank: model replica, optimizer, learning-rate schedule and loss scaler.

use crate::TrainError;
use crate::health::Stability;
use lockstep_checkpoint::Scaling;
use lockstep_comm::CommError;
use lockstep_config::units::Bytes;
use lockstep_config::{BatchPlan, LossScale, OffloadState, Recipe};
use lockstep_optim::{ClipPlan, LearningRate, LossScaler, Optimizer, Phases};
use lockstep_parallel::Replica;
use lockstep_platform::{FileKind, World};
use std::path::{Path, PathBuf};

/// Trainable state of one rank.
pub struct Learner {
    /// Weights, gradients and activations.
    pub replica: Replica,
    /// Optimizer state.
    pub optimizer: Optimizer,
    /// Learning-rate schedule.
    pub lr: LearningRate,
    /// Groups of gradients that are clipped together.
    pub clip: ClipPlan,
    /// Batch size of every step.
    pub batches: BatchPlan,
    /// Phases with different frozen parameters.
    pub(crate) phases: Phases,
    /// Current phase and batch size.
    pub(crate) current: Milestone,
    /// Loss scale and skipped steps.
    pub stability: Stability,
    pub(crate) world: World,
    /// Kernel class of the device; see [`crate::device`].
    pub(crate) kernel_class: String,
    /// Name of the device; see [`crate::device::name`].
    pub(crate) device_name: String,
}

/// Settings that may change between two steps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Milestone {
    pub(crate) phase: usize,
    pub(crate) batch: usize,
}

impl Learner {
    /// Switches to the phase and batch size of a step. Optimizer state of parameters that stay
    /// trained is kept; newly trained ones start from zero.
    pub fn enter(&mut self, recipe: &Recipe, step: u64) -> Result<(), TrainError> {
        let next = Milestone { phase: self.phases.at(step), batch: self.batches.at(step).batch };
        if next == self.current {
            return Ok(());
        }
        let microbatches_per_leaf = next.batch / recipe.train.microbatch_size / recipe.num_leaves();
        self.replica.enter_phase(next.phase, microbatches_per_leaf)?;
        if next.phase != self.current.phase {
            let first_step = self.phases.first_step(next.phase);
            let mut optimizer = optimizer_at(recipe, &self.replica, first_step, &self.world)?;
            optimizer.copy_state_from(&self.optimizer);
            self.optimizer = optimizer;
            self.stability.num_skipped_in_phase = 0;
        }
        self.current = next;
        Ok(())
    }

    /// Peak of the buffers on the accelerator; `None` without one.
    pub fn device_bytes(&self) -> Result<Option<u64>, CommError> {
        let memory = self.replica.accelerator().map_or(Ok(None), |device| device.memory())?;
        Ok(memory.map(|memory| memory.peak as u64))
    }

    /// Algorithms of matrix products, where the device chooses among several: a part of the run.
    pub fn product_algorithms(&self) -> Result<String, TrainError> {
        let accelerator = self.replica.accelerator();
        Ok(accelerator.map_or(Ok(String::new()), |device| device.product_algorithms())?)
    }

    /// Uses the algorithms of a checkpoint that was written with this kernel class.
    pub fn resume_product_algorithms(
        &self,
        kernel_class: &str,
        algorithms: &str,
    ) -> Result<(), TrainError> {
        match self.replica.accelerator() {
            Some(device) if kernel_class == self.kernel_class && !algorithms.is_empty() => {
                Ok(device.set_product_algorithms(algorithms)?)
            }
            _ => Ok(()),
        }
    }

    /// Loss scale and skipped steps, as a checkpoint stores them.
    pub fn scaling(&self) -> Scaling {
        Scaling {
            exponent: self.stability.scaler.scale().map_or(0, LossScale::exponent),
            clean_steps: self.stability.scaler.clean_steps(),
            num_skipped_in_phase: self.stability.num_skipped_in_phase,
        }
    }

    /// Restores loss scale and skipped steps from a checkpoint.
    pub fn resume_scaling(&mut self, recipe: &Recipe, saved: Scaling) {
        let scale = LossScale::of_exponent(saved.exponent);
        self.stability.scaler = LossScaler::resume(&recipe.precision, scale, saved.clean_steps);
        self.stability.num_skipped_in_phase = saved.num_skipped_in_phase;
    }

    /// Optimizer step count of this worker, if it takes part in the step.
    pub fn update_count(&self, recipe: &Recipe, step: u64) -> Option<u64> {
        let worker = self.replica.groups().data().group_rank();
        let count = recipe.steps_taken(worker, step) + 1;
        let count = count.saturating_sub(self.stability.num_skipped_in_phase).max(1);
        recipe.takes_step(worker, step).then_some(count)
    }

    /// Learning rate of a step.
    pub fn lr(&self, step: u64) -> f64 {
        self.lr.at(step, self.batches.at(step).batch)
    }
}

/// New optimizer state for the parameters trained in a step, in memory or offloaded to a file.
pub(crate) fn optimizer_at(
    recipe: &Recipe,
    replica: &Replica,
    step: u64,
    world: &World,
) -> Result<Optimizer, TrainError> {
    let (slots, accelerator) = (&replica.slots(), replica.accelerator());
    if recipe.offload.state == OffloadState::None {
        return Ok(Optimizer::on_device(&recipe.optim, slots, step, accelerator)?);
    }
    let folder = offload_folder(recipe, world);
    let mut num_bytes = 0;
    let make = |lens: &[usize]| {
        num_bytes = lens.iter().sum::<usize>() * size_of::<f32>();
        world.files().paged(&folder, lens)
    };
    let mut optimizer = Optimizer::in_file(&recipe.optim, slots, step, make)
        .map_err(|error| TrainError::NoRoom { bytes: Bytes(num_bytes as u64), error })?;
    if let Some(accelerator) = accelerator {
        optimizer.stage_on(accelerator)?;
    }
    Ok(optimizer)
}

/// Folder of offloaded optimizer state: `offload.folder`, or the nearest existing parent of the run
/// folder.
fn offload_folder(recipe: &Recipe, world: &World) -> PathBuf {
    if !recipe.offload.folder.is_empty() {
        return PathBuf::from(&recipe.offload.folder);
    }
    let is_folder = |path: &&Path| world.files().metadata(path) == Some(FileKind::Directory);
    let found = Path::new(&recipe.run.dir).ancestors().find(is_folder);
    found.map_or_else(|| PathBuf::from("."), Path::to_owned)
}
