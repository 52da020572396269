//! Rules about pipelines: how many stages there may be, and what each schedule asks for.

use super::{Facts, around};
use crate::error::{ConfigError, alternatives};
use crate::keys::MAX_WORKERS;
use crate::kind::shares_text;
use crate::recipe::{Parallel, Partition, PipelineSchedule, even_shares};

/// Blocks of a model besides its layers: what reads tokens, and what ends in the loss.
const NUM_ENDS: usize = 2;

/// Every broken rule about pipelines, in the order of the table of keys.
pub(super) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    if let Some(error) = pipeline_suits_model(facts) {
        return vec![error];
    }
    let rules = [
        pipeline_divides_workers,
        stages_have_blocks,
        schedule_suits,
        stages_are_layers,
        stages_are_chosen_once,
    ];
    rules.iter().filter_map(|rule| rule(facts)).collect()
}

/// A small problem is over before a pipeline would be full.
fn pipeline_suits_model(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["parallel.pipeline", "model.family"];
    let family = facts.recipe.model.family;
    let is_one = facts.recipe.parallel.num_stages() == 1;
    if !facts.sound(&involved) || !family.is_problem() || is_one {
        return None;
    }
    let key =
        if facts.recipe.parallel.pipeline > 1 { involved[0] } else { "parallel.virtual_stages" };
    let rule = format!("cuts layers, of which model.family = \"{family}\" has none");
    Some(facts.error(&[key, involved[1]], rule, "try 1".to_owned()))
}

/// Every copy of the model takes as many workers as its pipeline has.
fn pipeline_divides_workers(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["parallel.pipeline", "run.workers"];
    let (pipeline, workers) = (facts.recipe.parallel.pipeline, facts.recipe.run.workers);
    if !facts.sound(&involved) || workers.is_multiple_of(pipeline) {
        return None;
    }
    let rule = format!("does not divide run.workers = {workers}");
    let divisors: Vec<usize> = (1..=workers).filter(|n| workers.is_multiple_of(*n)).collect();
    let working = alternatives(&around(&divisors, pipeline));
    let (below, above) = (workers / pipeline * pipeline, (workers / pipeline + 1) * pipeline);
    let most = (MAX_WORKERS as usize).min(facts.recipe.num_leaves() * pipeline);
    let others: Vec<usize> =
        [below, above].into_iter().filter(|n| (1..=most).contains(n)).collect();
    let fix = if others.is_empty() || facts.is_set("parallel.data") {
        format!("try {working}")
    } else {
        format!("try {working}, or run.workers = {}", alternatives(&others))
    };
    Some(facts.error(&involved, rule, fix))
}

/// A stage has at least one block.
fn stages_have_blocks(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["parallel.pipeline", "parallel.virtual_stages", "model.layers"];
    let parallel = &facts.recipe.parallel;
    let (layers, stages) = (facts.recipe.model.layers, parallel.num_stages());
    let blocks = layers + NUM_ENDS;
    if !facts.sound(&involved) || stages <= blocks {
        return None;
    }
    let (pipeline, chunks) = (parallel.pipeline, parallel.virtual_stages);
    let rule = format!(
        "makes {stages} stages of the {blocks} blocks of model.layers = {layers}, of which each \
         needs one"
    );
    let more = format!("model.layers = {}", stages - NUM_ENDS);
    if chunks > 1 {
        let most = (blocks / pipeline).max(1);
        let names = ["parallel.virtual_stages", "parallel.pipeline", "model.layers"];
        return Some(facts.error(&names, rule, format!("try {most} or {more}")));
    }
    let divides = |n: &usize| facts.recipe.run.workers.is_multiple_of(*n);
    let most = (1..=blocks).rev().find(divides).unwrap_or(1);
    Some(facts.error(&involved, rule, format!("try {most} or {more}")))
}

/// Only one schedule has several stages a worker.
fn schedule_suits(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["parallel.virtual_stages", "parallel.schedule"];
    let (chunks, schedule) = (facts.recipe.parallel.virtual_stages, facts.recipe.parallel.schedule);
    let is_right = chunks == 1 || schedule == PipelineSchedule::Interleaved;
    if !facts.sound(&involved) || is_right {
        return None;
    }
    let rule = format!("needs several stages a worker, and \"{schedule}\" has one");
    let fix = "try 1 or parallel.schedule = \"interleaved\"".to_owned();
    Some(facts.error(&involved, rule, fix))
}

/// What is asked for by stage is all layers, once.
fn stages_are_layers(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved =
        ["parallel.stages", "parallel.pipeline", "parallel.virtual_stages", "model.layers"];
    let parallel = &facts.recipe.parallel;
    let (layers, stages) = (facts.recipe.model.layers, parallel.num_stages());
    if !facts.sound(&involved) || parallel.stages.is_empty() {
        return None;
    }
    // Every stage that is named has a layer, so no more can be named than there are.
    let even =
        if stages <= layers { shares_text(&even_shares(layers, stages)) } else { String::new() };
    let num_named = parallel.stages.len();
    if num_named != stages {
        let word = if num_named == 1 { "number" } else { "numbers" };
        let rule = format!("has {num_named} {word} for {stages} stages");
        return Some(facts.error(&involved[..3], rule, format!("try \"{even}\"")));
    }
    let sum = parallel.stages.iter().fold(0_usize, |sum, layers| sum.saturating_add(*layers));
    if sum != layers {
        let rule = format!("makes {sum} layers where model.layers = {layers}");
        return Some(facts.error(&involved, rule, format!("try \"{even}\"")));
    }
    None
}

/// Stages are asked for or measured.
fn stages_are_chosen_once(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["parallel.partition", "parallel.stages"];
    let Parallel { partition, stages, .. } = &facts.recipe.parallel;
    if !facts.sound(&involved) || *partition == Partition::Flops || stages.is_empty() {
        return None;
    }
    let rule = format!("has nothing to choose with parallel.stages = \"{}\"", shares_text(stages));
    let fix = "try \"flops\" or parallel.stages = \"\"".to_owned();
    Some(facts.error(&involved, rule, fix))
}
