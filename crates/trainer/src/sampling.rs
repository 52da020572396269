//! Token sampling from logits: temperature, top-k and top-p (Holtzman et al. 2020).
//!
//! Temperature divides the logits; top-k keeps the k most likely tokens; top-p keeps the smallest
//! set whose probabilities reach p. A draw is a function of seed and position, so the same request
//! gives the same text on every machine.

use lockstep_tensor::math::scalar;
use lockstep_tensor::random::Key;

/// Sampling parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token; 1 samples from the model's distribution.
    pub temperature: f64,
    /// Number of most likely tokens to keep; 0 keeps all.
    pub top_k: usize,
    /// Probability mass to keep; 1 keeps all.
    pub top_p: f64,
    /// Seed of the draws.
    pub seed: u64,
}

/// Draws tokens and reuses its buffer.
pub struct Sampler {
    sampling: Sampling,
    key: Key,
    candidates: Vec<(u32, f64)>,
    num_drawn: u64,
}

impl Sampler {
    /// Sampler at the start of a text.
    pub fn new(sampling: Sampling) -> Self {
        let key = Key::new(sampling.seed, "generate");
        Self { sampling, key, candidates: Vec::new(), num_drawn: 0 }
    }

    /// Draws the next token.
    ///
    /// # Panics
    /// When a logit is not a number: loaded weights are checked to be finite.
    pub fn draw(&mut self, logits: &[f32]) -> u32 {
        let uniform = self.key.uniform_f64(self.num_drawn);
        self.num_drawn += 1;
        assert!(logits.iter().all(|logit| !logit.is_nan()), "logits are numbers");
        let tokens = (0..).zip(logits.iter().copied());
        if self.sampling.temperature <= 0.0 {
            // The first of equals.
            let likeliest = tokens.reduce(|best, next| if next.1 > best.1 { next } else { best });
            return likeliest.expect("a vocabulary").0;
        }
        self.candidates.clear();
        self.candidates.extend(tokens.map(|(token, logit)| (token, f64::from(logit))));
        // Ties are in vocabulary order, the same on every machine.
        let order = |a: &(u32, f64), b: &(u32, f64)| {
            b.1.partial_cmp(&a.1).expect("checked above").then(a.0.cmp(&b.0))
        };
        let top_k = self.sampling.top_k;
        if (1..self.candidates.len()).contains(&top_k) {
            self.candidates.select_nth_unstable_by(top_k - 1, order);
            self.candidates.truncate(top_k);
        }
        self.candidates.sort_unstable_by(order);
        let best = self.candidates[0].1;
        for (_, weight) in &mut self.candidates {
            *weight = scalar::exp((*weight - best) / self.sampling.temperature);
        }
        let total: f64 = self.candidates.iter().map(|(_, weight)| weight).sum();
        let mut kept = 0.0;
        let enough = self.candidates.iter().position(|(_, weight)| {
            kept += weight;
            kept >= self.sampling.top_p * total
        });
        self.candidates.truncate(enough.map_or(self.candidates.len(), |last| last + 1));
        let mut left = uniform * self.candidates.iter().map(|(_, weight)| weight).sum::<f64>();
        for &(token, weight) in &self.candidates {
            left -= weight;
            if left < 0.0 {
                return token;
            }
        }
        self.candidates[self.candidates.len() - 1].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 3 };

    fn counts(sampling: Sampling, logits: &[f32], num_draws: usize) -> Vec<usize> {
        let mut sampler = Sampler::new(sampling);
        let mut counts = vec![0; logits.len()];
        for _ in 0..num_draws {
            counts[sampler.draw(logits) as usize] += 1;
        }
        counts
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.7f32.ln(), 0.2f32.ln(), 0.1f32.ln()];
        let counts = counts(PLAIN, &logits, 10_000);
        for (count, expected) in counts.iter().zip([7000.0, 2000.0, 1000.0]) {
            assert!((*count as f64 - expected).abs() < 200.0, "{counts:?}");
        }
    }

    #[test]
    fn zero_temperature_takes_the_likeliest_and_the_first_of_equals() {
        let greedy = Sampling { temperature: 0.0, ..PLAIN };
        assert_eq!(counts(greedy, &[1.0, 5.0, 5.0], 10), [0, 10, 0]);
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let logits = [0.1f32.ln(), 0.5f32.ln(), 0.4f32.ln()];
        assert_eq!(counts(Sampling { top_k: 2, ..PLAIN }, &logits, 500)[0], 0);
        assert_eq!(counts(Sampling { top_p: 0.85, ..PLAIN }, &logits, 500)[0], 0);
        assert_eq!(counts(Sampling { top_p: 0.3, ..PLAIN }, &logits, 500), [0, 500, 0]);
        assert!(counts(Sampling { top_p: 0.95, ..PLAIN }, &logits, 500)[0] > 0);
    }

    #[test]
    fn the_k_likeliest_of_many_tokens_are_those_of_a_sort() {
        // Each logit is there three times: ties at the cut go by vocabulary order.
        let logits: Vec<f32> = (0..300).map(|i| ((i * 37) % 100) as f32 * 0.1).collect();
        let mut sorted: Vec<usize> = (0..300).collect();
        sorted.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let drawn = counts(Sampling { top_k: 5, temperature: 9.0, ..PLAIN }, &logits, 2000);
        let mut found: Vec<usize> = (0..300).filter(|token| drawn[*token] > 0).collect();
        found.sort_by_key(|token| sorted.iter().position(|other| other == token));
        assert_eq!(found, sorted[..5]);
    }

    #[test]
    fn the_seed_decides_the_draws() {
        let logits = [0.0; 50];
        let text = |seed| {
            let mut sampler = Sampler::new(Sampling { seed, ..PLAIN });
            (0..20).map(|_| sampler.draw(&logits)).collect::<Vec<_>>()
        };
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
    }
}
