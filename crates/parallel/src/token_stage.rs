//! Tokens of a micro-batch and its loss in the memory of an accelerator.
//!
//! The loader has tokens in host memory. They are copied when a block that reads them runs; the
//! loss comes back when its micro-batch has gone forward.

use crate::microbatch::Accelerator;
use lockstep_model::{BlockIo, Microbatch, MicrobatchShape};
use lockstep_tensor::device::{Buffer, Device, Dtype, Result as DeviceResult, View, ViewMut};

/// Buffers of one rank; none where the CPU runs the blocks.
pub(crate) struct TokenStage(Option<Buffers>);

struct Buffers {
    /// Inputs, then targets.
    tokens: [Buffer; 2],
    loss: Buffer,
}

impl TokenStage {
    /// Buffers for micro-batches of one shape.
    pub(crate) fn new(accelerator: Accelerator<'_>, shape: MicrobatchShape) -> DeviceResult<Self> {
        let Some(device) = accelerator else { return Ok(Self(None)) };
        let tokens = || device.allocate(Dtype::U32, shape.rows());
        let tokens = [tokens()?, tokens()?];
        Ok(Self(Some(Buffers { tokens, loss: device.allocate(Dtype::F64, 1)? })))
    }

    /// The micro-batch as a block reads it, and the place of its loss.
    pub(crate) fn stage<'a>(
        &'a mut self,
        device: &dyn Device,
        io: BlockIo,
        microbatch: &Microbatch<'a>,
        loss: &'a mut [f64; 1],
    ) -> DeviceResult<(Microbatch<'a>, ViewMut<'a>)> {
        let Some(Buffers { tokens: [inputs, targets], loss: on_device }) = &mut self.0 else {
            return Ok((*microbatch, ViewMut::of(loss)));
        };
        let copy =
            |from: View<'_>, to: &mut Buffer| device.copy(from, to.view_mut().range(0..from.len()));
        match io {
            BlockIo::TokensToStream { .. } => copy(microbatch.inputs, inputs)?,
            BlockIo::StreamToLoss { .. } => copy(microbatch.targets, targets)?,
            BlockIo::StreamToStream { .. } => {}
        }
        let staged = Microbatch {
            inputs: inputs.view().range(0..microbatch.inputs.len()),
            targets: targets.view().range(0..microbatch.targets.len()),
            ..*microbatch
        };
        Ok((staged, on_device.view_mut()))
    }

    /// Waits for the loss.
    pub(crate) fn read_loss(&self, device: &dyn Device, loss: &mut [f64; 1]) -> DeviceResult<()> {
        match &self.0 {
            Some(Buffers { loss: on_device, .. }) => {
                device.copy(on_device.view(), ViewMut::of(loss))
            }
            None => Ok(()),
        }
    }
}
