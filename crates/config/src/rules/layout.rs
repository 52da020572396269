//! Rules about workers: number, transport, restarts and shares of leaves.

use super::RuleContext;
use crate::error::ConfigError;
use crate::keys::{self, MAX_WORKERS};
use crate::recipe::{Elastic, Isolation, Placement, Recipe, TransportChoice, even_shares};
use crate::value_type::shares_text;

/// Every broken rule about workers, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    let rules = [
        workers_fit_leaves,
        transport_fits_isolation,
        processes_can_be_restarted,
        range_is_whole_replicas,
        range_supports_the_layout,
        degrees_multiply_to_workers,
        leaf_shares_fit,
    ];
    rules.iter().filter_map(|rule| rule(context)).collect()
}

/// A replica computes whole leaves, at least one.
fn workers_fit_leaves(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved =
        ["run.workers", "numerics.invariant_up_to", "parallel.pipeline", "parallel.tensor"];
    let (workers, leaves) = (context.recipe.run.workers, context.recipe.num_leaves());
    let each = context.recipe.parallel.workers_per_replica();
    let replicas = workers / each;
    if !context.all_valid(&involved) || replicas <= leaves {
        return None;
    }
    if each > 1 {
        let rule = format!(
            "makes {replicas} replicas of {each} workers each, more than \
             numerics.invariant_up_to = {leaves}"
        );
        return Some(context.error(&involved, rule, format!("try {}", leaves * each)));
    }
    let involved = &involved[..2];
    let more_leaves = workers.next_power_of_two();
    let depends = ["parallel.data", "parallel.leaf_shares"].iter().any(|name| context.is_set(name));
    let all_valid = context.all_valid(&["train.batch", "train.microbatch"]);
    let train = &context.recipe.train;
    // If the batch breaks a rule of its own, its fix assumes the present number of leaves.
    let enough_microbatches = train.batch.is_multiple_of(train.microbatch_size * more_leaves);
    let fix = if all_valid && !depends && enough_microbatches {
        format!("try {leaves} or numerics.invariant_up_to = {more_leaves}")
    } else {
        format!("try {leaves}")
    };
    Some(context.error(involved, format!("is more than numerics.invariant_up_to = {leaves}"), fix))
}

/// A failed thread takes its process down, so only processes can be restarted.
fn processes_can_be_restarted(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["run.restarts", "run.isolation"];
    let run = &context.recipe.run;
    if !context.all_valid(&involved) || run.restarts == 0 || run.isolation == Isolation::Processes {
        return None;
    }
    let rule = "cannot restart threads".to_owned();
    Some(context.error(&involved, rule, "try 0 or run.isolation = \"processes\"".to_owned()))
}

/// Minimum and maximum are whole replicas, whose pipeline and tensor degrees are constant.
fn range_is_whole_replicas(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["run.workers", "parallel.pipeline", "parallel.tensor"];
    let Elastic { min, max } =
        context.recipe.run.elastic.filter(|_| context.all_valid(&involved))?;
    let each = context.recipe.parallel.workers_per_replica();
    let advice = |min: usize| format!("try {{ min = {min}, max = {max} }}");
    if min > max {
        let rule = "has a min above its max".to_owned();
        return Some(context.error(&involved[..1], rule, advice(max)));
    }
    if min.is_multiple_of(each) || !max.is_multiple_of(each) {
        return None;
    }
    let rule = format!("may leave {min} workers, and a replica takes {each}");
    Some(context.error(&involved, rule, advice(min.next_multiple_of(each))))
}

/// Settings for a fixed number of workers are incompatible with an elastic run.
fn range_supports_the_layout(context: &RuleContext<'_>) -> Option<ConfigError> {
    let Recipe { run, parallel, data, checkpoint, .. } = context.recipe;
    let Elastic { max, .. } = run.elastic?;
    let (key, better) = if run.isolation == Isolation::Threads {
        ("run.isolation", "\"processes\"")
    } else if !parallel.leaf_shares.is_empty() {
        ("parallel.leaf_shares", "\"\"")
    } else if data.placement == Placement::Local {
        ("data.placement", "\"shared\"")
    } else if !checkpoint.is_on() {
        ("checkpoint.interval", "\"auto\"")
    } else {
        return None;
    };
    if !context.all_valid(&["run.workers", key]) {
        return None;
    }
    let value = keys::find(key).and_then(|key| key.get(context.recipe));
    let value = value.map_or(String::new(), |value| value.to_string());
    let (rule, fix) = (
        format!("cannot be a range with {key} = {value}"),
        format!("try {max} or {key} = {better}"),
    );
    Some(context.error(&["run.workers", key], rule, fix))
}

