//! Rules about gradient compression.

use super::RuleContext;
use super::training::entry;
use crate::error::ConfigError;
use crate::recipe::{CompressMethod, CompressOverride, Dtype, OptimName, Recipe, SyncMode};

/// Every broken rule, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    if !context.recipe.compress.is_on() || !context.all_valid(&["compress.method"]) {
        return Vec::new();
    }
    let rules = [
        layout_is_data_parallel,
        servers_support_the_format,
        gradients_are_f32,
        workers_are_fixed,
        one_bit_adam_fits_the_optimizer,
        one_bit_adam_warms_up,
        momentum_is_applied_once,
        groups_have_equal_size,
        biased_methods_have_error_feedback,
    ];
    rules.iter().filter_map(|rule| rule(context)).chain(overrides_fit_the_method(context)).collect()
}

/// Every worker decompresses and sums the gradients of the whole model.
fn layout_is_data_parallel(context: &RuleContext<'_>) -> Option<ConfigError> {
    let (parallel, sync) = (&context.recipe.parallel, context.recipe.sync.mode);
    let why = "compresses the gradients of the whole model in every step";
    if parallel.zero > 0 {
        incompatible(context, "parallel.zero", "0", why)
    } else if parallel.pipeline > 1 {
        incompatible(context, "parallel.pipeline", "1", why)
    } else if parallel.tensor > 1 {
        incompatible(context, "parallel.tensor", "1", why)
    } else if sync != SyncMode::AllReduce && !is_for_servers(context) {
        incompatible(context, "sync.mode", "\"all-reduce\"", why)
    } else {
        None
    }
}

/// Whether servers decode the messages one by one.
fn is_for_servers(context: &RuleContext<'_>) -> bool {
    use CompressMethod::{Bf16, Fp16, Int8, Qsgd, Sign, TopK};
    let method = context.recipe.compress.method;
    context.recipe.sync.mode == SyncMode::ParameterServer
        && matches!(method, Bf16 | Fp16 | Int8 | Qsgd | TopK | Sign)
}

/// Servers decode every message in the same format, and sparse rows are not compressed.
fn servers_support_the_format(context: &RuleContext<'_>) -> Option<ConfigError> {
    let Recipe { compress, sync, .. } = context.recipe;
    if !is_for_servers(context) {
        return None;
    }
    let (key, better, why) = if compress.warmup_steps > 0 {
        ("compress.warmup_steps", "0", "has one format in all steps with parameter servers")
    } else if !compress.overrides.is_empty() {
        (
            "compress.overrides",
            "[]",
            "is not supported per tensor with parameter servers, which hold flat shards",
        )
    } else if compress.group_workers > 1 {
        ("compress.group_workers", "0", "is applied between each worker and the servers")
    } else if sync.server.rows.sparse {
        ("sync.sparse_rows", "false", "compresses the gradients of the whole model")
    } else {
        return None;
    };
    incompatible(context, key, better, why)
}

/// The wire format is that of the method, and error feedback needs a constant loss scale.
fn gradients_are_f32(context: &RuleContext<'_>) -> Option<ConfigError> {
    let precision = &context.recipe.precision;
    if precision.compute == Dtype::F16 {
        let why = "keeps compression errors, which need a constant loss scale";
        return incompatible(context, "precision.compute", "\"bf16\"", why);
    }
    if precision.wire != Dtype::F32 {
        let why = "sends gradients in its own format";
        return incompatible(context, "precision.wire", "\"f32\"", why);
    }
    None
}

/// The compression error of a worker is lost when the worker leaves.
fn workers_are_fixed(context: &RuleContext<'_>) -> Option<ConfigError> {
    let compress = &context.recipe.compress;
    let keeps = compress.error_feedback || compress.momentum > 0.0;
    let elastic = context.recipe.run.elastic.filter(|_| keeps)?;
    let why = "keeps compression errors on each worker, so the workers must not change";
    incompatible(context, "run.workers", &elastic.max.to_string(), why)
}

/// 1-bit Adam sends Adam's momentum of unclipped gradients, of all parameters in all steps.
fn one_bit_adam_fits_the_optimizer(context: &RuleContext<'_>) -> Option<ConfigError> {
    let optim = &context.recipe.optim;
    let changes = |group: &crate::Group| group.freeze_after.or(group.unfreeze_at).is_some();
    if optim.groups.iter().any(changes) {
        let why = "keeps compression errors of parameters, which must be trained throughout";
        return incompatible(context, "optim.groups", "[]", why);
    }
    if context.recipe.compress.method != CompressMethod::OneBitAdam {
        return None;
    }
    if !matches!(optim.name, OptimName::Adam | OptimName::AdamW) {
        return incompatible(context, "optim.name", "\"adamw\"", "sends the momentum of Adam");
    }
    if optim.clip > 0.0 {
        return incompatible(context, "optim.clip", "0.0", "sends momentum of unclipped gradients");
    }
    None
}

