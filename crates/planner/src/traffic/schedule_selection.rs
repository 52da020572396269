//! Schedule of each call: the engine's own selection ([`Selector`]), made before there is a group.

use super::call::Call;
use super::interconnect::Interconnect;
use lockstep_schedule::collective::select::{CallClass, Selector};
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
        let kind = {
            let bytes = call.count() * call.element.0 as usize;
            CallClass::new(call.op, bytes, call.is_canonical, None)
        };
        let selector = &mut self.selector;
        self.kept.entry(kind).or_insert_with(|| {
            selector.choose(&kind).expect("every operation has a canonical algorithm")
        })
    }
}