/// The threads transport needs one process, and shared memory needs several.
fn transport_fits_isolation(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["run.transport", "run.isolation"];
    let needed = match (context.recipe.run.transport, context.recipe.run.isolation) {
        (TransportChoice::Threads, Isolation::Processes) => Isolation::Threads,
        (TransportChoice::Shm, Isolation::Threads) => Isolation::Processes,
        _ => return None,
    };
    if !context.all_valid(&involved) {
        return None;
    }
    let isolation = context.recipe.run.isolation;
    let rule = format!("does not connect workers with run.isolation = \"{isolation}\"");
    let fix = format!("try \"auto\" or run.isolation = \"{needed}\"");
    Some(context.error(&involved, rule, fix))
}

/// Data, pipeline and tensor degrees multiply to the number of workers.
fn degrees_multiply_to_workers(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = [
        "parallel.data",
        "run.workers",
        "parallel.pipeline",
        "parallel.tensor",
        "numerics.invariant_up_to",
    ];
    let (data, workers) = (context.recipe.parallel.data, context.recipe.run.workers);
    let (leaves, each) =
        (context.recipe.num_leaves(), context.recipe.parallel.workers_per_replica());
    let is_set = context.is_set("parallel.data");
    // A pipeline that does not divide the workers has an error of its own.
    let is_possible = workers.is_multiple_of(each);
    let is_right = data * each == workers && data <= leaves;
    if !context.all_valid(&involved) || !is_set || !is_possible || is_right {
        return None;
    }
    let replicas = workers / each;
    if data > leaves {
        let rule = format!("is more than numerics.invariant_up_to = {leaves}");
        return Some(context.error(&involved, rule, format!("try {}", replicas.min(leaves))));
    }
    let rule = match each {
        1 => format!("is not run.workers = {workers}"),
        _ if context.recipe.parallel.tensor == 1 => {
            format!("times parallel.pipeline = {each} is not run.workers = {workers}")
        }
        _ => format!("replicas of {each} workers each are not run.workers = {workers}"),
    };
    let fix = if replicas <= leaves && !context.is_set("parallel.leaf_shares") {
        format!("try {replicas} or run.workers = {}", data * each)
    } else {
        format!("try {}", replicas.min(leaves))
    };
    Some(context.error(&involved[..4], rule, fix))
}

/// Unequal shares are one number of leaves per replica and add up to all leaves.
fn leaf_shares_fit(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved =
        ["parallel.leaf_shares", "run.workers", "numerics.invariant_up_to", "parallel.zero"];
    let (shares, workers) = (&context.recipe.parallel.leaf_shares, context.recipe.run.workers);
    let (leaves, each) =
        (context.recipe.num_leaves(), context.recipe.parallel.workers_per_replica());
    let replicas = workers / each;
    let possible = (1..=leaves.min(MAX_WORKERS as usize)).contains(&replicas);
    if !context.all_valid(&involved) || shares.is_empty() || !possible {
        return None;
    }
    let even = shares_text(&even_shares(leaves, replicas));
    if shares.len() != replicas {
        let (num_shares, word) =
            (shares.len(), if shares.len() == 1 { "number" } else { "numbers" });
        let of_what = match each {
            1 => format!("run.workers = {workers}"),
            _ => format!("{replicas} replicas of {each} workers each"),
        };
        let rule = format!("has {num_shares} {word} for {of_what}");
        return Some(context.error(&involved[..2], rule, format!("try \"{even}\"")));
    }
    // Saturating, since huge numbers must be refused without overflow.
    let sum = shares.iter().fold(0_usize, |sum, share| sum.saturating_add(*share));
    if sum != leaves {
        let rule = format!("makes {sum} leaves where numerics.invariant_up_to = {leaves}");
        return Some(context.error(&involved[..3], rule, format!("try \"{even}\"")));
    }
    let zero = context.recipe.parallel.zero;
    if zero >= 2 {
        let rule =
            format!("is not supported with parallel.zero = {zero}, which assigns leaves in turn");
        return Some(context.error(&involved, rule, "try \"\" or parallel.zero = 1".to_owned()));
    }
    None
}
