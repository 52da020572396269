//! Workers and clients that lie about what they have learned, to see what becomes of the others. A
//! lie is a function of the truth, the seed and the step.

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
    /// A worker that lies like this.
    pub fn new(seed: u64, attack: FederatedAttack, worker: usize) -> Self {
        let key = Key::new(seed, "sync.lies").with(worker as u64);
        Self { attack, key, first: BTreeMap::new() }
    }

    /// Makes a lie of how a part of something changes.
    pub fn pretend(&mut self, step: u64, part: usize, change: &mut [f32]) {
        if self.attack == FederatedAttack::Stale {
            let first = self.first.entry(part).or_insert_with(|| change.to_vec());
            change.copy_from_slice(first);
        } else {
            exaggerate(self.attack, self.key.with(step).with(part as u64), change);
        }
    }
}

/// Makes a lie of a change that needs no memory; what is stale stays as it is.
pub(crate) fn exaggerate(attack: FederatedAttack, key: Key, change: &mut [f32]) {
    match attack {
        FederatedAttack::SignFlip => change.iter_mut().for_each(|x| *x *= -BOAST),
        FederatedAttack::Noise => {
            let size = BOAST * (norm(change) / (change.len().max(1) as f64).sqrt()) as f32;
            (0..).zip(change).for_each(|(index, x)| *x = key.normal(index) * size);
        }
        FederatedAttack::Stale => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lies_are_what_they_are_called() {
        let liar = |attack| Liar::new(1, attack, 0);
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
