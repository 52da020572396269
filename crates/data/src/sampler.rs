//! Which tokens are sample number `n`: a function of (seed, epoch, index) and of nothing else.
//!
//! A sample is a window of `context + 1` tokens: the inputs are its first `context`, the targets
//! its last. Windows lie `context` apart, so that in one epoch every target is predicted once. Each
//! epoch shifts all windows by its own offset, so that over the epochs a token is seen at every
//! position of a window, and visits them in its own keyed order (see [`Permutation`]).
//! Batches are runs of consecutive sample numbers, so neither the number of workers nor the
//! microbatch size can change which sample lands in which step.

use crate::permutation::{Permutation, mix};

/// Finds any training sample in constant time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampler {
    seed: u64,
    context: usize,
    num_windows: u64,
    num_offsets: u64,
}

/// Where a sample lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// How often the whole stream was used before this sample.
    pub epoch: u64,
    /// The number of the window in the stream, in reading order.
    pub index: u64,
    /// The first of its `context + 1` tokens.
    pub start: usize,
}

/// What the random numbers are drawn for: the two uses must not be correlated.
const OFFSET: u64 = 1;
const ORDER: u64 = 2;

impl Sampler {
    /// A sampler over a stream of `num_tokens`, which must hold at least one window.
    pub fn new(seed: u64, context: usize, num_tokens: usize) -> Self {
        assert!(context > 0, "a window predicts at least one token");
        assert!(num_tokens > context, "{num_tokens} tokens hold no window of {context} + 1");
        // The number of windows must not depend on an epoch's offset, or a sample's epoch could
        // not be found by division. So one window's worth of tokens is kept back for the offsets;
        // a stream too short for that has one window, and as many offsets as fit.
        let num_windows = ((num_tokens - context) / context).max(1);
        let num_offsets = context.min(num_tokens - num_windows * context);
        Self { seed, context, num_windows: num_windows as u64, num_offsets: num_offsets as u64 }
    }

    /// How many samples an epoch has.
    pub fn num_windows(&self) -> u64 {
        self.num_windows
    }

    /// Where sample number `sample` lies.
    pub fn locate(&self, sample: u64) -> Window {
        let epoch = sample / self.num_windows;
        let key = |purpose| mix(mix(self.seed, purpose), epoch);
        let order = Permutation::new(self.num_windows, key(ORDER));
        let index = order.apply(sample % self.num_windows);
        let offset = scale(key(OFFSET), self.num_offsets);
        Window { epoch, index, start: offset as usize + index as usize * self.context }
    }
}

/// A number below `limit`, from a random word: the high half of their product.
fn scale(word: u64, limit: u64) -> u64 {
    ((u128::from(word) * u128::from(limit)) >> u64::BITS) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_lies_inside_the_stream_even_when_it_barely_fits() {
        for context in 1..=9 {
            for num_tokens in context + 1..=5 * context + 2 {
                let sampler = Sampler::new(3, context, num_tokens);
                for sample in 0..20 * sampler.num_windows() {
                    let end = sampler.locate(sample).start + context + 1;
                    assert!(end <= num_tokens, "context {context}, {num_tokens} tokens");
                }
            }
        }
    }

    #[test]
    fn at_most_two_windows_of_the_stream_are_left_out_of_an_epoch() {
        for num_tokens in [5, 8, 9, 100, 101, 102, 103, 1000] {
            let used = Sampler::new(1, 4, num_tokens).num_windows() as usize * 4 + 1;
            assert!(num_tokens - used < 2 * 4, "{used} of {num_tokens}");
        }
    }

    #[test]
    fn epochs_differ_in_order_and_offset() {
        let sampler = Sampler::new(1, 64, 100_000);
        let epoch = |e| (0..sampler.num_windows()).map(move |i| i + e * sampler.num_windows());
        let order = |e| epoch(e).map(|n| sampler.locate(n).index).collect::<Vec<_>>();
        assert_ne!(order(0), order(1));
        let offset = |e| sampler.locate(e * sampler.num_windows()).start % 64;
        let mut offsets: Vec<usize> = (0..200).map(offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        assert!(offsets.len() > 48, "200 epochs use only {} of 64 offsets", offsets.len());
    }
}
