//! Rules about what is emulated: links have two ends, and only ranks that exist have any.

use super::Facts;
use crate::error::ConfigError;

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    let rules = [links_have_two_ends, slow_workers_exist];
    rules.iter().filter_map(|rule| rule(facts)).collect()
}

fn links_have_two_ends(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["emulate.links", "run.workers"];
    let workers = facts.recipe.run.workers;
    if !facts.sound(&involved) || workers < 2 {
        return None;
    }
    let is_wrong = |ranks: &[usize; 2]| ranks[0] == ranks[1] || ranks.iter().any(|r| *r >= workers);
    let mut ends = facts.recipe.emulate.links.iter().map(|link| link.ranks);
    ends.find(is_wrong).map(|_| {
        let rule = format!("joins what are not two different ranks below run.workers = {workers}");
        facts.error(&involved, rule, "try ranks = [0, 1]".to_owned())
    })
}

fn slow_workers_exist(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["emulate.slow", "run.workers"];
    let workers = facts.recipe.run.workers;
    let mut slow = facts.recipe.emulate.slow.iter();
    let wrong = slow.find(|slow| slow.rank >= workers).filter(|_| facts.sound(&involved))?;
    let rule = format!("slows rank {} where run.workers = {workers}", wrong.rank);
    Some(facts.error(&involved, rule, format!("try rank = {}", workers - 1)))
}
