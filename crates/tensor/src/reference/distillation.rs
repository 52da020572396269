//! Knowledge distillation by its definition, in `f64`.

use super::cross_entropy;
use crate::cross_entropy::IGNORE;
use crate::math::scalar::{exp, ln};

/// The loss of each row: `(1 - w)` of the cross-entropy plus `w * T^2` of the divergence of the
/// teacher's softened distribution from the student's; 0 for ignored rows.
pub fn losses(
    logits_tv: &[f64],
    teacher_tv: &[f64],
    targets: &[u32],
    temperature: f64,
    weight: f64,
) -> Vec<f64> {
    let vocab = logits_tv.len() / targets.len();
    let mut losses = cross_entropy::forward(logits_tv, vocab, targets);
    let rows = logits_tv.chunks_exact(vocab).zip(teacher_tv.chunks_exact(vocab));
    for (((z, y), loss), &target) in rows.zip(&mut losses).zip(targets) {
        let [p, q] = [y, z].map(|logits| softened(logits, temperature));
        let divergence: f64 = p.iter().zip(&q).map(|(p, q)| p * (ln(*p) - ln(*q))).sum();
        let soft = if target == IGNORE { 0.0 } else { temperature * temperature * divergence };
        *loss = (1.0 - weight) * *loss + weight * soft;
    }
    losses
}

/// Probabilities at a temperature.
fn softened(logits: &[f64], temperature: f64) -> Vec<f64> {
    let max = logits.iter().fold(f64::NEG_INFINITY, |max, x| max.max(*x));
    let all: Vec<f64> = logits.iter().map(|x| exp((x - max) / temperature)).collect();
    let sum: f64 = all.iter().sum();
    all.iter().map(|x| x / sum).collect()
}
