//! Tensor parallelism: shards divide the layers, and ranks own whole shards.

use super::limits::{MAX_TENSOR_SHARDS, MAX_WORKERS};
use super::{Model, Parallel, Recipe};
use crate::error::ConfigError;
use crate::rule::{Rule, RuleContext, Rules, working};

const SHARDS: &str = "numerics.invariant_tensor_up_to";
const TENSOR: &str = "parallel.tensor";

pub(crate) const RULES: Rules = Rules::new(&[
    // Heads, hidden units and vocabulary entries divide evenly over the shards.
    Rule::new(&[SHARDS], |c| divides(c, c.numerics.invariant_tensor_up_to)),
    Rule::new(&[TENSOR, SHARDS], ranks_own_whole_shards),
    Rule::new(&[TENSOR, "run.workers", "parallel.pipeline"], tensor_divides_workers),
    // Sequence parallelism divides the rows of a micro-batch evenly.
    Rule::new(&["parallel.sequence", TENSOR, SHARDS, "train.microbatch", "model.context"], |c| {
        let (shards, sequence_len) = (c.num_tensor_shards(), c.model.context);
        let rows = c.train.microbatch_size * sequence_len;
        let rule = format!("divides {rows} rows of a micro-batch into {shards} shards");
        let more = sequence_len.next_multiple_of(shards);
        let is_broken = c.parallel.sequence && !rows.is_multiple_of(shards);
        c.refuse(is_broken, rule, format!("false or model.context = {more}"))
    }),
])
.first_ends();

/// Every rank owns equally many whole shards: one node of the reduction tree.
fn ranks_own_whole_shards(c: &RuleContext<'_>) -> Option<ConfigError> {
    let (shards, tensor) = (c.numerics.invariant_tensor_up_to, c.parallel.tensor);
    // Without invariance any degree that divides the layers works.
    if shards == 1 {
        return divides(c, tensor);
    }
    if is_possible_degree(c, tensor) {
        return None;
    }
    let working = working(shards, |degree| is_possible_degree(c, degree), tensor);
    let rule = if tensor > shards {
        format!("is more than {SHARDS} = {shards}")
    } else {
        format!("does not leave each rank a power of two of {SHARDS} = {shards}")
    };
    let fix = if tensor > shards && divides(c, tensor).is_none() {
        format!("{working}, or {SHARDS} = {tensor}")
    } else {
        working
    };
    c.refuse(true, rule, fix)
}

/// Whether this tensor-parallel degree is possible.
fn is_possible_degree(recipe: &Recipe, workers: usize) -> bool {
    let shards = recipe.numerics.invariant_tensor_up_to;
    let is_node = shards.is_multiple_of(workers) && (shards / workers).is_power_of_two();
    workers == 1 || is_node || (shards == 1 && divides_layers(&recipe.model, workers))
}

/// Every replica takes tensor-parallel times pipeline-parallel workers.
fn tensor_divides_workers(c: &RuleContext<'_>) -> Option<ConfigError> {
    let (workers, Parallel { tensor, pipeline, .. }) = (c.run.workers, &c.parallel);
    let left = workers / pipeline;
    // A pipeline that does not divide the workers has an error of its own.
    if !workers.is_multiple_of(*pipeline) || left.is_multiple_of(*tensor) {
        return None;
    }
    let rule = match pipeline {
        1 => format!("does not divide run.workers = {workers}"),
        _ => {
            format!("times parallel.pipeline = {pipeline} does not divide run.workers = {workers}")
        }
    };
    let works = |degree| left.is_multiple_of(degree) && is_possible_degree(c, degree);
    let working = working(left, works, *tensor);
    let each = pipeline * tensor;
    let more = workers.div_ceil(each) * each;
    let most = (MAX_WORKERS as usize).min(c.num_leaves() * each);
    let fix = if more > most || c.is_set("parallel.data") {
        working
    } else {
        format!("{working}, or run.workers = {more}")
    };
    c.refuse(true, rule, fix)
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

fn divides_layers(model: &Model, num_shards: usize) -> bool {
    dimensions(model).iter().all(|(_, len)| len.is_multiple_of(num_shards))
}

/// An error about the first key of the rule, whose value shards the model into `num_shards`.
fn divides(c: &RuleContext<'_>, num_shards: usize) -> Option<ConfigError> {
    let (model, dimensions) = (&c.model, dimensions(&c.model));
    if !c.all_valid(&dimensions.map(|(name, _)| name)) || num_shards == 1 {
        return None;
    }
    if model.family.is_problem() {
        let rule = format!("is not supported with model.family = \"{}\"", model.family);
        return c.refuse(true, rule, 1);
    }
    let (name, len) = dimensions.into_iter().find(|(_, len)| !len.is_multiple_of(num_shards))?;
    let works = |number| divides_layers(model, number);
    let working = working(MAX_TENSOR_SHARDS as usize, works, num_shards);
    let involved: Vec<&str> = c.keys.iter().copied().chain([name]).collect();
    let rule = format!("does not divide {name} = {len}");
    Some(c.error_about(&involved, rule, format!("try {working}")))
}
