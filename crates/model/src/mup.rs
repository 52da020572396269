//! Maximal update parametrisation (muP) of a model: initial values and multipliers that change with
//! the width (Yang et al. 2022, "Tensor Programs V", table 8).
//!
//! At `m` times the base width, hidden matrices start with a standard deviation divided by the root
//! of `m`, as their fan-in asks, and logits are divided by `m`; embedding, head, norms and biases
//! start as at the base. Scores are divided by the head size, relative to the root of that of the
//! base. Learning rates are the optimizer's.

use crate::param::Init;
use lockstep_config::Model;

/// Standard deviation of matrices at the base width.
const STD: f64 = 0.02;

/// Initial values of hidden matrices that read the stream.
pub(crate) fn hidden_matrix(model: &Model) -> Init {
    Init::Normal { std: (STD / model.mup.width_ratio(model.width).sqrt()) as f32 }
}

/// Initial values of projections that write into the residual stream; a layer has two.
pub(crate) fn residual_projection(model: &Model) -> Init {
    let num_projections = 2.0 * model.layers as f64;
    let std = STD / num_projections.sqrt() / model.mup.width_ratio(model.width).sqrt();
    Init::Normal { std: std as f32 }
}

/// Factor of the logits, where it is not 1.
pub(crate) fn logit_multiplier(model: &Model) -> Option<f32> {
    let ratio = model.mup.width_ratio(model.width);
    model.mup.base_width.filter(|base| *base != model.width).map(|_| (1.0 / ratio) as f32)
}

/// Factor of scores, where it is not one over the root of the head size.
pub(crate) fn score_scale(model: &Model) -> Option<f32> {
    let head_dim = model.head_dim();
    let factor = model.mup.score_factor(head_dim)?;
    Some((factor / (head_dim as f64).sqrt()) as f32)
}
