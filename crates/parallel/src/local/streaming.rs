//! Streaming: the fragments of a model meet one after the other, not all at once.
//!
//! With rounds nothing travels for a while, and then everything. If the blocks of the model are cut
//! into fragments that are averaged in turn, each once in K steps, as many bytes are spread over
//! the round, and a link of a part of the bandwidth will do (Streaming DiLoCo, Douillard et al.
//! 2025). A fragment has its own anchor and its own part of the outer momentum, so it is a round of
//! its own; only at the end of the whole round do all fragments meet, and all workers agree.

use super::{OuterRule, Rounds};
use crate::replica::Replica;
use lockstep_comm::{CommError, Reduction};
use lockstep_model::{Blueprint, Param};
use lockstep_tensor::{Cpu, nesterov};

/// The parameters of one of `num_fragments`, each with its block.
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
    /// Averages one of `num_fragments` over all workers, inside a round; all of them do so
    /// together.
    pub fn meet_in_fragment(
        &mut self,
        cpu: &Cpu,
        fragment: usize,
        num_fragments: usize,
    ) -> Result<(), CommError> {
        let Self { rounds: Some(rounds), blueprint, store, device, .. } = self else {
            return Ok(());
        };
        let Rounds { all, rule, anchors, velocity, room, .. } = rounds;
        let places: Vec<_> = params_of_fragment(blueprint, fragment, num_fragments)
            .map(|(block, param)| store.buckets.place(block, param))
            .collect();
        room.clear();
        room.reserve_exact(places.iter().map(|(_, range)| range.len()).sum());
        for (bucket, range) in &places {
            let (params, anchor) = (store.own_params(*bucket), &anchors[*bucket]);
            let pairs = params[range.clone()].iter().zip(&anchor[range.clone()]);
            room.extend(pairs.map(|(param, start)| (param - start) * all.weight));
        }
        if room.is_empty() {
            return Ok(());
        }
        all.comm.all_reduce(room, Reduction::Sum)?;
        let mut rest = &mut room[..];
        for (bucket, range) in places {
            let (mean, behind) = rest.split_at_mut(range.len());
            let anchor = &mut anchors[bucket][range.clone()];
            match *rule {
                OuterRule::Average => {
                    anchor.iter_mut().zip(&*mean).for_each(|(param, change)| *param += change);
                }
                OuterRule::Nesterov { lr, momentum } => {
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
