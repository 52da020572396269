//! Rules about tensor parallelism: shards divide the layers, and ranks own whole shards.

use super::{RuleContext, around};
use crate::error::{ConfigError, alternatives};
use crate::keys::{MAX_TENSOR_SHARDS, MAX_WORKERS};
use crate::recipe::Model;

const SHARDS: &str = "numerics.invariant_tensor_up_to";
const TENSOR: &str = "parallel.tensor";

/// Every broken rule about tensor parallelism, in the order of the table of keys.
pub(super) fn broken(context: &RuleContext<'_>) -> Vec<ConfigError> {
    if let Some(error) = shards_divide_layers(context) {
        return vec![error];
    }
    let rules = [ranks_own_whole_shards, tensor_divides_workers, shards_divide_rows];
    rules.iter().filter_map(|rule| rule(context)).collect()
}

/// Heads, hidden units and vocabulary entries divide evenly over the shards.
fn shards_divide_layers(context: &RuleContext<'_>) -> Option<ConfigError> {
    divides(context, &[SHARDS], context.recipe.numerics.invariant_tensor_up_to)
}

/// Every rank owns equally many whole shards: one node of the reduction tree.
fn ranks_own_whole_shards(context: &RuleContext<'_>) -> Option<ConfigError> {
    let shards = context.recipe.numerics.invariant_tensor_up_to;
    let tensor = context.recipe.parallel.tensor;
    // Without invariance any degree that divides the layers works.
    if shards == 1 {
        return divides(context, &[TENSOR, SHARDS], tensor);
    }
    if !context.all_valid(&[TENSOR, SHARDS]) || is_possible_degree(context, tensor) {
        return None;
    }
    let working: Vec<usize> = (1..=shards).filter(|n| is_possible_degree(context, *n)).collect();
    let rule = if tensor > shards {
        format!("is more than {SHARDS} = {shards}")
    } else {
        format!("does not leave each rank a power of two of {SHARDS} = {shards}")
    };
    let can_more = divides(context, &[TENSOR, SHARDS], tensor).is_none();
    let working = alternatives(&around(&working, tensor));
    let fix = if tensor > shards && can_more {
        format!("try {working}, or {SHARDS} = {tensor}")
    } else {
        format!("try {working}")
    };
    Some(context.error(&[TENSOR, SHARDS], rule, fix))
}

/// Whether this tensor-parallel degree is possible.
fn is_possible_degree(context: &RuleContext<'_>, workers: usize) -> bool {
    let shards = context.recipe.numerics.invariant_tensor_up_to;
    let is_node = shards.is_multiple_of(workers) && (shards / workers).is_power_of_two();
    let divides_layers =
        || dimensions(&context.recipe.model).iter().all(|(_, len)| len.is_multiple_of(workers));
    workers == 1 || is_node || (shards == 1 && divides_layers())
}

/// Every replica takes tensor-parallel times pipeline-parallel workers.
fn tensor_divides_workers(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = [TENSOR, "run.workers", "parallel.pipeline"];
    let (tensor, workers) = (context.recipe.parallel.tensor, context.recipe.run.workers);
    let pipeline = context.recipe.parallel.pipeline;
    // A pipeline that does not divide the workers has an error of its own.
    if !context.all_valid(&involved) || !workers.is_multiple_of(pipeline) {
        return None;
    }
    let left = workers / pipeline;
    if left.is_multiple_of(tensor) {
        return None;
    }
    let rule = match pipeline {
        1 => format!("does not divide run.workers = {workers}"),
        _ => {
            format!("times parallel.pipeline = {pipeline} does not divide run.workers = {workers}")
        }
    };
    let works = |n: &usize| left.is_multiple_of(*n) && is_possible_degree(context, *n);
    let working: Vec<usize> = (1..=left).filter(works).collect();
    let working = alternatives(&around(&working, tensor));
    let each = pipeline * tensor;
    let more = workers.div_ceil(each) * each;
    let most = (MAX_WORKERS as usize).min(context.recipe.num_leaves() * each);
    let fix = if more > most || context.is_set("parallel.data") {
        format!("try {working}")
    } else {
        format!("try {working}, or run.workers = {more}")
    };
    Some(context.error(&involved, rule, fix))
}

/// Sequence parallelism divides the rows of a micro-batch evenly.
fn shards_divide_rows(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["parallel.sequence", TENSOR, SHARDS, "train.microbatch", "model.context"];
    let recipe = context.recipe;
    let (shards, sequence_len) = (recipe.num_tensor_shards(), recipe.model.context);
    let rows = recipe.train.microbatch_size * sequence_len;
    let is_right = !recipe.parallel.sequence || rows.is_multiple_of(shards);
    if !context.all_valid(&involved) || is_right {
        return None;
    }
    let rule = format!("divides {rows} rows of a micro-batch into {shards} shards");
    let more = sequence_len.next_multiple_of(shards);
    Some(context.error(&involved, rule, format!("try false or model.context = {more}")))
}

/// The dimensions of a model that tensor parallelism shards.
fn dimensions(model: &Model) -> [(&'static str, usize); 4] {
    let Model { heads, kv_heads, ffn, vocab, .. } = *model;
    [
        ("model.heads", heads),
        ("model.kv_heads", kv_heads),
        ("model.ffn", ffn),
        ("model.vocab", vocab),
    ]
}

/// An error about the first of `names`, whose value shards the model into `num_shards`.
fn divides(context: &RuleContext<'_>, names: &[&str], num_shards: usize) -> Option<ConfigError> {
    let model = &context.recipe.model;
    let all_valid =
        context.all_valid(names) && context.all_valid(&dimensions(model).map(|(name, _)| name));
    if !all_valid || num_shards == 1 {
        return None;
    }
    if model.family.is_problem() {
        let rule = format!("is not supported with model.family = \"{}\"", model.family);
        return Some(context.error(names, rule, "try 1".to_owned()));
    }
    let (name, len) =
        dimensions(model).into_iter().find(|(_, len)| !len.is_multiple_of(num_shards))?;
    let divides = |num: &usize| dimensions(model).iter().all(|(_, len)| len.is_multiple_of(*num));
    let working: Vec<usize> = (1..=MAX_TENSOR_SHARDS as usize).filter(divides).collect();
    let involved: Vec<&str> = names.iter().copied().chain([name]).collect();
    let rule = format!("does not divide {name} = {len}");
    let fix = format!("try {}", alternatives(&around(&working, num_shards)));
    Some(context.error(&involved, rule, fix))
}
