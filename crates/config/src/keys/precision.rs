//! Keys of number formats, part of the identity wherever they have an effect.

use super::{integer, integer_value};
use crate::key::{Default, Field, Key, field};
use crate::recipe::{Dtype, LossScale, LossScaling, Recipe};
use crate::value::Value;
use crate::value_type::{MAX_STEPS, ValueType};

use Default::Fixed;

/// Text of a loss scale that adapts during training.
const DYNAMIC: &str = "dynamic";

/// Loss scales.
const SCALE: ValueType = ValueType::PowerOfTwo { max: 1 << LossScale::MAX.exponent() };

const COMPUTE: &str = "precision.compute";
const FP16: &[&str] = &["fp16"];

pub(super) const PRECISION: &[Key] = &[
    Key::new(
        COMPUTE,
        ValueType::Choice(Dtype::NAMES),
        Fixed("\"f32\""),
        field!(precision.compute: choice Dtype),
        "Number format of matrix products. Weights, activations and gradients are stored and \
         accumulated in f32.",
    ),
    Key::new(
        "precision.wire",
        ValueType::Choice(Dtype::NAMES),
        Fixed("\"f32\""),
        field!(precision.wire: choice Dtype),
        "Number format of gradient communication: every partial sum is rounded to it, on one \
         worker too.",
    )
    .in_identity_when(|r| r.precision.wire != Dtype::F32),
    Key::new(
        "precision.loss_scale",
        ValueType::OrName { value_type: &SCALE, name: DYNAMIC },
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
        "Loss scale, which keeps small fp16 gradients from rounding to zero; dynamic halves it \
         when a gradient overflows.",
    )
    .only_when(COMPUTE, FP16)
    .in_identity_when(is_fp16),
    Key::new(
        "precision.loss_scale_start",
        SCALE,
        Fixed("65536"),
        Field {
            get: |r| Some(scale_value(r.precision.loss_scale_start)),
            set: |r, v| r.precision.loss_scale_start = scale(v),
        },
        "Initial dynamic loss scale.",
    )
    .only_when(COMPUTE, FP16)
    .in_identity_when(|r| r.precision.is_dynamic()),
    Key::new(
        "precision.loss_scale_interval",
        integer(1, MAX_STEPS),
        Fixed("2000"),
        field!(precision.loss_scale_interval: integer u64),
        "Steps without overflow after which the dynamic loss scale is doubled.",
    )
    .only_when(COMPUTE, FP16)
    .in_identity_when(|r| r.precision.is_dynamic()),
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
