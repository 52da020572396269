//! Time of calls and messages between workers of this engine: a call takes as long as its schedule.

use crate::calibration::machine::MachineCalibration;
use crate::traffic::Interconnect;
use lockstep_config::units::{Bytes, Seconds};
use lockstep_schedule::collective::select::{CallClass, Selector};
use lockstep_schedule::step::{Call, CommGroup, Lengths, Message};
use lockstep_schedule::{Costs, Op, Schedule, Topology, price};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Prices of calls and messages; a step makes few different ones many times.
pub(crate) struct CallPrices<'a> {
    interconnect: &'a Interconnect,
    /// Costs of calls, given those that select their schedules.
    priced: Box<dyn Fn(&Costs) -> Costs + 'a>,
    costs: Costs,
    /// Workers take turns where cores are fewer: the costs assume a core per rank.
    slowdown: f64,
    groups: Vec<GroupPrices>,
}

struct GroupPrices {
    group: CommGroup,
    topology: Topology,
    costs: Costs,
    selector: Selector,
    schedules: BTreeMap<CallClass, Arc<Schedule>>,
    known: BTreeMap<(Op, Lengths, Bytes), Seconds>,
}

impl<'a> CallPrices<'a> {
    /// Prices among this many workers of a calibrated machine.
    pub(super) fn new(
        workers: usize,
        interconnect: &'a Interconnect,
        machine: &'a MachineCalibration<'a>,
    ) -> Self {
        let priced = Box::new(|costs: &Costs| machine.costs(costs));
        let prices = Self::with_costs(interconnect, priced);
        let slowdown = match prices.costs.core_contention {
            Some(_) => 1.0,
            None => (workers as f64 / machine.cores as f64).max(1.0),
        };
        Self { slowdown, ..prices }
    }

    /// Prices at the costs that `priced` returns for those that select the schedules.
    pub(crate) fn with_costs(
        interconnect: &'a Interconnect,
        priced: Box<dyn Fn(&Costs) -> Costs + 'a>,
    ) -> Self {
        let costs = priced(&interconnect.costs);
        Self { interconnect, priced, costs, slowdown: 1.0, groups: Vec::new() }
    }

    /// Time of a call.
    pub(crate) fn call(&mut self, call: &Call, group: &CommGroup) -> Seconds {
        let index = self.groups.iter().position(|known| known.group == *group);
        let index = index.unwrap_or_else(|| {
            let Interconnect { costs, domains } = self.interconnect.among(&group.ranks);
            self.groups.push(GroupPrices {
                topology: Topology::by_host(&domains),
                costs: (self.priced)(&costs),
                selector: Selector::new(group.contributions.clone(), &domains, costs),
                group: group.clone(),
                schedules: BTreeMap::new(),
                known: BTreeMap::new(),
            });
            self.groups.len() - 1
        });
        self.groups[index].seconds(call) * self.slowdown
    }

    /// Time of a message from a rank.
    pub(crate) fn message(&self, from: usize, message: &Message) -> Seconds {
        let Interconnect { domains, .. } = self.interconnect;
        // Parameter servers follow the workers, and share memory if all of those do.
        let is_one_host = self.interconnect.is_one_host();
        let domain = |rank: usize| domains.get(rank).copied().unwrap_or(rank);
        let shares_memory = is_one_host || domain(from) == domain(message.peer as usize);
        let link = self.costs.memory.filter(|_| shares_memory).unwrap_or(self.costs.messages);
        link.seconds(Bytes(message.len * u64::from(message.element))) * self.slowdown
    }
}

impl GroupPrices {
    fn seconds(&mut self, call: &Call) -> Seconds {
        let Self { topology, costs, selector, schedules, known, .. } = self;
        let key = (call.op, call.lengths.clone(), call.element);
        *known.entry(key).or_insert_with(|| {
            let bytes = call.lengths.count() * call.element.0 as usize;
            let class = selector.class(call.op, bytes, true, None);
            let schedule = schedules.entry(class).or_insert_with(|| {
                selector.choose(&class).expect("fixed algorithms are checked, and others exist")
            });
            let layout = call.lengths.layout(schedule);
            price(schedule, &layout, call.element, costs, Some(&*topology))
        })
    }
}
