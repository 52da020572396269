//! Evaluation tasks during training.

use super::{Placement, Recipe};
use crate::rule::{Rule, Rules};
use crate::topic::topic;
use crate::value_type::MAX_STEPS;

topic! {
    /// Evaluation tasks during training: multiple choice by log-likelihood. Never changes a bit of
    /// the result.
    pub struct Eval at eval, table "eval", layout() {
        /// Task files in the format of lm-evaluation-harness, with local data. The model answers
        /// them every eval.every steps and at the end of the run.
        tasks: Vec<String> = none, at_most(64);

        /// Steps between two evaluations of the tasks; 0 evaluates them at the end only.
        every: u64 = ("= train.eval_every", default_every), integer(0, MAX_STEPS);

        /// Most questions of a task, from the first on; without a value all.
        limit: Option<usize> = none, integer(1, 1_000_000_000);
    }
}

fn default_every(recipe: &Recipe) -> u64 {
    recipe.train.eval_every
}

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(&["eval.tasks", "model.family"], |c| {
        let family = c.model.family;
        let is_refused = !c.eval.tasks.is_empty() && !family.is_text();
        let rule = format!("asks questions in words, and model.family = {family} reads no text");
        c.refuse(is_refused, rule, "model.family = \"llama\"")
    }),
    Rule::new(&["eval.tasks", "data.placement"], |c| {
        let is_refused = !c.eval.tasks.is_empty() && c.data.placement == Placement::Served;
        let rule = "needs the tokenizer on every worker, and data.placement = \"served\" keeps it \
                    on the data server";
        c.refuse(is_refused, rule, "data.placement = \"shared\"")
    }),
]);
