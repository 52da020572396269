//! Simulated client failures: updates that are lost or delayed, and Byzantine clients.
//!
//! All draws are functions of the seed, the round and the client, so every worker knows the outcome
//! without communication, and a resumed run repeats it.

use crate::byzantine::apply_attack;
use lockstep_config::{ByzantineAttack, Recipe};
use lockstep_tensor::random::Key;

/// Rank of the coordinator.
pub(crate) const COORDINATOR: usize = 0;

/// Probabilities of lost and delayed updates, and of Byzantine clients.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrivalModel {
    /// Probability that an update is lost.
    pub dropout: f64,
    /// Probability that an update is delayed by a round, applied again for each further round.
    pub delay_probability: f64,
    /// Largest delay in rounds at which an update still counts.
    pub window: u64,
    /// Fraction of Byzantine clients.
    pub byzantine: f64,
    /// Their attack.
    pub attack: ByzantineAttack,
}

/// Arrival of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Arrives this many rounds after its own.
    After(u64),
    /// Lost, or delayed beyond the window.
    Never,
}

impl ArrivalModel {
    /// Lost and delayed updates of a recipe.
    pub fn from_recipe(recipe: &Recipe) -> Self {
        let federated = &recipe.federated;
        Self {
            dropout: federated.dropout,
            delay_probability: federated.late_fraction,
            window: federated.max_delay_rounds,
            byzantine: federated.byzantine,
            attack: federated.attack,
        }
    }

    /// Whether a client may start from stale weights.
    pub(crate) fn may_be_stale(&self) -> bool {
        self.byzantine > 0.0 && self.attack == ByzantineAttack::Stale
    }

    /// Whether a client is Byzantine.
    pub fn is_byzantine(&self, seed: u64, client: usize) -> bool {
        let key = Key::new(seed, "federated.byzantine");
        self.byzantine > 0.0 && key.uniform_f64(client as u64) < self.byzantine
    }

    /// Arrival of a client's update.
    pub fn of(&self, seed: u64, round: u64, client: usize) -> Arrival {
        let key = Key::new(seed, "federated.arrival").with(round).with(client as u64);
        if key.uniform_f64(0) < self.dropout {
            return Arrival::Never;
        }
        // Delays beyond the window are equivalent.
        let is_delayed = |turn: &u64| key.uniform_f64(*turn) < self.delay_probability;
        let rounds = (1..self.window + 2).take_while(is_delayed).count() as u64;
        if rounds > self.window { Arrival::Never } else { Arrival::After(rounds) }
    }

    /// Replaces a Byzantine client's update by its attack.
    pub(crate) fn corrupt(&self, key: Key, change: &mut [f32]) {
        apply_attack(self.attack, key, change);
    }
}

/// Delayed updates until the round in which they count. A slot is an update behind a header of
/// three numbers: the round of arrival, the client, and the delay in rounds; round 0 marks an empty
/// slot.
pub(crate) struct DelayedUpdates {
    pub(crate) slots: Vec<Vec<f32>>,
}

const HEAD: usize = 3;

impl DelayedUpdates {
    pub(crate) fn new(arrivals: &ArrivalModel, sampled: usize, len: usize) -> Self {
        let is_used = arrivals.delay_probability > 0.0 && len > 0;
        let num = if is_used { sampled * arrivals.window as usize } else { 0 };
        Self { slots: vec![vec![0.0; HEAD + len]; num] }
    }

    /// Stores an update for `delay` rounds. A slot is always free: their number is the maximum that
    /// can wait.
    pub(crate) fn store(&mut self, round: u64, delay: u64, client: usize, change: &[f32]) {
        let free = self.slots.iter_mut().find(|slot| slot[0] == 0.0);
        let slot = free.expect("a slot for every update that may be delayed");
        slot[..HEAD].copy_from_slice(&[(round + delay) as f32, client as f32, delay as f32]);
        slot[HEAD..].copy_from_slice(change);
    }

    /// Updates that arrive in a round, by client, with their delays.
    pub(crate) fn arriving_in(&self, round: u64) -> Vec<(usize, u64, &[f32])> {
        let slots = self.slots.iter().filter(|slot| slot[0] != 0.0 && slot[0] as u64 == round);
        let read = |slot: &'_ Vec<f32>| (slot[1] as usize, slot[2] as u64);
        let mut arriving_in: Vec<_> = slots
            .map(|slot| {
                let (client, delay) = read(slot);
                (client, delay, &slot[HEAD..])
            })
            .collect();
        arriving_in.sort_by_key(|(client, delay, _)| (*client, *delay));
        arriving_in
    }

    /// Frees the slots of rounds up to `round`.
    pub(crate) fn clear(&mut self, round: u64) {
        for slot in self.slots.iter_mut().filter(|slot| slot[0] as u64 <= round) {
            slot[0] = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: ArrivalModel = ArrivalModel {
        dropout: 0.25,
        delay_probability: 0.5,
        window: 1,
        byzantine: 0.2,
        attack: ByzantineAttack::SignFlip,
    };

    #[test]
    fn losses_delays_and_attacks_follow_their_probabilities() {
        let draws = |expected: Arrival| {
            let of = |client| SOME.of(1, 7, client) == expected;
            (0..4000).filter(|client| of(*client)).count() as f64 / 4000.0
        };
        // Of the 75 % that are sent, half arrive in time, a quarter one round late, the rest later.
        for (found, expected) in [
            (draws(Arrival::After(0)), 0.375),
            (draws(Arrival::After(1)), 0.1875),
            (draws(Arrival::Never), 0.4375),
        ] {
            assert!((found - expected).abs() < 0.03, "{found} {expected}");
        }
        let byzantine =
            (0..4000).filter(|client| SOME.is_byzantine(1, *client)).count() as f64 / 4000.0;
        assert!((byzantine - 0.2).abs() < 0.02, "{byzantine}");
    }

    #[test]
    fn a_delayed_update_waits_for_its_round_and_is_dropped_after_it() {
        let mut delayed_updates = DelayedUpdates::new(&SOME, 2, 1);
        delayed_updates.store(3, 1, 9, &[0.5]);
        delayed_updates.store(3, 1, 4, &[0.25]);
        assert!(delayed_updates.arriving_in(3).is_empty());
        let arriving_in = delayed_updates.arriving_in(4);
        assert_eq!(arriving_in, [(4, 1, &[0.25][..]), (9, 1, &[0.5][..])]);
        delayed_updates.clear(4);
        assert!(delayed_updates.arriving_in(4).is_empty());
        delayed_updates.store(4, 1, 1, &[0.0]);
        delayed_updates.store(4, 1, 2, &[0.0]);
    }
}
