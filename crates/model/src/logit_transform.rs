//! Changes of the logits before the loss: the multiplier of muP (Yang et al. 2022) and the soft cap
//! of Gemma 2. Gradients of logits take the place of logits, and the cap's derivative needs the
//! capped ones, so training keeps a copy of those while it computes the loss.

use crate::scratch::Frame;
use lockstep_tensor::device::{Device, Result, ViewMut};
use lockstep_tensor::gemm::Precision;

/// Changes of logits, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LogitTransform {
    /// Factor, where it is not 1.
    pub(crate) multiplier: Option<f32>,
    /// Bound, which a tanh approaches.
    pub(crate) soft_cap: Option<f32>,
}

impl LogitTransform {
    /// Changes logits in place.
    pub(crate) fn apply(self, device: &dyn Device, mut logits: ViewMut<'_>) -> Result<()> {
        self.multiply(device, logits.reborrow())?;
        self.soft_cap.map_or(Ok(()), |bound| device.soft_cap(bound, logits))
    }

    /// Changes logits in place, and returns a copy where gradients, which take their place, need
    /// them.
    pub(crate) fn apply_and_keep<'a>(
        self,
        device: &dyn Device,
        mut logits_tv: ViewMut<'_>,
        is_training: bool,
        frame: &mut Frame<'a>,
    ) -> Result<ViewMut<'a>> {
        let is_kept = is_training && self.soft_cap.is_some();
        let len = if is_kept { logits_tv.len() } else { 0 };
        let mut kept_tv = frame.take_as(logits_tv.dtype(), len);
        self.apply(device, logits_tv.reborrow())?;
        if is_kept {
            device.copy(logits_tv.as_view(), kept_tv.reborrow())?;
        }
        Ok(kept_tv)
    }

    /// Turns the gradients of changed logits into those of the logits, in place.
    pub(crate) fn backward(
        self,
        device: &dyn Device,
        kept_tv: ViewMut<'_>,
        mut d_logits_tv: ViewMut<'_>,
    ) -> Result<()> {
        if let Some(bound) = self.soft_cap {
            device.soft_cap_backward(bound, kept_tv.into_view(), d_logits_tv.reborrow())?;
        }
        self.multiply(device, d_logits_tv)
    }

    fn multiply(self, device: &dyn Device, values: ViewMut<'_>) -> Result<()> {
        let none = ViewMut::of::<u64>(&mut []);
        let scale = |factor| device.scale(values, factor, Precision::F32, none);
        self.multiplier.map_or(Ok(()), scale)
    }
}
