//! Direct preference optimization by its definition, in `f64`.

use super::cross_entropy;
use crate::math::scalar::{exp, ln};

/// Loss of pairs of sequences with these logits: the sum over pairs of `-ln sigmoid(margin)`.
pub fn loss(
    logits_tv: &[f64],
    vocab: usize,
    targets_t: &[u32],
    references_s: &[f64],
    beta: f64,
) -> f64 {
    let margins = margins(logits_tv, vocab, targets_t, references_s, beta);
    margins.into_iter().map(|margin| ln(1.0 + exp(-margin))).sum()
}

/// Margin of each pair: `beta * (log-ratio of the chosen - log-ratio of the rejected)`, where a
/// log-ratio is the log-probability of the targets minus that of the reference model.
pub fn margins(
    logits_tv: &[f64],
    vocab: usize,
    targets_t: &[u32],
    references_s: &[f64],
    beta: f64,
) -> Vec<f64> {
    let losses_t = cross_entropy::forward(logits_tv, vocab, targets_t);
    let num_rows = losses_t.len() / references_s.len();
    let log_ratio = |sequence: usize| {
        let rows = &losses_t[sequence * num_rows..(sequence + 1) * num_rows];
        references_s[sequence] - rows.iter().sum::<f64>()
    };
    let pair = |pair: usize| beta * (log_ratio(2 * pair) - log_ratio(2 * pair + 1));
    (0..references_s.len() / 2).map(pair).collect()
}
