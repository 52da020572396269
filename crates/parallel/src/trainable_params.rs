//! Trainable and frozen parameters of a phase of a run.
//!
//! A frozen parameter has no gradient: no memory, no computation, no communication. Gradients lie
//! in buckets of their own, which are the parameter buckets without the frozen parameters; a rank's
//! shard of the gradients is what remains of its shard of the parameters. Backward passes through a
//! frozen block if an earlier block is trained, and ends at the first trained block.

use crate::buckets::{Bucket, Buckets};
use lockstep_model::{Blueprint, Param};
use lockstep_optim::{Phases, Slot};
use std::ops::Range;
use std::sync::Arc;

/// Trainable parameters of a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrainableParams {
    /// By block: ranges of its parameters with gradients.
    pub of_block: Vec<Vec<Range<usize>>>,
    /// By parameter bucket: ranges with gradients.
    pub of_bucket: Vec<Vec<Range<usize>>>,
    /// Buckets of gradients; those without any are empty.
    pub grads: Arc<Buckets>,
    /// First trained block of the whole model, where backward ends.
    pub first_block: usize,
}

impl TrainableParams {
    /// Trainable parameters in `phase` of a model with parameters in `buckets`. Blocks of other
    /// pipeline stages have no parameters there, hence no gradients.
    pub fn new(blueprint: &Blueprint, buckets: &Buckets, phases: &Phases, phase: usize) -> Self {
        let is_trained = |param: &Param| {
            let owner = param.mirror_of.as_ref().unwrap_or(&param.name);
            !phases.is_frozen(phase, owner)
        };
        let of_block = blueprint.blocks.iter().map(|block| {
            let trained = block.params().iter().filter(|param| is_trained(param));
            joined(trained.map(Param::range))
        });
        let mut of_block: Vec<_> = of_block.collect();
        let first_block = of_block.iter().take_while(|runs| runs.is_empty()).count();
        for (block, runs) in of_block.iter_mut().enumerate() {
            if buckets.list[buckets.of_block(block)].len == 0 {
                runs.clear();
            }
        }
        Self::of(buckets, of_block, first_block)
    }

    /// No trainable parameters.
    pub fn nothing(buckets: &Buckets) -> Self {
        let num_blocks = buckets.list.last().map_or(0, |last| last.blocks.end);
        Self::of(buckets, vec![Vec::new(); num_blocks], num_blocks)
    }

    fn of(buckets: &Buckets, of_block: Vec<Vec<Range<usize>>>, first_block: usize) -> Self {
        let of_bucket = buckets.list.iter().map(|bucket| {
            let runs = bucket.blocks.clone().flat_map(|block| {
                let start = bucket.block(block).start;
                of_block[block].iter().map(move |run| start + run.start..start + run.end)
            });
            joined(runs)
        });
        let of_bucket: Vec<_> = of_bucket.collect();
        let grads = Arc::new(buckets.only(&of_bucket));
        Self { of_block, of_bucket, grads, first_block }
    }

    /// Optimizer slots of the rank that owns `part(bucket)` of each of `buckets`.
    pub fn slots(
        &self,
        blueprint: &Blueprint,
        buckets: &Buckets,
        part: impl Fn(&Bucket) -> Range<usize>,
    ) -> Vec<Slot> {
        let mut slots = buckets.slots(blueprint, &part);
        slots.retain_mut(|slot| {
            let own = part(&buckets.list[slot.block]);
            let runs = || self.of_bucket[slot.block].iter();
            let place = own.start + slot.range.start;
            let before = runs().map(|run| place.clamp(run.start, run.end) - run.start);
            let start = before.sum::<usize>() - part(&self.grads.list[slot.block]).start;
            slot.grads = start..start + slot.range.len();
            runs().any(|run| run.contains(&place))
        });
        slots
    }
}

