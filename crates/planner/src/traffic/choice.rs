//! Which schedule a call will follow: the choice that the engine makes when a call comes for the
//! first time.
//!
//! Sizes are looked at roughly, by powers of two, so that calls of nearly the same size follow one
//! schedule. Where all ranks see each other's memory only schedules without messages are compared.

use super::calls::{Call, ELEMENT};
use lockstep_config::units::{Bytes, Seconds};
use lockstep_schedule::collective::select::{Request, select};
use lockstep_schedule::collective::{Team, algorithms, build};
use lockstep_schedule::{Addends, Costs, Layout, Medium, Op, Schedule, Topology, price};
use std::collections::BTreeMap;

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

    /// The schedule of calls of this size.
    fn schedule(&self, addends: &Addends, op: Op, bytes: usize) -> Schedule {
        let topology = if self.is_one_host() {
            Topology::flat(self.domains.len(), Medium::Memory)
        } else {
            Topology::by_host(&self.domains)
        };
        let ring = self.costs.links.ring_order();
        let team = Team { addends: addends.clone(), topology: Some(topology), ring };
        if self.is_one_host()
            && let Some(direct) = self.cheapest_direct(&team, op, bytes)
        {
            return direct;
        }
        let request = Request { op, team: &team, count: bytes, element: Bytes(1), canonical: true };
        let found = select(&request, &self.costs, None);
        found.expect("every operation has a canonical algorithm").schedule
    }

    fn cheapest_direct(&self, team: &Team, op: Op, bytes: usize) -> Option<Schedule> {
        let built = algorithms(op).iter().filter_map(|&each| build(op, each, team).ok());
        let direct = built.filter(|schedule| !schedule.needs_messages());
        let priced = direct.map(|schedule| (self.seconds(&schedule, team, bytes).0, schedule));
        let cheapest = priced.min_by(|(one, _), (other, _)| one.total_cmp(other));
        cheapest.map(|(_, schedule)| schedule)
    }

    fn seconds(&self, schedule: &Schedule, team: &Team, bytes: usize) -> Seconds {
        let layout = Layout::even(schedule, bytes);
        price(schedule, &layout, Bytes(1), &self.costs, team.topology.as_ref())
    }

    /// How long a call takes at other costs than those that it was chosen by.
    pub fn call_seconds(&self, schedule: &Schedule, call: &Call, costs: &Costs) -> Seconds {
        let topology = Topology::by_host(&self.domains);
        price(schedule, &call.layout(schedule), ELEMENT, costs, Some(&topology))
    }
}

/// The schedules that were chosen so far: a step makes few kinds of calls many times.
pub struct Chosen<'a> {
    wires: &'a Wires,
    addends: &'a Addends,
    kept: BTreeMap<(Op, usize), Schedule>,
}

impl<'a> Chosen<'a> {
    /// Nothing yet.
    pub fn new(wires: &'a Wires, addends: &'a Addends) -> Self {
        Self { wires, addends, kept: BTreeMap::new() }
    }

    /// The schedule of a call.
    pub fn of(&mut self, call: &Call) -> &Schedule {
        let bytes = (call.count() * ELEMENT.0 as usize).next_power_of_two();
        let (wires, addends) = (self.wires, self.addends);
        let make = || wires.schedule(addends, call.op, bytes);
        self.kept.entry((call.op, bytes)).or_insert_with(make)
    }
}
