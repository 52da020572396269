//! Streaming DiLoCo (Douillard et al. 2025): the fragments of a model are averaged in turn, not all
//! at once.
//!
//! Local SGD sends nothing for most of a round and then everything. With the blocks cut into
//! fragments that are averaged in turn, each once in K steps, the same bytes are spread over the
//! round and a link of a fraction of the bandwidth suffices. A fragment has its own anchor and its
//! own part of the outer momentum, so it has its own round; at the end of the whole round all
//! fragments are averaged and all ranks hold the same weights.

use super::{LocalSgd, apply};
use crate::strategy::StrategyContext;
use lockstep_comm::{CommError, Reduction};
use lockstep_model::{Blueprint, Param};
use lockstep_tensor::Cpu;

/// Parameters of one of `num_fragments` fragments, each with its block.
pub fn params_of_fragment(
    blueprint: &Blueprint,
    fragment: usize,
    num_fragments: usize,
) -> impl Iterator<Item = (usize, &Param)> {
    let num_blocks = blueprint.blocks.len();
    let is_here = move |block: usize| block * num_fragments / num_blocks == fragment;
    blueprint.owned_params().filter(move |(block, _)| is_here(*block))
}

impl LocalSgd {
    /// Averages a fragment over all ranks, inside a round. Collective.
    pub(super) fn average_fragment(
        &mut self,
        cpu: &Cpu,
        fragment: usize,
        at: &mut StrategyContext<'_>,
    ) -> Result<(), CommError> {
        let Self { recipe, all, rule, anchors, velocity, buffer, .. } = self;
        let store = &mut *at.store;
        let places: Vec<_> = params_of_fragment(at.blueprint, fragment, recipe.sync.fragments)
            .map(|(block, param)| store.buckets.place(block, param))
            .collect();
        buffer.clear();
        buffer.reserve_exact(places.iter().map(|(_, range)| range.len()).sum());
        for (bucket, range) in &places {
            let (params, anchor) = (store.own_params(*bucket), &anchors[*bucket]);
            let pairs = params[range.clone()].iter().zip(&anchor[range.clone()]);
            buffer.extend(pairs.map(|(param, start)| (param - start) * all.weight));
        }
        all.comm.all_reduce(buffer, Reduction::Sum)?;
        let mut rest = &mut buffer[..];
        for (bucket, range) in places {
            let (mean, behind) = rest.split_at_mut(range.len());
            let anchor = &mut anchors[bucket][range.clone()];
            let velocity = velocity.get_mut(bucket).map(|bucket| &mut bucket[range.clone()]);
            apply(cpu, *rule, anchor, mean, velocity);
            store.own_params_mut(bucket)[range].copy_from_slice(anchor);
            rest = behind;
        }
        Ok(())
    }
}
