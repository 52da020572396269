//! Fused softmax and cross-entropy: the gradient overwrites the logits.
//!
//! The loss of a token is `ln(sum of e^x) − x[target]`, and the gradient of its logits is the
//! softmax minus one at the target. With the row's maximum taken off first no exponential
//! overflows, and the largest is exactly 1, so the sum is never 0. The exponentials are computed
//! once: forward leaves them where the logits were, and a second pass over the row, which is still
//! in the cache, scales them to probabilities over the number of targets in the whole batch.
//!
//! The sum uses sixteen accumulators (column j to accumulator j % 16, ascending) and one fixed
//! tree; missing columns of the last group are −∞, whose exponential is 0. Losses are added in
//! `f64`, tokens ascending.
//!
//! Shapes: t tokens (rows), v vocabulary (columns).
//!
//! - [`vocab_parallel`]: the loss over a sharded vocabulary.

pub mod vocab_parallel;

use crate::Cpu;
use crate::math::{exp, scalar};
use crate::reduce::groups::{num_groups, store};
use crate::simd::{Kernel, Simd, VECTOR_LEN};

/// Target of an ignored token: loss 0, gradient 0.
pub const IGNORE: u32 = u32::MAX;

/// Sets `losses_t` to the loss of each token.
pub fn forward(cpu: &Cpu, logits_tv: &[f32], vocab: usize, targets: &[u32], losses_t: &mut [f32]) {
    check_shapes(logits_tv, vocab, targets, losses_t);
    let rows = rows_per_task(vocab);
    cpu.for_each_part(losses_t, rows, |i, losses_t| {
        let logits_tv = &logits_tv[i * rows * vocab..][..losses_t.len() * vocab];
        cpu.run(Forward { logits_tv, vocab, targets: &targets[i * rows..], losses_t });
    });
}

/// As [`forward`], with the same bits, and turns the logits into their gradient:
/// `(softmax − one-hot) / num_targets`, or 0 in ignored rows.
///
/// `num_targets` counts the targets of the whole batch, over all micro-batches and workers.
pub fn forward_backward(
    cpu: &Cpu,
    logits_tv: &mut [f32],
    vocab: usize,
    targets: &[u32],
    num_targets: u64,
    losses_t: &mut [f32],
) {
    check_shapes(logits_tv, vocab, targets, losses_t);
    let rows = rows_per_task(vocab);
    cpu.for_each_split([logits_tv, losses_t], [rows * vocab, rows], |i, [logits_tv, losses_t]| {
        let targets = &targets[i * rows..];
        cpu.run(ForwardBackward { logits_tv, vocab, targets, num_targets, losses_t });
    });
}

pub(crate) fn check_shapes(logits_tv: &[f32], vocab: usize, targets: &[u32], losses_t: &[f32]) {
    assert!(vocab > 0, "a row has at least one column");
    assert_eq!(logits_tv.len(), targets.len() * vocab, "{vocab} logits for each target");
    assert_eq!(losses_t.len(), targets.len(), "a loss for each target");
    for &target in targets {
        let known = target == IGNORE || (target as usize) < vocab;
        assert!(known, "target {target} is not in the vocabulary of {vocab}");
    }
}

/// About 16,384 logits make a task, whatever the vocabulary.
pub(crate) fn rows_per_task(vocab: usize) -> usize {
    16_384usize.div_ceil(vocab)
}

/// Adds losses to the sum of those before them, tokens ascending.
pub fn sum(before: f64, losses_t: &[f32]) -> f64 {
    losses_t.iter().fold(before, |sum, &loss| sum + f64::from(loss))
}

struct Forward<'a> {
    logits_tv: &'a [f32],
    vocab: usize,
    targets: &'a [u32],
    losses_t: &'a mut [f32],
}

impl Kernel for Forward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.logits_tv.chunks_exact(self.vocab).zip(self.targets);
        for ((logits, &target), loss) in rows.zip(self.losses_t) {
            if target == IGNORE {
                *loss = 0.0;
                continue;
            }
            let max = row_max(s, logits);
            let mut sum = s.zero();
            for i in 0..num_groups(logits) {
                sum = s.add(sum, exp(s, s.sub(load(s, logits, i), s.splat(max))));
            }
            *loss = token_loss(max, s.reduce_add(sum), logits[target as usize]);
        }
    }
}

struct ForwardBackward<'a> {
    logits_tv: &'a mut [f32],
    vocab: usize,
    targets: &'a [u32],
    num_targets: u64,
    losses_t: &'a mut [f32],
}

impl Kernel for ForwardBackward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.logits_tv.chunks_exact_mut(self.vocab).zip(self.targets);
        for ((logits, &target), loss) in rows.zip(self.losses_t) {
            if target == IGNORE {
                *loss = 0.0;
                logits.fill(0.0);
                continue;
            }
            let target = target as usize;
            let (max, target_logit) = (row_max(s, logits), logits[target]);
            let mut sum = s.zero();
            for i in 0..num_groups(logits) {
                let e = exp(s, s.sub(load(s, logits, i), s.splat(max)));
                sum = s.add(sum, e);
                store(s, e, logits, i);
            }
            let sum = s.reduce_add(sum);
            *loss = token_loss(max, sum, target_logit);

            // The target's gradient is a difference of two numbers near 1 once the model is good,
            // so it alone is computed in f64.
            let (sum, num_targets) = (f64::from(sum), self.num_targets as f64);
            let at_target = (f64::from(logits[target]) / sum - 1.0) / num_targets;
            let scale = s.splat((1.0 / (sum * num_targets)) as f32);
            for i in 0..num_groups(logits) {
                store(s, s.mul(load(s, logits, i), scale), logits, i);
            }
            logits[target] = at_target as f32;
        }
    }
}

/// The largest logit that is not NaN. A NaN still reaches the loss, through its exponential.
#[inline(always)]
pub(crate) fn row_max<S: Simd>(s: S, logits: &[f32]) -> f32 {
    let mut max = s.splat(f32::NEG_INFINITY);
    for i in 0..num_groups(logits) {
        max = s.max(load(s, logits, i), max);
    }
    s.reduce_max(max)
}

/// `ln(sum) + max − logit`: in `f64`, because the terms may be large and their sum small.
#[inline(always)]
pub(crate) fn token_loss(max: f32, sum: f32, target_logit: f32) -> f32 {
    (scalar::ln(f64::from(sum)) + (f64::from(max) - f64::from(target_logit))) as f32
}

/// Loads group `i` of a row; missing columns are −∞.
#[inline(always)]
pub(crate) fn load<S: Simd>(s: S, logits: &[f32], i: usize) -> S::V {
    let (groups, tail) = logits.as_chunks::<VECTOR_LEN>();
    if let Some(group) = groups.get(i) {
        return s.load(group);
    }
    let mut values = [f32::NEG_INFINITY; VECTOR_LEN];
    values[..tail.len()].copy_from_slice(tail);
    s.load(&values)
}
