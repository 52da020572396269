//! Answers of `lockstep serve` to the pages of the planner and of the lab.

use crate::commands::{lab, plan};
use crate::failure::chain;
use lockstep_config::units::Bytes;
use lockstep_dashboard::{Query, Tools};
use lockstep_lab::walk;
use lockstep_platform::World;
use serde_json::Value;

/// The planner and the lab.
pub(crate) struct PageTools {
    world: World,
}

impl PageTools {
    /// Tools that measure on this machine.
    pub(crate) fn new(world: &World) -> Self {
        Self { world: World::clone(world) }
    }
}

impl Tools for PageTools {
    fn plan_choices(&self) -> Value {
        plan::live::choices()
    }

    fn plan(&self, query: &Query) -> Result<Value, String> {
        plan::live::plan(query)
    }

    fn scaling(&self, query: &Query) -> Result<Value, String> {
        plan::live::scaling(query)
    }

    fn lab_choices(&self) -> Value {
        lab::live::choices()
    }

    fn experiment(&self, query: &Query) -> Result<Value, String> {
        let list = |name| query.all(name).map(str::to_owned).collect::<Vec<_>>();
        let name = query.get("name").unwrap_or_default();
        let seeds = query.get("seeds").map_or(Ok(1), str::parse);
        let seeds = seeds.map_err(|_| "seeds is no number".to_owned())?;
        lab::live::experiment(name, &list("param"), &list("sweep"), seeds)
            .map_err(|error| chain(&error))
    }

    fn measure(&self, query: &Query) -> Result<Value, String> {
        let name = query.get("name").unwrap_or_default();
        lab::live::measure(name, &self.world).map_err(|error| chain(&error))
    }

    fn walk(&self, query: &Query) -> Result<Value, String> {
        let name = query.get("name").unwrap_or_default();
        let ranks = query.get("ranks").and_then(|text| text.parse().ok());
        let ranks = ranks.filter(|ranks| walk::RANKS.contains(ranks));
        let ranks = ranks.ok_or_else(|| "ranks is not between 2 and 32".to_owned())?;
        let bytes: Bytes =
            query.get("bytes").unwrap_or("1MB").parse().map_err(|e| format!("{e}"))?;
        lab::live::walk(name, ranks, bytes).map_err(|error| chain(&error))
    }
}
