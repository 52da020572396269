//! Oscillation detection for stale gradients: they alternate and grow.
//!
//! Descent with gradients t updates old oscillates, at the edge of stability, with a period of 2
//! (2t + 1) updates. So gradients are summed over a window of a few such periods. If the norm of
//! the sum is small beside the sum of norms, gradients alternate; if the norms also exceed those of
//! the previous window, the oscillation grows. (Noise around a minimum alternates too, but does not
//! grow.)

use super::Parts;

/// Ratio of the norm of the sum to the sum of norms below which gradients alternate.
const CANCELS: f64 = 0.2;

/// Growth of the mean norm from window to window that counts as growth.
const GROWS: f64 = 1.1;

/// Shortest and longest window, in updates.
const WINDOWS: (u64, u64) = (8, 512);

/// Running sums of the current window.
#[derive(Clone, Debug, Default)]
pub(super) struct Oscillation {
    sum: Parts,
    lengths: f64,
    count: u64,
    /// Mean norm of the previous window.
    before: Option<f64>,
}

impl Oscillation {
    /// Adds a gradient where up to `bound` updates may be missed; returns whether the window that
    /// ends with it oscillates.
    pub(super) fn observe(&mut self, grads: &Parts, bound: u64) -> bool {
        if self.count == 0 {
            self.sum = grads.iter().map(|part| vec![0.0; part.len()]).collect();
        }
        for (sum, grads) in self.sum.iter_mut().zip(grads) {
            sum.iter_mut().zip(grads).for_each(|(sum, grad)| *sum += grad);
        }
        self.lengths += length(grads);
        self.count += 1;
        let window = bound.saturating_mul(8).saturating_add(4).clamp(WINDOWS.0, WINDOWS.1);
        if self.count < window {
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

    fn oscillates(gradient: impl Fn(u64) -> f32) -> bool {
        let mut watch = Oscillation::default();
        (0..200).any(|turn| watch.observe(&vec![vec![gradient(turn)]], 1))
    }

    #[test]
    fn only_alternating_growing_gradients_oscillate() {
        let sign = |turn: u64| if turn % 6 < 3 { 1.0 } else { -1.0 };
        assert!(oscillates(|turn| sign(turn) * 1.02_f32.powi(turn as i32)));
        assert!(!oscillates(|turn| sign(turn) * 0.98_f32.powi(turn as i32)), "it decays");
        assert!(!oscillates(sign), "it is steady");
        assert!(!oscillates(|turn| 1.02_f32.powi(turn as i32)), "it has one direction");
    }
}
