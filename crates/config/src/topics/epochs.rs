//! Runs whose length is a number of passes over the training data.
//!
//! `train.epochs` is not part of a recipe's identity: the number of steps that follows from it is.

use super::Recipe;
use super::data_source::Placement;
use crate::error::ConfigError;
use crate::rule::{Rule, RuleContext, Rules};

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(&["train.epochs", "data.mixture"], |c| {
        let rule = "is a number of passes, and data.mixture has no length: its sources repeat";
        refuse(c, c.data.mixture.is_on(), rule)
    }),
    Rule::new(&["train.epochs", "data.placement"], |c| {
        let placement = c.data.placement;
        let is_unknown = matches!(placement, Placement::Local | Placement::Served);
        let rule = format!(
            "needs the length of the data, which no worker knows with data.placement = {placement}"
        );
        refuse(c, is_unknown, &rule)
    }),
    Rule::new(&["train.epochs", "sync.partition"], |c| {
        let rule = "is a number of passes, and sync.partition gives every worker or client passes \
                    of its own";
        refuse(c, c.recipe.is_partitioned(), rule)
    }),
    Rule::new(&["train.epochs", "sync.mode"], |c| {
        let rule = "is a number of passes, and clients of sync.mode = \"federated\" are drawn";
        refuse(c, c.recipe.is_federated(), rule)
    }),
])
.when(&["train.epochs"], |recipe: &Recipe| recipe.train.epochs.is_some());

fn refuse(c: &RuleContext<'_>, is_unknown: bool, rule: &str) -> Option<ConfigError> {
    is_unknown.then(|| c.error(rule, "set train.steps instead"))
}
