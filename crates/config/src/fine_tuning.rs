//! Learning rate of fine-tuning: the default of `optim.lr` where `model.from` names a model.
//!
//! The rate of training from scratch overwrites what pretrained weights hold. Practice with AdamW:
//! 2e-5 to 5e-5 for BERT-base of width 768 (Devlin et al. 2019), 5e-5 as the default of Hugging
//! Face's `Trainer`, 2e-5 for Llama 2 of width 4096 (Touvron et al. 2023) and for Alpaca (Taori et
//! al. 2023). One rule passes through both sizes: 5e-5 at width 768, divided by the square root of
//! the ratio of the widths, which gives 2.2e-5 at width 4096. The warm-up remains that of
//! `optim.warmup_steps`, a tenth of the run.
//!
//! Adapters start from zero and are trained with larger rates at every width: 2e-4 for GPT-2 medium
//! and GPT-3 (Hu et al. 2021) and for Llama of 7 to 13 billion parameters (Dettmers et al. 2023).

use crate::topics::{Family, OptimName, Recipe};

/// Learning rate at [`USUAL_WIDTH`].
const USUAL_LR: f64 = 5e-5;

/// Learning rate of low-rank adapters.
const ADAPTER_LR: f64 = 2e-4;

/// Width of BERT-base and of the smallest GPT-2.
const USUAL_WIDTH: f64 = 768.0;

/// Learning rate for weights of this width, in two significant digits; none for optimizers whose
/// update depends on the size of the gradient, and for small problems.
pub(crate) fn learning_rate(
    family: Family,
    width: usize,
    optim: OptimName,
    has_adapters: bool,
) -> Option<f64> {
    let adapts = matches!(optim, OptimName::Adam | OptimName::AdamW | OptimName::AdamW8Bit);
    let is_known = adapts && !family.is_problem();
    let full = USUAL_LR * (USUAL_WIDTH / width as f64).sqrt();
    let lr = if has_adapters { ADAPTER_LR } else { full };
    is_known.then(|| format!("{lr:.1e}").parse().expect("a printed number is a number"))
}

impl Recipe {
    /// The rule that chose the learning rate, as a line for the user; none where training starts
    /// from random weights or the learning rate is another.
    pub fn fine_tuning_rule(&self) -> Option<String> {
        let (model, has_adapters) = (&self.model, self.model.lora.is_on());
        let lr = learning_rate(model.family, model.width, self.optim.name, has_adapters)?;
        let follows = !self.from.is_empty() && !self.partial;
        (follows && lr.to_bits() == self.optim.lr.to_bits()).then(|| {
            let rule = if has_adapters {
                "the usual one of low-rank adapters".to_owned()
            } else {
                format!("{USUAL_LR:e} x sqrt({USUAL_WIDTH} / model.width)")
            };
            format!(
                "fine-tuning {}: learning rate {lr:e} = {rule}; set optim.lr to choose another",
                self.from
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_passes_through_published_learning_rates() {
        let lr = |width| learning_rate(Family::Llama, width, OptimName::AdamW, false);
        assert_eq!(lr(768), Some(5e-5), "BERT-base, GPT-2 and the default of Trainer");
        assert_eq!(lr(4096), Some(2.2e-5), "Llama 2 and Alpaca: 2e-5");
        assert_eq!(lr(8192), Some(1.5e-5), "models of 70 billion parameters: 1e-5 to 2e-5");
        assert_eq!(lr(192), Some(1e-4));
        let adapters = |width| learning_rate(Family::Llama, width, OptimName::AdamW, true);
        assert_eq!([adapters(1024), adapters(4096)], [Some(2e-4); 2], "GPT-2 medium and Llama");
    }

    #[test]
    fn other_optimizers_and_problems_have_no_rule() {
        assert_eq!(learning_rate(Family::Gpt2, 768, OptimName::Sgd, false), None);
        assert_eq!(learning_rate(Family::Gpt2, 768, OptimName::Lars, false), None);
        assert_eq!(learning_rate(Family::Mlp, 768, OptimName::AdamW, false), None);
    }
}
