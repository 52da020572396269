//! Kinds of steps: steps of one kind have the same program.

use super::{FederatedStep, ServerStep};

/// Use of the gradients of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum GradientUse {
    /// Each rank updates by its own.
    #[default]
    Local,
    /// Each rank keeps its own until the strategy exchanges them.
    Exchanged,
    /// They are reduced over the data-parallel ranks.
    Reduced,
}

/// Communication of workers in a step.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct StepKind {
    /// Use of the gradients.
    pub gradients: GradientUse,
    /// Exchanges of the strategy besides, in its own numbers.
    pub due: Vec<u64>,
    /// Exchange with parameter servers.
    pub servers: Option<ServerStep>,
    /// Clients and their updates.
    pub federated: Option<FederatedStep>,
}

impl StepKind {
    /// A step that reduces gradients, and nothing else.
    pub fn reduce() -> Self {
        Self { gradients: GradientUse::Reduced, ..Self::default() }
    }

    /// A step in which every rank keeps its gradients.
    pub fn local() -> Self {
        Self::default()
    }

    /// Whether ranks update by their own gradients.
    pub fn is_local(&self) -> bool {
        self.gradients == GradientUse::Local
    }

    /// Whether gradients are reduced over the data-parallel ranks.
    pub fn is_reduced(&self) -> bool {
        self.gradients == GradientUse::Reduced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};
    use std::collections::BTreeMap;

    #[test]
    fn counts_match_a_walk_over_all_steps() {
        let rounds = ["sync.mode=local-sgd", "sync.local_steps=3"];
        let dgc = ["compress.method=dgc", "compress.ratio_warmup_steps=9"];
        let variants: &[&[&str]] = &[
            &[],
            &rounds,
            &["sync.mode=local-sgd", "sync.local_steps=1", "sync.final_local_steps=6"],
            &[&rounds[..], &["sync.synchronous_fraction=0.4"]].concat(),
            &[&rounds[..], &["sync.group_workers=2", "sync.inner_rounds=2"]].concat(),
            &[&rounds[..], &["sync.fragments=3", "sync.inner_rounds=2"]].concat(),
            &["compress.method=top-k", "compress.warmup_steps=5"],
            &[&dgc[..], &["compress.warmup_steps=4"]].concat(),
            &[&dgc[..], &["compress.ratio_warmup_steps=99"]].concat(),
            &["sync.mode=gossip", "sync.graph=one-peer"],
            &["sync.mode=federated", "federated.clients=9", "federated.dropout=0.3"],
            &["sync.mode=hogwild", "run.workers=1", "optim.name=sgd", "optim.weight_decay=0"],
            &["sync.mode=parameter-server", "checkpoint.every=4"],
            &["sync.mode=parameter-server", "sync.switch_to_sync_after=0.5", "checkpoint.every=1"],
        ];
        for variant in variants {
            let sets = ["run.workers=4", "train.steps=23"].iter().chain(*variant);
            let sets = sets.map(|set| (*set).to_owned()).collect();
            let recipe = resolve(&Sources { sets, ..Sources::default() }).expect("a recipe");
            let mut walked = BTreeMap::new();
            for step in 0..23 {
                *walked.entry(StepKind::at(&recipe, step)).or_insert(0) += 1;
            }
            assert_eq!(StepKind::of_run(&recipe), walked, "{variant:?}");
        }
    }
}
