//! Rules about learning without one lockstep: graphs that can be drawn, and what servers can do.

use super::Facts;
use crate::error::ConfigError;
use crate::keys::MAX_WORKERS;
use crate::recipe::{
    Consistency, FederatedCombine, GraphName, Group, Interval, OptimName, Placement, Recipe,
    SyncMode,
};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    type Rule = fn(&Facts<'_>) -> Option<ConfigError>;
    let rules: &[Rule] = match facts.recipe.sync.mode {
        _ if !facts.sound(&["sync.mode"]) => &[],
        SyncMode::AllReduce | SyncMode::LocalSgd | SyncMode::Federated => &[],
        SyncMode::Hogwild => &[threads_are_of_one_worker, threads_share_the_batch, threads_add],
        SyncMode::Gossip => &[graph_can_be_drawn, workers_may_differ],
        SyncMode::ParameterServer => &[
            servers_can_do_it,
            rows_are_apart,
            hot_rows_travel,
            several_have_copies,
            ranks_are_few,
            delay_is_bounded,
            quorum_can_come,
            liars_are_few,
            honest_are_left,
            liars_speak_for_themselves,
        ],
    };
    rules.iter().filter_map(|rule| rule(facts)).collect()
}

/// A regular graph has an even number of ends, and all workers are in one piece of it.
fn graph_can_be_drawn(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.degree", "run.workers", "sync.graph"];
    let (gossip, workers) = (&facts.recipe.sync.gossip, facts.recipe.run.workers);
    let suits = |degree: usize| match gossip.graph {
        GraphName::RandomRegular => {
            let is_connected = degree >= 2 || workers <= 2;
            degree < workers && is_connected && (degree * workers).is_multiple_of(2)
        }
        GraphName::RandomDirected => degree < workers,
        _ => true,
    };
    // One worker has nobody to send to, whatever is asked.
    if !facts.sound(&involved) || workers == 1 || suits(gossip.degree) {
        return None;
    }
    let better = (1..workers).rev().filter(|degree| suits(*degree));
    let nearest = better.min_by_key(|degree| degree.abs_diff(gossip.degree)).unwrap_or(1);
    let rule =
        format!("makes no connected {} graph of run.workers = {workers}", gossip.graph.name());
    Some(facts.error(&involved, rule, format!("try {nearest}")))
}

/// Weights that are meant to differ would be found to.
fn workers_may_differ(facts: &Facts<'_>) -> Option<ConfigError> {
    if facts.recipe.run.check_replicas_every == 0 {
        return None;
    }
    let names = ["sync.mode", "run.check_replicas_every"];
    facts.needs(names, "0", "all-reduce", "lets every worker have weights of its own")
}

/// What servers do not do: save by the clock, hold tensors together, change what is trained.
fn servers_can_do_it(facts: &Facts<'_>) -> Option<ConfigError> {
    let Recipe { checkpoint, run, data, optim, train, .. } = facts.recipe;
    let has_clip = |group: &Group| group.clip.is_some();
    let is_frozen =
        |group: &Group| group.frozen || group.freeze_after.or(group.unfreeze_at).is_some();
    let (key, better, why) = if checkpoint.interval != Interval::Never {
        ("checkpoint.interval", "0", "saves where workers meet, which follows steps and no clock")
    } else if run.check_replicas_every > 0 {
        ("run.check_replicas_every", "0", "lets workers have weights of different versions")
    } else if data.placement == Placement::Local {
        ("data.placement", "\"shared\"", "divides gradients by targets that all workers know of")
    } else if matches!(optim.name, OptimName::Lars | OptimName::Lamb) {
        ("optim.name", "\"adamw\"", "steps parts of tensors, whose norms no server knows")
    } else if optim.groups.iter().any(|group| has_clip(group) || is_frozen(group)) {
        ("optim.groups", "[]", "clips and trains all parameters together")
    } else if !train.batch_schedule.is_empty() {
        ("train.batch_schedule", "[]", "counts updates by a batch that stays")
    } else {
        return None;
    };
    facts.needs(["sync.mode", key], better, "all-reduce", why)
}

/// Threads share the memory of one process.
fn threads_are_of_one_worker(facts: &Facts<'_>) -> Option<ConfigError> {
    let (key, better) = if facts.recipe.run.workers > 1 {
        ("run.workers", "1")
    } else if facts.recipe.parallel.zero > 0 {
        ("parallel.zero", "0")
    } else {
        return None;
    };
    let why = "has sync.threads that step the memory of one worker";
    facts.needs(["sync.mode", key], better, "all-reduce", why)
}

/// Every thread has as many micro-batches.
fn threads_share_the_batch(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["train.batch", "sync.threads", "train.microbatch"];
    let (train, threads) = (&facts.recipe.train, facts.recipe.sync.threads);
    let unit = threads * train.microbatch_size;
    if unit == 0 || !facts.sound(&involved) || train.batch.is_multiple_of(unit) {
        return None;
    }
    let rule = format!(
        "is not a multiple of sync.threads = {threads} times train.microbatch = {}",
        train.microbatch_size
    );
    Some(facts.error(&involved, rule, format!("try {}", train.batch.next_multiple_of(unit))))
}

/// A step is an addition to each weight by itself, which is all that is done without a lock.
fn threads_add(facts: &Facts<'_>) -> Option<ConfigError> {
    let Recipe { optim, train, .. } = facts.recipe;
    let (key, better) = if optim.name != OptimName::Sgd {
        ("optim.name", "\"sgd\"")
    } else if optim.weight_decay > 0.0 {
        ("optim.weight_decay", "0.0")
    } else if !optim.groups.is_empty() {
        ("optim.groups", "[]")
    } else if !train.batch_schedule.is_empty() {
        ("train.batch_schedule", "[]")
    } else {
        return None;
    };
    facts.needs(["sync.mode", key], better, "all-reduce", "adds gradients to weights")
}

