//! Which schedule a call will follow: the engine's own choice ([`Selector`]), made before there is
//! a group.

use super::calls::Call;
use lockstep_config::units::Seconds;
use lockstep_schedule::collective::select::{Kind, Selector};
use lockstep_schedule::{Addends, Costs, Rehearsal, Schedule, Topology, price};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How ranks reach each other, and what that costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Wires {
    /// What moving bytes takes.
    pub costs: Costs,
    /// Which ranks see each other's memory: those with the same number.
    pub domains: Vec<usize>,
}

impl Wires {
    /// Ranks of one host that share memory, at the costs that the engine assumes of a host.
    pub fn memory(num_ranks: usize) -> Self {
        Self { costs: Costs::of_one_host(true), domains: vec![0; num_ranks] }
    }

    /// Ranks that send messages, at the costs that the engine assumes.
    pub fn messages(num_ranks: usize) -> Self {
        Self { costs: Costs::of_one_host(false), domains: (0..num_ranks).collect() }
    }

    /// Whether everybody sees everybody's memory.
    pub fn is_one_host(&self) -> bool {
        self.costs.memory.is_some() && self.domains.iter().all(|d| *d == self.domains[0])
    }

    /// The wires of some of the ranks, numbered anew, as a group of them goes by them: what was
    /// measured counts only where messages travel, and what so many ranks do to each other says
    /// nothing of fewer.
    pub fn among(&self, ranks: &[usize]) -> Self {
        if ranks.len() == self.domains.len() {
            return self.clone();
        }
        let domains: Vec<usize> = ranks.iter().map(|rank| self.domains[*rank]).collect();
        let is_one_host = self.costs.memory.is_some() && domains.iter().all(|d| *d == domains[0]);
        let costs = if is_one_host || ranks.len() == 1 {
            Costs::of_one_host(self.costs.memory.is_some())
        } else {
            let links = self.costs.links.among(ranks);
            Costs { links, rehearsal: Rehearsal::NONE, ..self.costs.clone() }
        };
        Self { costs, domains }
    }

    /// How long a call takes at other costs than those that it was chosen by.
    pub fn call_seconds(&self, schedule: &Schedule, call: &Call, costs: &Costs) -> Seconds {
        let topology = Topology::by_host(&self.domains);
        price(schedule, &call.layout(schedule), call.element, costs, Some(&topology))
    }
}

/// The schedules that were chosen so far: a step makes few kinds of calls many times.
pub struct Chosen {
    selector: Selector,
    kept: BTreeMap<Kind, Arc<Schedule>>,
}

impl Chosen {
    /// Nothing yet.
    pub fn new(wires: &Wires, addends: &Addends) -> Self {
        let selector = Selector::new(addends.clone(), &wires.domains, wires.costs.clone());
        Self { selector, kept: BTreeMap::new() }
    }

    /// The schedule of a call.
    pub fn of(&mut self, call: &Call) -> &Schedule {
        let kind = Kind::new(call.op, call.count() * call.element.0 as usize, true, None);
        let selector = &mut self.selector;
        self.kept.entry(kind).or_insert_with(|| {
            selector.choose(&kind).expect("every operation has a canonical algorithm")
        })
    }
}
