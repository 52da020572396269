//! Trains a custom model: the embedding and layers of a Llama under a head of one's own, whose loss
//! is the squared error of one-hot targets (Hui and Belkin 2020), on one worker and on four.
#![allow(clippy::print_stdout, reason = "an example prints its results")]
use lockstep_config::{Sources, resolve};
use lockstep_model::{self as model, Block, BlockIo, Context, IGNORE, Linear, Param, ParamList};
use lockstep_tensor::device::{self, View, ViewMut};
use lockstep_trainer::{Options, Summary, TrainError, train_on_threads};

/// From rows of activations to the loss.
struct SquaredErrorHead {
    params: Vec<Param>,
    linear: Linear,
}
impl Block for SquaredErrorHead {
    fn name(&self) -> &'static str {
        "head"
    }
    fn params(&self) -> &[Param] {
        &self.params
    }
    fn io(&self) -> BlockIo {
        BlockIo::StreamToLoss { input: self.linear.num_inputs }
    }
    fn saved_len(&self, shape: model::MicrobatchShape) -> model::SavedLen {
        model::SavedLen { kept: shape.rows() * self.linear.num_outputs, rebuilt: 0 }
    }
    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        _output: ViewMut<'_>,
        mut saved: model::Saved<'_>,
    ) -> device::Result<()> {
        self.linear.forward(ctx.device, params, input_tc, saved.kept.reborrow())?;
        let (width, mut loss) = (self.linear.num_outputs, 0.0);
        let outputs = saved.kept.into_slice::<f32>()?;
        let targets = ctx.microbatch.targets.as_slice::<u32>()?;
        for (row, &target) in outputs.chunks_mut(width).zip(targets) {
            for (output, value) in (0..).zip(row) {
                let hit = f32::from(output == target);
                let miss = if target == IGNORE { 0.0 } else { *value - hit };
                loss += 0.5 * f64::from(miss * miss);
                // The gradient of the batch's mean loss takes the place of the output.
                *value = miss / ctx.microbatch.num_targets as f32;
            }
        }
        ctx.loss.reborrow().into_slice::<f64>()?.fill(loss);
        Ok(())
    }
    fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        saved: model::Saved<'_>,
        d_stream: ViewMut<'_>,
        grads: model::Grads<'_>,
    ) -> device::Result<()> {
        let d_outputs = saved.kept.as_view();
        self.linear.backward_weight(ctx.device, input_tc, d_outputs, grads)?;
        self.linear.backward_input(ctx.device, params, d_outputs, d_stream)
    }
}

/// Trains with these settings on threads of this process; every rank builds its own, equal model.
pub(crate) fn run(settings: &[&str]) -> Result<Summary, TrainError> {
    // The loss is computed on the host.
    let sets = settings.iter().chain(&["run.device=cpu"]).map(ToString::to_string).collect();
    let preset = Some("tiny".into());
    let recipe = resolve(&Sources { preset, sets, ..Sources::default() }).expect("valid settings");
    train_on_threads(&recipe, &lockstep_platform::real(), |_rank| {
        let (mut model, mut params) = (model::describe(&recipe.model), ParamList::default());
        let linear = Linear::new("head", recipe.model.width, recipe.model.vocab, 1.0, &mut params);
        let head = SquaredErrorHead { params: params.finish(), linear };
        *model.blocks.last_mut().expect("a model has a head") = Box::new(head);
        Options { model: Some(model), ..Options::default() }
    })
}

fn main() -> Result<(), TrainError> {
    for settings in [&["run.workers=1"][..], &["run.workers=4", "parallel.zero=1"]] {
        let Summary { final_loss, weights_hash, .. } = run(settings)?;
        println!("{settings:?}: loss {final_loss:.4}, weights {weights_hash}");
    }
    Ok(())
}
