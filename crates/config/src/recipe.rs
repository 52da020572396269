//! The proven recipe: plain data that every other crate may trust without checking again.
//!
//! A value of type [`Recipe`] has passed every rule of this crate (it divides, it is in range, the
//! chosen optimizer has the setting), so the rest of the system computes with it and never asks.
//! The fields are public because they are facts to read; [`crate::resolve`] is the way to make one.

use std::fmt;

/// Everything that decides a run. Bits of the result depend on all of it except [`Run`].
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    /// The shape of the transformer.
    pub model: Model,
    /// The text it learns from.
    pub data: Data,
    /// How long and in what portions.
    pub train: Train,
    /// How a gradient becomes a step.
    pub optim: Optim,
    /// Number formats.
    pub precision: Precision,
    /// The promise about bits that do not depend on the layout.
    pub numerics: Numerics,
    /// Where and with how many hands: never changes a bit of the result.
    pub run: Run,
}

/// The shape of the transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Which architecture the blocks follow.
    pub family: Family,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Length of the vector each token carries through the blocks.
    pub width: usize,
    /// Number of query heads; divides `width`.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`, fewer means grouped-query attention.
    pub kv_heads: usize,
    /// Length of the hidden vector of the feed-forward part.
    pub ffn: usize,
    /// Number of different tokens.
    pub vocab: usize,
    /// Number of tokens in one training sequence, and the most that attention looks back.
    pub context: usize,
    /// Whether the output projection is the embedding table.
    pub tied: bool,
    /// Share of activations dropped while training; at least 0 and below 1.
    pub dropout: f32,
    /// Added to the variance in every normalisation.
    pub norm_eps: f32,
    /// Base of the rotary position angles (Llama family).
    pub rope_theta: f64,
}

impl Model {
    /// Length of one head's vector; exact, because `heads` divides `width`.
    pub const fn head_dim(&self) -> usize {
        self.width / self.heads
    }
}

/// The text the model learns from.
#[derive(Debug, Clone, PartialEq)]
pub struct Data {
    /// Where the text comes from.
    pub source: Source,
    /// How text becomes tokens.
    pub tokenizer: Tokenizer,
    /// Fraction of the tokens held out for validation; above 0 and at most one half.
    pub validation: f64,
}

/// How long to train and in what portions.
#[derive(Debug, Clone, PartialEq)]
pub struct Train {
    /// Number of optimizer steps.
    pub steps: u64,
    /// Sequences per optimizer step, over all workers.
    pub batch: usize,
    /// Sequences per lane; divides `batch`.
    pub microbatch: usize,
    /// Decides initial weights, dropout masks and the order of the data.
    pub seed: u64,
    /// Steps between two validations; 0 validates only at the end.
    pub eval_every: u64,
    /// Number of batches in one validation.
    pub eval_batches: usize,
}

/// How a gradient becomes a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Optim {
    /// The update rule.
    pub name: OptimName,
    /// Highest learning rate of the schedule.
    pub lr: f64,
    /// Pull of the weights towards zero.
    pub weight_decay: f64,
    /// Largest allowed global norm of the gradient; 0 switches clipping off.
    pub clip: f64,
    /// Steps over which the learning rate rises from zero to `lr`.
    pub warmup_steps: u64,
    /// Course of the learning rate after the warm-up.
    pub schedule: LrSchedule,
    /// Learning rate at the last step, as a fraction of `lr` (cosine and linear).
    pub final_lr_fraction: f64,
    /// Decay of the running mean of gradients (AdamW).
    pub beta1: f64,
    /// Decay of the running mean of squared gradients (AdamW).
    pub beta2: f64,
    /// Added to the denominator of the update (AdamW).
    pub eps: f64,
    /// Decay of the velocity (momentum).
    pub momentum: f64,
}

/// Number formats.
#[derive(Debug, Clone, PartialEq)]
pub struct Precision {
    /// Format of activations, weights and gradients.
    pub compute: Dtype,
}

/// The promise about bits that do not depend on the layout.
#[derive(Debug, Clone, PartialEq)]
pub struct Numerics {
    /// Number of leaves G of the gradient sum, a power of two: up to G workers give equal bits.
    pub invariant_up_to: usize,
}

/// Where and with how many hands the run happens.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Number of workers.
    pub workers: usize,
    /// Threads per worker; 0 lets the trainer take what the machine has.
    pub threads: usize,
    /// Instruction set of the kernels; all of them give the same bits.
    pub isa: IsaChoice,
    /// Folder of the run; empty means a fresh folder under `runs`.
    pub dir: String,
    /// Whether the final weights are accompanied by the optimizer's state.
    pub save_optimizer: bool,
}

/// Where the text comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The corpus inside the binary.
    Bundled,
    /// A text file, or a folder of text files.
    Path(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bundled => "bundled",
            Self::Path(path) => path,
        })
    }
}

/// Declares an enum of named choices: the name in a recipe and the variant stand on one line, so
/// parsing, printing and the list of allowed values cannot disagree.
macro_rules! choices {
    (
        $(#[$doc:meta])*
        $kind:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $kind { $($(#[$variant_doc])* $variant,)+ }

        impl $kind {
            /// The names a recipe may use, in order of declaration.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The name this choice has in a recipe.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The choice with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

choices! {
    /// Which architecture the blocks follow.
    Family {
        /// LayerNorm, learned positions, GELU, biases.
        Gpt2 = "gpt2",
        /// RMSNorm, rotary positions, SwiGLU, no biases.
        Llama = "llama",
    }
}

choices! {
    /// How text becomes tokens.
    Tokenizer {
        /// One token per byte: 256 tokens, nothing to learn or download.
        Byte = "byte",
    }
}

choices! {
    /// The update rule.
    OptimName {
        /// Plain stochastic gradient descent.
        Sgd = "sgd",
        /// Gradient descent with a velocity.
        Momentum = "momentum",
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
    }
}

choices! {
    /// Course of the learning rate after the warm-up.
    LrSchedule {
        /// Stays at its highest value.
        Constant = "constant",
        /// Falls along half a cosine wave.
        Cosine = "cosine",
        /// Falls along a straight line.
        Linear = "linear",
    }
}

choices! {
    /// Number formats for computing.
    Dtype {
        /// IEEE single precision.
        F32 = "f32",
    }
}

choices! {
    /// Instruction set of the kernels.
    IsaChoice {
        /// The widest one the machine has.
        Auto = "auto",
        /// 512-bit vectors.
        Avx512 = "avx512",
        /// 256-bit vectors with fused multiply-add.
        Avx2 = "avx2",
        /// Plain Rust, any machine.
        Portable = "portable",
    }
}

impl Recipe {
    /// Number of lanes (microbatches) in one optimizer step; exact, because it was proven.
    pub const fn num_lanes(&self) -> usize {
        self.train.batch / self.train.microbatch
    }

    /// Number of leaves G of the gradient sum.
    pub const fn num_leaves(&self) -> usize {
        self.numerics.invariant_up_to
    }

    /// Number of consecutive lanes that each leaf adds; exact, because it was proven.
    pub const fn lanes_per_leaf(&self) -> usize {
        self.num_lanes() / self.num_leaves()
    }

    /// Tokens that one optimizer step learns from, over all workers.
    pub const fn tokens_per_step(&self) -> usize {
        self.train.batch * self.model.context
    }
}
