//! Training phases: spans of steps with a fixed set of trained parameters.
//!
//! A parameter group may be frozen for the whole run, from a step on, or up to a step. The set of
//! trained parameters is a function of the recipe and the step, and changes at a few known steps;
//! gradients and optimizer state of a phase have room only for the parameters trained in it.

use lockstep_config::Optim;
use std::collections::BTreeSet;

/// The phases of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phases {
    list: Vec<Phase>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Phase {
    first_step: u64,
    frozen: BTreeSet<String>,
}

impl Default for Phases {
    /// One phase in which all parameters are trained.
    fn default() -> Self {
        Self { list: vec![Phase { first_step: 0, frozen: BTreeSet::new() }] }
    }
}

impl Phases {
    /// The phases of a run with parameters of these names.
    pub fn new(optim: &Optim, names: &[&str]) -> Self {
        let changes = optim.groups.iter().flat_map(|g| [g.freeze_after, g.unfreeze_at]).flatten();
        let starts: BTreeSet<u64> = changes.chain([0]).collect();
        let phase = |first_step: u64| Phase {
            first_step,
            frozen: names
                .iter()
                .filter(|name| optim.trained_since(name, first_step).is_none())
                .map(|name| (*name).to_owned())
                .collect(),
        };
        let mut list: Vec<Phase> = starts.into_iter().map(phase).collect();
        list.dedup_by(|next, before| next.frozen == before.frozen);
        Self { list }
    }

    /// The phases of a run that never trains parameters of these names.
    pub fn without<'a>(mut self, names: impl Iterator<Item = &'a str>) -> Self {
        let names: BTreeSet<String> = names.map(str::to_owned).collect();
        for phase in &mut self.list {
            phase.frozen.extend(names.iter().cloned());
        }
        self.list.dedup_by(|next, before| next.frozen == before.frozen);
        self
    }

    /// Number of phases.
    #[expect(clippy::len_without_is_empty, reason = "a run has at least one phase")]
    pub const fn len(&self) -> usize {
        self.list.len()
    }

    /// The phase of a step.
    pub fn at(&self, step: u64) -> usize {
        self.list.partition_point(|phase| phase.first_step <= step) - 1
    }

    /// The first step of a phase.
    pub fn first_step(&self, phase: usize) -> u64 {
        self.list[phase].first_step
    }

    /// Whether a parameter is frozen in a phase.
    pub fn is_frozen(&self, phase: usize, param: &str) -> bool {
        self.list[phase].frozen.contains(param)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};

    fn phases(groups: &str) -> Phases {
        let sets = vec![format!("optim.groups={groups}")];
        let recipe = resolve(&Sources { sets, ..Sources::default() }).unwrap();
        Phases::new(&recipe.optim, &["a.w", "a.b", "c.w"])
    }

    #[test]
    fn a_phase_begins_where_something_changes() {
        let phases = phases(
            r#"[{match = "a.b", frozen = true}, {match = "a.*", unfreeze_at = 5},
                {match = "c.*", freeze_after = 9}, {match = "nothing", freeze_after = 7}]"#,
        );
        assert_eq!(phases.len(), 3);
        let starts: Vec<u64> = (0..3).map(|phase| phases.first_step(phase)).collect();
        assert_eq!(starts, [0, 5, 9], "a group without parameters changes nothing");
        assert_eq!([0, 4, 5, 8, 9, 100].map(|step| phases.at(step)), [0, 0, 1, 1, 2, 2]);
        let frozen = |name: &str| [0, 1, 2].map(|phase| phases.is_frozen(phase, name));
        assert_eq!(frozen("a.b"), [true; 3]);
        assert_eq!(frozen("a.w"), [true, false, false]);
        assert_eq!(frozen("c.w"), [false, false, true]);
        let without = phases.without(["a.w", "a.b"].into_iter());
        assert_eq!((without.len(), without.first_step(1)), (2, 9), "a.w no longer changes");
        assert!(without.is_frozen(0, "a.w") && !without.is_frozen(0, "c.w"));
    }

    #[test]
    fn without_groups_there_is_one_phase() {
        assert_eq!(phases("[]"), Phases::default());
    }
}
