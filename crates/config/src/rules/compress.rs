//! Rules about compression: where gradients are whole, and what must not be lost for good.

use super::Facts;
use super::training::entry;
use crate::error::ConfigError;
use crate::recipe::{CompressMethod, Dtype, Level, OptimName, Recipe, SyncMode};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    if !facts.recipe.compress.is_on() || !facts.sound(&["compress.method"]) {
        return Vec::new();
    }
    let rules = [
        gradients_are_whole,
        servers_read_all_alike,
        gradients_are_wide,
        workers_stay,
        adam_is_adam,
        adam_warms_up,
        momentum_is_one,
        groups_are_of_one_size,
        nothing_is_lost,
    ];
    rules.iter().filter_map(|rule| rule(facts)).chain(levels_say_something(facts)).collect()
}

/// Every worker adds up all that was written.
fn gradients_are_whole(facts: &Facts<'_>) -> Option<ConfigError> {
    let (parallel, sync) = (&facts.recipe.parallel, facts.recipe.sync.mode);
    let why = "writes gradients of the whole model, in every step";
    if parallel.zero > 0 {
        needs(facts, "parallel.zero", "0", why)
    } else if parallel.pipeline > 1 {
        needs(facts, "parallel.pipeline", "1", why)
    } else if parallel.tensor > 1 {
        needs(facts, "parallel.tensor", "1", why)
    } else if sync != SyncMode::AllReduce && !is_for_servers(facts) {
        needs(facts, "sync.mode", "\"all-reduce\"", why)
    } else {
        None
    }
}

/// Whether messages are for servers, who read each by itself.
fn is_for_servers(facts: &Facts<'_>) -> bool {
    use CompressMethod::{Bf16, Fp16, Int8, Qsgd, Sign, TopK};
    let method = facts.recipe.compress.method;
    facts.recipe.sync.mode == SyncMode::ParameterServer
        && matches!(method, Bf16 | Fp16 | Int8 | Qsgd | TopK | Sign)
}

/// Servers read every message in the same way, and rows are few as they are.
fn servers_read_all_alike(facts: &Facts<'_>) -> Option<ConfigError> {
    let Recipe { compress, sync, .. } = facts.recipe;
    if !is_for_servers(facts) {
        return None;
    }
    let (key, better, why) = if compress.warmup_steps > 0 {
        ("compress.warmup_steps", "0", "is read by servers, who do not count steps")
    } else if !compress.levels.is_empty() {
        ("compress.levels", "[]", "is read by servers, who know no tensors")
    } else if compress.group_workers > 1 {
        ("compress.group_workers", "0", "goes from each worker to servers")
    } else if sync.server.rows.sparse {
        ("sync.sparse_rows", "false", "writes gradients of the whole model")
    } else {
        return None;
    };
    needs(facts, key, better, why)
}

/// What is written is not rounded on its way too, and keeps no error that a scale has changed.
fn gradients_are_wide(facts: &Facts<'_>) -> Option<ConfigError> {
    let precision = &facts.recipe.precision;
    if precision.compute == Dtype::F16 {
        let why = "keeps what was left out, at one scale of the loss";
        return needs(facts, "precision.compute", "\"bf16\"", why);
    }
    if precision.wire != Dtype::F32 {
        let why = "writes gradients in a format of its own";
        return needs(facts, "precision.wire", "\"f32\"", why);
    }
    None
}

/// What a worker has left out so far has nowhere to go when it does.
fn workers_stay(facts: &Facts<'_>) -> Option<ConfigError> {
    let compress = &facts.recipe.compress;
    let keeps = compress.error_feedback || compress.momentum > 0.0;
    let elastic = facts.recipe.run.elastic.filter(|_| keeps)?;
    let why = "keeps what was left out on workers that must not come and go";
    needs(facts, "run.workers", &elastic.max.to_string(), why)
}

/// The momentum that travels is Adam's, of gradients that are not clipped; all of it all the time.
fn adam_is_adam(facts: &Facts<'_>) -> Option<ConfigError> {
    let optim = &facts.recipe.optim;
    let changes = |group: &crate::Group| group.freeze_after.or(group.unfreeze_at).is_some();
    if optim.groups.iter().any(changes) {
        let why = "keeps what was left out of parameters that are always trained";
        return needs(facts, "optim.groups", "[]", why);
    }
    if facts.recipe.compress.method != CompressMethod::OneBitAdam {
        return None;
    }
    if !matches!(optim.name, OptimName::Adam | OptimName::AdamW) {
        return needs(facts, "optim.name", "\"adamw\"", "sends the momentum of Adam");
    }
    if optim.clip > 0.0 {
        return needs(facts, "optim.clip", "0.0", "sends momentum that knows no clipping");
    }
    None
}

