//! Embedding rows that each worker's micro-batches select.
//!
//! They follow from a step's tokens: a row is looked up and has a gradient if its token is in a
//! micro-batch of the worker and the worker holds the row.

use lockstep_config::Recipe;
use lockstep_mesh::{Axis, Rank};
use lockstep_parallel::from_recipe;
use std::collections::BTreeSet;

/// Number of rows by rank in a step; `tokens_of` gives the tokens of a micro-batch.
pub fn by_rank<'a>(
    recipe: &Recipe,
    step: u64,
    tokens_of: impl Fn(usize) -> &'a [u32],
) -> Vec<usize> {
    let blueprint = from_recipe::blueprint_of_rank(recipe, 0);
    let plan = from_recipe::plan_at(recipe, &blueprint, step);
    let shares = plan.leaf_assignment();
    let of_part = |part: usize| -> BTreeSet<u32> {
        let microbatches = shares.microbatches_of(part, plan.leaves).into_iter();
        microbatches.flat_map(|microbatch| tokens_of(microbatch).iter().copied()).collect()
    };
    let parts: Vec<_> = (0..plan.shares.len()).map(of_part).collect();
    let (vocab, tp_ranks) = (recipe.model.vocab, plan.mesh.degree(Axis::Tensor));
    let of_rank = |rank: usize| {
        let at = |axis| plan.mesh.index(axis, Rank(rank));
        let tp_rank = at(Axis::Tensor);
        // Vocabulary shards are contiguous and of equal length.
        let held = vocab * tp_rank / tp_ranks..vocab * (tp_rank + 1) / tp_ranks;
        parts[at(Axis::Data)].iter().filter(|token| held.contains(&(**token as usize))).count()
    };
    (0..plan.mesh.num_ranks()).map(of_rank).collect()
}
