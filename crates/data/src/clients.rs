//! Clients of federated learning: who takes part in a round, and which samples are whose.
//!
//! Both are functions of the recipe, so every worker knows them without a word, and whoever is the
//! home of a client meets the same samples.

use lockstep_config::Recipe;

use crate::permutation::{Permutation, mix};

/// What the random numbers are drawn for.
const ROUND: u64 = 4;
const PARTS: u64 = 5;
const TURNS: u64 = 6;

/// The clients that take part in the round of a step, ascending.
pub fn clients_at(recipe: &Recipe, step: u64) -> Vec<usize> {
    let (all, sampled) = (recipe.federated.clients, recipe.federated.sampled);
    let round = recipe.round_at(step).start;
    let order = Permutation::new(all as u64, mix(mix(recipe.train.seed, ROUND), round));
    let mut clients: Vec<_> = (0..sampled as u64).map(|i| order.apply(i) as usize).collect();
    clients.sort_unstable();
    clients
}

/// Which client a sequence of a step's batch belongs to, and which of its sequences it is.
pub(crate) fn client_of(recipe: &Recipe, clients: &[usize], sequence: usize) -> (usize, usize) {
    let each = recipe.train.batch / clients.len();
    (clients[sequence / each], sequence % each)
}

/// The sample of a small problem that is number `turn` in a client's life. Samples are dealt to
/// clients by chance, evenly; a client goes through its own in an order that changes every time.
pub(crate) fn sample_of(recipe: &Recipe, client: usize, turn: u64) -> u64 {
    let (seed, all) = (recipe.train.seed, recipe.model.problem.samples as u64);
    let (clients, client) = (recipe.federated.clients as u64, client as u64);
    let own = (all - client).div_ceil(clients);
    let epoch = mix(mix(mix(seed, TURNS), client), turn / own);
    let index = Permutation::new(own, epoch).apply(turn % own);
    Permutation::new(all, mix(seed, PARTS)).apply(client + clients * index)
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

    #[test]
    fn every_sample_is_one_clients_and_comes_once_an_epoch() {
        let recipe = recipe();
        let of = |client: usize, turns: std::ops::Range<u64>| -> BTreeSet<u64> {
            turns.map(|turn| sample_of(&recipe, client, turn)).collect()
        };
        let mut all = BTreeSet::new();
        for client in 0..7 {
            // 50 samples: the first client has eight, the others seven.
            let own = if client == 0 { 8 } else { 7 };
            let epoch = of(client, 0..own);
            assert_eq!(epoch.len() as u64, own);
            assert_eq!(epoch, of(client, own..2 * own), "the same again");
            assert!(epoch.iter().all(|sample| all.insert(*sample)), "nobody else's");
        }
        assert_eq!(all, (0..50).collect());
    }
}
