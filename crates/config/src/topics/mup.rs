//! Maximal update parametrisation (muP; Yang et al. 2022, "Tensor Programs V", table 8): initial
//! values, learning rates and multipliers of a wide model follow from those of a narrow one, so
//! that the best learning rate is the one found at the base width.

use super::{Family, ModelType, Optim, OptimName, Recipe};
use crate::lint::{Lint, lints};
use crate::rule::{Rule, Rules};
use crate::topic::topic;

topic! {
    /// Width transfer by muP.
    #[derive(Copy)]
    pub struct Mup at model.mup, among "model" {
        /// Width at which the learning rate was chosen: muP (Yang et al. 2022) scales initial
        /// values, learning rates and the output for model.width. The rest of the model, its number
        /// of layers too, is that of the base. Without it, nothing is scaled.
        base_width as mup_base_width: Option<usize> = none, integer(1, 1 << 16),
            when("model.family", Family::OF_TEXT), in_identity_unless_default();

        /// Head size of the model of model.mup_base_width, where its heads were smaller rather than
        /// fewer: scores are then divided by the head size, not by its square root. Without it, the
        /// head size is that of this model.
        base_head_dim as mup_base_head_dim: Option<usize> = none, integer(1, 256),
            when("model.family", Family::OF_TEXT), in_identity_unless_default();
    }
}

impl Mup {
    /// Nothing is scaled.
    pub const OFF: Self = Self { base_width: None, base_head_dim: None };

    /// Width of a model in units of its base; 1 without a base.
    pub fn width_ratio(&self, width: usize) -> f64 {
        self.base_width.map_or(1.0, |base| width as f64 / base as f64)
    }

    /// Factor of attention's scores beside one over the root of the head size; none where it is 1.
    pub fn score_factor(&self, head_dim: usize) -> Option<f64> {
        let base = self.base_head_dim.filter(|base| *base != head_dim)?;
        Some((base as f64 / head_dim as f64).sqrt())
    }
}

/// Factors of a parameter's settings in a model of another width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WidthFactors {
    /// Factor of the learning rate.
    pub lr: f64,
    /// Factor of the weight decay: the product of both rates is that of the base.
    pub weight_decay: f64,
}

impl Optim {
    /// Factors of a hidden matrix, or of another parameter, at [`Optim::width_ratio`]. Updates of
    /// Adam and its kin have the size of the learning rate, those of SGD that of the gradient.
    pub fn width_factors(&self, is_hidden_matrix: bool) -> WidthFactors {
        let lr = match self.name {
            name if name.follows_adam() && is_hidden_matrix => 1.0 / self.width_ratio,
            name if name.follows_sgd() && !is_hidden_matrix => self.width_ratio,
            _ => 1.0,
        };
        WidthFactors { lr, weight_decay: 1.0 / lr }
    }
}

impl OptimName {
    /// Whether muP's rules of Adam hold: each element moves by about the learning rate.
    const fn follows_adam(self) -> bool {
        matches!(
            self,
            Self::Adam
                | Self::AdamW
                | Self::AdamW8Bit
                | Self::Adafactor
                | Self::Lion
                | Self::ScheduleFreeAdamW
        )
    }

    /// Whether muP's rules of SGD hold: the update is linear in the gradients.
    const fn follows_sgd(self) -> bool {
        matches!(self, Self::Sgd | Self::Momentum | Self::Nesterov)
    }
}

/// Whether the width differs from that of the base.
fn is_scaled(recipe: &Recipe) -> bool {
    recipe.model.mup.base_width.is_some_and(|base| base != recipe.model.width)
}

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(&["model.mup_base_head_dim", "model.mup_base_width"], |c| {
        let rule = "has no effect without model.mup_base_width";
        let is_alone = c.model.mup.base_width.is_none() && c.model.mup.base_head_dim.is_some();
        let fix = format!("try model.mup_base_width = {}", c.model.width);
        is_alone.then(|| c.error(rule, fix))
    }),
    Rule::new(&["model.mup_base_width", "model.model_type"], |c| {
        let is_gemma = c.model.variant.model_type == Some(ModelType::Gemma2);
        let rule = "keeps the embedding at every width, which model.model_type = \"gemma2\" \
                    multiplies by the root of model.width";
        c.refuse(is_gemma && c.model.mup.base_width.is_some(), rule, "another model.model_type")
    }),
    Rule::new(&["model.mup_base_width", "finetune.lora_rank"], |c| {
        let (rank, has_base) = (c.model.lora.rank, c.model.mup.base_width.is_some());
        let rule = format!("has no rule for the adapters of finetune.lora_rank = {rank}");
        let fix =
            "finetune.lora_rank = 0, or adapters for an export of the model, which has no muP";
        c.refuse(has_base && c.model.lora.is_on(), rule, fix)
    }),
]);

pub(crate) const LINTS: &[Lint] = lints! {
    "mup-optimizer": "muP has no rule for the learning rate of the optimizer";
        if "model.mup_base_width with lars, lamb or muon, or with adam and weight decay";
        advice "set optim.name to \"adamw\"";
        |r| let (base, name) = (r.model.mup.base_width?, r.optim.name);
            let has_rule = name.follows_adam() || name.follows_sgd();
            // Its decay is divided by the second moment, like the gradient, which shrinks with the
            // width as weights do not.
            let is_coupled = name == OptimName::Adam && r.optim.weight_decay > 0.0;
            when is_scaled(r) && (is_coupled || !has_rule) =>
                "model.mup_base_width = {base} has no rule for {name}, so its best rate changes \
                 with the width";
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sources, resolve};

    fn recipe(sets: &[&str]) -> Recipe {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let resolved = resolve(&Sources { sets, ..Sources::default() });
        resolved.unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn factors_are_those_of_the_table() {
        // Table 8 of Yang et al. 2022: learning rates of Adam by fan-in for hidden matrices, of SGD
        // by width for everything else.
        let cases = [
            ("adamw", 0.25, 1.0),
            ("lion", 0.25, 1.0),
            ("adafactor", 0.25, 1.0),
            ("sgd", 1.0, 4.0),
            ("nesterov", 1.0, 4.0),
            ("lamb", 1.0, 1.0),
        ];
        for (name, hidden, other) in cases {
            let name = format!("optim.name={name}");
            let optim = recipe(&["model.width=256", "model.mup_base_width=64", &name]).optim;
            for (is_hidden, lr) in [(true, hidden), (false, other)] {
                let weight_decay = 1.0 / lr;
                let expected = WidthFactors { lr, weight_decay };
                assert_eq!(optim.width_factors(is_hidden), expected, "{name}");
            }
        }
    }

    #[test]
    fn the_base_itself_and_a_model_without_one_are_not_scaled() {
        let one = WidthFactors { lr: 1.0, weight_decay: 1.0 };
        for sets in [&["model.mup_base_width=64"][..], &[]] {
            let Recipe { optim, model, .. } = recipe(sets);
            assert_eq!([true, false].map(|hidden| optim.width_factors(hidden)), [one; 2]);
            assert_eq!(model.mup.score_factor(model.head_dim()), None);
        }
    }

    #[test]
    fn scores_are_divided_by_the_head_size_in_place_of_its_root() {
        let sets = ["model.width=256", "model.mup_base_width=64", "model.mup_base_head_dim=16"];
        let model = recipe(&sets).model;
        // 1/64 and 1/16 in place of 1/8 and 1/4: an eighth for the base's quarter is a half.
        assert_eq!((model.head_dim(), model.mup.score_factor(64)), (64, Some(0.5)));
    }
}
