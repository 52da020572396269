//! Whether descent by stale gradients swings: they cancel each other, and grow.
//!
//! Descent with gradients that are t updates old swings, at the edge of stability, with a period
//! of 2 (2t + 1) updates. So gradients are added up over a few such periods. Where the sum is short
//! beside the lengths of all, they point to and fro; where the lengths are also larger than in the
//! stretch before, it gets worse. (Noise about a minimum points to and fro too, and does not grow.)

use super::shard::Parts;

/// A sum shorter than this share of all lengths is one of gradients that cancel each other.
const CANCELS: f64 = 0.2;

/// Lengths that are so many times those of the stretch before grow.
const GROWS: f64 = 1.1;

/// The shortest and the longest stretch.
const STRETCHES: (u64, u64) = (8, 512);

/// Watches gradients go by.
#[derive(Clone, Debug, Default)]
pub(super) struct Oscillation {
    sum: Parts,
    lengths: f64,
    count: u64,
    /// The mean length in the stretch before.
    before: Option<f64>,
}

impl Oscillation {
    /// Takes note of a gradient where up to `bound` updates may be missed; returns whether the
    /// stretch that ends with it swings.
    pub(super) fn note(&mut self, grads: &Parts, bound: u64) -> bool {
        if self.count == 0 {
            self.sum = grads.iter().map(|part| vec![0.0; part.len()]).collect();
        }
        for (sum, grads) in self.sum.iter_mut().zip(grads) {
            sum.iter_mut().zip(grads).for_each(|(sum, grad)| *sum += grad);
        }
        self.lengths += length(grads);
        self.count += 1;
        let stretch = bound.saturating_mul(8).saturating_add(4).clamp(STRETCHES.0, STRETCHES.1);
        if self.count < stretch {
            return false;
        }
        let mean = self.lengths / self.count as f64;
        let cancels = length(&self.sum) < CANCELS * self.lengths;
        let grows = self.before.is_some_and(|before| mean > GROWS * before);
        *self = Self { before: Some(mean), ..Self::default() };
        cancels && grows
    }
}

fn length(parts: &Parts) -> f64 {
    let all = parts.iter().flatten();
    all.fold(0.0, |sum, x| sum + f64::from(*x) * f64::from(*x)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swings(gradient: impl Fn(u64) -> f32) -> bool {
        let mut watch = Oscillation::default();
        (0..200).any(|turn| watch.note(&vec![vec![gradient(turn)]], 1))
    }

    #[test]
    fn only_what_goes_to_and_fro_and_grows_swings() {
        let sign = |turn: u64| if turn % 6 < 3 { 1.0 } else { -1.0 };
        assert!(swings(|turn| sign(turn) * 1.02_f32.powi(turn as i32)));
        assert!(!swings(|turn| sign(turn) * 0.98_f32.powi(turn as i32)), "it dies away");
        assert!(!swings(sign), "it stays");
        assert!(!swings(|turn| 1.02_f32.powi(turn as i32)), "it goes one way");
    }
}
