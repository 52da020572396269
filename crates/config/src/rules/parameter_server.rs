//! Rules about parameter servers.

use super::RuleContext;
use crate::error::ConfigError;
use crate::keys::MAX_WORKERS;
use crate::recipe::{
    AggregationRule, Consistency, Group, Interval, OptimName, Placement, Recipe, SyncMode,
};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    let is_on = context.recipe.sync.mode == SyncMode::ParameterServer;
    if !is_on || !context.all_valid(&["sync.mode"]) {
        return Vec::new();
    }
    let rules = [
        servers_support_it,
        embedding_is_untied,
        cached_rows_are_sparse,
        replicated_rows_need_servers,
        ranks_fit,
        delay_is_bounded,
        quorum_exists,
        byzantine_are_few,
        some_are_honest,
        attacks_are_not_grouped,
    ];
    rules.iter().filter_map(|rule| rule(context)).collect()
}

/// Settings that parameter servers do not support.
fn servers_support_it(context: &RuleContext<'_>) -> Option<ConfigError> {
    let Recipe { checkpoint, run, data, optim, train, .. } = context.recipe;
    let has_clip = |group: &Group| group.clip.is_some();
    let is_frozen =
        |group: &Group| group.frozen || group.freeze_after.or(group.unfreeze_at).is_some();
    let (key, better, why) = if checkpoint.interval != Interval::Never {
        ("checkpoint.interval", "0", "saves checkpoints by steps, not by time")
    } else if run.check_replicas_every > 0 {
        ("run.check_replicas_every", "0", "keeps different versions of the weights on workers")
    } else if data.placement == Placement::Local {
        (
            "data.placement",
            "\"shared\"",
            "divides gradients by a number of targets that all workers know",
        )
    } else if matches!(optim.name, OptimName::Lars | OptimName::Lamb) {
        ("optim.name", "\"adamw\"", "updates flat shards, without the norms of tensors")
    } else if optim.groups.iter().any(|group| has_clip(group) || is_frozen(group)) {
        ("optim.groups", "[]", "clips and trains all parameters together")
    } else if !train.batch_schedule.is_empty() {
        ("train.batch_schedule", "[]", "needs a constant batch")
    } else {
        return None;
    };
    context.incompatible(["sync.mode", key], better, "all-reduce", why)
}

/// A tied output projection needs all rows in every step, and a small problem has no embedding.
fn embedding_is_untied(context: &RuleContext<'_>) -> Option<ConfigError> {
    let (key, rows) = ("sync.sparse_rows", &context.recipe.sync.server.rows);
    let family = context.recipe.model.family;
    if !rows.sparse || !context.all_valid(&[key, "model.family", "model.tied"]) {
        return None;
    }
    if family.is_problem() {
        let rule = format!("needs an embedding, which model.family = \"{family}\" does not have");
        return Some(context.error(&[key, "model.family"], rule, "try false".to_owned()));
    }
    context.recipe.model.tied.then(|| {
        let rule = "needs an embedding that is not tied to the output projection".to_owned();
        let fix = "try model.tied = false, or sync.sparse_rows = false".to_owned();
        context.error(&[key, "model.tied"], rule, fix)
    })
}

/// Only sparse transfers can skip cached rows.
fn cached_rows_are_sparse(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.row_cache", "sync.sparse_rows"];
    let rows = &context.recipe.sync.server.rows;
    (rows.cache > 0 && !rows.sparse && context.all_valid(&involved)).then(|| {
        let rule = "needs sparse transfers of the embedding".to_owned();
        context.error(&involved, rule, "try sync.sparse_rows = true".to_owned())
    })
}

/// Replicated rows need sparse transfers and another server.
fn replicated_rows_need_servers(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.replicated_rows", "sync.sparse_rows", "sync.servers"];
    let server = &context.recipe.sync.server;
    let (rule, fix) = if server.rows.replicated == 0 || !context.all_valid(&involved) {
        return None;
    } else if !server.rows.sparse {
        ("needs sparse transfers of the embedding", "try sync.sparse_rows = true")
    } else if server.count < 2 {
        ("needs replicas on other servers, and there are none", "try sync.servers = 2")
    } else {
        return None;
    };
    Some(context.error(&involved, rule.to_owned(), fix.to_owned()))
}

