//! Classification head: the last block of the `mlp` family, with a linear map to the classes and
//! the cross-entropy.
//!
//! As in the head of a transformer, a training forward overwrites the logits with their gradients.
//! The class of a sample is looked up by its index.
//!
//! Shapes: t samples of the micro-batch, c features, v classes.

use super::digits::NUM_CLASSES;
use super::samples::Samples;
use super::set_loss;
use crate::block::{
    Block, BlockIo, Context, DecodeContext, Flops, IGNORE, MicrobatchShape, Mode, Saved, SavedLen,
};
use crate::grads::Grads;
use crate::linear::Linear;
use crate::param::{Param, ParamList};
use crate::scratch::Frame;
use lockstep_tensor::device::{Result, Targets, View, ViewMut};
use lockstep_tensor::gemm::Write;
use std::sync::Arc;

/// Linear map to the classes, and the loss.
pub(super) struct Classifier {
    params: Vec<Param>,
    linear: Linear,
    samples: Arc<Samples>,
}

impl Classifier {
    pub(super) fn new(width: usize, samples: Arc<Samples>) -> Self {
        let mut params = ParamList::default();
        let linear = Linear::new("head", width, NUM_CLASSES, 1.0, &mut params);
        Self { params: params.finish(), linear, samples }
    }
}

impl Block for Classifier {
    fn name(&self) -> &'static str {
        "head"
    }

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn io(&self) -> BlockIo {
        BlockIo::StreamToLoss { input: self.linear.num_inputs }
    }

    fn saved_len(&self, shape: MicrobatchShape) -> SavedLen {
        SavedLen { kept: shape.rows() * NUM_CLASSES, rebuilt: 0 }
    }

    fn flops_per_token(&self, _num_tokens: usize) -> Flops {
        let forward = self.linear.flops();
        Flops { forward, backward: 2 * forward }
    }

    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        _output: ViewMut<'_>,
        saved: Saved<'_>,
    ) -> Result<()> {
        let (device, microbatch) = (ctx.device, ctx.microbatch);
        let mut logits_tv = saved.kept;
        self.linear.forward(device, params, input_tc, logits_tv.reborrow())?;
        let samples = microbatch.inputs.as_slice::<u32>()?.iter();
        let (mut logits_tv, mut sum) = (Frame::over(logits_tv), 0.0);
        for (sample, target) in samples.zip(microbatch.targets.as_slice::<u32>()?) {
            let class = self.samples.target(*sample as usize) as u32;
            let class = [if *target == IGNORE { IGNORE } else { class }];
            let (mut loss, mut total) = ([0.0_f32], [0.0_f64]);
            let (losses, totals) = (ViewMut::of(&mut loss), ViewMut::of(&mut total));
            let (logits_v, ids) = (logits_tv.take(NUM_CLASSES), View::of(&class));
            match ctx.mode {
                Mode::Train { .. } => {
                    let num_targets = microbatch.num_targets;
                    let targets = Targets { ids, num_targets, loss_scale: 1.0 };
                    device.cross_entropy_backward(logits_v, targets, losses, totals, Write::Set)?;
                }
                Mode::Evaluate => {
                    device.cross_entropy(logits_v.as_view(), ids, losses, totals, Write::Set)?;
                }
            }
            sum += total[0];
        }
        set_loss(ctx, sum)
    }

    fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        saved: Saved<'_>,
        d_stream: ViewMut<'_>,
        grads: Grads<'_>,
    ) -> Result<()> {
        let d_logits_tv = saved.kept.as_view();
        self.linear.backward_weight(ctx.device, input_tc, d_logits_tv, grads)?;
        self.linear.backward_input(ctx.device, params, d_logits_tv, d_stream)
    }

    fn decode(
        &self,
        ctx: &mut DecodeContext<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        output: ViewMut<'_>,
        _cache: ViewMut<'_>,
    ) -> Result<()> {
        let last_c = input_tc.range(input_tc.len() - self.linear.num_inputs..input_tc.len());
        self.linear.forward(ctx.device, params, last_c, output)
    }
}
