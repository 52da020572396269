//! Rules about pipeline parallelism: stages, layers and schedules.

use super::{RuleContext, around};
use crate::error::{ConfigError, alternatives};
use crate::keys::MAX_WORKERS;
use crate::recipe::{Parallel, Partition, PipelineSchedule, even_shares};
use crate::value_type::shares_text;

/// Blocks of a model besides its layers: the embedding and the output head.
const NUM_ENDS: usize = 2;

/// Every broken rule about pipelines, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    if let Some(error) = model_has_layers(context) {
        return vec![error];
    }
    let rules = [
        pipeline_divides_workers,
        stages_have_blocks,
        schedule_supports_virtual_stages,
        stages_cover_the_layers,
        partition_is_automatic,
    ];
    rules.iter().filter_map(|rule| rule(context)).collect()
}

/// A small problem has no layers to divide.
fn model_has_layers(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["parallel.pipeline", "model.family"];
    let family = context.recipe.model.family;
    let is_one = context.recipe.parallel.num_stages() == 1;
    if !context.all_valid(&involved) || !family.is_problem() || is_one {
        return None;
    }
    let key =
        if context.recipe.parallel.pipeline > 1 { involved[0] } else { "parallel.virtual_stages" };
    let rule = format!("divides layers, which model.family = \"{family}\" does not have");
    Some(context.error(&[key, involved[1]], rule, "try 1".to_owned()))
}

/// Every replica takes as many workers as the pipeline has ranks.
fn pipeline_divides_workers(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["parallel.pipeline", "run.workers"];
    let (pipeline, workers) = (context.recipe.parallel.pipeline, context.recipe.run.workers);
    if !context.all_valid(&involved) || workers.is_multiple_of(pipeline) {
        return None;
    }
    let rule = format!("does not divide run.workers = {workers}");
    let divisors: Vec<usize> = (1..=workers).filter(|n| workers.is_multiple_of(*n)).collect();
    let working = alternatives(&around(&divisors, pipeline));
    let (below, above) = (workers / pipeline * pipeline, (workers / pipeline + 1) * pipeline);
    let most = (MAX_WORKERS as usize).min(context.recipe.num_leaves() * pipeline);
    let others: Vec<usize> =
        [below, above].into_iter().filter(|n| (1..=most).contains(n)).collect();
    let fix = if others.is_empty() || context.is_set("parallel.data") {
        format!("try {working}")
    } else {
        format!("try {working}, or run.workers = {}", alternatives(&others))
    };
    Some(context.error(&involved, rule, fix))
}

/// A stage has at least one block.
fn stages_have_blocks(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["parallel.pipeline", "parallel.virtual_stages", "model.layers"];
    let parallel = &context.recipe.parallel;
    let (layers, stages) = (context.recipe.model.layers, parallel.num_stages());
    let blocks = layers + NUM_ENDS;
    if !context.all_valid(&involved) || stages <= blocks {
        return None;
    }
    let (pipeline, chunks) = (parallel.pipeline, parallel.virtual_stages);
    let rule =
        format!("makes {stages} stages, more than the {blocks} blocks of model.layers = {layers}");
    let more = format!("model.layers = {}", stages - NUM_ENDS);
    if chunks > 1 {
        let most = (blocks / pipeline).max(1);
        let names = ["parallel.virtual_stages", "parallel.pipeline", "model.layers"];
        return Some(context.error(&names, rule, format!("try {most} or {more}")));
    }
    let divides = |n: &usize| context.recipe.run.workers.is_multiple_of(*n);
    let most = (1..=blocks).rev().find(divides).unwrap_or(1);
    Some(context.error(&involved, rule, format!("try {most} or {more}")))
}

/// Only the interleaved schedule has virtual stages.
fn schedule_supports_virtual_stages(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["parallel.virtual_stages", "parallel.schedule"];
    let (chunks, schedule) =
        (context.recipe.parallel.virtual_stages, context.recipe.parallel.schedule);
    let is_right = chunks == 1 || schedule == PipelineSchedule::Interleaved;
    if !context.all_valid(&involved) || is_right {
        return None;
    }
    let rule = format!("needs an interleaved schedule, and parallel.schedule = \"{schedule}\"");
    let fix = "try 1 or parallel.schedule = \"interleaved\"".to_owned();
    Some(context.error(&involved, rule, fix))
}

/// The layers of the stages add up to the layers of the model.
fn stages_cover_the_layers(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved =
        ["parallel.stage_layers", "parallel.pipeline", "parallel.virtual_stages", "model.layers"];
    let parallel = &context.recipe.parallel;
    let (layers, stages) = (context.recipe.model.layers, parallel.num_stages());
    if !context.all_valid(&involved) || parallel.stage_layers.is_empty() {
        return None;
    }
    // Every listed stage has at least one layer.
    let even =
        if stages <= layers { shares_text(&even_shares(layers, stages)) } else { String::new() };
    let num_listed = parallel.stage_layers.len();
    if num_listed != stages {
        let word = if num_listed == 1 { "number" } else { "numbers" };
        let rule = format!("has {num_listed} {word} for {stages} stages");
        return Some(context.error(&involved[..3], rule, format!("try \"{even}\"")));
    }
    let sum = parallel.stage_layers.iter().fold(0_usize, |sum, layers| sum.saturating_add(*layers));
    if sum != layers {
        let rule = format!("makes {sum} layers where model.layers = {layers}");
        return Some(context.error(&involved, rule, format!("try \"{even}\"")));
    }
    None
}

/// Stages are listed or balanced automatically, not both.
fn partition_is_automatic(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["parallel.partition", "parallel.stage_layers"];
    let Parallel { partition, stage_layers: stages, .. } = &context.recipe.parallel;
    if !context.all_valid(&involved) || *partition == Partition::Flops || stages.is_empty() {
        return None;
    }
    let rule = format!("has no effect with parallel.stage_layers = \"{}\"", shares_text(stages));
    let fix = "try \"flops\" or parallel.stage_layers = \"\"".to_owned();
    Some(context.error(&involved, rule, fix))
}
