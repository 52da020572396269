//! Small recipes that cover every dependence of the bits, about a second each.
//!
//! All train on the bundled corpus and start from a preset, so that a test states only the settings
//! under test.

use crate::devices;
use lockstep_config::{ConfigErrors, Recipe, Sources, resolve};
use std::iter;

/// A preset and the settings that differ from it.
#[derive(Clone, Copy, Debug)]
pub struct Small {
    /// Name in reports and golden files.
    pub name: &'static str,
    preset: &'static str,
    sets: &'static [&'static str],
}

/// Llama with grouped-query attention; two sequences a micro-batch.
pub const LLAMA: Small = Small {
    name: "llama",
    preset: "tiny",
    sets: &["model.heads=4", "model.kv_heads=2", "train.batch=16", "train.microbatch=2"],
};

/// GPT-2 with tied embeddings.
pub const GPT2: Small = Small {
    name: "gpt2",
    preset: "tiny",
    sets: &["model.family=gpt2", "model.tied=true", "model.heads=4"],
};

/// GPT-2 with dropout 0.1.
pub const DROPOUT: Small = Small {
    name: "gpt2-dropout",
    preset: "tiny",
    sets: &["model.family=gpt2", "model.tied=true", "model.dropout=0.1"],
};

/// A tied Llama with odd sizes, four leaves and three micro-batches a leaf.
pub const THREE_MICROBATCHES: Small = Small {
    name: "three-micro-batches",
    preset: "tiny",
    sets: &[
        "model.tied=true",
        "model.width=36",
        "model.heads=6",
        "model.kv_heads=3",
        "model.ffn=50",
        "model.context=37",
        "train.batch=24",
        "train.microbatch=2",
        "numerics.invariant_up_to=4",
    ],
};

/// Width 192, hidden width 1024, context 320 and micro-batches of 640 rows: the matrix products of
/// the forward pass, input gradients and weight gradients all have inner dimensions above one block
/// of 512.
pub const WIDE: Small = Small {
    name: "wide",
    preset: "wide-odd",
    sets: &["model.layers=1", "train.batch=2", "train.microbatch=2", "numerics.invariant_up_to=1"],
};

/// The recipes whose steps take milliseconds.
pub const TINY: [Small; 4] = [LLAMA, GPT2, DROPOUT, THREE_MICROBATCHES];

impl Small {
    /// The recipe with `sets` applied last.
    ///
    /// # Panics
    /// When the settings are invalid, with every reason.
    pub fn with<S: AsRef<str>>(&self, sets: &[S]) -> Recipe {
        self.try_with(sets).unwrap_or_else(|errors| panic!("{}: {errors}", self.name))
    }

    /// The recipe with `sets` applied last, or every reason why the settings are invalid.
    pub fn try_with<S: AsRef<str>>(&self, sets: &[S]) -> Result<Recipe, ConfigErrors> {
        let own = self.sets.iter().map(|set| (*set).to_owned());
        let sets = iter::once(devices::default_device())
            .chain(own)
            .chain(sets.iter().map(|set| set.as_ref().to_owned()))
            .collect();
        resolve(&Sources { preset: Some(self.preset.to_owned()), sets, ..Sources::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_have_the_properties_they_are_named_for() {
        let none: [&str; 0] = [];
        let (llama, dropout) = (LLAMA.with(&none), DROPOUT.with(&none));
        assert!(llama.model.kv_heads < llama.model.heads);
        assert!(GPT2.with(&none).model.tied && dropout.model.dropout > 0.0);
        assert_eq!(THREE_MICROBATCHES.with(&none).microbatches_per_leaf(), 3);
        let wide = WIDE.with(&none);
        assert_eq!((wide.model.width, wide.model.ffn, wide.model.context), (192, 1024, 320));
        assert!(wide.train.microbatch_size * wide.model.context > 512, "long weight gradients");
    }
}
