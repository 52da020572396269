//! Token sampling from logits: temperature, top-k and top-p (Holtzman et al. 2020).
//!
//! Temperature divides the logits; top-k keeps the k most likely tokens; top-p keeps the smallest
//! set whose probabilities reach p. A draw is a function of seed and position, so the same request
//! gives the same text on every machine.
//!
//! Tokens are taken from the likeliest on, equal ones in vocabulary order. Sorting a vocabulary
//! would take longer than a GPU needs for a token, so weights are counted by buckets first, and
//! only the bucket in which a sum ends is sorted.

use lockstep_tensor::cross_entropy::vocab_parallel::exponentials;
use lockstep_tensor::random::Key;
use lockstep_tensor::{Cpu, Isa};

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

/// Draws tokens and reuses its buffers.
pub struct Sampler {
    sampling: Sampling,
    key: Key,
    cpu: Cpu,
    /// Probability of each token by that of the likeliest.
    weights: Vec<f32>,
    buckets: Vec<Bucket>,
    /// Tokens of one bucket, from the likeliest on.
    sorted: Vec<(u32, f32)>,
    num_drawn: u64,
}

/// Tokens of about equal weights.
#[derive(Clone, Copy, Default)]
struct Bucket {
    mass: f64,
    num: usize,
}

/// The likeliest tokens: those of all buckets before one, and the first few of that one.
#[derive(Clone, Copy)]
struct Likeliest {
    bucket: usize,
    num_in_bucket: usize,
    mass_in_bucket: f64,
    mass: f64,
}

/// A factor of two has 64 buckets; the last of 32 such factors also has all that is smaller.
const BITS_IN_BUCKET: u32 = 17;
const NUM_BUCKETS: usize = 64 * 32;

/// Bucket of a weight of at most 1.
fn bucket_of(weight: f32) -> usize {
    let below_one = 1f32.to_bits().saturating_sub(weight.to_bits());
    ((below_one >> BITS_IN_BUCKET) as usize).min(NUM_BUCKETS - 1)
}

impl Sampler {
    /// Sampler at the start of a text.
    pub fn new(sampling: Sampling) -> Self {
        let key = Key::new(sampling.seed, "generate");
        Self {
            sampling,
            key,
            cpu: Cpu::single(Isa::detect()),
            weights: Vec::new(),
            buckets: vec![Bucket::default(); NUM_BUCKETS],
            sorted: Vec::new(),
            num_drawn: 0,
        }
    }

    /// Draws the next token.
    ///
    /// # Panics
    /// When a logit is not a number: loaded weights are checked to be finite.
    pub fn draw(&mut self, logits: &[f32]) -> u32 {
        let uniform = self.key.uniform_f64(self.num_drawn);
        self.num_drawn += 1;
        // Without an early end, so that the loop uses vectors.
        let has_nan = logits.iter().fold(false, |has, logit| has | logit.is_nan());
        assert!(!has_nan, "logits are numbers");
        let best = logits.iter().fold(f32::NEG_INFINITY, |best, logit| best.max(*logit));
        if self.sampling.temperature <= 0.0 {
            // The first of equals.
            let likeliest = logits.iter().position(|logit| *logit >= best);
            return likeliest.expect("a vocabulary") as u32;
        }
        let temperature = (self.sampling.temperature as f32).max(f32::MIN_POSITIVE);
        self.weights.clear();
        self.weights.extend(logits.iter().map(|logit| (logit - best) / temperature));
        exponentials(&self.cpu, &mut self.weights, &[0], &[0.0], &mut [0.0]);
        self.count();
        let all = self.cut_by_number();
        let kept = self.cut_by_mass(all);
        self.nth_by_mass(kept, uniform * kept.mass)
    }

    /// Counts all weights.
    fn count(&mut self) {
        self.buckets.fill(Bucket::default());
        for weight in &self.weights {
            let bucket = &mut self.buckets[bucket_of(*weight)];
            bucket.mass += f64::from(*weight);
            bucket.num += 1;
        }
    }

    /// Sorts the tokens of a bucket.
    fn sort(&mut self, bucket: usize) {
        const CHUNK: usize = 64;
        self.sorted.clear();
        for (tokens, weights) in (0..).step_by(CHUNK).zip(self.weights.chunks(CHUNK)) {
            let is_in = |weight: &f32| bucket_of(*weight) == bucket;
            // Few chunks have one: a test without an early end uses vectors.
            if weights.iter().fold(false, |any, weight| any | is_in(weight)) {
                let inside = (tokens..).zip(weights.iter().copied());
                self.sorted.extend(inside.filter(|(_, weight)| is_in(weight)));
            }
        }
        // Ties are in vocabulary order, the same on every machine.
        self.sorted.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    }

