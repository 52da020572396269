//! Soft cap of the final logits (Gemma 2). Gradients of logits take the place of logits, and their
//! derivative needs the capped ones, so training keeps a copy of those while it computes the loss.

use crate::scratch::Frame;
use lockstep_tensor::device::{Device, Result, ViewMut};

/// Caps logits in place, where the family does.
pub(crate) fn cap(device: &dyn Device, soft_cap: Option<f32>, logits: ViewMut<'_>) -> Result<()> {
    soft_cap.map_or(Ok(()), |bound| device.soft_cap(bound, logits))
}

/// Caps logits in place, and returns a copy where gradients, which take their place, need them.
pub(crate) fn cap_logits<'a>(
    device: &dyn Device,
    soft_cap: Option<f32>,
    mut logits_tv: ViewMut<'_>,
    is_training: bool,
    frame: &mut Frame<'a>,
) -> Result<ViewMut<'a>> {
    let is_kept = is_training && soft_cap.is_some();
    let len = if is_kept { logits_tv.len() } else { 0 };
    let mut capped_tv = frame.take_as(logits_tv.dtype(), len);
    cap(device, soft_cap, logits_tv.reborrow())?;
    if is_kept {
        device.copy(logits_tv.as_view(), capped_tv.reborrow())?;
    }
    Ok(capped_tv)
}

/// Turns the gradients of capped logits into those of the logits, in place.
pub(crate) fn uncap_gradients(
    device: &dyn Device,
    soft_cap: Option<f32>,
    capped_tv: ViewMut<'_>,
    d_logits_tv: ViewMut<'_>,
) -> Result<()> {
    let slope = |bound| device.soft_cap_backward(bound, capped_tv.into_view(), d_logits_tv);
    soft_cap.map_or(Ok(()), slope)
}
