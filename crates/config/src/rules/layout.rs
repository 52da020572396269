//! Rules about workers: how many there may be, how they are joined, and what each gets.

use super::Facts;
use crate::error::ConfigError;
use crate::keys::{self, MAX_WORKERS};
use crate::kind::shares_text;
use crate::recipe::{Elastic, Isolation, Placement, Recipe, TransportChoice, even_shares};

/// Every broken rule about workers, in the order of the table of keys.
pub(super) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    let rules = [
        workers_fit_leaves,
        transport_suits_isolation,
        processes_can_be_restarted,
        range_has_copies,
        range_can_go_on,
        data_is_workers,
        shares_are_whole,
    ];
    rules.iter().filter_map(|rule| rule(facts)).collect()
}

/// A copy of the model computes whole leaves, at least one.
fn workers_fit_leaves(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved =
        ["run.workers", "numerics.invariant_up_to", "parallel.pipeline", "parallel.tensor"];
    let (workers, leaves) = (facts.recipe.run.workers, facts.recipe.num_leaves());
    let each = facts.recipe.parallel.workers_per_copy();
    let copies = workers / each;
    if !facts.sound(&involved) || copies <= leaves {
        return None;
    }
    if each > 1 {
        let rule = format!(
            "makes {copies} copies of {each} workers each, which is more than \
             numerics.invariant_up_to = {leaves}"
        );
        return Some(facts.error(&involved, rule, format!("try {}", leaves * each)));
    }
    let involved = &involved[..2];
    let more_leaves = workers.next_power_of_two();
    let depends = ["parallel.data", "parallel.shares"].iter().any(|name| facts.is_set(name));
    let sound = facts.sound(&["train.batch", "train.microbatch"]);
    let train = &facts.recipe.train;
    // Where the batch breaks a rule of its own, its advice counts on the leaves as they are.
    let enough_microbatches = train.batch.is_multiple_of(train.microbatch_size * more_leaves);
    let fix = if sound && !depends && enough_microbatches {
        format!("try {leaves} or numerics.invariant_up_to = {more_leaves}")
    } else {
        format!("try {leaves}")
    };
    Some(facts.error(involved, format!("is more than numerics.invariant_up_to = {leaves}"), fix))
}

/// A thread that hangs or breaks takes its process with it.
fn processes_can_be_restarted(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["run.restarts", "run.isolation"];
    let run = &facts.recipe.run;
    if !facts.sound(&involved) || run.restarts == 0 || run.isolation == Isolation::Processes {
        return None;
    }
    let rule = "cannot start threads again".to_owned();
    Some(facts.error(&involved, rule, "try 0 or run.isolation = \"processes\"".to_owned()))
}

/// Fewest and most workers are whole copies of the model, whose stages and slices stay.
fn range_has_copies(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["run.workers", "parallel.pipeline", "parallel.tensor"];
    let Elastic { min, max } = facts.recipe.run.elastic.filter(|_| facts.sound(&involved))?;
    let each = facts.recipe.parallel.workers_per_copy();
    let advice = |min: usize| format!("try {{ min = {min}, max = {max} }}");
    if min > max {
        let rule = "has a min above its max".to_owned();
        return Some(facts.error(&involved[..1], rule, advice(max)));
    }
    if min.is_multiple_of(each) || !max.is_multiple_of(each) {
        return None;
    }
    let rule = format!("may leave {min} workers, and a copy of the model takes {each}");
    Some(facts.error(&involved, rule, advice(min.next_multiple_of(each))))
}

/// What speaks of a number of workers cannot be with one that changes.
fn range_can_go_on(facts: &Facts<'_>) -> Option<ConfigError> {
    let Recipe { run, parallel, data, checkpoint, .. } = facts.recipe;
    let Elastic { max, .. } = run.elastic?;
    let (key, better) = if run.isolation == Isolation::Threads {
        ("run.isolation", "\"processes\"")
    } else if !parallel.shares.is_empty() {
        ("parallel.shares", "\"\"")
    } else if data.placement == Placement::Local {
        ("data.placement", "\"shared\"")
    } else if !checkpoint.is_on() {
        ("checkpoint.interval", "\"auto\"")
    } else {
        return None;
    };
    if !facts.sound(&["run.workers", key]) {
        return None;
    }
    let value = keys::find(key).and_then(|key| key.get(facts.recipe));
    let value = value.map_or(String::new(), |value| value.to_string());
    let (rule, fix) =
        (format!("cannot change with {key} = {value}"), format!("try {max} or {key} = {better}"));
    Some(facts.error(&["run.workers", key], rule, fix))
}

