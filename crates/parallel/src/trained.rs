//! Frozen parameters: what is trained in a phase of a run, and what that saves.
//!
//! A block all of whose parameters are frozen has no gradients: no memory for them, no products to
//! compute them, nothing that travels. Backward still passes through it if a block in front of it
//! is trained, and ends at the first block that is. Blocks share a bucket only with blocks that are
//! frozen and trained together, so a bucket is either wanted or not. A frozen parameter in a
//! block that is trained has a gradient that nobody looks at, and no optimizer state.

use crate::buckets::Buckets;
use lockstep_model::{Blueprint, Param};
use lockstep_optim::Phases;

/// What is trained in a phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trained {
    /// By block: whether it has gradients.
    pub blocks: Vec<bool>,
    /// By bucket: whether it has gradients.
    pub buckets: Vec<bool>,
    /// By mirror: whether its gradient is added to the owner's.
    pub mirrors: Vec<bool>,
    /// Where backward ends.
    pub first_block: usize,
    /// Longest gradient of a frozen block that computes it nevertheless.
    pub unwanted_len: usize,
    /// By block: whether it does.
    pub cannot_skip: Vec<bool>,
}

impl Trained {
    /// What is trained in `phase`.
    pub fn new(blueprint: &Blueprint, buckets: &Buckets, phases: &Phases, phase: usize) -> Self {
        let blocks: Vec<bool> = (0..blueprint.blocks.len())
            .map(|block| is_trained(blueprint, phases, phase, block))
            .collect();
        let first_block = blocks.iter().position(|trained| *trained).unwrap_or(blocks.len());
        // Blocks without parameters lie in buckets of others.
        let of_bucket = |bucket: &crate::Bucket| blocks[bucket.blocks.clone()].contains(&true);
        let mirrors = blueprint.mirrors().map(|m| !phases.is_frozen(phase, &m.owner.name));
        let cannot_skip: Vec<bool> = blueprint
            .blocks
            .iter()
            .enumerate()
            .map(|(i, block)| i > first_block && !blocks[i] && !block.can_skip_grads())
            .collect();
        let lens = blueprint.blocks.iter().map(|block| block.num_params());
        let unwanted = lens.zip(&cannot_skip).filter(|(_, cannot)| **cannot).map(|(len, _)| len);
        Self {
            buckets: buckets.list.iter().map(of_bucket).collect(),
            mirrors: mirrors.collect(),
            first_block,
            unwanted_len: unwanted.max().unwrap_or(0),
            cannot_skip,
            blocks,
        }
    }

    /// The largest of `len` over the buckets that are trained.
    pub fn max_of(&self, buckets: &Buckets, len: impl Fn(&crate::Bucket) -> usize) -> usize {
        self.lens(buckets, len).max().unwrap_or(0)
    }

    /// `len` of every bucket that is trained.
    pub fn lens<'a>(
        &'a self,
        buckets: &'a Buckets,
        len: impl Fn(&crate::Bucket) -> usize + 'a,
    ) -> impl Iterator<Item = usize> + 'a {
        let trained = buckets.list.iter().zip(&self.buckets).filter(|(_, trained)| **trained);
        trained.map(move |(bucket, _)| len(bucket))
    }
}

/// Cuts a model into buckets of blocks that are trained in the same phases.
pub fn buckets(
    blueprint: &Blueprint,
    min_len: usize,
    num_workers: usize,
    phases: &Phases,
) -> Buckets {
    let course: Vec<Vec<bool>> = (0..blueprint.blocks.len())
        .map(|block| {
            (0..phases.len()).map(|phase| is_trained(blueprint, phases, phase, block)).collect()
        })
        .collect();
    Buckets::joining(blueprint, min_len, num_workers, |a, b| course[a] == course[b])
}

/// Whether a block has a parameter that is trained, or a copy of one.
fn is_trained(blueprint: &Blueprint, phases: &Phases, phase: usize, block: usize) -> bool {
    let name = |param: &Param| param.mirror_of.as_ref().unwrap_or(&param.name).clone();
    let params = blueprint.blocks[block].params();
    params.iter().any(|param| !phases.is_frozen(phase, &name(param)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MODEL;
    use lockstep_config::{Sources, resolve};
    use lockstep_model::describe;

    fn trained(groups: &str, phase: usize) -> (Buckets, Trained) {
        let sets = vec![format!("optim.groups={groups}")];
        let recipe = resolve(&Sources { sets, ..Sources::default() }).unwrap();
        let blueprint = describe(&MODEL);
        let names: Vec<_> = blueprint.owned_params().map(|(_, p)| p.name.as_str()).collect();
        let phases = Phases::new(&recipe.optim, &names);
        let buckets = buckets(&blueprint, usize::MAX, 2, &phases);
        let trained = Trained::new(&blueprint, &buckets, &phases, phase);
        (buckets, trained)
    }

    #[test]
    fn blocks_that_are_trained_together_share_buckets_and_no_others() {
        let (buckets, trained) = trained(
            r#"[{match = "model.layers.1.*", frozen = true},
                {match = "model.embed_tokens.*", freeze_after = 3}]"#,
            1,
        );
        // The embedding and its mirror are frozen later, so the head is trained for its norm only.
        let blocks: Vec<_> = buckets.list.iter().map(|bucket| bucket.blocks.clone()).collect();
        assert_eq!(blocks, [0..1, 1..2, 2..3, 3..4, 4..5]);
        assert_eq!(trained.blocks, [false, true, false, true, true]);
        assert_eq!(trained.buckets, trained.blocks);
        assert_eq!((trained.first_block, trained.mirrors), (1, vec![false]));
        assert_eq!(trained.unwanted_len, 0, "layers can skip");
    }

    #[test]
    fn one_trained_parameter_is_enough_and_a_mirror_counts_as_its_owner() {
        let (_, trained) = trained(
            r#"[{match = "model.embed_tokens.weight"},
                {match = "model.layers.2.input_layernorm.weight"}, {match = "*", frozen = true}]"#,
            0,
        );
        assert_eq!(trained.blocks, [true, false, false, true, true]);
        assert_eq!((trained.first_block, trained.mirrors), (0, vec![true]));
    }
}
