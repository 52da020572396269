//! Rules about emulation: links connect two ranks of the run, and slow workers exist.

use super::RuleContext;
use crate::error::ConfigError;

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    let rules = [links_have_two_ends, slow_workers_exist];
    rules.iter().filter_map(|rule| rule(context)).collect()
}

fn links_have_two_ends(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["emulate.links", "run.workers"];
    let workers = context.recipe.run.workers;
    if !context.all_valid(&involved) || workers < 2 {
        return None;
    }
    let is_wrong = |ranks: &[usize; 2]| ranks[0] == ranks[1] || ranks.iter().any(|r| *r >= workers);
    let mut ends = context.recipe.emulate.links.iter().map(|link| link.ranks);
    ends.find(is_wrong).map(|_| {
        let rule =
            format!("needs two different ranks below run.workers = {workers} for every link");
        context.error(&involved, rule, "try ranks = [0, 1]".to_owned())
    })
}

fn slow_workers_exist(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["emulate.slow", "run.workers"];
    let workers = context.recipe.run.workers;
    let mut slow = context.recipe.emulate.slow.iter();
    let wrong = slow.find(|slow| slow.rank >= workers).filter(|_| context.all_valid(&involved))?;
    let rule = format!("slows rank {} where run.workers = {workers}", wrong.rank);
    Some(context.error(&involved, rule, format!("try rank = {}", workers - 1)))
}
