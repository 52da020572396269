//! Data of the clients of federated learning.

use lockstep_config::Recipe;

/// Clients of a step's round in ascending order; empty without federated learning.
pub fn clients_at(recipe: &Recipe, step: u64) -> Vec<usize> {
    recipe.clients_at(step)
}

/// Data part of a sequence in a step's batch, and the index of its draw from that part.
pub(crate) fn draw_of(
    recipe: &Recipe,
    clients: &[usize],
    step: u64,
    sequence: usize,
) -> (usize, u64) {
    let sharing = if recipe.is_federated() { clients.len() } else { recipe.num_leaves() };
    let each = recipe.train.batch / sharing;
    let (place, slot) = (sequence / each, sequence % each);
    let part = if recipe.is_federated() { clients[place] } else { place };
    (part, step * each as u64 + slot as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_config::{Sources, resolve};
    use std::collections::BTreeSet;

    fn recipe() -> Recipe {
        let sets = [
            "sync.mode=federated",
            "federated.clients=7",
            "federated.sampled=4",
            "problem.samples=50",
            "sync.local_steps=3",
        ];
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let preset = Some("ridge".to_owned());
        resolve(&Sources { preset, sets, ..Sources::default() }).unwrap()
    }

    #[test]
    fn a_round_has_its_clients_in_all_its_steps_and_the_next_has_others() {
        let recipe = recipe();
        let first = clients_at(&recipe, 0);
        assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 4);
        assert!(first.is_sorted() && first.iter().all(|client| *client < 7));
        assert_eq!(first, clients_at(&recipe, 2));
        assert!((1..20).any(|round| clients_at(&recipe, 3 * round) != first));
    }
}
