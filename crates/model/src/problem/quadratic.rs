//! Quadratic loss with known eigenvalues and a known optimum: the last block of the `quadratic`
//! family.
//!
//! The loss of sample i at x is `rᵀAr / 2 + ξᵢᵀr` with `r = x − x*`, its gradient `Ar + ξᵢ`: a
//! common gradient plus noise per sample that sums to zero over all samples. The elements of x* are
//! `f32`, so it can be reached exactly, and near it the difference r is exact.
//!
//! Shapes: t samples of the micro-batch, c unknowns.

use super::spectrum::Curvature;
use crate::block::{Block, BlockIo, Context, Flops, IGNORE, MicrobatchShape, Saved, SavedLen};
use crate::grads::Grads;
use crate::param::{Init, Param, ParamList};
use lockstep_config::Problem;
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
        params: &[f32],
        input_tc: &[f32],
        _output: &mut [f32],
        saved: Saved<'_>,
    ) -> f64 {
        let loss = self.gradient(params, saved.kept);
        let rows = input_tc.chunks_exact(self.target_c.len()).zip(ctx.microbatch.targets);
        let counted = rows.filter(|(_, target)| **target != IGNORE);
        counted.fold(0.0, |sum, (noise_c, _)| sum + (loss + self.inner_product(params, noise_c)))
    }

    fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        input_tc: &[f32],
        saved: Saved<'_>,
        d_stream_tc: &mut [f32],
        mut grads: Grads<'_>,
    ) {
        let (microbatch, gradient_c) = (ctx.microbatch, &*saved.kept);
        let (width, share) = (self.target_c.len(), 1.0 / microbatch.num_targets as f64);
        let num_counted =
            microbatch.targets.iter().filter(|target| **target != IGNORE).count() as f64;
        for (index, grad) in grads.of(&(0..width)).iter_mut().enumerate() {
            let mut sum = num_counted * f64::from(gradient_c[index]);
            for (row, target) in microbatch.targets.iter().enumerate() {
                if *target != IGNORE {
                    sum += f64::from(input_tc[row * width + index]);
                }
            }
            *grad += (share * sum) as f32;
        }
        for (d_row, target) in d_stream_tc.chunks_exact_mut(width).zip(microbatch.targets) {
            let share = if *target == IGNORE { 0.0 } else { share };
            for ((d, x), lowest) in d_row.iter_mut().zip(params).zip(&self.target_c) {
                *d = (share * f64::from(x - lowest)) as f32;
            }
        }
    }
}
