//! Tokens of a micro-batch and losses in the memory of an accelerator.
//!
//! The loader has tokens in host memory. They are copied ahead of the blocks that read them, to
//! addresses that stay the same; losses are read together after all passes, so that no pass waits
//! for the host.

use crate::microbatch::Accelerator;
use lockstep_model::{BlockIo, Microbatch, MicrobatchShape};
use lockstep_tensor::device::{Buffer, Device, Dtype, Result as DeviceResult, View, ViewMut};

/// Buffers of one rank; none where the CPU runs the blocks.
pub(crate) struct TokenStage(Option<Buffers>);

struct Buffers {
    /// Inputs, then targets, each with the micro-batch that it holds.
    tokens: [(Buffer, Option<u32>); 2],
    /// Loss of the micro-batch that runs, and of all that have run.
    loss: Buffer,
    losses: Buffer,
    /// Micro-batches that have a loss, in their order.
    done: Vec<u32>,
}

impl TokenStage {
    /// Buffers for micro-batches of one shape.
    pub(crate) fn new(accelerator: Accelerator<'_>, shape: MicrobatchShape) -> DeviceResult<Self> {
        let Some(device) = accelerator else { return Ok(Self(None)) };
        let tokens = || Ok((device.allocate(Dtype::U32, shape.rows())?, None));
        let [loss, losses] = [device.allocate(Dtype::F64, 1)?, device.allocate(Dtype::F64, 1)?];
        Ok(Self(Some(Buffers { tokens: [tokens()?, tokens()?], loss, losses, done: Vec::new() })))
    }

    /// Makes room for the losses of a run of so many micro-batches, whose tokens are new.
    pub(crate) fn begin(&mut self, device: &dyn Device, num: usize) -> DeviceResult<()> {
        let Some(Buffers { tokens, losses, done, .. }) = &mut self.0 else { return Ok(()) };
        for (_, held) in tokens {
            *held = None;
        }
        done.clear();
        if losses.len() < num {
            *losses = device.allocate(Dtype::F64, num)?;
        }
        Ok(())
    }

    /// Copies the tokens that a block reads, unless they are there.
    pub(crate) fn copy_tokens(
        &mut self,
        device: &dyn Device,
        io: BlockIo,
        (number, microbatch): (u32, &Microbatch<'_>),
    ) -> DeviceResult<()> {
        let Some(Buffers { tokens: [inputs, targets], .. }) = &mut self.0 else { return Ok(()) };
        let (from, (to, held)) = match io {
            BlockIo::TokensToStream { .. } => (microbatch.inputs, inputs),
            BlockIo::StreamToLoss { .. } => (microbatch.targets, targets),
            BlockIo::StreamToStream { .. } => return Ok(()),
        };
        if *held != Some(number) {
            device.copy(from, to.view_mut().range(0..from.len()))?;
            *held = Some(number);
        }
        Ok(())
    }

    /// The micro-batch as a block reads it, and the place of its loss.
    pub(crate) fn staged<'a>(
        &'a mut self,
        microbatch: &Microbatch<'a>,
        loss: &'a mut [f64; 1],
    ) -> (Microbatch<'a>, ViewMut<'a>) {
        let Some(Buffers { tokens: [inputs, targets], loss: on_device, .. }) = &mut self.0 else {
            return (*microbatch, ViewMut::of(loss));
        };
        let staged = Microbatch {
            inputs: inputs.0.view().range(0..microbatch.inputs.len()),
            targets: targets.0.view().range(0..microbatch.targets.len()),
            ..*microbatch
        };
        (staged, on_device.view_mut())
    }

    /// Keeps the loss of a micro-batch until [`Self::read_losses`]; returns it where the CPU has
    /// computed it.
    pub(crate) fn keep_loss(
        &mut self,
        device: &dyn Device,
        number: u32,
        loss: f64,
    ) -> DeviceResult<Option<f64>> {
        let Some(Buffers { loss, losses, done, .. }) = &mut self.0 else { return Ok(Some(loss)) };
        let at = done.len();
        device.copy(loss.view(), losses.view_mut().range(at..at + 1))?;
        done.push(number);
        Ok(None)
    }

    /// Waits for the losses that were kept, by micro-batch.
    pub(crate) fn read_losses(&mut self, device: &dyn Device) -> DeviceResult<Vec<(u32, f64)>> {
        let Some(Buffers { losses, done, .. }) = &mut self.0 else { return Ok(Vec::new()) };
        let mut values = vec![0.0_f64; done.len()];
        let kept: View<'_> = losses.view().range(0..done.len());
        device.copy(kept, ViewMut::of(&mut values))?;
        Ok(done.drain(..).zip(values).collect())
    }
}
