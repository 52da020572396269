//! Number formats of products and gradient communication, and the loss scale.

use std::fmt;

use super::{DeviceChoice, Recipe};
use crate::field::field;
use crate::lint::{Lint, lints};
use crate::rule::{Rule, Rules};
use crate::topic::{choices, topic};
use crate::value::Value;
use crate::value_type::{MAX_STEPS, ValueType};

topic! {
    /// Number formats.
    pub struct Precision at precision, table "precision" {
        /// Number format of matrix products, and of activations on a GPU. Weights, gradients and
        /// sums are f32, and activations on a CPU.
        compute: Dtype = "f32";

        /// Number format of gradient communication: every partial sum is rounded to it, on one
        /// worker too.
        wire: WireDtype = "f32", in_identity_unless_default();

        /// Loss scale, which keeps small fp16 gradients from rounding to zero; dynamic halves it
        /// when a gradient overflows.
        loss_scale: LossScaling = "dynamic", when("precision.compute", &["fp16"]),
            in_identity_when(|r| r.precision.compute == Dtype::F16);

        /// Initial dynamic loss scale.
        loss_scale_start: LossScale = 65536, when("precision.compute", &["fp16"]),
            in_identity_when(|r| r.precision.is_dynamic());

        /// Steps without overflow after which the dynamic loss scale is doubled.
        loss_scale_interval: u64 = 2000, integer(1, MAX_STEPS),
            when("precision.compute", &["fp16"]), in_identity_when(|r| r.precision.is_dynamic());
    }
}

choices! {
    /// Number formats.
    Dtype {
        /// IEEE single precision.
        F32 = "f32",
        /// bfloat16: the range of f32, two to three digits.
        Bf16 = "bf16",
        /// IEEE half precision: three to four digits, up to 65,504.
        F16 = "fp16",
        /// Products of the blocks' linear layers in eight bits with block scales, e4m3 and for
        /// gradients e5m2; the rest in bf16.
        Fp8 = "fp8",
    }
}

choices! {
    /// Number formats of gradients on the wire.
    WireDtype {
        /// IEEE single precision.
        F32 = "f32",
        /// bfloat16.
        Bf16 = "bf16",
        /// IEEE half precision.
        F16 = "fp16",
    }
}

impl WireDtype {
    /// The format as one of products.
    pub const fn dtype(self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::Bf16 => Dtype::Bf16,
            Self::F16 => Dtype::F16,
        }
    }
}

impl Precision {
    /// Loss scale of the first step; one without scaling.
    pub fn first_scale(&self) -> LossScale {
        match (self.compute, self.loss_scale) {
            (Dtype::F32 | Dtype::Bf16 | Dtype::Fp8, _) => LossScale::ONE,
            (Dtype::F16, LossScaling::Static(scale)) => scale,
            (Dtype::F16, LossScaling::Dynamic) => self.loss_scale_start,
        }
    }

    /// Whether the loss scale is dynamic.
    pub fn is_dynamic(&self) -> bool {
        self.compute == Dtype::F16 && self.loss_scale == LossScaling::Dynamic
    }
}

/// How the loss scale is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossScaling {
    /// Halved on overflow, doubled after many steps without one.
    Dynamic,
    /// Constant.
    Static(LossScale),
}

/// A loss scale: a power of two from 1 on, so that scaling and unscaling are exact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LossScale(u8);

impl LossScale {
    /// No scaling.
    pub const ONE: Self = Self(0);
    /// Largest scale, 2^24; beyond it relevant gradients overflow.
    pub const MAX: Self = Self(24);

    /// Two to the power of `exponent`, at most [`Self::MAX`].
    pub const fn of_exponent(exponent: u8) -> Self {
        if exponent < Self::MAX.0 { Self(exponent) } else { Self::MAX }
    }

    /// Binary exponent.
    pub const fn exponent(self) -> u8 {
        self.0
    }

    /// Factor of the loss.
    pub const fn factor(self) -> f32 {
        (1u32 << self.0) as f32
    }

    /// Half the scale; none if it is one.
    pub const fn halved(self) -> Option<Self> {
        match self.0 {
            0 => None,
            exponent => Some(Self(exponent - 1)),
        }
    }

    /// Twice the scale, at most [`Self::MAX`].
    pub const fn doubled(self) -> Self {
        Self::of_exponent(self.0 + 1)
    }
}

impl fmt::Display for LossScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", 1u32 << self.0)
    }
}

