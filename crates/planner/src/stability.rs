//! Stability of gradient descent with delayed gradients.
//!
//! Along one direction of curvature λ, descent with learning rate α and momentum β whose gradients
//! are τ steps old is the recurrence
//!
//! ```text
//! m ← β m + λ x(t − τ)
//! x(t + 1) = x(t) − α m      that is  x(t+1) = x(t) + β (x(t) − x(t−1)) − αλ x(t − τ)
//! ```
//!
//! Its solutions are sums of powers of the roots of (z − 1)(z − β) z^(τ−1) + αλ = 0, so it
//! converges exactly when all roots lie inside the unit circle, and by the largest of them per
//! step. For αλ near 0 they do; as αλ grows, the first to leave crosses the circle at some
//! z = e^(iθ), where
//!
//! ```text
//! π/2 + θ/2 + arg(z − β) + (τ − 1) θ = π      (arguments of the factors sum to that of −αλ)
//! αλ = |z − 1| |z − β|                        (and their moduli multiply to its modulus)
//! ```
//!
//! The left side of the first line grows with θ, and so does the second, so bisection finds the
//! limit. Without momentum it has a closed form: αλ < 2 sin(π / (2 (2τ + 1))). The largest
//! curvature of all directions decides.

use std::f64::consts::PI;

/// Bisection steps to the full precision of an angle.
const NUM_HALVINGS: usize = 60;
/// Bound on the iterations of the root finder; a dozen or two suffice.
const MAX_ROUNDS: usize = 400;

/// Gradient descent with delayed gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Descent {
    /// Learning rate α.
    pub lr: f64,
    /// Momentum β, in `0.0..1.0`.
    pub momentum: f64,
    /// Gradient delay τ, in steps.
    pub delay: u32,
}

impl Descent {
    /// Whether descent converges for this largest curvature.
    pub fn is_stable(self, largest_curvature: f64) -> bool {
        self.lr > 0.0 && self.lr * largest_curvature < limit(self.delay, self.momentum)
    }

    /// Learning rate from which on it diverges.
    pub fn lr_limit(self, largest_curvature: f64) -> f64 {
        limit(self.delay, self.momentum) / largest_curvature
    }

    /// Largest delay at which it still converges; `None` if it diverges without delay.
    pub fn delay_limit(self, largest_curvature: f64) -> Option<u32> {
        let is_stable = |delay: u32| Self { delay, ..self }.is_stable(largest_curvature);
        if !is_stable(0) {
            return None;
        }
        // Limits fall as delays grow, so doubling brackets the largest delay and bisection finds
        // it.
        let mut beyond = 1;
        while is_stable(beyond) && beyond < u32::MAX / 2 {
            beyond *= 2;
        }
        let mut within = beyond / 2;
        while beyond - within > 1 {
            let middle = within + (beyond - within) / 2;
            if is_stable(middle) { within = middle } else { beyond = middle }
        }
        Some(within)
    }

    /// Asymptotic growth factor of the error per step along a direction of this curvature: the
    /// modulus of the largest root.
    pub fn growth(self, curvature: f64) -> f64 {
        let roots = roots(&characteristic(self.lr * curvature, self.delay, self.momentum));
        roots.into_iter().map(Complex::size).fold(0.0, f64::max)
    }
}

/// Largest stable αλ: the exact limit of the module's derivation.
///
/// # Panics
/// If the momentum is not in `0.0..1.0`: there is no limit then.
pub fn limit(delay: u32, momentum: f64) -> f64 {
    assert!((0.0..1.0).contains(&momentum), "a momentum of {momentum} has no stable limit");
    let from_beta = |angle: f64| (angle.cos() - momentum, angle.sin());
    let surplus = |angle: f64| {
        let (re, im) = from_beta(angle);
        PI / 2.0 + angle / 2.0 + im.atan2(re) + (f64::from(delay) - 1.0) * angle - PI
    };
    let (mut low, mut high) = (0.0, PI);
    for _ in 0..NUM_HALVINGS {
        let middle = f64::midpoint(low, high);
        if surplus(middle) < 0.0 { low = middle } else { high = middle }
    }
    let (re, im) = from_beta(high);
    2.0 * (high / 2.0).sin() * re.hypot(im)
}

/// Coefficients of the characteristic polynomial, highest power first.
fn characteristic(step: f64, delay: u32, momentum: f64) -> Vec<f64> {
    if delay == 0 {
        return vec![1.0, step - (1.0 + momentum), momentum];
    }
    let mut coefficients = vec![0.0; delay as usize + 2];
    coefficients[0] = 1.0;
    coefficients[1] = -(1.0 + momentum);
    coefficients[2] += momentum;
    coefficients[delay as usize + 1] += step;
    coefficients
}

/// All roots of a monic polynomial by the Aberth-Ehrlich method (Aberth 1973): simultaneous Newton
/// steps, each repelled by the other roots.
fn roots(coefficients: &[f64]) -> Vec<Complex> {
    let degree = coefficients.len() - 1;
    // Guesses on a circle, rotated off the real axis: conjugate guesses would stay conjugate.
    let guess = |index: usize| {
        let angle = 2.0 * PI * index as f64 / degree as f64 + 0.4;
        Complex(angle.cos(), angle.sin())
    };
    let mut roots: Vec<Complex> = (0..degree).map(guess).collect();
    for _ in 0..MAX_ROUNDS {
        let mut moved = 0.0_f64;
        for index in 0..degree {
            let z = roots[index];
            let (mut value, mut slope) = (Complex(0.0, 0.0), Complex(0.0, 0.0));
            for coefficient in coefficients {
                slope = slope * z + value;
                value = value * z + Complex(*coefficient, 0.0);
            }
            if value.size() == 0.0 {
                continue;
            }
            let others = roots.iter().enumerate().filter(|(other, _)| *other != index);
            let push = others.fold(Complex(0.0, 0.0), |sum, (_, other)| {
                sum + Complex(1.0, 0.0) / (z + *other * Complex(-1.0, 0.0))
            });
            // p / (p' − p Σ): Newton's step divided by one minus the repulsion of the others.
            let step = value / (slope + value * push * Complex(-1.0, 0.0));
            roots[index] = z + step * Complex(-1.0, 0.0);
            moved = moved.max(step.size());
        }
        if moved < 1e-14 {
            break;
        }
    }
    roots
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Complex(f64, f64);

impl Complex {
    fn size(self) -> f64 {
        self.0.hypot(self.1)
    }
}

impl std::ops::Add for Complex {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0, self.1 + other.1)
    }
}

impl std::ops::Mul for Complex {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        Self(self.0 * other.0 - self.1 * other.1, self.0 * other.1 + self.1 * other.0)
    }
}

impl std::ops::Div for Complex {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        let square = other.0 * other.0 + other.1 * other.1;
        // Two guesses at the same place would repel without bound.
        let square = square.max(f64::MIN_POSITIVE);
        let (re, im) = (other.0 / square, -other.1 / square);
        self * Self(re, im)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_roots_of_a_polynomial_make_it_vanish() {
        for (step, delay, momentum) in [(0.1, 0, 0.9), (0.3, 3, 0.5), (0.02, 20, 0.0)] {
            let coefficients = characteristic(step, delay, momentum);
            let roots = roots(&coefficients);
            assert_eq!(roots.len(), coefficients.len() - 1);
            for root in roots {
                let start = Complex(0.0, 0.0);
                let value = coefficients.iter().fold(start, |sum, c| sum * root + Complex(*c, 0.0));
                assert!(value.size() < 1e-10, "{root:?} of {coefficients:?}: {value:?}");
            }
        }
    }
}
