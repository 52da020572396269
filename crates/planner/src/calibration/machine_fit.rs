//! Fit of a machine's calibration to timed training steps of small models.
//!
//! Two steps with different numbers of micro-batches separate the time of a micro-batch from the
//! time of the optimizer. Two sequence lengths separate a micro-batch's cost per token from its
//! cost per parameter. Two numbers of heads with equal FLOPs separate the attention scores.

use super::machine::Point;

/// Timed steps of one model.
#[derive(Debug, Clone)]
pub struct TimedSteps {
    /// Seconds of every step.
    pub step_seconds: Vec<f64>,
    /// FLOPs of a step.
    pub flops: f64,
    /// Parameters of the model.
    pub num_params: u64,
    /// Micro-batches per step.
    pub num_microbatches: usize,
    /// Tokens of a micro-batch.
    pub tokens: usize,
    /// Attention scores of a micro-batch.
    pub scores: f64,
    /// Blocks of the model.
    pub num_blocks: usize,
}

/// Time of one micro-batch and of the rest of a step.
#[derive(Debug, Clone, Copy)]
pub struct MicrobatchTime {
    /// Seconds of one micro-batch.
    pub seconds: f64,
    /// Seconds of a step outside of its micro-batches.
    pub overhead_seconds: f64,
    flops: f64,
    num_params: f64,
    tokens: f64,
    scores: f64,
    num_blocks: f64,
}

impl TimedSteps {
    /// The lower quartile: other programs only slow a step down, but the very fastest is luck.
    fn typical_seconds(&self) -> f64 {
        let mut steps = self.step_seconds.clone();
        steps.sort_by(f64::total_cmp);
        steps[steps.len() / 4]
    }
}

impl MicrobatchTime {
    /// Separates micro-batches from the rest by two steps that differ in their number.
    pub fn fit(short: &TimedSteps, long: &TimedSteps) -> Self {
        let [few, many] = [short, long].map(TimedSteps::typical_seconds);
        let num_microbatches = long.num_microbatches as f64;
        // A disturbed short step would make micro-batches look free.
        let seconds = ((many - few) / (long.num_microbatches - short.num_microbatches) as f64)
            .max(0.8 * many / num_microbatches);
        Self {
            seconds,
            overhead_seconds: (many - seconds * num_microbatches).max(0.0),
            flops: long.flops / num_microbatches,
            num_params: long.num_params as f64,
            tokens: long.tokens as f64,
            scores: long.scores,
            num_blocks: long.num_blocks as f64,
        }
    }

    /// Seconds per block, of micro-batches so short that arithmetic takes no time.
    pub fn seconds_per_block(&self) -> f64 {
        self.seconds / self.num_blocks
    }

    /// Seconds per attention score beyond its products. `more` has more heads and equal FLOPs.
    pub fn seconds_per_score(&self, more: &Self) -> f64 {
        ((more.seconds - self.seconds) / (more.scores - self.scores)).max(0.0)
    }

    /// Seconds per parameter of a micro-batch of any length: the intercept of a line through
    /// micro-batches of two lengths.
    pub fn seconds_per_param(&self, shorter: &Self, block_seconds: f64, score_seconds: f64) -> f64 {
        let linear = |time: &Self| time.seconds - time.scores * score_seconds;
        let slope = (linear(self) - linear(shorter)) / (self.tokens - shorter.tokens);
        let intercept = linear(self) - slope * self.tokens - self.num_blocks * block_seconds;
        // More than half of the shorter micro-batch is a failed measurement.
        intercept.clamp(0.0, shorter.seconds / 2.0) / self.num_params
    }

    /// FLOP/s of the products alone. At least 30 % of the time is theirs, whatever the rest.
    pub fn flops_per_second(
        &self,
        block_seconds: f64,
        score_seconds: f64,
        seconds_per_param: f64,
    ) -> f64 {
        let other = self.num_blocks * block_seconds
            + self.scores * score_seconds
            + self.num_params * seconds_per_param;
        self.flops / (self.seconds - other).max(0.3 * self.seconds)
    }
}

/// Speeds by width and the costs of a step outside of its micro-batches.
#[derive(Debug, Clone)]
pub struct WidthFit {
    /// Speed of products by width.
    pub points: Vec<Point>,
    /// Seconds of a step whatever its model.
    pub step_overhead_seconds: f64,
    /// Seconds of the optimizer per parameter.
    pub update_seconds_per_param: f64,
}

impl WidthFit {
    /// Fits models of ascending width; the last three exceed the caches.
    pub fn fit(
        times: &[(usize, MicrobatchTime)],
        block_seconds: f64,
        score_seconds: f64,
        seconds_per_param: f64,
    ) -> Self {
        const NUM_LARGE: usize = 3;
        let points = times.iter().map(|(width, time)| Point {
            width: *width,
            flops_per_second: time.flops_per_second(
                block_seconds,
                score_seconds,
                seconds_per_param,
            ),
        });
        // The narrowest model has next to no parameters.
        let step_overhead_seconds = times[0].1.overhead_seconds;
        let large = times[times.len() - NUM_LARGE..].iter().map(|(_, time)| {
            (time.overhead_seconds - step_overhead_seconds).max(0.0) / time.num_params
        });
        Self {
            points: points.collect(),
            step_overhead_seconds,
            update_seconds_per_param: large.sum::<f64>() / NUM_LARGE as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of a machine with known constants.
    fn steps(num_microbatches: usize, tokens: usize, heads: f64) -> TimedSteps {
        let (num_params, num_blocks) = (1000, 4);
        let scores = heads * 10.0 * tokens as f64;
        let flops = 6000.0 * tokens as f64;
        let microbatch = flops / 1e9 + scores * 1e-9 + 4.0 * 1e-7 + 1000.0 * 1e-10;
        let seconds = 2e-6 + num_microbatches as f64 * microbatch;
        TimedSteps {
            step_seconds: vec![9.0 * seconds, seconds, seconds, seconds],
            flops: num_microbatches as f64 * flops,
            num_params,
            num_microbatches,
            tokens,
            scores,
            num_blocks,
        }
    }

    #[test]
    fn the_fit_recovers_the_constants_of_a_machine() {
        let time =
            |tokens, heads| MicrobatchTime::fit(&steps(1, tokens, heads), &steps(4, tokens, heads));
        let close = |value: f64, expected: f64| (value / expected - 1.0).abs() < 1e-6;
        let (long, short) = (time(256, 2.0), time(64, 2.0));
        assert!(close(long.overhead_seconds, 2e-6), "{}", long.overhead_seconds);
        let score_seconds = long.seconds_per_score(&time(256, 8.0));
        assert!(close(score_seconds, 1e-9), "{score_seconds}");
        let per_param = long.seconds_per_param(&short, 1e-7, score_seconds);
        assert!(close(per_param, 1e-10), "{per_param}");
        let speed = long.flops_per_second(1e-7, score_seconds, per_param);
        assert!(close(speed, 1e9), "{speed}");
    }
}
