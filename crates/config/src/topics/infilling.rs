//! Fill-in-the-middle (Bavarian et al. 2022): documents cut in three, with the middle moved to the
//! end, so that a left-to-right model learns to fill gaps.

use super::Recipe;
use super::data_source::Tokenizer;
use crate::rule::{Rule, Rules};
use crate::topic::topic;
use crate::value_type::Bound::Closed;

topic! {
    /// Fill-in-the-middle.
    #[derive(Copy)]
    pub struct Infilling at data.infilling, among "data" {
        /// Fraction of the documents that are cut at two random characters and written as prefix,
        /// suffix, middle (fill-in-the-middle), with the tokenizer's own sentinel tokens.
        rate as fim_rate: f64 = 0.0, float(Closed(0.0), Closed(1.0)), in_identity_unless_default();

        /// Fraction of these documents in the order suffix, prefix, middle (SPM) instead of prefix,
        /// suffix, middle (PSM).
        spm_rate as fim_spm_rate: f64 = 0.5, float(Closed(0.0), Closed(1.0)),
            in_identity_when(is_on);
    }
}

impl Infilling {
    /// Whether any document is cut.
    pub fn is_on(&self) -> bool {
        self.rate > 0.0
    }
}

fn is_on(recipe: &Recipe) -> bool {
    recipe.data.infilling.is_on()
}

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(&["data.fim_rate", "data.tokenizer"], |c| {
        let rule = "needs a tokenizer with sentinel tokens, and data.tokenizer = \"byte\" has none";
        let fix = "set data.tokenizer to a tokenizer.json with <|fim_prefix|>, <|fim_middle|> and \
                   <|fim_suffix|>, or set data.fim_rate = 0";
        (c.data.tokenizer == Tokenizer::Byte).then(|| c.error(rule, fix))
    }),
    Rule::new(&["data.fim_rate", "data.mixture"], |c| {
        let rule = "cuts documents while they are read, which data.mixture does";
        let fix = "set data.mixture = [{ source = \"PATH\", weight = 1.0 }] instead of data.source";
        (!c.data.mixture.is_on()).then(|| c.error(rule, fix))
    }),
])
.when(&["data.fim_rate"], is_on);