/// Second moments must be something before they are frozen.
fn adam_warms_up(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["compress.warmup_steps", "compress.method", "train.steps"];
    let compress = &facts.recipe.compress;
    let is_cold = compress.method == CompressMethod::OneBitAdam && compress.warmup_steps == 0;
    if !is_cold || !facts.sound(&involved) {
        return None;
    }
    let rule = "freezes second moments of Adam that are zero".to_owned();
    let fix = format!("try {}", (facts.recipe.train.steps / 5).max(1));
    Some(facts.error(&involved, rule, fix))
}

/// Momentum before and after the choice would be momentum twice.
fn momentum_is_one(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["compress.momentum", "optim.name"];
    let (compress, name) = (&facts.recipe.compress, facts.recipe.optim.name);
    if compress.momentum <= 0.0 || name == OptimName::Sgd || !facts.sound(&involved) {
        return None;
    }
    let rule = format!("is momentum before optim.name = \"{name}\", which may have its own");
    Some(facts.error(&involved, rule, "try 0.0, or optim.name = \"sgd\"".to_owned()))
}

/// Every worker is in a group as large as the others, and there are others.
fn groups_are_of_one_size(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["compress.group_workers", "run.workers"];
    let (size, workers) = (facts.recipe.compress.group_workers, facts.recipe.run.workers);
    let fits = |size: usize| size < workers && workers.is_multiple_of(size);
    if !facts.sound(&involved) || size < 2 || fits(size) {
        return None;
    }
    let sizes: Vec<String> = (2..workers).filter(|n| fits(*n)).map(|n| n.to_string()).collect();
    let rule = format!("does not divide run.workers = {workers} into groups");
    let fix =
        if sizes.is_empty() { "try 0".to_owned() } else { format!("try {}", sizes.join(", ")) };
    Some(facts.error(&involved, rule, fix))
}

/// Each level says one thing that its method knows of.
fn levels_say_something(facts: &Facts<'_>) -> Vec<ConfigError> {
    const NAME: &str = "compress.levels";
    if !facts.sound(&[NAME]) {
        return Vec::new();
    }
    let method = facts.recipe.compress.method;
    let known = match method {
        CompressMethod::TopK | CompressMethod::RandomK | CompressMethod::Dgc => "ratio",
        CompressMethod::Qsgd => "bits",
        CompressMethod::PowerSgd => "rank",
        _ => "dense",
    };
    let judge = |(index, level): (usize, &Level)| {
        let said = [
            level.dense.then_some("dense"),
            level.ratio.map(|_| "ratio"),
            level.bits.map(|_| "bits"),
            level.rank.map(|_| "rank"),
        ];
        let said: Vec<&str> = said.into_iter().flatten().collect();
        if said == [known] || said == ["dense"] {
            return None;
        }
        let cell = format!("[{index}]");
        let error = entry(facts, NAME, &cell, format!("{{{}}}", said.join(", ")));
        let rule = format!("is not what compress.method = \"{method}\" can do for a tensor");
        let fix = match known {
            "dense" => "try dense = true alone".to_owned(),
            known => format!("try {known} alone, or dense = true alone"),
        };
        Some(ConfigError { rule, fix, ..error })
    };
    facts.recipe.compress.levels.iter().enumerate().filter_map(judge).collect()
}

/// A biased method needs error feedback.
fn nothing_is_lost(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["compress.error_feedback", "compress.method", "compress.force"];
    let compress = &facts.recipe.compress;
    let is_lossy = compress.is_biased() && !compress.error_feedback && !compress.force;
    if !is_lossy || !facts.sound(&involved) {
        return None;
    }
    let method = compress.method;
    let rule = format!("leaves out the same every time with compress.method = \"{method}\"");
    let fix = "try true, or compress.force = true to see what comes of it".to_owned();
    Some(facts.error(&involved, rule, fix))
}

fn needs(facts: &Facts<'_>, key: &str, better: &str, why: &str) -> Option<ConfigError> {
    facts.needs(["compress.method", key], better, "none", why)
}
