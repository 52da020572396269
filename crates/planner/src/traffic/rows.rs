//! How many rows of an embedding's table the micro-batches of each worker touch.
//!
//! That is known once a step's tokens are: a row has a gradient where its token is in a micro-batch of the
//! worker, and the worker holds the row.

use lockstep_config::Recipe;
use lockstep_mesh::{Axis, Rank};
use lockstep_parallel::asked;
use std::collections::BTreeSet;

/// By rank, in a step; `tokens_of` gives the tokens that a micro-batch of the batch reads.
pub fn by_rank<'a>(
    recipe: &Recipe,
    step: u64,
    tokens_of: impl Fn(usize) -> &'a [u32],
) -> Vec<usize> {
    let blueprint = asked::blueprint_on(recipe, 0);
    let plan = asked::plan_at(recipe, &blueprint, step);
    let shares = plan.leaf_shares();
    let of_part = |part: usize| -> BTreeSet<u32> {
        let microbatches = shares.microbatches_of(part, plan.leaves).into_iter();
        microbatches.flat_map(|microbatch| tokens_of(microbatch).iter().copied()).collect()
    };
    let parts: Vec<BTreeSet<u32>> = (0..plan.shares.len()).map(of_part).collect();
    let (vocab, holders) = (recipe.model.vocab, plan.mesh.degree(Axis::Tensor));
    let of_rank = |rank: usize| {
        let at = |axis| plan.mesh.index(axis, Rank(rank));
        let holder = at(Axis::Tensor);
        // Slices of the vocabulary follow each other and are equally long.
        let held = vocab * holder / holders..vocab * (holder + 1) / holders;
        parts[at(Axis::Data)].iter().filter(|token| held.contains(&(**token as usize))).count()
    };
    (0..plan.mesh.num_ranks()).map(of_rank).collect()
}
