//! What becomes of a change on its way: it is lost, late, or was a lie to begin with.
//!
//! All of it is drawn from the seed, the round and the client, so homes and the coordinator know
//! the same without a word, and a run that goes on from a checkpoint goes on the same way.

use crate::liars::exaggerate;
use lockstep_config::FederatedAttack;
use lockstep_tensor::random::Key;

/// How often changes are lost or late, and who lies.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrivals {
    /// The chance that a change never arrives.
    pub dropout: f64,
    /// The chance that it is a round late, and as often another one later.
    pub late: f64,
    /// Rounds by which it may be late and still count.
    pub window: u64,
    /// The share of clients that lie.
    pub byzantine: f64,
    /// How.
    pub attack: FederatedAttack,
}

/// When a change arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// So many rounds after its own.
    After(u64),
    /// Never, or so late that it does not count.
    Never,
}

impl Arrivals {
    /// Whether somebody may start from older weights.
    pub(crate) fn may_be_stale(&self) -> bool {
        self.byzantine > 0.0 && self.attack == FederatedAttack::Stale
    }

    /// Whether a client lies.
    pub fn lies(&self, seed: u64, client: usize) -> bool {
        let key = Key::new(seed, "federated.byzantine");
        self.byzantine > 0.0 && key.uniform_f64(client as u64) < self.byzantine
    }

    /// When the change of a client arrives.
    pub fn of(&self, seed: u64, round: u64, client: usize) -> Arrival {
        let key = Key::new(seed, "federated.arrival").with(round).with(client as u64);
        if key.uniform_f64(0) < self.dropout {
            return Arrival::Never;
        }
        // Once it is too late it does not matter how late.
        let is_late = |turn: &u64| key.uniform_f64(*turn) < self.late;
        let rounds = (1..self.window + 2).take_while(is_late).count() as u64;
        if rounds > self.window { Arrival::Never } else { Arrival::After(rounds) }
    }

    /// Makes a lie of a client's change.
    pub(crate) fn pretend(&self, key: Key, change: &mut [f32]) {
        exaggerate(self.attack, key, change);
    }
}

/// Changes that wait for the round in which they count. A slot is a change behind three numbers:
/// the round in which it arrives, the client, and by how many rounds it is late; round 0 is empty.
pub(crate) struct Shelf {
    pub(crate) slots: Vec<Vec<f32>>,
}

const HEAD: usize = 3;

impl Shelf {
    pub(crate) fn new(arrivals: &Arrivals, sampled: usize, len: usize) -> Self {
        let is_used = arrivals.late > 0.0 && len > 0;
        let num = if is_used { sampled * arrivals.window as usize } else { 0 };
        Self { slots: vec![vec![0.0; HEAD + len]; num] }
    }

    /// Keeps a change for `late` rounds. There is always room: no more can wait than there are
    /// slots.
    pub(crate) fn put(&mut self, round: u64, late: u64, client: usize, change: &[f32]) {
        let free = self.slots.iter_mut().find(|slot| slot[0] == 0.0);
        let slot = free.expect("a slot for every client of every round that may be late");
        slot[..HEAD].copy_from_slice(&[(round + late) as f32, client as f32, late as f32]);
        slot[HEAD..].copy_from_slice(change);
    }

    /// The changes that arrive in a round, by client, with how late they are.
    pub(crate) fn due(&self, round: u64) -> Vec<(usize, u64, &[f32])> {
        let slots = self.slots.iter().filter(|slot| slot[0] != 0.0 && slot[0] as u64 == round);
        let read = |slot: &'_ Vec<f32>| (slot[1] as usize, slot[2] as u64);
        let mut due: Vec<_> = slots
            .map(|slot| {
                let (client, late) = read(slot);
                (client, late, &slot[HEAD..])
            })
            .collect();
        due.sort_by_key(|(client, late, _)| (*client, *late));
        due
    }

    /// Makes room where a round is over.
    pub(crate) fn clear(&mut self, round: u64) {
        for slot in self.slots.iter_mut().filter(|slot| slot[0] as u64 <= round) {
            slot[0] = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Arrivals = Arrivals {
        dropout: 0.25,
        late: 0.5,
        window: 1,
        byzantine: 0.2,
        attack: FederatedAttack::SignFlip,
    };

    #[test]
    fn as_many_are_lost_late_and_lying_as_was_asked_for() {
        let draws = |wanted: Arrival| {
            let of = |client| SOME.of(1, 7, client) == wanted;
            (0..4000).filter(|client| of(*client)).count() as f64 / 4000.0
        };
        // Of the 75 % that are sent, half are in time, a quarter late by one, the rest by more.
        for (found, expected) in [
            (draws(Arrival::After(0)), 0.375),
            (draws(Arrival::After(1)), 0.1875),
            (draws(Arrival::Never), 0.4375),
        ] {
            assert!((found - expected).abs() < 0.03, "{found} {expected}");
        }
        let liars = (0..4000).filter(|client| SOME.lies(1, *client)).count() as f64 / 4000.0;
        assert!((liars - 0.2).abs() < 0.02, "{liars}");
    }

    #[test]
    fn what_is_late_waits_for_its_round_and_is_then_gone() {
        let mut shelf = Shelf::new(&SOME, 2, 1);
        shelf.put(3, 1, 9, &[0.5]);
        shelf.put(3, 1, 4, &[0.25]);
        assert!(shelf.due(3).is_empty());
        let due = shelf.due(4);
        assert_eq!(due, [(4, 1, &[0.25][..]), (9, 1, &[0.5][..])]);
        shelf.clear(4);
        assert!(shelf.due(4).is_empty());
        shelf.put(4, 1, 1, &[0.0]);
        shelf.put(4, 1, 2, &[0.0]);
    }
}