/// Ascending ranges, neighbors joined.
pub(crate) fn joined(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match runs.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => runs.push(range),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MODEL;
    use lockstep_config::{Sources, resolve};
    use lockstep_model::describe;

    fn trained(
        groups: &str,
        phase: usize,
        num_workers: usize,
    ) -> (Blueprint, Buckets, TrainableParams) {
        let sets = vec![format!("optim.groups={groups}")];
        let recipe = resolve(&Sources { sets, ..Sources::default() }).unwrap();
        let blueprint = describe(&MODEL);
        let names: Vec<_> = blueprint.owned_params().map(|(_, p)| p.name.as_str()).collect();
        let phases = Phases::new(&recipe.optim, &names);
        let buckets = Buckets::new(&blueprint, 20_000, num_workers);
        let trained = TrainableParams::new(&blueprint, &buckets, &phases, phase);
        (blueprint, buckets, trained)
    }

    #[test]
    fn trainable_parameters_follow_the_freezing_groups() {
        let (blueprint, _, trained) = trained(
            r#"[{match = "model.layers.1.*", frozen = true},
                {match = "model.embed_tokens.*", freeze_after = 3}]"#,
            1,
            2,
        );
        let lens: Vec<usize> =
            trained.of_block.iter().map(|runs| runs.iter().map(Range::len).sum()).collect();
        let all = |block: usize| blueprint.blocks[block].num_params();
        // The embedding and its mirror are frozen later, so of the head only its norm is trained.
        assert_eq!(lens, [0, all(1), 0, all(3), MODEL.width]);
        assert_eq!((trained.first_block, trained.grads.mirrors.len()), (1, 0));
        assert_eq!(trained.grads.num_params(), all(1) + all(3) + MODEL.width);
    }

    #[test]
    fn one_parameter_may_be_trained_alone_and_a_mirror_counts_as_its_owner() {
        let (_, _, trained) = trained(
            r#"[{match = "model.embed_tokens.weight"},
                {match = "model.layers.2.self_attn.k_proj.weight"}, {match = "*", frozen = true}]"#,
            0,
            2,
        );
        let has_some: Vec<bool> = trained.of_block.iter().map(|runs| !runs.is_empty()).collect();
        assert_eq!(has_some, [true, false, false, true, true]);
        assert_eq!((trained.first_block, trained.grads.mirrors.len()), (0, 1));
        let table = MODEL.vocab * MODEL.width;
        let key = MODEL.width / MODEL.heads * MODEL.kv_heads * MODEL.width;
        assert_eq!(trained.grads.num_params(), 2 * table + key);
    }

    #[test]
    fn gradients_of_all_workers_lie_without_gaps_where_slots_say() {
        let groups = r#"[{match = "*.q_proj.weight", frozen = true},
            {match = "*layernorm.weight", frozen = true}]"#;
        for num_workers in 1..=5 {
            let (blueprint, buckets, trained) = trained(groups, 0, num_workers);
            for worker in 0..num_workers {
                let part = |bucket: &Bucket| bucket.part(worker);
                let slots = trained.slots(&blueprint, &buckets, part);
                let mut ends = vec![0; buckets.list.len()];
                for slot in slots {
                    assert!(!slot.name.contains("q_proj") && !slot.name.contains("layernorm"));
                    assert_eq!(slot.grads.start, ends[slot.block], "{}", slot.name);
                    assert_eq!(slot.grads.len(), slot.range.len());
                    ends[slot.block] = slot.grads.end;
                }
                // Mirrors have gradients too, behind the stepped range of their bucket.
                for (bucket, end) in trained.grads.list.iter().zip(ends) {
                    let is_mirror = |pair: &crate::buckets::MirrorPair| {
                        trained.grads.list[pair.mirror.0] == *bucket
                    };
                    let has_mirror = trained.grads.mirrors.iter().any(is_mirror);
                    assert!(has_mirror || end == bucket.part(worker).len(), "{bucket:?}");
                }
            }
        }
    }
}
