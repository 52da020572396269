//! Rules about slices of layers: what they divide, and who holds them.

use super::{Facts, around};
use crate::error::{ConfigError, alternatives};
use crate::keys::{MAX_SLICES, MAX_WORKERS};
use crate::recipe::Model;

const SLICES: &str = "numerics.invariant_tensor_up_to";
const TENSOR: &str = "parallel.tensor";

/// Every broken rule about slices, in the order of the table of keys.
pub(super) fn broken(facts: &Facts<'_>) -> Vec<ConfigError> {
    if let Some(error) = slices_divide_layers(facts) {
        return vec![error];
    }
    let rules = [workers_hold_slices, tensor_divides_workers, slices_divide_rows];
    rules.iter().filter_map(|rule| rule(facts)).collect()
}

/// Heads, hidden numbers and tokens belong to one slice each, and all slices are alike.
fn slices_divide_layers(facts: &Facts<'_>) -> Option<ConfigError> {
    divides(facts, &[SLICES], facts.recipe.numerics.invariant_tensor_up_to)
}

/// A worker holds whole slices, as many as any other: a node of the tree that sums go by.
fn workers_hold_slices(facts: &Facts<'_>) -> Option<ConfigError> {
    let slices = facts.recipe.numerics.invariant_tensor_up_to;
    let tensor = facts.recipe.parallel.tensor;
    // Nobody asked for bits that do not depend on the workers.
    if slices == 1 {
        return divides(facts, &[TENSOR, SLICES], tensor);
    }
    if !facts.sound(&[TENSOR, SLICES]) || can_hold(facts, tensor) {
        return None;
    }
    let working: Vec<usize> = (1..=slices).filter(|n| can_hold(facts, *n)).collect();
    let rule = if tensor > slices {
        format!("is more than {SLICES} = {slices}")
    } else {
        format!("does not leave each worker a power of two of {SLICES} = {slices}")
    };
    let can_more = divides(facts, &[TENSOR, SLICES], tensor).is_none();
    let working = alternatives(&around(&working, tensor));
    let fix = if tensor > slices && can_more {
        format!("try {working}, or {SLICES} = {tensor}")
    } else {
        format!("try {working}")
    };
    Some(facts.error(&[TENSOR, SLICES], rule, fix))
}

/// Whether so many workers can hold the slices of a model.
fn can_hold(facts: &Facts<'_>, workers: usize) -> bool {
    let slices = facts.recipe.numerics.invariant_tensor_up_to;
    let is_node = slices.is_multiple_of(workers) && (slices / workers).is_power_of_two();
    let can_cut = || cut(&facts.recipe.model).iter().all(|(_, len)| len.is_multiple_of(workers));
    workers == 1 || is_node || (slices == 1 && can_cut())
}

/// Every copy of the model takes as many workers as its layers and its pipeline need.
fn tensor_divides_workers(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = [TENSOR, "run.workers", "parallel.pipeline"];
    let (tensor, workers) = (facts.recipe.parallel.tensor, facts.recipe.run.workers);
    let pipeline = facts.recipe.parallel.pipeline;
    // A pipeline that does not divide the workers has an error of its own.
    if !facts.sound(&involved) || !workers.is_multiple_of(pipeline) {
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
    let works = |n: &usize| left.is_multiple_of(*n) && can_hold(facts, *n);
    let working: Vec<usize> = (1..=left).filter(works).collect();
    let working = alternatives(&around(&working, tensor));
    let each = pipeline * tensor;
    let more = workers.div_ceil(each) * each;
    let most = (MAX_WORKERS as usize).min(facts.recipe.num_leaves() * each);
    let fix = if more > most || facts.is_set("parallel.data") {
        format!("try {working}")
    } else {
        format!("try {working}, or run.workers = {more}")
    };
    Some(facts.error(&involved, rule, fix))
}

/// Rows belong to one worker each, and all workers have as many.
fn slices_divide_rows(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["parallel.sequence", TENSOR, SLICES, "train.microbatch", "model.context"];
    let recipe = facts.recipe;
    let (slices, context) = (recipe.num_slices(), recipe.model.context);
    let rows = recipe.train.microbatch_size * context;
    let is_right = !recipe.parallel.sequence || rows.is_multiple_of(slices);
    if !facts.sound(&involved) || is_right {
        return None;
    }
    let rule = format!("divides {rows} rows of a micro-batch into {slices} slices");
    let more = context.next_multiple_of(slices);
    Some(facts.error(&involved, rule, format!("try false or model.context = {more}")))
}

/// What of a model is cut.
fn cut(model: &Model) -> [(&'static str, usize); 4] {
    let Model { heads, kv_heads, ffn, vocab, .. } = *model;
    [
        ("model.heads", heads),
        ("model.kv_heads", kv_heads),
        ("model.ffn", ffn),
        ("model.vocab", vocab),
    ]
}

/// An error about the first of `names`, whose value cuts the model into `num_slices`.
fn divides(facts: &Facts<'_>, names: &[&str], num_slices: usize) -> Option<ConfigError> {
    let model = &facts.recipe.model;
    let sound = facts.sound(names) && facts.sound(&cut(model).map(|(name, _)| name));
    if !sound || num_slices == 1 {
        return None;
    }
    if model.family.is_problem() {
        let rule = format!("cannot be with model.family = \"{}\"", model.family);
        return Some(facts.error(names, rule, "try 1".to_owned()));
    }
    let (name, len) = cut(model).into_iter().find(|(_, len)| !len.is_multiple_of(num_slices))?;
    let divides = |num: &usize| cut(model).iter().all(|(_, len)| len.is_multiple_of(*num));
    let working: Vec<usize> = (1..=MAX_SLICES as usize).filter(divides).collect();
    let involved: Vec<&str> = names.iter().copied().chain([name]).collect();
    let rule = format!("does not divide {name} = {len}");
    let fix = format!("try {}", alternatives(&around(&working, num_slices)));
    Some(facts.error(&involved, rule, fix))
}
