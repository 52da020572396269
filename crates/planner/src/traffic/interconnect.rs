//! Interconnect of the ranks: which of them share memory, and the cost of messages.

use super::call::Call;
use lockstep_config::Recipe;
use lockstep_config::units::Seconds;
use lockstep_schedule::collective::overrides::AlgorithmOverrides;
use lockstep_schedule::{Costs, Schedule, Topology, TuningTable, price};

/// Memory domains of the ranks, and the cost of moving bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Interconnect {
    /// Cost parameters.
    pub costs: Costs,
    /// Memory domain of each rank; ranks of equal number share memory.
    pub domains: Vec<usize>,
}

impl Interconnect {
    /// Interconnect of a recipe's workers on one machine, before any measurement.
    pub fn of_recipe(recipe: &Recipe) -> Self {
        let has_messages = recipe.run.transport.has_messages_only();
        let between = if has_messages { Self::messages } else { Self::memory };
        between(recipe.run.workers).with_algorithms_of(recipe)
    }

    /// Interconnect whose calls use the algorithms that a recipe fixes.
    pub fn with_algorithms_of(mut self, recipe: &Recipe) -> Self {
        self.costs.overrides = AlgorithmOverrides::of_recipe(recipe);
        self
    }

    /// Ranks of one host that share memory, at the engine's default costs.
    pub fn memory(num_ranks: usize) -> Self {
        Self { costs: Costs::of_one_host(true), domains: vec![0; num_ranks] }
    }

    /// Ranks that send messages, at the engine's default costs.
    pub fn messages(num_ranks: usize) -> Self {
        Self { costs: Costs::of_one_host(false), domains: (0..num_ranks).collect() }
    }

    /// Whether all ranks share memory.
    pub fn is_one_host(&self) -> bool {
        self.costs.memory.is_some() && self.domains.iter().all(|d| *d == self.domains[0])
    }

    /// Interconnect of a subgroup, renumbered. Measurements apply only where messages travel, and
    /// tuning of the whole group does not apply to a subgroup.
    pub fn among(&self, ranks: &[usize]) -> Self {
        if ranks.len() == self.domains.len() {
            return self.clone();
        }
        let domains: Vec<usize> = ranks.iter().map(|rank| self.domains[*rank]).collect();
        let is_one_host = self.costs.memory.is_some() && domains.iter().all(|d| *d == domains[0]);
        let costs = if is_one_host || ranks.len() == 1 {
            let overrides = self.costs.overrides.clone();
            Costs { overrides, ..Costs::of_one_host(self.costs.memory.is_some()) }
        } else {
            let links = self.costs.links.among(ranks);
            Costs { links, tuning: TuningTable::NONE, ..self.costs.clone() }
        };
        Self { costs, domains }
    }

    /// Time of a call at other costs than those that selected its schedule.
    pub fn call_seconds(&self, schedule: &Schedule, call: &Call, costs: &Costs) -> Seconds {
        let topology = Topology::by_host(&self.domains);
        price(schedule, &call.layout(schedule), call.element, costs, Some(&topology))
    }
}
