//! Softmax cross-entropy by its definition, in `f64`.

use crate::cross_entropy::IGNORE;
use crate::math::scalar::{exp, ln};

/// The loss of each row: minus the logarithm of its target's probability, 0 for ignored rows.
pub fn forward(logits_tv: &[f64], vocab: usize, targets: &[u32]) -> Vec<f64> {
    let rows = logits_tv.chunks_exact(vocab).zip(targets);
    rows.map(
        |(logits, &target)| {
            if target == IGNORE { 0.0 } else { log_sum_exp(logits) - logits[target as usize] }
        },
    )
    .collect()
}

/// The gradient of the sum of losses over `num_targets`.
pub fn backward(logits_tv: &[f64], vocab: usize, targets: &[u32], num_targets: u64) -> Vec<f64> {
    let mut dlogits_tv = Vec::new();
    for (logits, &target) in logits_tv.chunks_exact(vocab).zip(targets) {
        let log_sum = log_sum_exp(logits);
        for (j, logit) in logits.iter().enumerate() {
            let one_hot = if j == target as usize { 1.0 } else { 0.0 };
            let gradient = (exp(logit - log_sum) - one_hot) / num_targets as f64;
            dlogits_tv.push(if target == IGNORE { 0.0 } else { gradient });
        }
    }
    dlogits_tv
}

fn log_sum_exp(x: &[f64]) -> f64 {
    let max = x.iter().fold(f64::NEG_INFINITY, |max, x| max.max(*x));
    max + ln(x.iter().map(|x| exp(x - max)).sum())
}
