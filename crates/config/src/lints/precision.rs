//! Lints about number formats.

use super::Lint;
use crate::recipe::{Dtype, LossScale, LossScaling, Precision, Recipe};

pub(super) const LINTS: &[Lint] = &[
    Lint {
        id: "unscaled-fp16",
        condition: "small gradients round to zero",
        threshold: "precision.compute = fp16 with precision.loss_scale = 1",
        advice: "try \"dynamic\"",
        check: unscaled_fp16,
    },
    Lint {
        id: "fp16-wire",
        condition: "gradients are sent in fp16 without a loss scale",
        threshold: "precision.wire = fp16 with precision.compute = f32 or bf16",
        advice: "try \"bf16\"",
        check: fp16_wire,
    },
];

fn fp16_wire(recipe: &Recipe) -> Option<String> {
    let Precision { compute, wire, .. } = recipe.precision;
    (wire == Dtype::F16 && compute != Dtype::F16).then(|| {
        format!(
            "precision.wire = \"fp16\" with precision.compute = \"{compute}\" rounds small \
             gradients to zero"
        )
    })
}

fn unscaled_fp16(recipe: &Recipe) -> Option<String> {
    let precision = &recipe.precision;
    let is_unscaled = precision.loss_scale == LossScaling::Static(LossScale::ONE);
    (precision.compute == Dtype::F16 && is_unscaled).then(|| {
        "precision.loss_scale = 1 with precision.compute = \"fp16\" rounds small gradients to zero"
            .to_owned()
    })
}
