//! Quadratic loss with known eigenvalues and a known optimum: the last block of the `quadratic`
//! family.
//!
//! The loss of sample i at x is `rᵀAr / 2 + ξᵢᵀr` with `r = x − x*`, its gradient `Ar + ξᵢ`: a
//! common gradient plus noise per sample that sums to zero over all samples. The elements of x* are
//! `f32`, so it can be reached exactly, and near it the difference r is exact.
//!
//! Shapes: t samples of the micro-batch, c unknowns.

use super::set_loss;
use super::spectrum::Curvature;
use crate::block::{Block, BlockIo, Context, Flops, IGNORE, MicrobatchShape, Saved, SavedLen};
use crate::grads::Grads;
use crate::param::{Init, Param, ParamList};
use lockstep_config::Problem;
use lockstep_tensor::device::{Result, View, ViewMut};
use lockstep_tensor::random::Key;

/// Quadratic loss.
pub(super) struct Quadratic {
    params: Vec<Param>,
    curvature: Curvature,
    target_c: Vec<f32>,
}

/// Optimum of the quadratic.
pub(super) fn target(problem: &Problem) -> Vec<f32> {
    let key = Key::new(problem.seed, "truth");
    (0..problem.dim as u64).map(|index| key.normal(index)).collect()
}

impl Quadratic {
    pub(super) fn new(problem: &Problem) -> Self {
        let mut params = ParamList::default();
        params.push("x".to_owned(), &[problem.dim], Init::Zeros);
        let (params, curvature) = (params.finish(), Curvature::new(problem));
        Self { params, curvature, target_c: target(problem) }
    }

    /// Writes the gradient without noise and returns the loss without noise.
    fn gradient(&self, x_c: &[f32], gradient_c: &mut [f32]) -> f64 {
        for ((gradient, x), target) in gradient_c.iter_mut().zip(x_c).zip(&self.target_c) {
            *gradient = x - target;
        }
        self.curvature.apply(gradient_c);
        0.5 * self.inner_product(x_c, gradient_c)
    }

    /// Inner product of a row with the difference from the optimum.
    fn inner_product(&self, x_c: &[f32], row_c: &[f32]) -> f64 {
        let difference = x_c.iter().zip(&self.target_c).map(|(x, target)| f64::from(x - target));
        difference
            .zip(row_c)
            .fold(0.0, |sum, (difference, value)| sum + difference * f64::from(*value))
    }
}

impl Block for Quadratic {
    fn name(&self) -> &'static str {
        "x"
    }

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn io(&self) -> BlockIo {
        BlockIo::StreamToLoss { input: self.target_c.len() }
    }

    fn saved_len(&self, _shape: MicrobatchShape) -> SavedLen {
        SavedLen { kept: self.target_c.len(), rebuilt: 0 }
    }

    fn flops_per_token(&self, _num_tokens: usize) -> Flops {
        // The gradient is computed once per micro-batch, so only the noise counts here.
        let forward = 2 * self.target_c.len() as u64;
        Flops { forward, backward: 2 * forward }
    }

    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        _output: ViewMut<'_>,
        saved: Saved<'_>,
    ) -> Result<()> {
        let (params, input_tc) = (params.as_slice()?, input_tc.as_slice()?);
        let loss = self.gradient(params, saved.kept.into_slice()?);
        let targets = ctx.microbatch.targets.as_slice::<u32>()?;
        let rows = input_tc.chunks_exact(self.target_c.len()).zip(targets);
        let losses = rows.filter(|(_, target)| **target != IGNORE);
        let losses = losses.map(|(noise_c, _)| loss + self.inner_product(params, noise_c));
        set_loss(ctx, losses.fold(0.0, |sum, loss| sum + loss))
    }

    fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        saved: Saved<'_>,
        d_stream_tc: ViewMut<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        let (params, input_tc) = (params.as_slice::<f32>()?, input_tc.as_slice::<f32>()?);
        let gradient_c = saved.kept.as_view().as_slice::<f32>()?;
        let (width, share) = (self.target_c.len(), 1.0 / ctx.microbatch.num_targets as f64);
        let targets = ctx.microbatch.targets.as_slice::<u32>()?;
        let num_counted = targets.iter().filter(|target| **target != IGNORE).count() as f64;
        for (index, grad) in grads.of(&(0..width)).into_slice::<f32>()?.iter_mut().enumerate() {
            let mut sum = num_counted * f64::from(gradient_c[index]);
            for (row, target) in targets.iter().enumerate() {
                if *target != IGNORE {
                    sum += f64::from(input_tc[row * width + index]);
                }
            }
            *grad += (share * sum) as f32;
        }
        let d_stream_tc = d_stream_tc.into_slice::<f32>()?;
        for (d_row, target) in d_stream_tc.chunks_exact_mut(width).zip(targets) {
            let share = if *target == IGNORE { 0.0 } else { share };
            for ((d, x), lowest) in d_row.iter_mut().zip(params).zip(&self.target_c) {
                *d = (share * f64::from(x - lowest)) as f32;
            }
        }
        Ok(())
    }
}
