//! Settings of the GPT-NeoX family (Black et al. 2022), which Pythia is of.

use super::Family;
use crate::rule::{Rule, Rules};
use crate::topic::{choices, topic};
use crate::value_type::Bound::{Closed, Open};

const GPT_NEOX: &[&str] = &["gpt_neox"];

topic! {
    /// Settings of GPT-NeoX.
    #[derive(Copy)]
    pub struct GptNeox at model.gpt_neox, among "model" {
        /// Fraction of each head that rotary positions turn: its first elements, an even number.
        rotary_pct: f64 = 0.25, float(Open(0.0), Closed(1.0)), when("model.family", GPT_NEOX);

        /// Whether attention and feed-forward read the same input and are added to it together;
        /// otherwise the second reads the output of the first.
        parallel_residual: bool = true, when("model.family", GPT_NEOX);

        /// Approximation of GELU, in PyTorch's words: none is its definition by the error function,
        /// tanh is GPT-2's.
        gelu_approximate: GeluApproximate = "none", when("model.family", GPT_NEOX);
    }
}

choices! {
    /// Approximation of GELU.
    GeluApproximate {
        /// None: the error function.
        None = "none",
        /// The tanh form.
        Tanh = "tanh",
    }
}

impl GptNeox {
    /// The values of Pythia.
    pub const PYTHIA: Self =
        Self { rotary_pct: 0.25, parallel_residual: true, gelu_approximate: GeluApproximate::None };

    /// Elements of a head that rotary positions turn, rounded down as in `transformers`.
    pub(super) fn rotary_dims(&self, head_dim: usize) -> usize {
        (head_dim as f64 * self.rotary_pct) as usize
    }
}

pub(crate) const RULES: Rules =
    Rules::new(&[Rule::new(&["model.rotary_pct", "model.heads", "model.width"], |c| {
        let (head_dim, dims) = (c.model.head_dim(), c.model.rotary_dims());
        let suits = |dims: usize| dims > 0 && dims.is_multiple_of(2);
        let rule = format!(
            "turns {dims} of the {head_dim} elements of a head, and rotary positions turn pairs"
        );
        // The next even number, or the largest that a head has.
        let pairs = (dims + 1).min(head_dim) / 2;
        let works = (2 * pairs.max(1)) as f64 / head_dim as f64;
        let next = GptNeox { rotary_pct: works, ..c.model.gpt_neox };
        let fix = if suits(next.rotary_dims(head_dim)) { works } else { 1.0 };
        c.refuse(c.model.family == Family::GptNeox && !suits(dims), rule, fix)
    })]);