/// Text of a loss scale that adapts during training.
const DYNAMIC: &str = "dynamic";

field!(
    LossScaling: ValueType::OrName(&LossScale::TYPE, &[DYNAMIC]),
    blank Self::Dynamic,
    to |scaling| match scaling {
        Self::Dynamic => Value::Text(DYNAMIC.to_owned()),
        Self::Static(scale) => scale.to_value(),
    },
    from |v| match v {
        Value::Text(_) => Self::Dynamic,
        number => Self::Static(LossScale::from_value(number)),
    }
);

field!(
    LossScale: ValueType::PowerOfTwo { max: 1 << Self::MAX.exponent() },
    blank Self::ONE,
    to |scale| Value::Integer(1 << scale.0),
    from |v| Self::of_exponent(v.as_integer().trailing_zeros() as u8)
);

pub(crate) const RULES: Rules = Rules::new(&[
    // Small problems measure the distance to an optimum in f32.
    Rule::new(&["precision.compute", "model.family"], |c| {
        let family = c.model.family;
        let is_broken = c.precision.compute != Dtype::F32 && family.is_problem();
        let rule = format!("is supported for transformers only, and model.family = \"{family}\"");
        c.refuse(is_broken, rule, "\"f32\"")
    }),
]);

pub(crate) const LINTS: &[Lint] = lints! {
    "unscaled-fp16": "small gradients round to zero";
        if "precision.compute = fp16 with precision.loss_scale = 1"; advice "try \"dynamic\"";
        |r| let is_unscaled = r.precision.loss_scale == LossScaling::Static(LossScale::ONE);
            when r.precision.compute == Dtype::F16 && is_unscaled =>
                "precision.loss_scale = 1 with precision.compute = \"fp16\" rounds small \
                 gradients to zero";

    "fp16-wire": "gradients are sent in fp16 without a loss scale";
        if "precision.wire = fp16 with another precision.compute"; advice "try \"bf16\"";
        |r| let Precision { compute, wire, .. } = r.precision;
            when wire == WireDtype::F16 && compute != Dtype::F16 =>
                "precision.wire = \"fp16\" with precision.compute = \"{compute}\" rounds small \
                 gradients to zero";

    "emulated-fp8": "a CPU emulates fp8, which is slower than f32";
        if "precision.compute = fp8 with run.device = cpu"; advice "try run.device = \"cuda\"";
        |r| when r.precision.compute == Dtype::Fp8 && r.run.device == DeviceChoice::Cpu =>
            "precision.compute = \"fp8\" is emulated on a CPU, more slowly than f32";

    "fp8-shapes": "a part of the products runs in bf16";
        if "precision.compute = fp8 with a size that is no multiple of 16";
        advice "try multiples of 16";
        |r| let others = r.sizes_without_fp8();
            when !others.is_empty() =>
                "precision.compute = \"fp8\" multiplies in bf16 where a size is no multiple of 16: \
                 {others}";
};

impl Recipe {
    /// Sizes of the layers' products that are no multiple of sixteen, if the recipe is in fp8.
    fn sizes_without_fp8(&self) -> String {
        if self.precision.compute != Dtype::Fp8 {
            return String::new();
        }
        let (model, shards) = (&self.model, self.num_tensor_shards());
        let head_dim = model.head_dim();
        let qkv = (model.heads + 2 * model.kv_heads) * head_dim / shards;
        let sizes = [
            ("model.width", model.width),
            ("q, k and v", qkv),
            ("attention output", model.heads * head_dim / shards),
            ("model.ffn", model.ffn / shards),
            ("rows of a micro-batch", self.train.microbatch_size * model.context),
        ];
        let others = sizes.iter().filter(|(_, size)| !size.is_multiple_of(16));
        let others = others.map(|(name, size)| format!("{name} ({size})"));
        others.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_a_power_of_two_between_one_and_its_limit() {
        assert_eq!(LossScale::ONE.factor().to_bits(), 1.0_f32.to_bits());
        assert_eq!(LossScale::ONE.halved(), None);
        assert_eq!(LossScale::MAX.doubled(), LossScale::MAX);
        assert_eq!(LossScale::of_exponent(200), LossScale::MAX);
        assert_eq!(LossScale::of_exponent(16).to_string(), "65536");
        assert_eq!(LossScale::of_exponent(3).doubled().halved(), Some(LossScale::of_exponent(3)));
    }
}
