//! Steps of federated rounds, from the recipe alone: who trains, and whose updates arrive.

use crate::federated::arrival::{Arrival, ArrivalModel};
use lockstep_config::Recipe;
use std::collections::BTreeMap;

/// Step of a federated run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FederatedStep {
    /// Number of clients of the round, by rank.
    pub clients: Vec<usize>,
    /// Number of updates that each rank sends, if the round ends.
    pub updates: Option<Vec<usize>>,
}

impl FederatedStep {
    /// Step of a recipe.
    pub(crate) fn at(recipe: &Recipe, step: u64) -> Self {
        let (round, clients) = (recipe.round_at(step), recipe.clients_at(step));
        let arrivals = ArrivalModel::from_recipe(recipe);
        let arrives =
            |client: &usize| arrivals.of(recipe.train.seed, round.start, *client) != Arrival::Never;
        let is_end = step + 1 == round.end;
        let updates = is_end.then(|| by_home(recipe, clients.iter().copied().filter(arrives)));
        Self { clients: by_home(recipe, clients.into_iter()), updates }
    }

    /// Steps of a run with their numbers.
    pub(crate) fn of_run(recipe: &Recipe) -> BTreeMap<Self, u64> {
        let mut counts = BTreeMap::new();
        for round in recipe.rounds() {
            let end = Self::at(recipe, round.end - 1);
            let inner = Self { updates: None, ..end.clone() };
            *counts.entry(end).or_insert(0) += 1;
            if round.end - round.start > 1 {
                *counts.entry(inner).or_insert(0) += round.end - round.start - 1;
            }
        }
        counts
    }
}

/// Number of these clients on each rank.
fn by_home(recipe: &Recipe, clients: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut ends = recipe.clients_by_worker();
    (1..ends.len()).for_each(|rank| ends[rank] += ends[rank - 1]);
    let mut counts = vec![0; ends.len()];
    clients.for_each(|client| counts[ends.partition_point(|end| *end <= client)] += 1);
    counts
}
