//! Exports a run or checkpoint as a folder of `torch.distributed.checkpoint`: weights, and the
//! state of AdamW or Adam where it was saved.

use crate::pretrained::{MOMENTS, Pretrained, outlines};
use crate::{RunFolder, TrainError};
use lockstep_checkpoint::pytorch::export::{self, ExportedTensor};
use lockstep_checkpoint::{Tensors, TrainingState};
use lockstep_config::{OptimName, Recipe};
use lockstep_model::describe;
use lockstep_platform::World;
use std::path::Path;

/// State of an optimizer by its PyTorch name.
const MOMENT_NAMES: [&str; 2] = ["exp_avg", "exp_avg_sq"];

/// Number of updates of a parameter, by its PyTorch name.
const STEP: &str = "step";

/// Content of a tensor of the folder.
enum Content {
    /// The parameter of this name.
    Parameter(String),
    /// A moment of the parameter of this name.
    Moment(String),
    /// The number of updates.
    Step,
}

/// Figures of a written folder.
pub(crate) struct Exported {
    /// Bytes of all values.
    pub(crate) num_bytes: u64,
    /// Whether it has the state of the optimizer.
    pub(crate) has_state: bool,
}

/// Writes the folder. `on_weights` receives the parameters in order, as they are read.
pub(crate) fn save(
    pretrained: &Pretrained,
    recipe: &Recipe,
    folder: &Path,
    world: &World,
    mut on_weights: impl FnMut(&[f32]),
) -> Result<Exported, TrainError> {
    let moments = Moments::of(pretrained, recipe, world)?;
    let (mut tensors, mut contents) = (Vec::new(), Vec::new());
    for (name, shape) in outlines(&describe(&recipe.model)) {
        tensors.push(ExportedTensor::parameter(&name, &shape));
        contents.push(Content::Parameter(name));
    }
    if moments.is_some() {
        for (name, shape) in outlines(&describe(&recipe.model)) {
            for (ours, theirs) in MOMENTS.iter().zip(MOMENT_NAMES) {
                tensors.push(ExportedTensor::state(&name, theirs, &shape));
                contents.push(Content::Moment(format!("{name}.{ours}")));
            }
            tensors.push(ExportedTensor::state(&name, STEP, &[]));
            contents.push(Content::Step);
        }
    }
    let num_bytes = export::save(world, folder, &tensors, |index, first, out| {
        match (&contents[index], &moments) {
            (Content::Parameter(name), _) => {
                pretrained.read(name, first, out)?;
                on_weights(out);
            }
            (Content::Moment(name), Some(moments)) => moments.read(pretrained, name, first, out)?,
            (Content::Step, Some(moments)) => out[0] = moments.step as f32,
            (Content::Moment(_) | Content::Step, None) => unreachable!("only listed with moments"),
        }
        Ok::<_, TrainError>(())
    })?;
    Ok(Exported { num_bytes, has_state: moments.is_some() })
}

/// The moments of a run.
struct Moments {
    /// Number of updates.
    step: u64,
    /// Where they are, if not in the checkpoint itself.
    tensors: Option<Tensors>,
}

impl Moments {
    /// Those of a checkpoint or of a finished run whose optimizer is AdamW or Adam.
    fn of(
        pretrained: &Pretrained,
        recipe: &Recipe,
        world: &World,
    ) -> Result<Option<Self>, TrainError> {
        let is_adam = matches!(recipe.optim.name, OptimName::AdamW | OptimName::Adam);
        if !is_adam || recipe.has_local_state() {
            return Ok(None);
        }
        if let Some(step) = pretrained.checkpoint_step() {
            return Ok(Some(Self { step, tensors: None }));
        }
        let Ok(folder) = RunFolder::finished(pretrained.path(), world) else { return Ok(None) };
        if world.files().metadata(&folder.optimizer()).is_none() {
            return Ok(None);
        }
        let step = TrainingState::load(world, &folder.state())?.step;
        let tensors = Some(Tensors::open(world, &folder.optimizer())?);
        Ok(Some(Self { step, tensors }))
    }

    fn read(
        &self,
        pretrained: &Pretrained,
        name: &str,
        first: usize,
        out: &mut [f32],
    ) -> Result<(), TrainError> {
        match &self.tensors {
            Some(tensors) => tensors.read(name, first, out)?,
            None => return pretrained.read(name, first, out),
        }
        Ok(())
    }
}
