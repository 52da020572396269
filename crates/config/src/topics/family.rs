//! Families of models: language models, and small problems with synthetic data.

use crate::topic::choices;

choices! {
    /// Architecture of the model, or a small problem.
    Family {
        /// LayerNorm, learned positions, GELU, biases.
        Gpt2 = "gpt2",
        /// RMSNorm, rotary positions, SwiGLU, no biases.
        Llama = "llama",
        /// GPT-2's parts with rotary positions, and both halves of a layer beside each other.
        GptNeox = "gpt_neox",
        /// GPT-2's parts with attention biases by distance (ALiBi) and a normalised embedding.
        Bloom = "bloom",
        /// A multilayer perceptron that classifies drawn digits.
        Mlp = "mlp",
        /// A quadratic with known curvatures and minimum.
        Quadratic = "quadratic",
        /// Ridge regression: least squares with L2 regularisation.
        Ridge = "ridge",
        /// Logistic regression with L2 regularisation.
        Logistic = "logistic",
    }

    /// Activation function of the classifier.
    Activation {
        /// ReLU.
        Relu = "relu",
        /// GELU.
        Gelu = "gelu",
    }
}

impl Family {
    /// Language models.
    pub const OF_TEXT: &'static [&'static str] = &["gpt2", "llama", "gpt_neox", "bloom"];

    /// Language models without a table of positions.
    pub(super) const UNBOUNDED: &'static [&'static str] = &["llama", "gpt_neox", "bloom"];

    /// Language models with rotary positions.
    pub(super) const ROTARY: &'static [&'static str] = &["llama", "gpt_neox"];

    /// Small problems.
    pub const OF_PROBLEMS: &'static [&'static str] = &["mlp", "quadratic", "ridge", "logistic"];

    /// Whether the family is a small problem.
    pub const fn is_problem(self) -> bool {
        match self {
            Self::Gpt2 | Self::Llama | Self::GptNeox | Self::Bloom => false,
            Self::Mlp | Self::Quadratic | Self::Ridge | Self::Logistic => true,
        }
    }
}

impl Family {
    /// Whether the family is a language model.
    pub(super) const fn is_text(self) -> bool {
        !self.is_problem()
    }

    /// Whether the problem is convex, with a known optimum.
    pub(super) const fn is_convex(self) -> bool {
        matches!(self, Self::Quadratic | Self::Ridge | Self::Logistic)
    }
}
