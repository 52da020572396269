//! Direct preference optimization (DPO, Rafailov et al. 2023): the loss of pairs of sequences, the
//! chosen one and then the rejected one.
//!
//! ```text
//! z = beta * ((ref_chosen - chosen) - (ref_rejected - rejected))
//! loss = ln(1 + exp(-z))
//! ```
//!
//! Each term is the sum of a sequence's token losses, in `f64` and in the order of its rows; `ref`
//! are those of the reference model. The gradient of the loss is that of the token losses, with a
//! factor of each sequence: `beta * sigmoid(-z)` where it is chosen, its opposite where it is
//! rejected. A pair without targets is padding and has no loss.
//!
//! Legend: t rows, s sequences (2k chosen, 2k + 1 rejected), v vocabulary.

use crate::convert;
use crate::cpu::Cpu;
use crate::cross_entropy::IGNORE;
use crate::gemm::Precision;
use crate::math::scalar::{exp, ln};

/// Sums over pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Losses.
    pub loss: f64,
    /// Number of pairs with a positive margin: the chosen sequence has gained more than the
    /// rejected one.
    pub num_preferred: f64,
    /// Margins of the rewards, `z`.
    pub margin: f64,
}

/// Sets the factor of each sequence and returns the sums over the pairs. `losses_t` are those of
/// the rows, zero for ignored ones.
pub fn losses(
    losses_t: &[f32],
    targets_t: &[u32],
    references_s: &[f64],
    beta: f64,
    factors_s: &mut [f32],
) -> Sums {
    let num_rows = losses_t.len() / references_s.len();
    assert!(references_s.len().is_multiple_of(2), "sequences are pairs");
    assert_eq!(losses_t.len(), num_rows * references_s.len(), "rows of whole sequences");
    assert_eq!((losses_t.len(), references_s.len()), (targets_t.len(), factors_s.len()));
    let sum = |sequence: usize| {
        let rows = &losses_t[sequence * num_rows..(sequence + 1) * num_rows];
        rows.iter().fold(0.0, |sum, &loss| sum + f64::from(loss))
    };
    let mut total = Sums::default();
    for (pair, factors) in factors_s.chunks_exact_mut(2).enumerate() {
        let (chosen, rejected) = (2 * pair, 2 * pair + 1);
        let targets = &targets_t[chosen * num_rows..(rejected + 1) * num_rows];
        if targets.iter().all(|&target| target == IGNORE) {
            factors.fill(0.0);
            continue;
        }
        let gain = |sequence: usize| references_s[sequence] - sum(sequence);
        let z = beta * (gain(chosen) - gain(rejected));
        // The exponential of a number below zero does not overflow.
        let small = exp(-z.abs());
        total.loss += (-z).max(0.0) + ln(1.0 + small);
        total.num_preferred += f64::from(z > 0.0);
        total.margin += z;
        let sigmoid = if z > 0.0 { small } else { 1.0 } / (1.0 + small);
        let factor = (beta * sigmoid) as f32;
        factors.copy_from_slice(&[factor, -factor]);
    }
    total
}

/// Multiplies the gradients of each sequence's rows by its factor.
pub fn scale_gradients(cpu: &Cpu, dlogits_tv: &mut [f32], factors_s: &[f32]) {
    let len = dlogits_tv.len() / factors_s.len();
    assert_eq!(dlogits_tv.len(), len * factors_s.len(), "rows of whole sequences");
    for (gradients, &factor) in dlogits_tv.chunks_exact_mut(len).zip(factors_s) {
        convert::scale(cpu, gradients, factor, Precision::F32);
    }
}
