//! Scaling of the rotary angles, which extends a model to longer sequences than it was first
//! trained on. The formulas and their defaults are those of Hugging Face's `transformers`.

use super::{Family, Recipe};
use crate::rule::{Rule, Rules};
use crate::topic::{choices, topic};
use crate::value_type::Bound::{Closed, Open};

/// Scalings with a factor.
const SCALED: &[&str] = &["linear", "dynamic", "llama3", "yarn"];

/// Scalings that distinguish angles by the sequence length before them.
const WITH_ORIGINAL: &[&str] = &["llama3", "yarn"];

/// Largest factor, and largest number of rotations.
const MAX_FACTOR: f64 = 1e6;

topic! {
    /// Scaling of the rotary angles.
    #[derive(Copy)]
    pub struct RopeScaling at model.variant.rope, among "model" {
        /// Scaling of the rotary angles for long contexts: linear divides all of them; llama3 and
        /// yarn divide the slow ones; dynamic changes none within the model's own positions, and
        /// its factor is kept for an export.
        kind as rope_scaling: RopeScalingKind = "none", when("model.family", Family::ROTARY),
            in_identity_when(is_scaled);

        /// Factor of the scaling: positions of the scaled model per position of the original one.
        factor as rope_factor: f64 = 8.0, float(Closed(1.0), Closed(MAX_FACTOR)),
            when("model.rope_scaling", SCALED), in_identity_when(is_scaled);

        /// Sequence length for which the angles were chosen, before the scaling.
        original_context as rope_original_context: Option<usize> = none,
            integer(1, i32::MAX as i64), when("model.rope_scaling", WITH_ORIGINAL);

        /// Rotations over rope_original_context below which llama3 divides an angle.
        low_frequency as rope_low_freq_factor: f64 = 1.0, float(Open(0.0), Closed(MAX_FACTOR)),
            when("model.rope_scaling", &["llama3"]);

        /// Rotations over rope_original_context above which llama3 keeps an angle; above
        /// rope_low_freq_factor.
        high_frequency as rope_high_freq_factor: f64 = 4.0, float(Open(0.0), Closed(MAX_FACTOR)),
            when("model.rope_scaling", &["llama3"]);

        /// Factor of rotated queries and keys with yarn; 1 + ln(rope_factor) / 10 without it.
        attention_factor as rope_attention_factor: Option<f64> = none,
            float(Open(0.0), Closed(MAX_FACTOR)), when("model.rope_scaling", &["yarn"]);

        /// Rotations over rope_original_context above which yarn keeps an angle.
        beta_fast as rope_beta_fast: f64 = 32.0, float(Open(0.0), Closed(MAX_FACTOR)),
            when("model.rope_scaling", &["yarn"]);

        /// Rotations over rope_original_context below which yarn divides an angle.
        beta_slow as rope_beta_slow: f64 = 1.0, float(Open(0.0), Closed(MAX_FACTOR)),
            when("model.rope_scaling", &["yarn"]);

        /// Whether yarn rounds the bounds of its ramp to whole angles.
        truncate as rope_truncate: bool = true, when("model.rope_scaling", &["yarn"]);
    }
}

choices! {
    /// Scaling of the rotary angles.
    RopeScalingKind {
        /// None.
        None = "none",
        /// Every angle is divided by the factor (Chen et al. 2023).
        Linear = "linear",
        /// The base grows with sequences beyond the positions of the model (NTK-aware scaling).
        Dynamic = "dynamic",
        /// Slow angles are divided by the factor, with a smooth transition (Llama 3.1).
        Llama3 = "llama3",
        /// Slow angles are divided by the factor, with a linear ramp, and queries and keys are
        /// multiplied (Peng et al. 2023).
        Yarn = "yarn",
    }
}

impl RopeScaling {
    /// Angles that are not scaled.
    pub const NONE: Self = Self {
        kind: RopeScalingKind::None,
        factor: 8.0,
        original_context: None,
        low_frequency: 1.0,
        high_frequency: 4.0,
        attention_factor: None,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
    };
}

/// Dynamic scaling changes no bit of a run, whose sequences never exceed the model's positions.
fn is_scaled(recipe: &Recipe) -> bool {
    !matches!(recipe.model.variant.rope.kind, RopeScalingKind::None | RopeScalingKind::Dynamic)
}

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(&["model.rope_scaling", "model.rope_original_context"], |c| {
        let RopeScaling { kind, original_context, .. } = c.model.variant.rope;
        let needs = WITH_ORIGINAL.contains(&kind.name()) && original_context.is_none();
        let rule = "needs the sequence length before the scaling";
        c.refuse(needs, rule, format!("model.rope_original_context = {}", c.model.context))
    }),
    Rule::new(&["model.rope_high_freq_factor", "model.rope_low_freq_factor"], |c| {
        let RopeScaling { kind, low_frequency, high_frequency, .. } = c.model.variant.rope;
        let fails = kind == RopeScalingKind::Llama3 && high_frequency <= low_frequency;
        let rule = format!("is not above model.rope_low_freq_factor = {low_frequency:?}");
        c.refuse(fails, rule, 4.0 * low_frequency)
    }),
    Rule::new(&["model.rope_beta_fast", "model.rope_beta_slow"], |c| {
        let RopeScaling { kind, beta_fast, beta_slow, .. } = c.model.variant.rope;
        let fails = kind == RopeScalingKind::Yarn && beta_fast < beta_slow;
        let rule = format!("is below model.rope_beta_slow = {beta_slow:?}");
        c.refuse(fails, rule, beta_slow)
    }),
]);