    /// The `top_k` likeliest tokens.
    fn cut_by_number(&mut self) -> Likeliest {
        let (mut mass, mut num) = (0.0, 0);
        let top_k = self.sampling.top_k;
        for bucket in 0..NUM_BUCKETS {
            let Bucket { mass: more, num: num_more } = self.buckets[bucket];
            if top_k > 0 && num + num_more >= top_k {
                self.sort(bucket);
                let num_in_bucket = top_k - num;
                let kept = self.sorted[..num_in_bucket].iter();
                let mass_in_bucket = kept.map(|(_, weight)| f64::from(*weight)).sum();
                return Likeliest {
                    bucket,
                    num_in_bucket,
                    mass_in_bucket,
                    mass: mass + mass_in_bucket,
                };
            }
            (mass, num) = (mass + more, num + num_more);
        }
        Likeliest { bucket: NUM_BUCKETS, num_in_bucket: 0, mass_in_bucket: 0.0, mass }
    }

    /// Of these, the fewest whose mass reaches `top_p` of all.
    fn cut_by_mass(&mut self, all: Likeliest) -> Likeliest {
        let enough = self.sampling.top_p * all.mass;
        if self.sampling.top_p >= 1.0 {
            return all;
        }
        let mut mass = 0.0;
        for bucket in 0..all.end() {
            let (num, more) = all.part(bucket, &self.buckets);
            if num == 0 || mass + more < enough {
                mass += more;
                continue;
            }
            self.sort(bucket);
            let mut mass_in_bucket = 0.0;
            let is_enough = |(_, weight): &(u32, f32)| {
                mass_in_bucket += f64::from(*weight);
                mass + mass_in_bucket >= enough
            };
            let last = self.sorted[..num].iter().position(is_enough).unwrap_or(num - 1);
            let mass = mass + mass_in_bucket;
            return Likeliest { bucket, num_in_bucket: last + 1, mass_in_bucket, mass };
        }
        all
    }

    /// The token at which the mass of the likeliest exceeds `left`.
    fn nth_by_mass(&mut self, kept: Likeliest, mut left: f64) -> u32 {
        let mut found = (0, 0);
        for bucket in 0..kept.end() {
            let (num, mass) = kept.part(bucket, &self.buckets);
            if num == 0 {
                continue;
            }
            found = (bucket, num);
            if left < mass {
                break;
            }
            left -= mass;
        }
        self.sort(found.0);
        let tokens = &self.sorted[..found.1];
        let is_beyond = |(_, weight): &&(u32, f32)| {
            left -= f64::from(*weight);
            left < 0.0
        };
        // Rounding may leave a little behind the last one.
        tokens.iter().find(is_beyond).unwrap_or(&tokens[tokens.len() - 1]).0
    }
}

impl Likeliest {
    /// End of the buckets that have some of them.
    fn end(&self) -> usize {
        (self.bucket + 1).min(NUM_BUCKETS)
    }

    /// Number and mass of those in a bucket.
    fn part(&self, bucket: usize, all: &[Bucket]) -> (usize, f64) {
        if bucket == self.bucket {
            return (self.num_in_bucket, self.mass_in_bucket);
        }
        (all[bucket].num, all[bucket].mass)
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

    /// A draw by its definition: all tokens sorted.
    fn by_sorting(sampling: Sampling, logits: &[f32], uniform: f64) -> u32 {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |logit: &f32| f64::from((logit - best) / sampling.temperature as f32).exp();
        let mut tokens: Vec<_> = (0..).zip(logits.iter().map(weight)).collect();
        tokens.sort_by(|a: &(u32, f64), b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if sampling.top_k > 0 {
            tokens.truncate(sampling.top_k);
        }
        let total: f64 = tokens.iter().map(|(_, weight)| weight).sum();
        let mut kept = 0.0;
        let last = tokens.iter().position(|(_, weight)| {
            kept += weight;
            kept >= sampling.top_p * total
        });
        tokens.truncate(last.map_or(tokens.len(), |last| last + 1));
        let mut left = uniform * tokens.iter().map(|(_, weight)| weight).sum::<f64>();
        let found = tokens.iter().find(|(_, weight)| {
            left -= weight;
            left < 0.0
        });
        found.unwrap_or(&tokens[tokens.len() - 1]).0
    }

    #[test]
    fn draws_are_those_of_a_sorted_vocabulary() {
        // About even, peaked, and so wide that most tokens are in the last bucket; every third is
        // equal to the one before.
        for spread in [0.1, 1.0, 40.0] {
            let number = |i: u64| Key::new(9, "logits").uniform_f64(i) as f32;
            let logits: Vec<f32> = (0..5000u64)
                .map(|i| if i % 3 == 2 { i - 1 } else { i })
                .map(|i| (number(2 * i) + number(2 * i + 1)) * spread)
                .collect();
            for (top_k, top_p) in [(0, 1.0), (0, 0.95), (0, 0.2), (1, 1.0), (77, 0.8), (9000, 0.9)]
            {
                for temperature in [0.3, 1.0] {
                    let sampling = Sampling { temperature, top_k, top_p, seed: 5 };
                    let (mut sampler, key) = (Sampler::new(sampling), Key::new(5, "generate"));
                    for i in 0..20 {
                        let expected = by_sorting(sampling, &logits, key.uniform_f64(i));
                        assert_eq!(sampler.draw(&logits), expected, "{spread} {sampling:?} {i}");
                    }
                }
            }
        }
    }
}
