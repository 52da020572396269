//! Seeded random streams for experiments.
//!
//! A stream is a function of seed and name, drawn from the engine's counter-based generator: an
//! experiment gives the same table on every machine, and experiments with one seed are independent.

use lockstep_tensor::math::scalar::{exp, ln, powf, sin_cos};
use lockstep_tensor::random::Key;

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Random {
    key: Key,
    next: u64,
    /// Second normal number of a Box-Muller pair.
    spare: Option<f64>,
}

impl Random {
    /// The stream of a key.
    pub const fn new(key: Key) -> Self {
        Self { key, next: 0, spare: None }
    }

    /// The stream called `name` under a seed.
    pub fn named(seed: u64, name: &str) -> Self {
        Self::new(Key::new(seed, name))
    }

    /// Sub-stream of a number, the same however much of this stream was drawn: runs that are
    /// compared draw the same numbers from it.
    pub fn stream(&self, number: u64) -> Self {
        Self::new(self.key.with(number))
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        self.next += 1;
        self.key.uniform_f64(self.next - 1)
    }

    /// Sixty-four uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.next += 1;
        let index = self.next - 1;
        let [a, b, c, d] = self.key.block(index / 2);
        let (low, high) = if index.is_multiple_of(2) { (a, b) } else { (c, d) };
        (u64::from(high) << 32) | u64::from(low)
    }

    /// Uniform integer below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        ((self.uniform() * bound as f64) as usize).min(bound - 1)
    }

    /// Standard normal (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * ln(1.0 - self.uniform())).sqrt();
        let (sin, cos) = sin_cos(std::f64::consts::TAU * self.uniform());
        self.spare = Some(radius * sin);
        radius * cos
    }

    /// Exponential with a mean.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * ln(1.0 - self.uniform())
    }

    /// Log-normal with a mean and a coefficient of variation.
    pub fn log_normal(&mut self, mean: f64, variation: f64) -> f64 {
        let variance = ln(1.0 + variation * variation);
        mean * exp(variance.sqrt() * self.normal() - 0.5 * variance)
    }

    /// Pareto with minimum `least` and tail exponent `shape`.
    pub fn pareto(&mut self, least: f64, shape: f64) -> f64 {
        least / powf(1.0 - self.uniform(), 1.0 / shape)
    }
}

/// Random variation of the duration of equal work.
#[derive(Debug, Clone, PartialEq)]
pub enum Jitter {
    /// No variation.
    None,
    /// Log-normal: many small multiplicative disturbances.
    LogNormal {
        /// Coefficient of variation: standard deviation/mean.
        variation: f64,
    },
    /// Pareto: rare long stalls.
    Pareto {
        /// Exponent of the tail; the mean exists above 1, the variance above 2.
        shape: f64,
    },
    /// Measured factors, resampled at random; their mean need not be 1.
    Trace(Vec<f64>),
}

impl Jitter {
    /// A random factor, with mean 1 except for traces.
    pub fn factor(&self, random: &mut Random) -> f64 {
        match self {
            Self::None => 1.0,
            Self::LogNormal { variation } => random.log_normal(1.0, *variation),
            Self::Pareto { shape } => random.pareto((shape - 1.0) / shape, *shape),
            Self::Trace(factors) => factors[random.below(factors.len())],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sample means are within five standard errors.
    #[test]
    fn distributions_have_their_moments() {
        let mut random = Random::named(7, "moments");
        let num = 40_000;
        let mut check = |mean: f64, deviation: f64, draw: &mut dyn FnMut(&mut Random) -> f64| {
            let sum: f64 = (0..num).map(|_| draw(&mut random)).sum();
            let found = sum / f64::from(num);
            let error = 5.0 * deviation / f64::from(num).sqrt();
            assert!((found - mean).abs() < error, "{found}, not {mean}");
        };
        check(0.5, 0.289, &mut Random::uniform);
        check(0.0, 1.0, &mut Random::normal);
        check(1.0, 1.42, &mut |random| {
            let normal = random.normal();
            normal * normal
        });
        check(3.0, 3.0, &mut |random| random.exponential(3.0));
        check(50.0, 10.0, &mut |random| random.log_normal(50.0, 0.2));
        check(1.0, 0.4, &mut |random| Jitter::Pareto { shape: 4.0 }.factor(random));
        check(2.0, 1.0, &mut |random| Jitter::Trace(vec![1.0, 3.0]).factor(random));
    }

    #[test]
    fn a_stream_is_a_function_of_its_seed_and_name() {
        let draw = |seed, name| Random::named(seed, name).uniform().to_bits();
        assert_eq!(draw(1, "a"), draw(1, "a"));
        assert_ne!(draw(1, "a"), draw(2, "a"));
        assert_ne!(draw(1, "a"), draw(1, "b"));
    }

    #[test]
    fn sub_streams_do_not_depend_on_what_was_drawn() {
        let mut random = Random::named(1, "a");
        let draw = |random: &Random, number| random.stream(number).uniform().to_bits();
        let (first, second) = (draw(&random, 0), draw(&random, 1));
        random.normal();
        assert_eq!((draw(&random, 0), draw(&random, 1)), (first, second));
        assert!(first != second && first != random.uniform().to_bits());
    }
}
