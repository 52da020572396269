//! Streaming DiLoCo (Douillard et al. 2025): the fragments of a model are averaged in turn, not all
//! at once.
//!
//! Local SGD sends nothing for most of a round and then everything. With the blocks cut into
//! fragments that are averaged in turn, each once in K steps, the same bytes are spread over the
//! round and a link of a fraction of the bandwidth suffices. A fragment has its own anchor and its
//! own part of the outer momentum, so it has its own round; at the end of the whole round all
//! fragments are averaged and all ranks hold the same weights.

use super::{LocalSgd, OuterOptimizer};
use crate::replica::Replica;
use lockstep_comm::{CommError, Reduction};
use lockstep_model::{Blueprint, Param};
use lockstep_tensor::{Cpu, nesterov};

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

impl Replica {
    /// Averages one of `num_fragments` fragments over all ranks, inside a round. Collective.
    pub fn average_fragment(
        &mut self,
        cpu: &Cpu,
        fragment: usize,
        num_fragments: usize,
    ) -> Result<(), CommError> {
        let Self { local_sgd: Some(local_sgd), blueprint, store, device, .. } = self else {
            return Ok(());
        };
        let LocalSgd { all, rule, anchors, velocity, buffer, .. } = local_sgd;
        let places: Vec<_> = params_of_fragment(blueprint, fragment, num_fragments)
            .map(|(block, param)| store.buckets.place(block, param))
            .collect();
        buffer.clear();
        buffer.reserve_exact(places.iter().map(|(_, range)| range.len()).sum());
        for (bucket, range) in &places {
            let (params, anchor) = (store.own_params(*bucket), &anchors[*bucket]);
            let pairs = params[range.clone()].iter().zip(&anchor[range.clone()]);
            buffer.extend(pairs.map(|(param, start)| (param - start) * all.weight));
        }
        if buffer.is_empty() {
            return Ok(());
        }
        all.comm.all_reduce(buffer, Reduction::Sum)?;
        let mut rest = &mut buffer[..];
        for (bucket, range) in places {
            let (mean, behind) = rest.split_at_mut(range.len());
            let anchor = &mut anchors[bucket][range.clone()];
            match *rule {
                OuterOptimizer::Average => {
                    anchor.iter_mut().zip(&*mean).for_each(|(param, change)| *param += change);
                }
                OuterOptimizer::Nesterov { lr, momentum } => {
                    for change in &mut *mean {
                        *change = -*change;
                    }
                    let velocity = &mut velocity[bucket][range.clone()];
                    nesterov::step(cpu, lr, momentum, 0.0, 1.0, anchor, mean, velocity);
                }
            }
            store.own_params_mut(bucket)[range].copy_from_slice(anchor);
            rest = behind;
        }
        store.publish(&mut device.link)
    }
}
