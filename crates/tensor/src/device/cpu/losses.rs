//! Cross-entropy on the CPU.

use crate::cross_entropy::{self, vocab_parallel};
use crate::device::error::Result;
use crate::device::losses::{Losses, Preferences, Targets, Teacher};
use crate::device::view::{View, ViewMut};
use crate::gemm::{Precision, Write};
use crate::{Cpu, convert, distillation, preference};

impl Losses for Cpu {
    fn cross_entropy(
        &self,
        logits: View<'_>,
        targets: View<'_>,
        losses: ViewMut<'_>,
        total: ViewMut<'_>,
        write: Write,
    ) -> Result<()> {
        let (logits, targets) = (logits.as_slice()?, targets.as_slice::<u32>()?);
        let (vocab, losses) = (logits.len() / targets.len(), losses.into_slice()?);
        cross_entropy::forward(self, logits, vocab, targets, losses);
        sum_losses(losses, total, write)
    }

    fn cross_entropy_backward(
        &self,
        logits: ViewMut<'_>,
        targets: Targets<'_>,
        losses: ViewMut<'_>,
        total: ViewMut<'_>,
        write: Write,
    ) -> Result<()> {
        let (logits, losses) = (logits.into_slice()?, losses.into_slice()?);
        let (ids, num) = (targets.ids.as_slice()?, targets.num_targets);
        let vocab = logits.len() / ids.len();
        cross_entropy::forward_backward(self, logits, vocab, ids, num, losses);
        scale_gradients(self, logits, targets.loss_scale);
        sum_losses(losses, total, write)
    }

    fn raise_maxima(&self, logits: View<'_>, max: ViewMut<'_>) -> Result<()> {
        vocab_parallel::raise_maxima(self, logits.as_slice()?, max.into_slice()?);
        Ok(())
    }

    fn exponential_sums(
        &self,
        logits: ViewMut<'_>,
        targets: View<'_>,
        max: View<'_>,
        sums: ViewMut<'_>,
        trains: bool,
    ) -> Result<()> {
        let (logits, targets) = (logits.into_slice()?, targets.as_slice()?);
        let (max, sums) = (max.as_slice()?, sums.into_slice()?);
        if trains {
            vocab_parallel::exponentials(self, logits, targets, max, sums);
        } else {
            vocab_parallel::exponential_sums(self, logits, targets, max, sums);
        }
        Ok(())
    }

    fn target_logits(
        &self,
        logits: View<'_>,
        first_column: usize,
        targets: View<'_>,
        target_logits: ViewMut<'_>,
    ) -> Result<()> {
        let (logits, targets) = (logits.as_slice()?, targets.as_slice()?);
        let columns = first_column..first_column + logits.len() / targets.len();
        vocab_parallel::target_logits(logits, columns, targets, target_logits.into_slice()?);
        Ok(())
    }

    fn shard_gradients(
        &self,
        logits: ViewMut<'_>,
        first_column: usize,
        targets: Targets<'_>,
        _max: View<'_>,
        sums: View<'_>,
    ) -> Result<()> {
        let (logits, ids) = (logits.into_slice()?, targets.ids.as_slice()?);
        let columns = first_column..first_column + logits.len() / ids.len();
        let (num, sums) = (targets.num_targets, sums.as_slice()?);
        vocab_parallel::gradients(self, logits, columns, ids, num, sums);
        scale_gradients(self, logits, targets.loss_scale);
        Ok(())
    }

    fn shard_losses(
        &self,
        targets: View<'_>,
        max: View<'_>,
        sums: View<'_>,
        target_logits: View<'_>,
        losses: ViewMut<'_>,
        total: ViewMut<'_>,
    ) -> Result<()> {
        let (targets, max, sums) = (targets.as_slice()?, max.as_slice()?, sums.as_slice()?);
        let (target_logits, losses) = (target_logits.as_slice()?, losses.into_slice()?);
        vocab_parallel::losses(targets, max, sums, target_logits, losses);
        sum_losses(losses, total, Write::Set)
    }

    fn preference_loss(
        &self,
        losses: View<'_>,
        targets: View<'_>,
        preferences: Preferences<'_>,
        factors: ViewMut<'_>,
        total: ViewMut<'_>,
        pairs: ViewMut<'_>,
    ) -> Result<()> {
        let Preferences { references, beta } = preferences;
        let (losses, targets, references) =
            (losses.as_slice()?, targets.as_slice()?, references.as_slice()?);
        let [total] = total.into_slice::<f64>()? else { panic!("one sum") };
        let sums = preference::losses(losses, targets, references, beta, factors.into_slice()?);
        *total = sums.loss;
        if let [num_preferred, margin] = pairs.into_slice::<f64>()? {
            (*num_preferred, *margin) = (sums.num_preferred, sums.margin);
        }
        Ok(())
    }

    fn distillation_backward(
        &self,
        logits: ViewMut<'_>,
        teacher: Teacher<'_>,
        targets: Targets<'_>,
        losses: ViewMut<'_>,
        total: ViewMut<'_>,
    ) -> Result<()> {
        let Teacher { logits: of_teacher, settings } = teacher;
        let (logits, losses) = (logits.into_slice()?, losses.into_slice()?);
        let (ids, num) = (targets.ids.as_slice()?, targets.num_targets);
        let of_teacher = of_teacher.as_slice()?;
        distillation::forward_backward(self, logits, of_teacher, ids, num, settings, losses);
        scale_gradients(self, logits, targets.loss_scale);
        sum_losses(losses, total, Write::Set)
    }

    fn scale_sequences(&self, gradients: ViewMut<'_>, factors: View<'_>) -> Result<()> {
        preference::scale_gradients(self, gradients.into_slice()?, factors.as_slice()?);
        Ok(())
    }

    fn greedy_token(
        &self,
        logits: View<'_>,
        token: ViewMut<'_>,
        num_invalid: ViewMut<'_>,
    ) -> Result<()> {
        let logits = logits.as_slice::<f32>()?;
        let [token] = token.into_slice::<u32>()? else { panic!("one token") };
        let [num_invalid] = num_invalid.into_slice::<u32>()? else { panic!("one count") };
        // Without an early end, so that the loops use vectors.
        let has_nan = logits.iter().fold(false, |has, logit| has | logit.is_nan());
        let best = logits.iter().fold(f32::NEG_INFINITY, |best, logit| best.max(*logit));
        *token = logits.iter().position(|logit| *logit >= best).unwrap_or(0) as u32;
        *num_invalid += u32::from(has_nan);
        Ok(())
    }
}

/// Adds the losses of rows to the one `f64` of their sum, or starts it.
fn sum_losses(losses: &[f32], total: ViewMut<'_>, write: Write) -> Result<()> {
    let [total] = total.into_slice::<f64>()? else { panic!("one sum") };
    let before = if write == Write::Add { *total } else { 0.0 };
    *total = cross_entropy::sum(before, losses);
    Ok(())
}

/// Applies the loss scale.
fn scale_gradients(cpu: &Cpu, gradients: &mut [f32], loss_scale: f32) {
    #[expect(clippy::float_cmp, reason = "one is exact: no scale")]
    if loss_scale != 1.0 {
        convert::scale(cpu, gradients, loss_scale, Precision::F32);
    }
}
