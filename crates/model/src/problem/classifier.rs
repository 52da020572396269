//! Classification head: the last block of the `mlp` family, with a linear map to the classes and
//! the cross-entropy.
//!
//! As in the head of a transformer, a training forward overwrites the logits with their gradients.
//! The class of a sample is looked up by its index.
//!
//! Shapes: t samples of the micro-batch, c features, v classes.

use super::digits::NUM_CLASSES;
use super::samples::Samples;
use crate::block::{
    Block, BlockIo, Context, DecodeContext, Flops, IGNORE, MicrobatchShape, Mode, Saved, SavedLen,
};
use crate::grads::Grads;
use crate::linear::Linear;
use crate::param::{Param, ParamList};
use lockstep_tensor::cross_entropy;
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
        params: &[f32],
        input_tc: &[f32],
        _output: &mut [f32],
        saved: Saved<'_>,
    ) -> f64 {
        let (cpu, microbatch) = (ctx.cpu, ctx.microbatch);
        let logits_tv = saved.kept;
        self.linear.forward(cpu, params, input_tc, logits_tv);
        let mut sum = 0.0;
        for (row, logits_v) in logits_tv.chunks_exact_mut(NUM_CLASSES).enumerate() {
            let is_counted = microbatch.targets[row] != IGNORE;
            let class = self.samples.target(microbatch.inputs[row] as usize) as u32;
            let class = [if is_counted { class } else { IGNORE }];
            let (v, num_targets, mut loss) = (NUM_CLASSES, microbatch.num_targets, [0.0]);
            let loss = &mut loss;
            sum += match ctx.mode {
                Mode::Train { .. } => {
                    cross_entropy::forward_backward(cpu, logits_v, v, &class, num_targets, loss)
                }
                Mode::Evaluate => cross_entropy::forward(cpu, logits_v, v, &class, loss),
            };
        }
        sum
    }

    fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        input_tc: &[f32],
        saved: Saved<'_>,
        d_stream: &mut [f32],
        mut grads: Grads<'_>,
    ) {
        let d_logits_tv = &*saved.kept;
        self.linear.backward_weight(ctx.cpu, input_tc, d_logits_tv, grads.reborrow());
        self.linear.backward_input(ctx.cpu, params, d_logits_tv, d_stream);
    }

    fn decode(
        &self,
        ctx: &mut DecodeContext<'_>,
        params: &[f32],
        input_tc: &[f32],
        output: &mut [f32],
        _cache: &mut [f32],
    ) {
        let last_c = &input_tc[input_tc.len() - self.linear.num_inputs..];
        self.linear.forward(ctx.cpu, params, last_c, output);
    }
}
