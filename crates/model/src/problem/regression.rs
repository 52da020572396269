//! Ridge and logistic regression: the last block, with one weight per feature and a convex loss.
//!
//! With `p = aᵀx` of a sample's features a, ridge regression has the loss `(p − b)² / 2` and its
//! derivative `p − b`; logistic regression, with classes b = ±1, has `ln(1 + e^(−bp))` and `−b / (1
//! + e^(bp))`. Both add `l2 ‖x‖² / 2` for every sample, so the mean over samples is the textbook
//! objective. Losses and derivatives are `f64`.
//!
//! Shapes: t samples of the micro-batch, c features.

use super::samples::Samples;
use super::set_loss;
use crate::block::{
    Block, BlockIo, Context, Flops, IGNORE, MicrobatchShape, Mode, Saved, SavedLen,
};
use crate::formats::Formats;
use crate::grads::Grads;
use crate::linear::{Linear, WeightLayout};
use crate::param::{Init, Param, ParamList};
use lockstep_config::{Family, Model};
use lockstep_tensor::device::{Result, View, ViewMut};
use lockstep_tensor::gemm::Precision;
use lockstep_tensor::math::scalar;
use std::sync::Arc;

/// Linear regression with a convex loss.
pub(super) struct Regression {
    params: Vec<Param>,
    linear: Linear,
    loss: Loss,
    l2: f64,
    samples: Arc<Samples>,
}

/// Loss of a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    Squared,
    Logistic,
}

impl Loss {
    pub(super) fn of(family: Family) -> Self {
        if family == Family::Logistic { Self::Logistic } else { Self::Squared }
    }

    /// Loss of a prediction, with its first and second derivative.
    pub(super) fn at(self, prediction: f64, target: f64) -> (f64, f64, f64) {
        match self {
            Self::Squared => {
                let miss = prediction - target;
                (0.5 * miss * miss, miss, 1.0)
            }
            Self::Logistic => {
                // The exponential of a nonpositive number never overflows.
                let margin = target * prediction;
                let small = scalar::exp(-margin.abs());
                let wrong = if margin > 0.0 { small / (1.0 + small) } else { 1.0 / (1.0 + small) };
                let loss = scalar::ln(1.0 + small) + (-margin).max(0.0);
                (loss, -target * wrong, wrong * (1.0 - wrong))
            }
        }
    }
}

impl Regression {
    pub(super) fn new(model: &Model, samples: Arc<Samples>) -> Self {
        let num_inputs = samples.width();
        let mut params = ParamList::default();
        // A vector: weight decay is part of the problem and not of the optimizer.
        let weight = params.push("x".to_owned(), &[num_inputs], Init::Zeros);
        let layout = WeightLayout::OutIn;
        let (frozen, bias, formats) = (None, None, Formats::on_cpu(Precision::F32));
        let linear = Linear { num_inputs, num_outputs: 1, layout, weight, frozen, bias, formats };
        let (loss, l2) = (Loss::of(model.family), model.problem.l2);
        Self { params: params.finish(), linear, loss, l2, samples }
    }
}

impl Block for Regression {
    fn name(&self) -> &'static str {
        "x"
    }

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn io(&self) -> BlockIo {
        BlockIo::StreamToLoss { input: self.linear.num_inputs }
    }

    fn saved_len(&self, shape: MicrobatchShape) -> SavedLen {
        SavedLen { kept: shape.rows(), rebuilt: 0 }
    }

    fn flops_per_token(&self, _num_tokens: usize) -> Flops {
        let forward = self.linear.flops();
        Flops { forward, backward: 2 * forward }
    }

    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        _output: ViewMut<'_>,
        mut saved: Saved<'_>,
    ) -> Result<()> {
        let microbatch = ctx.microbatch;
        self.linear.forward(ctx.device, params, input_tc, saved.kept.reborrow())?;
        let (params, predictions_t) = (params.as_slice::<f32>()?, saved.kept.into_slice::<f32>()?);
        let (inputs, targets) =
            (microbatch.inputs.as_slice::<u32>()?, microbatch.targets.as_slice::<u32>()?);
        let squares = params.iter().fold(0.0, |sum, x| sum + f64::from(*x) * f64::from(*x));
        let pull = 0.5 * self.l2 * squares;
        let mut sum = 0.0;
        for (row, prediction) in predictions_t.iter_mut().enumerate() {
            let is_counted = targets[row] != IGNORE;
            let target = f64::from(self.samples.target(inputs[row] as usize));
            let (loss, slope, _) = self.loss.at(f64::from(*prediction), target);
            if is_counted {
                sum += loss + pull;
            }
            if let Mode::Train { .. } = ctx.mode {
                let share = if is_counted { 1.0 / microbatch.num_targets as f64 } else { 0.0 };
                *prediction = (slope * share) as f32;
            }
        }
        set_loss(ctx, sum)
    }

    fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        saved: Saved<'_>,
        d_stream: ViewMut<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        let slopes_t = saved.kept.as_view();
        self.linear.backward_weight(ctx.device, input_tc, slopes_t, grads.reborrow())?;
        let targets = ctx.microbatch.targets.as_slice::<u32>()?;
        let num_counted = targets.iter().filter(|target| **target != IGNORE).count();
        let pull = self.l2 * num_counted as f64 / ctx.microbatch.num_targets as f64;
        for (at, grads) in grads.trained_ranges(&(0..params.len())) {
            let params = params.range(at).as_slice::<f32>()?;
            for (grad, x) in grads.into_slice::<f32>()?.iter_mut().zip(params) {
                *grad += (pull * f64::from(*x)) as f32;
            }
        }
        self.linear.backward_input(ctx.device, params, slopes_t, d_stream)
    }
}
