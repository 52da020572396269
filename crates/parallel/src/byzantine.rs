//! Byzantine workers: gradient attacks for robustness tests.
//!
//! An attack is a function of the honest vector, the seed and the step.

use crate::robust_aggregation::norm;
use lockstep_config::ByzantineAttack;
use lockstep_tensor::random::Key;
use std::collections::BTreeMap;

/// Factor by which an attack exceeds the honest vector.
const ATTACK_SCALE: f32 = 10.0;

/// A Byzantine worker.
#[derive(Debug)]
pub struct ByzantineWorker {
    attack: ByzantineAttack,
    key: Key,
    /// First vector sent for each part, for the stale attack, which repeats it.
    first: BTreeMap<usize, Vec<f32>>,
}

impl ByzantineWorker {
    /// A worker with this attack.
    pub fn new(seed: u64, attack: ByzantineAttack, worker: usize) -> Self {
        let key = Key::new(seed, "sync.lies").with(worker as u64);
        Self { attack, key, first: BTreeMap::new() }
    }

    /// Replaces a part of a change by its attack.
    pub fn corrupt(&mut self, step: u64, part: usize, change: &mut [f32]) {
        if self.attack == ByzantineAttack::Stale {
            let first = self.first.entry(part).or_insert_with(|| change.to_vec());
            change.copy_from_slice(first);
        } else {
            apply_attack(self.attack, self.key.with(step).with(part as u64), change);
        }
    }
}

/// Applies a stateless attack; the stale attack leaves the change unmodified.
pub(crate) fn apply_attack(attack: ByzantineAttack, key: Key, change: &mut [f32]) {
    match attack {
        ByzantineAttack::SignFlip => change.iter_mut().for_each(|x| *x *= -ATTACK_SCALE),
        ByzantineAttack::Noise => {
            let size = ATTACK_SCALE * (norm(change) / (change.len().max(1) as f64).sqrt()) as f32;
            (0..).zip(change).for_each(|(index, x)| *x = key.normal(index) * size);
        }
        ByzantineAttack::Stale => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attacks_follow_their_names() {
        let byzantine = |attack| ByzantineWorker::new(1, attack, 0);
        let mut change = vec![1.0, -2.0];
        byzantine(ByzantineAttack::SignFlip).corrupt(0, 0, &mut change);
        assert_eq!(change, [-10.0, 20.0]);
        let mut stale = byzantine(ByzantineAttack::Stale);
        let [mut one, mut other] = [[1.0], [2.0]];
        stale.corrupt(0, 0, &mut one);
        stale.corrupt(1, 0, &mut other);
        assert_eq!((one, other), ([1.0], [1.0]));
        let mut noise = vec![1.0; 4000];
        byzantine(ByzantineAttack::Noise).corrupt(0, 0, &mut noise);
        let length = norm(&noise) / 4000.0_f64.sqrt();
        assert!((length - 10.0).abs() < 0.5, "{length}");
    }
}