/// The second moments are frozen after the warm-up, so there must be one.
fn one_bit_adam_warms_up(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["compress.warmup_steps", "compress.method", "train.steps"];
    let compress = &context.recipe.compress;
    let is_cold = compress.method == CompressMethod::OneBitAdam && compress.warmup_steps == 0;
    if !is_cold || !context.all_valid(&involved) {
        return None;
    }
    let rule = "freezes Adam's second moments at zero".to_owned();
    let fix = format!("try {}", (context.recipe.train.steps / 5).max(1));
    Some(context.error(&involved, rule, fix))
}

/// Momentum before and after the selection would apply momentum twice.
fn momentum_is_applied_once(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["compress.momentum", "optim.name"];
    let (compress, name) = (&context.recipe.compress, context.recipe.optim.name);
    if compress.momentum <= 0.0 || name == OptimName::Sgd || !context.all_valid(&involved) {
        return None;
    }
    let rule =
        format!("is applied before optim.name = \"{name}\", which may have momentum of its own");
    Some(context.error(&involved, rule, "try 0.0, or optim.name = \"sgd\"".to_owned()))
}

/// Groups have equal sizes, and there are at least two.
fn groups_have_equal_size(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["compress.group_workers", "run.workers"];
    let (size, workers) = (context.recipe.compress.group_workers, context.recipe.run.workers);
    let fits = |size: usize| size < workers && workers.is_multiple_of(size);
    if !context.all_valid(&involved) || size < 2 || fits(size) {
        return None;
    }
    let sizes: Vec<String> = (2..workers).filter(|n| fits(*n)).map(|n| n.to_string()).collect();
    let rule = format!("does not divide run.workers = {workers} into groups");
    let fix =
        if sizes.is_empty() { "try 0".to_owned() } else { format!("try {}", sizes.join(", ")) };
    Some(context.error(&involved, rule, fix))
}

/// Each override sets one value that its method has.
fn overrides_fit_the_method(context: &RuleContext<'_>) -> Vec<ConfigError> {
    const NAME: &str = "compress.overrides";
    if !context.all_valid(&[NAME]) {
        return Vec::new();
    }
    let method = context.recipe.compress.method;
    let known = match method {
        CompressMethod::TopK | CompressMethod::RandomK | CompressMethod::Dgc => "ratio",
        CompressMethod::Qsgd => "bits",
        CompressMethod::PowerSgd => "rank",
        _ => "dense",
    };
    let check = |(index, rule): (usize, &CompressOverride)| {
        let set = [
            rule.dense.then_some("dense"),
            rule.ratio.map(|_| "ratio"),
            rule.bits.map(|_| "bits"),
            rule.rank.map(|_| "rank"),
        ];
        let set: Vec<&str> = set.into_iter().flatten().collect();
        if set == [known] || set == ["dense"] {
            return None;
        }
        let cell = format!("[{index}]");
        let error = entry(context, NAME, &cell, format!("{{{}}}", set.join(", ")));
        let rule = format!("has no effect on a tensor with compress.method = \"{method}\"");
        let fix = match known {
            "dense" => "try dense = true alone".to_owned(),
            known => format!("try {known} alone, or dense = true alone"),
        };
        Some(ConfigError { rule, fix, ..error })
    };
    context.recipe.compress.overrides.iter().enumerate().filter_map(check).collect()
}

/// A biased method needs error feedback.
fn biased_methods_have_error_feedback(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["compress.error_feedback", "compress.method", "compress.allow_biased"];
    let compress = &context.recipe.compress;
    let is_lossy = compress.is_biased() && !compress.error_feedback && !compress.allow_biased;
    if !is_lossy || !context.all_valid(&involved) {
        return None;
    }
    let method = compress.method;
    let rule = format!("is needed with compress.method = \"{method}\", which is biased");
    let fix = "try true, or compress.allow_biased = true for an experiment".to_owned();
    Some(context.error(&involved, rule, fix))
}

fn incompatible(
    context: &RuleContext<'_>,
    key: &str,
    better: &str,
    why: &str,
) -> Option<ConfigError> {
    context.incompatible(["compress.method", key], better, "none", why)
}
