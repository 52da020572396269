//! Keys of number formats. All of them count in a recipe's identity where they mean anything.

use super::{integer, integer_value};
use crate::key::{Default, Field, Key, field};
use crate::kind::{Kind, MAX_STEPS};
use crate::recipe::{Dtype, LossScale, LossScaling, Recipe};
use crate::value::Value;

use Default::Fixed;

/// The word for a scale that is found while training.
const DYNAMIC: &str = "dynamic";

/// What a scale may be.
const SCALE: Kind = Kind::PowerOfTwo { max: 1 << LossScale::MAX.exponent() };

const COMPUTE: &str = "precision.compute";
const FP16: &[&str] = &["fp16"];

pub(super) const PRECISION: &[Key] = &[
    Key::new(
        COMPUTE,
        Kind::Choice(Dtype::NAMES),
        Fixed("\"f32\""),
        field!(precision.compute: choice Dtype),
        "What products multiply in. Weights, activations and gradients are kept and summed in f32.",
    ),
    Key::new(
        "precision.wire",
        Kind::Choice(Dtype::NAMES),
        Fixed("\"f32\""),
        field!(precision.wire: choice Dtype),
        "What gradients travel in between those who share the batch: every sum on the way is \
         rounded to it, on one worker too.",
    )
    .counting_when(|r| r.precision.wire != Dtype::F32),
    Key::new(
        "precision.loss_scale",
        Kind::OrWord { kind: &SCALE, word: DYNAMIC },
        Fixed("\"dynamic\""),
        Field {
            get: |r| Some(loss_scale_value(r.precision.loss_scale)),
            set: |r, v| {
                r.precision.loss_scale = match v {
                    Value::Text(_) => LossScaling::Dynamic,
                    number => LossScaling::Static(scale(number)),
                }
            },
        },
        "What the loss is multiplied by, so that small gradients do not round to zero; dynamic \
         halves it where a gradient overflows.",
    )
    .only_when(COMPUTE, FP16)
    .counting_when(is_fp16),
    Key::new(
        "precision.loss_scale_start",
        SCALE,
        Fixed("65536"),
        Field {
            get: |r| Some(scale_value(r.precision.loss_scale_start)),
            set: |r, v| r.precision.loss_scale_start = scale(v),
        },
        "A dynamic scale at the first step.",
    )
    .only_when(COMPUTE, FP16)
    .counting_when(|r| r.precision.is_dynamic()),
    Key::new(
        "precision.loss_scale_interval",
        integer(1, MAX_STEPS),
        Fixed("2000"),
        field!(precision.loss_scale_interval: integer u64),
        "Steps without an overflow after which a dynamic scale is doubled.",
    )
    .only_when(COMPUTE, FP16)
    .counting_when(|r| r.precision.is_dynamic()),
];

fn is_fp16(recipe: &Recipe) -> bool {
    recipe.precision.compute == Dtype::F16
}

fn scale(value: &Value) -> LossScale {
    LossScale::of_exponent(value.as_integer().trailing_zeros() as u8)
}

fn scale_value(scale: LossScale) -> Value {
    integer_value(1 << scale.exponent())
}

fn loss_scale_value(scaling: LossScaling) -> Value {
    match scaling {
        LossScaling::Dynamic => Value::Text(DYNAMIC.to_owned()),
        LossScaling::Static(scale) => scale_value(scale),
    }
}
