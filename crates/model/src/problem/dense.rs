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
use lockstep_tensor::device::{self, Device, Result, View, ViewMut};

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

    /// Activation as an operand of a device.
    fn function(&self) -> device::Activation {
        match self.activation {
            Activation::Relu => device::Activation::Relu,
            Activation::Gelu => device::Activation::Gelu,
        }
    }

    /// Sets `before_tf` to the input of the activation, and `output_tf` to its output.
    fn run(
        &self,
        device: &dyn Device,
        params: View<'_>,
        input_tc: View<'_>,
        mut before_tf: ViewMut<'_>,
        output_tf: ViewMut<'_>,
    ) -> Result<()> {
        self.linear.forward(device, params, input_tc, before_tf.reborrow())?;
        device.activate(self.function(), before_tf.as_view(), output_tf)
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
        params: View<'_>,
        input_tc: View<'_>,
        output_tf: ViewMut<'_>,
        saved: Saved<'_>,
    ) -> Result<()> {
        self.run(ctx.device, params, input_tc, saved.kept, output_tf)
    }

    fn recompute(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        saved: Saved<'_>,
        what: Recompute,
    ) -> Result<()> {
        match what {
            Recompute::None | Recompute::Selective => Ok(()),
            Recompute::Full => self.linear.forward(ctx.device, params, input_tc, saved.kept),
        }
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
        let (device, before_tf) = (ctx.device, saved.kept.as_view());
        let mut d_before_tf = ctx.scratch.frame().take(before_tf.len());
        let d_output_tf = d_stream.as_view().range(0..before_tf.len());
        let target = d_before_tf.reborrow();
        device.activate_backward(self.function(), before_tf, d_output_tf, target)?;
        let d_before_tf = d_before_tf.as_view();
        self.linear.backward_weight(device, input_tc, d_before_tf, grads)?;
        let d_input_tc = d_stream.range(0..input_tc.len());
        self.linear.backward_input(device, params, d_before_tf, d_input_tc)
    }

    fn decode_scratch_len(&self, num_tokens: usize) -> usize {
        num_tokens * self.linear.num_outputs
    }

    fn decode(
        &self,
        ctx: &mut DecodeContext<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        output: ViewMut<'_>,
        _cache: ViewMut<'_>,
    ) -> Result<()> {
        let before_tf = ctx.scratch.frame().take(output.len());
        self.run(ctx.device, params, input_tc, before_tf, output)
    }
}