/// Workers and servers together fit into one group.
fn ranks_fit(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.servers", "run.workers"];
    let (workers, most) = (context.recipe.run.workers, MAX_WORKERS as usize);
    if !context.all_valid(&involved) || context.recipe.num_ranks() <= most {
        return None;
    }
    let rule = format!("and run.workers = {workers} are more than {most} ranks together");
    let fix = match most.saturating_sub(workers) {
        0 => format!("try 1 and run.workers = {}", most - 1),
        left => format!("try {left}"),
    };
    Some(context.error(&involved, rule, fix))
}

/// A delayed pull is stale by the delay.
fn delay_is_bounded(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.read_delay", "sync.staleness", "sync.consistency"];
    let server = &context.recipe.sync.server;
    let is_bounded = server.consistency == Consistency::Bounded;
    if !context.all_valid(&involved) || !is_bounded || server.read_delay <= server.staleness {
        return None;
    }
    let rule = format!("is more than sync.staleness = {}", server.staleness);
    Some(context.error(&involved, rule, format!("try {}", server.staleness)))
}

/// The quorum is at most the number of workers that push.
fn quorum_exists(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.quorum", "run.workers", "sync.group_workers", "sync.consistency"];
    let (server, recipe) = (&context.recipe.sync.server, context.recipe);
    let (most, size) = (recipe.num_pushers(), recipe.sync.group_workers);
    let is_elastic = server.consistency == Consistency::Elastic;
    if !context.all_valid(&involved) || !is_elastic || server.quorum <= most {
        return None;
    }
    let groups = if size > 1 { format!(" in groups of {size}") } else { String::new() };
    let rule = format!("is more than run.workers = {}{groups}", recipe.run.workers);
    Some(context.error(&involved, rule, format!("try {most}")))
}

/// An aggregation rule tolerates a limited number of Byzantine workers.
fn byzantine_are_few(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.assumed_byzantine", "run.workers", "sync.aggregation"];
    let (server, most) = (&context.recipe.sync.server, context.recipe.num_pushers());
    let num_gradients = match server.consistency {
        Consistency::Elastic => server.quorum.min(most),
        _ => most,
    };
    let most = match server.aggregation {
        AggregationRule::Mean | AggregationRule::Median => return None,
        AggregationRule::TrimmedMean => num_gradients.saturating_sub(1) / 2,
        AggregationRule::Krum => num_gradients.saturating_sub(3) / 2,
    };
    if !context.all_valid(&involved) || server.assumed_byzantine <= most {
        return None;
    }
    let rule = format!(
        "is more than sync.aggregation = \"{}\" tolerates among {num_gradients} gradients",
        server.aggregation
    );
    let fix = if most == 0 {
        "try sync.aggregation = \"median\"".to_owned()
    } else {
        format!("try {most}")
    };
    Some(context.error(&involved, rule, fix))
}

/// At least one worker is honest.
fn some_are_honest(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.byzantine", "run.workers"];
    let (byzantine, workers) = (context.recipe.sync.server.byzantine, context.recipe.run.workers);
    if !context.all_valid(&involved) || byzantine == 0 || byzantine < workers {
        return None;
    }
    let rule = format!("leaves no honest worker of run.workers = {workers}");
    Some(context.error(&involved, rule, format!("try {}", workers.saturating_sub(1))))
}

/// A Byzantine gradient inside a group's sum corrupts the whole group.
fn attacks_are_not_grouped(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["sync.byzantine", "sync.group_workers"];
    let sync = &context.recipe.sync;
    (sync.server.byzantine > 0 && sync.group_workers > 1 && context.all_valid(&involved)).then(
        || {
            let rule = "cannot be attributed inside the sums of worker groups".to_owned();
            context.error(&involved, rule, "try sync.group_workers = 0".to_owned())
        },
    )
}