/// The head of a tied model needs all rows in every step, and a problem has none.
fn rows_are_apart(facts: &Facts<'_>) -> Option<ConfigError> {
    let (key, rows) = ("sync.sparse_rows", &facts.recipe.sync.server.rows);
    let family = facts.recipe.model.family;
    if !rows.sparse || !facts.sound(&[key, "model.family", "model.tied"]) {
        return None;
    }
    if family.is_problem() {
        let rule = format!("looks for an embedding that model.family = \"{family}\" has not");
        return Some(facts.error(&[key, "model.family"], rule, "try false".to_owned()));
    }
    facts.recipe.model.tied.then(|| {
        let rule = "needs an embedding that is not the output projection too".to_owned();
        let fix = "try model.tied = false, or sync.sparse_rows = false".to_owned();
        facts.error(&[key, "model.tied"], rule, fix)
    })
}

/// Only rows that travel one by one can be kept one by one.
fn hot_rows_travel(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.hot_rows", "sync.sparse_rows"];
    let rows = &facts.recipe.sync.server.rows;
    (rows.hot > 0 && !rows.sparse && facts.sound(&involved)).then(|| {
        let rule = "keeps rows of a table that travels whole".to_owned();
        facts.error(&involved, rule, "try sync.sparse_rows = true".to_owned())
    })
}

/// Copies are of rows that travel one by one, and on another server than theirs.
fn several_have_copies(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.spread_rows", "sync.sparse_rows", "sync.servers"];
    let server = &facts.recipe.sync.server;
    let (rule, fix) = if server.rows.spread == 0 || !facts.sound(&involved) {
        return None;
    } else if !server.rows.sparse {
        ("copies rows of a table that travels whole", "try sync.sparse_rows = true")
    } else if server.count < 2 {
        ("is about copies on other servers, and there are none", "try sync.servers = 2")
    } else {
        return None;
    };
    Some(facts.error(&involved, rule.to_owned(), fix.to_owned()))
}

/// Workers and servers are ranks of one group.
fn ranks_are_few(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.servers", "run.workers"];
    let (workers, most) = (facts.recipe.run.workers, MAX_WORKERS as usize);
    if !facts.sound(&involved) || facts.recipe.num_ranks() <= most {
        return None;
    }
    let rule = format!("and run.workers = {workers} are more than {most} together");
    let fix = match most.saturating_sub(workers) {
        0 => format!("try 1 and run.workers = {}", most - 1),
        left => format!("try {left}"),
    };
    Some(facts.error(&involved, rule, fix))
}

/// A reader that is kept behind is stale to begin with.
fn delay_is_bounded(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.read_delay", "sync.staleness", "sync.consistency"];
    let server = &facts.recipe.sync.server;
    let is_bounded = server.consistency == Consistency::Bounded;
    if !facts.sound(&involved) || !is_bounded || server.delay <= server.staleness {
        return None;
    }
    let rule = format!("is more than sync.staleness = {} allows", server.staleness);
    Some(facts.error(&involved, rule, format!("try {}", server.staleness)))
}

/// Nobody waits for more than there are.
fn quorum_can_come(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.quorum", "run.workers", "sync.group_workers", "sync.consistency"];
    let (server, recipe) = (&facts.recipe.sync.server, facts.recipe);
    let (most, size) = (recipe.num_pushers(), recipe.sync.group_workers);
    let is_elastic = server.consistency == Consistency::Elastic;
    if !facts.sound(&involved) || !is_elastic || server.quorum <= most {
        return None;
    }
    let groups = if size > 1 { format!(" in groups of {size}") } else { String::new() };
    let rule = format!("is more than run.workers = {}{groups}", recipe.run.workers);
    Some(facts.error(&involved, rule, format!("try {most}")))
}

/// A rule that bears liars bears only so many.
fn liars_are_few(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.liars", "run.workers", "sync.combine"];
    let (server, most) = (&facts.recipe.sync.server, facts.recipe.num_pushers());
    let num_heard = match server.consistency {
        Consistency::Elastic => server.quorum.min(most),
        _ => most,
    };
    let most = match server.combine {
        FederatedCombine::Mean | FederatedCombine::Median => return None,
        FederatedCombine::TrimmedMean => num_heard.saturating_sub(1) / 2,
        FederatedCombine::Krum => num_heard.saturating_sub(3) / 2,
    };
    if !facts.sound(&involved) || server.liars <= most {
        return None;
    }
    let rule = format!(
        "is more than sync.combine = \"{}\" bears among {num_heard} gradients of an update",
        server.combine
    );
    let fix =
        if most == 0 { "try sync.combine = \"median\"".to_owned() } else { format!("try {most}") };
    Some(facts.error(&involved, rule, fix))
}

/// Somebody must tell the truth.
fn honest_are_left(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.byzantine", "run.workers"];
    let (liars, workers) = (facts.recipe.sync.server.byzantine, facts.recipe.run.workers);
    if !facts.sound(&involved) || liars == 0 || liars < workers {
        return None;
    }
    let rule = format!("leaves nobody honest of run.workers = {workers}");
    Some(facts.error(&involved, rule, format!("try {}", workers.saturating_sub(1))))
}

/// A lie that is added to the gradients of others is theirs too.
fn liars_speak_for_themselves(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["sync.byzantine", "sync.group_workers"];
    let sync = &facts.recipe.sync;
    (sync.server.byzantine > 0 && sync.group_workers > 1 && facts.sound(&involved)).then(|| {
        let rule = "lie in sums of groups, where nobody can tell them from the others".to_owned();
        facts.error(&involved, rule, "try sync.group_workers = 0".to_owned())
    })
}
