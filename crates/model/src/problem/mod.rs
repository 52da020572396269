//! Small test problems as blocks: a classifier and three convex problems.
//!
//! The tokens of a micro-batch are indices of samples, one per sequence. The first block maps an
//! index to a row of features, the last one looks up the target by the index; hidden layers are in
//! between. Everything that trains a transformer (micro-batches, reduction leaves, ZeRO,
//! recomputation, checkpoints) therefore trains these, and gradients are those of single samples,
//! as studies of stochastic methods need.
//!
//! They run on the CPU only: where a device has no operation, their blocks read and write the
//! views as slices of host memory.
//!
//! | family | loss of sample i | optimum |
//! |---|---|---|
//! | `mlp` | cross-entropy of ten classes | not known; accuracy instead |
//! | `quadratic` | `(x − x*)ᵀ A (x − x*) / 2 + ξᵢᵀ (x − x*)` | `x*`, where the mean loss is 0 |
//! | `ridge` | `(aᵢᵀ x − bᵢ)² / 2 + l2 ‖x‖² / 2` | linear equations |
//! | `logistic` | `ln(1 + e^(∓ aᵢᵀ x)) + l2 ‖x‖² / 2` | Newton's method |
//!
//! - `samples`, `digits`, `spectrum`: data as functions of (seed, index)
//! - `features`, `dense`, `classifier`, `regression`, `quadratic`: the blocks
//! - [`metrics`]: accuracy and suboptimality; `optimum`: the exact solution
//! - [`curvature`]: the largest curvature, which bounds the learning rate

mod digits;
mod samples;
mod spectrum;

mod classifier;
mod dense;
mod features;
mod quadratic;
mod regression;

pub mod curvature;
pub mod metrics;
mod optimum;

pub use metrics::{ProblemEvaluator, ProblemMetrics};

use crate::block::{Block, Context};
use crate::blueprint::Blueprint;
use crate::tensor_shards::TensorShards;
use classifier::Classifier;
use dense::Dense;
use features::{Features, Rows};
use lockstep_config::{Family, Model};
use lockstep_tensor::device::{Dtype, Result};
use quadratic::Quadratic;
use regression::Regression;
use samples::Samples;
use spectrum::Noise;
use std::sync::Arc;

/// Describes the problem of a recipe.
pub(crate) fn describe(model: &Model) -> Blueprint {
    let problem = &model.problem;
    let (blocks, vocab): (Vec<Box<dyn Block>>, usize) = match model.family {
        Family::Quadratic => {
            let noise = Rows::Noise(Noise::new(problem));
            let features = Features { width: problem.dim, rows: noise };
            (vec![Box::new(features), Box::new(Quadratic::new(problem))], 1)
        }
        Family::Mlp => (classifier(model), digits::NUM_CLASSES),
        _ => {
            let samples = Arc::new(Samples::new(model));
            let rows = Rows::Table(Arc::clone(&samples));
            let features = Features { width: problem.dim, rows };
            (vec![Box::new(features), Box::new(Regression::new(model, samples))], 1)
        }
    };
    Blueprint {
        blocks,
        vocab,
        context: 1,
        shards: TensorShards::WHOLE,
        activations: Dtype::F32,
        teacher: None,
    }
}

/// Bytes of samples that a worker keeps once it has used one: those of its model, and, on the one
/// that measures the distance from the optimum of a regression, those of the objective.
pub fn sample_bytes(model: &Model, is_evaluator: bool) -> usize {
    let table = Samples::new(model).table_bytes();
    match model.family {
        Family::Mlp => table,
        Family::Ridge | Family::Logistic => table * (1 + usize::from(is_evaluator)),
        _ => 0,
    }
}

/// Sets the sum of the losses of a micro-batch.
fn set_loss(ctx: &mut Context<'_>, sum: f64) -> Result<()> {
    ctx.loss.reborrow().into_slice::<f64>()?.fill(sum);
    Ok(())
}

/// Class of every training sample: a digit, the sign of a target, or the sign of the first element
/// of the noise of a quadratic.
pub fn classes(model: &Model) -> Vec<u8> {
    let samples = Samples::new(model);
    if model.family == Family::Quadratic {
        let (noise, mut row) = (Noise::new(&model.problem), vec![0.0; model.problem.dim]);
        let side = |sample: usize| {
            noise.copy(sample as u64, &mut row);
            u8::from(row[0] > 0.0)
        };
        return samples.train().map(side).collect();
    }
    let is_digit = model.family == Family::Mlp;
    let class = |sample: usize| {
        let target = samples.target(sample);
        if is_digit { target as u8 } else { u8::from(target > 0.0) }
    };
    samples.train().map(class).collect()
}

fn classifier(model: &Model) -> Vec<Box<dyn Block>> {
    let samples = Arc::new(Samples::new(model));
    let rows = Rows::Table(Arc::clone(&samples));
    let mut width = samples.width();
    let mut blocks: Vec<Box<dyn Block>> = vec![Box::new(Features { width, rows })];
    for index in 0..model.layers {
        blocks.push(Box::new(Dense::new(index, width, model.width, model.problem.activation)));
        width = model.width;
    }
    blocks.push(Box::new(Classifier::new(width, samples)));
    blocks
}
