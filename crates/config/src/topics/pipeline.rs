//! Pipeline parallelism: stages, layers and schedules.

use super::limits::MAX_WORKERS;
use super::parallel::{count_and_sum, even_shares};
use super::{Parallel, Partition, PipelineSchedule};
use crate::error::{ConfigError, alternatives};
use crate::rule::{Rule, RuleContext, Rules, working};
use crate::value_type::shares_text;

/// Blocks of a model besides its layers: the embedding and the output head.
const NUM_ENDS: usize = 2;

pub(crate) const RULES: Rules = Rules::new(&[
    // A small problem has no layers to divide.
    Rule::new(&["parallel.pipeline", "model.family"], |c| {
        let (parallel, family) = (&c.parallel, c.model.family);
        let is_pipeline = parallel.pipeline > 1;
        let key = if is_pipeline { "parallel.pipeline" } else { "parallel.virtual_stages" };
        let rule = format!("divides layers, which model.family = \"{family}\" does not have");
        let is_broken = family.is_problem() && parallel.num_stages() > 1;
        is_broken.then(|| c.error_about(&[key, "model.family"], rule, "try 1"))
    }),
    Rule::new(&["parallel.pipeline", "run.workers"], pipeline_divides_workers),
    Rule::new(
        &["parallel.pipeline", "parallel.virtual_stages", "model.layers"],
        stages_have_blocks,
    ),
    // Only the interleaved schedule has virtual stages.
    Rule::new(&["parallel.virtual_stages", "parallel.schedule"], |c| {
        let schedule = c.parallel.schedule;
        let is_broken = c.parallel.virtual_stages > 1 && schedule != PipelineSchedule::Interleaved;
        let rule = format!("needs an interleaved schedule, and parallel.schedule = \"{schedule}\"");
        c.refuse(is_broken, rule, "1 or parallel.schedule = \"interleaved\"")
    }),
    Rule::new(
        &["parallel.stage_layers", "parallel.pipeline", "parallel.virtual_stages", "model.layers"],
        stages_cover_the_layers,
    ),
    // Stages are listed or balanced automatically, not both.
    Rule::new(&["parallel.partition", "parallel.stage_layers"], |c| {
        let Parallel { partition, stage_layers: stages, .. } = &c.parallel;
        let is_broken = *partition != Partition::Flops && !stages.is_empty();
        let rule =
            format!("has no effect with parallel.stage_layers = \"{}\"", shares_text(stages));
        c.refuse(is_broken, rule, "\"flops\" or parallel.stage_layers = \"\"")
    }),
])
.first_ends();

/// Every replica takes as many workers as the pipeline has ranks.
fn pipeline_divides_workers(c: &RuleContext<'_>) -> Option<ConfigError> {
    let (pipeline, workers) = (c.parallel.pipeline, c.run.workers);
    if workers.is_multiple_of(pipeline) {
        return None;
    }
    let rule = format!("does not divide run.workers = {workers}");
    let working = working(workers, |degree| workers.is_multiple_of(degree), pipeline);
    let (below, above) = (workers / pipeline * pipeline, (workers / pipeline + 1) * pipeline);
    let most = (MAX_WORKERS as usize).min(c.num_leaves() * pipeline);
    let others: Vec<usize> =
        [below, above].into_iter().filter(|n| (1..=most).contains(n)).collect();
    let fix = if others.is_empty() || c.is_set("parallel.data") {
        working
    } else {
        format!("{working}, or run.workers = {}", alternatives(&others))
    };
    c.refuse(true, rule, fix)
}

/// A stage has at least one block.
fn stages_have_blocks(c: &RuleContext<'_>) -> Option<ConfigError> {
    let Parallel { pipeline, virtual_stages, .. } = c.parallel;
    let (layers, stages) = (c.model.layers, c.parallel.num_stages());
    let blocks = layers + NUM_ENDS;
    if stages <= blocks {
        return None;
    }
    let rule =
        format!("makes {stages} stages, more than the {blocks} blocks of model.layers = {layers}");
    let more = format!("model.layers = {}", stages - NUM_ENDS);
    if virtual_stages > 1 {
        let most = (blocks / pipeline).max(1);
        let names = ["parallel.virtual_stages", "parallel.pipeline", "model.layers"];
        return Some(c.error_about(&names, rule, format!("try {most} or {more}")));
    }
    let divides = |degree: &usize| c.run.workers.is_multiple_of(*degree);
    let most = (1..=blocks).rev().find(divides).unwrap_or(1);
    c.refuse(true, rule, format!("{most} or {more}"))
}

/// The layers of the stages add up to the layers of the model.
fn stages_cover_the_layers(c: &RuleContext<'_>) -> Option<ConfigError> {
    let (parallel, layers) = (&c.parallel, c.model.layers);
    let stages = parallel.num_stages();
    if parallel.stage_layers.is_empty() {
        return None;
    }
    // Every listed stage has at least one layer.
    let even =
        if stages <= layers { shares_text(&even_shares(layers, stages)) } else { String::new() };
    let (count, sum) = count_and_sum(&parallel.stage_layers);
    if parallel.stage_layers.len() != stages {
        let rule = format!("has {count} for {stages} stages");
        return Some(c.error_about(&c.keys[..3], rule, format!("try \"{even}\"")));
    }
    let rule = format!("makes {sum} layers where model.layers = {layers}");
    c.refuse(sum != layers, rule, format!("\"{even}\""))
}
