//! Workers that lie about what they have learned, to see what becomes of the others.
//!
//! Who lies is drawn from the seed: as many of the workers as a share of them is, rounded. A lie is
//! a function of the truth, the seed and the step.

use crate::robust::norm;
use lockstep_config::FederatedAttack;
use lockstep_tensor::random::Key;
use std::collections::BTreeMap;

/// How much longer a lie is than the truth.
const BOAST: f32 = 10.0;

/// A worker that lies.
#[derive(Debug)]
pub struct Liar {
    attack: FederatedAttack,
    key: Key,
    /// What was told first of every part, where it is told again and again.
    first: BTreeMap<usize, Vec<f32>>,
}

impl Liar {
    /// The lying side of a worker, if it has one: of all workers this share lies.
    pub fn find(
        seed: u64,
        share: f64,
        attack: FederatedAttack,
        num_workers: usize,
        worker: usize,
    ) -> Option<Self> {
        let num_liars = (share * num_workers as f64).round() as usize;
        let draws = Key::new(seed, "sync.byzantine");
        let draw = |worker: usize| (draws.uniform_f64(worker as u64), worker);
        let num_before = (0..num_workers).filter(|other| draw(*other) < draw(worker)).count();
        let key = Key::new(seed, "sync.lies").with(worker as u64);
        (num_before < num_liars).then(|| Self { attack, key, first: BTreeMap::new() })
    }

    /// Makes a lie of how a part of something changes.
    pub fn pretend(&mut self, step: u64, part: usize, change: &mut [f32]) {
        match self.attack {
            FederatedAttack::SignFlip => change.iter_mut().for_each(|x| *x *= -BOAST),
            FederatedAttack::Noise => {
                let size = BOAST * (norm(change) / (change.len().max(1) as f64).sqrt()) as f32;
                let key = self.key.with(step).with(part as u64);
                (0..).zip(change).for_each(|(index, x)| *x = key.normal(index) * size);
            }
            FederatedAttack::Stale => {
                let first = self.first.entry(part).or_insert_with(|| change.to_vec());
                change.copy_from_slice(first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn liars(seed: u64, share: f64, num_workers: usize) -> Vec<usize> {
        let lies = |worker: &usize| {
            Liar::find(seed, share, FederatedAttack::Noise, num_workers, *worker).is_some()
        };
        (0..num_workers).filter(lies).collect()
    }

    #[test]
    fn as_many_lie_as_was_asked_for_and_others_for_another_seed() {
        for (share, num_workers, expected) in [(0.0, 8, 0), (0.2, 5, 1), (0.25, 8, 2), (0.1, 4, 0)]
        {
            for seed in 0..20 {
                assert_eq!(liars(seed, share, num_workers).len(), expected);
            }
        }
        assert!((1..20).any(|seed| liars(seed, 0.2, 5) != liars(0, 0.2, 5)));
    }

    #[test]
    fn lies_are_what_they_are_called() {
        let liar = |attack| Liar::find(1, 1.0, attack, 1, 0).expect("everybody lies");
        let mut change = vec![1.0, -2.0];
        liar(FederatedAttack::SignFlip).pretend(0, 0, &mut change);
        assert_eq!(change, [-10.0, 20.0]);
        let mut stale = liar(FederatedAttack::Stale);
        let [mut one, mut other] = [[1.0], [2.0]];
        stale.pretend(0, 0, &mut one);
        stale.pretend(1, 0, &mut other);
        assert_eq!((one, other), ([1.0], [1.0]));
        let mut noise = vec![1.0; 4000];
        liar(FederatedAttack::Noise).pretend(0, 0, &mut noise);
        let length = norm(&noise) / 4000.0_f64.sqrt();
        assert!((length - 10.0).abs() < 0.5, "{length}");
    }
}
