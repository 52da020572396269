//! Hidden layer of the `mlp` family: a linear map with a bias, then the activation.
//!
//! The input of the activation is kept, because backward needs its derivative; recomputation costs
//! one product.
//!
//! Shapes: t samples of the micro-batch, c features in, f features out.

use crate::block::{
    Block, BlockIo, Context, DecodeContext, Flops, MicrobatchShape, Recompute, Saved, SavedLen,
};
use crate::grads::Grads;
use crate::linear::Linear;
use crate::param::{Param, ParamList};
use lockstep_config::Activation;
use lockstep_tensor::{Cpu, gelu, relu};

/// A dense layer with an activation.
pub(super) struct Dense {
    name: String,
    params: Vec<Param>,
    linear: Linear,
    activation: Activation,
}

impl Dense {
    pub(super) fn new(
        index: usize,
        num_inputs: usize,
        num_outputs: usize,
        activation: Activation,
    ) -> Self {
        let name = format!("layers.{index}");
        let mut params = ParamList::default();
        let linear = Linear::new(&name, num_inputs, num_outputs, 2.0, &mut params);
        Self { name, params: params.finish(), linear, activation }
    }

    fn activate(&self, cpu: &Cpu, before_tf: &[f32], output_tf: &mut [f32]) {
        match self.activation {
            Activation::Relu => relu::forward(cpu, before_tf, output_tf),
            Activation::Gelu => gelu::forward(cpu, before_tf, output_tf),
        }
    }
}

impl Block for Dense {
    fn name(&self) -> &str {
        &self.name
    }

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn io(&self) -> BlockIo {
        let Linear { num_inputs: input, num_outputs: output, .. } = self.linear;
        BlockIo::StreamToStream { input, output }
    }

    fn saved_len(&self, shape: MicrobatchShape) -> SavedLen {
        SavedLen { kept: shape.rows() * self.linear.num_outputs, rebuilt: 0 }
    }

    fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        shape.rows() * self.linear.num_outputs
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
        output_tf: &mut [f32],
        saved: Saved<'_>,
    ) -> f64 {
        self.linear.forward(ctx.cpu, params, input_tc, saved.kept);
        self.activate(ctx.cpu, saved.kept, output_tf);
        0.0
    }

    fn recompute(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        input_tc: &[f32],
        saved: Saved<'_>,
        what: Recompute,
    ) {
        match what {
            Recompute::None | Recompute::Selective => {}
            Recompute::Full => self.linear.forward(ctx.cpu, params, input_tc, saved.kept),
        }
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
        let (cpu, before_tf) = (ctx.cpu, &*saved.kept);
        let d_before_tf = ctx.scratch.frame().take(before_tf.len());
        let d_output_tf = &d_stream[..before_tf.len()];
        match self.activation {
            Activation::Relu => relu::backward(cpu, before_tf, d_output_tf, d_before_tf),
            Activation::Gelu => gelu::backward(cpu, before_tf, d_output_tf, d_before_tf),
        }
        self.linear.backward_weight(cpu, input_tc, d_before_tf, grads.reborrow());
        self.linear.backward_input(cpu, params, d_before_tf, &mut d_stream[..input_tc.len()]);
    }

    fn decode_scratch_len(&self, num_tokens: usize) -> usize {
        num_tokens * self.linear.num_outputs
    }

    fn decode(
        &self,
        ctx: &mut DecodeContext<'_>,
        params: &[f32],
        input_tc: &[f32],
        output: &mut [f32],
        _cache: &mut [f32],
    ) {
        let before_tf = ctx.scratch.frame().take(output.len());
        self.linear.forward(ctx.cpu, params, input_tc, before_tf);
        self.activate(ctx.cpu, before_tf, output);
    }
}
