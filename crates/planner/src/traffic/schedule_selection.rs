//! Schedule of each call: the engine's own selection ([`Selector`]), made before there is a group.

use super::call::Call;
use super::interconnect::Interconnect;
use lockstep_schedule::collective::select::{CallClass, SelectError, Selector};
use lockstep_schedule::{Contributions, Schedule};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Cache of selected schedules: a step makes few classes of calls many times.
pub struct SelectedSchedules {
    selector: Selector,
    kept: BTreeMap<CallClass, Arc<Schedule>>,
}

impl SelectedSchedules {
    /// Empty cache.
    pub fn new(interconnect: &Interconnect, contributions: &Contributions) -> Self {
        let selector =
            Selector::new(contributions.clone(), &interconnect.domains, interconnect.costs.clone());
        Self { selector, kept: BTreeMap::new() }
    }

    /// Schedule of a call.
    pub fn of(&mut self, call: &Call) -> &Schedule {
        let class = self.class(call);
        let selector = &mut self.selector;
        self.kept.entry(class).or_insert_with(|| {
            selector.choose(&class).expect("fixed algorithms are checked, and others exist")
        })
    }

    /// Whether the algorithm that the recipe fixes for a call can be used.
    pub fn check(&mut self, call: &Call) -> Result<(), SelectError> {
        let class = self.class(call);
        self.selector.choose(&class).map(drop)
    }

    fn class(&self, call: &Call) -> CallClass {
        let bytes = call.count() * call.element.0 as usize;
        self.selector.class(call.op, bytes, call.is_canonical, None)
    }
}