/// Threads share the memory of their process, and only processes share any other.
fn transport_suits_isolation(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["run.transport", "run.isolation"];
    let needed = match (facts.recipe.run.transport, facts.recipe.run.isolation) {
        (TransportChoice::Threads, Isolation::Processes) => Isolation::Threads,
        (TransportChoice::Shm, Isolation::Threads) => Isolation::Processes,
        _ => return None,
    };
    if !facts.sound(&involved) {
        return None;
    }
    let isolation = facts.recipe.run.isolation;
    let rule = format!("does not join workers with run.isolation = \"{isolation}\"");
    let fix = format!("try \"auto\" or run.isolation = \"{needed}\"");
    Some(facts.error(&involved, rule, fix))
}

/// The axes together have all workers: what copies of the model do not take is how many there are.
fn data_is_workers(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = [
        "parallel.data",
        "run.workers",
        "parallel.pipeline",
        "parallel.tensor",
        "numerics.invariant_up_to",
    ];
    let (data, workers) = (facts.recipe.parallel.data, facts.recipe.run.workers);
    let (leaves, each) = (facts.recipe.num_leaves(), facts.recipe.parallel.workers_per_copy());
    let is_set = facts.is_set("parallel.data");
    // A pipeline that does not divide the workers has an error of its own.
    let is_possible = workers.is_multiple_of(each);
    let is_right = data * each == workers && data <= leaves;
    if !facts.sound(&involved) || !is_set || !is_possible || is_right {
        return None;
    }
    let copies = workers / each;
    if data > leaves {
        let rule = format!("is more than numerics.invariant_up_to = {leaves}");
        return Some(facts.error(&involved, rule, format!("try {}", copies.min(leaves))));
    }
    let rule = match each {
        1 => format!("is not run.workers = {workers}"),
        _ if facts.recipe.parallel.tensor == 1 => {
            format!("times parallel.pipeline = {each} is not run.workers = {workers}")
        }
        _ => format!("copies of {each} workers each are not run.workers = {workers}"),
    };
    let fix = if copies <= leaves && !facts.is_set("parallel.shares") {
        format!("try {copies} or run.workers = {}", data * each)
    } else {
        format!("try {}", copies.min(leaves))
    };
    Some(facts.error(&involved[..4], rule, fix))
}

/// Unequal shares are whole leaves, one number a copy, and stay where they are in a step.
fn shares_are_whole(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["parallel.shares", "run.workers", "numerics.invariant_up_to", "parallel.zero"];
    let (shares, workers) = (&facts.recipe.parallel.shares, facts.recipe.run.workers);
    let (leaves, each) = (facts.recipe.num_leaves(), facts.recipe.parallel.workers_per_copy());
    let copies = workers / each;
    let possible = (1..=leaves.min(MAX_WORKERS as usize)).contains(&copies);
    if !facts.sound(&involved) || shares.is_empty() || !possible {
        return None;
    }
    let even = shares_text(&even_shares(leaves, copies));
    if shares.len() != copies {
        let (num_shares, word) =
            (shares.len(), if shares.len() == 1 { "number" } else { "numbers" });
        let of_what = match each {
            1 => format!("run.workers = {workers}"),
            _ => format!("{copies} copies of {each} workers each"),
        };
        let rule = format!("has {num_shares} {word} for {of_what}");
        return Some(facts.error(&involved[..2], rule, format!("try \"{even}\"")));
    }
    // Far too large numbers must not overflow on the way to being refused.
    let sum = shares.iter().fold(0_usize, |sum, share| sum.saturating_add(*share));
    if sum != leaves {
        let rule = format!("makes {sum} leaves where numerics.invariant_up_to = {leaves}");
        return Some(facts.error(&involved[..3], rule, format!("try \"{even}\"")));
    }
    let zero = facts.recipe.parallel.zero;
    if zero >= 2 {
        let rule = format!("cannot be with parallel.zero = {zero}, which deals leaves out in turn");
        return Some(facts.error(&involved, rule, "try \"\" or parallel.zero = 1".to_owned()));
    }
    None
}
