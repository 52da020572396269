//! A transformer layer: attention, then feed-forward, each added to the stream; or both beside each
//! other, of one input (Wang and Komatsuzaki 2021).
//!
//! All families are this block; [`crate::llama`] and [`crate::gpt2`] choose its normalisation,
//! positions and activation, and the names and layout of its parameters.

use crate::attention::{Attention, AttentionSaved};
use crate::block::{
    Block, BlockIo, Context, DecodeContext, Flops, MicrobatchShape, Pass, ProductPlan, Recompute,
    Saved, SavedLen,
};
use crate::collectives::CollectiveCall;
use crate::deferred_weight_grad::DeferredWeightGrad;
use crate::feed_forward::{FeedForward, FeedForwardSaved};
use crate::formats::Formats;
use crate::frozen_weight::FrozenWeight;
use crate::grads::Grads;
use crate::head_norms::HeadNorms;
use crate::linear::larger_operands;
use crate::norm_linear::NormLinear;
use crate::param::Param;
use crate::row_parallel::RowParallel;
use crate::scratch::Frame;
use crate::stream_gradient::StreamGradient;
use crate::tensor_shards::TensorShards;
use lockstep_tensor::device::{Device, Result, View, ViewMut};
use std::ops::Range;
use std::slice;

/// Collective calls of half a layer, given that of its normalised heads by trained ranges.
type HalfCalls<'a> = dyn Fn(
        &NormLinear,
        &RowParallel,
        &dyn Fn(&[Range<usize>]) -> Option<CollectiveCall>,
    ) -> Vec<CollectiveCall>
    + 'a;

/// A transformer layer.
pub(crate) struct Layer {
    pub(crate) name: String,
    pub(crate) width: usize,
    pub(crate) params: Vec<Param>,
    pub(crate) attention: Attention,
    pub(crate) feed_forward: FeedForward,
    /// Whether both halves read the input of the layer, and its output is the sum of all three.
    pub(crate) is_parallel: bool,
    /// Whether only adapters are trained.
    pub(crate) is_frozen: bool,
}

/// Saved values of forward: those of both halves, and the stream between them. Halves beside each
/// other need that only while they run: backward keeps the gradient of their output in its place.
struct LayerSaved<'a> {
    attention: AttentionSaved<'a>,
    middle_tc: ViewMut<'a>,
    feed_forward: FeedForwardSaved<'a>,
}

impl Layer {
    fn split<'a>(
        &self,
        shape: MicrobatchShape,
        Saved { kept, rebuilt }: Saved<'a>,
    ) -> LayerSaved<'a> {
        let (mut kept, mut rebuilt) = (Frame::over(kept), Frame::over(rebuilt));
        let (dtype, len) = (self.formats().activations, self.stream_elements(shape));
        let saved = LayerSaved {
            attention: self.attention.split(shape, &mut kept, &mut rebuilt),
            middle_tc: if self.is_parallel { &mut rebuilt } else { &mut kept }.take_as(dtype, len),
            feed_forward: self.feed_forward.split(shape.rows(), &mut kept, &mut rebuilt),
        };
        kept.finish();
        rebuilt.finish();
        saved
    }

    /// Splits the state of deferred weight gradients by half of the layer.
    fn split_deferred<'a>(
        &self,
        shape: MicrobatchShape,
        deferred: ViewMut<'a>,
    ) -> [DeferredWeightGrad<'a>; 2] {
        let mut deferred = Frame::over(deferred);
        let halves = self.deferred_halves().map(|(norm_linear, others)| {
            DeferredWeightGrad::split(norm_linear, others, shape.rows(), &mut deferred)
        });
        deferred.finish();
        halves
    }

    /// Halves of the layer, with the normalisations whose gradients are deferred.
    fn deferred_halves(&self) -> [(&NormLinear, (Option<&HeadNorms>, &RowParallel)); 2] {
        let (attention, feed_forward) = (&self.attention, &self.feed_forward);
        [
            (&attention.norm_linear, (attention.head_norms.as_ref(), &attention.out)),
            (&feed_forward.norm_linear, (None, &feed_forward.down)),
        ]
    }

    fn tp_shards(&self) -> &TensorShards {
        self.attention.tp_shards()
    }

    fn formats(&self) -> Formats {
        self.attention.norm_linear.formats()
    }

    /// Elements of the local rows of the stream.
    fn stream_elements(&self, shape: MicrobatchShape) -> usize {
        self.tp_shards().rows(shape.rows()).len() * self.width
    }
}

impl Layer {
    /// Input of the feed-forward network: that of the layer, or the output of attention.
    const fn feed_forward_input<'a>(&self, input_tc: View<'a>, middle_tc: View<'a>) -> View<'a> {
        if self.is_parallel { input_tc } else { middle_tc }
    }

    /// Copies the gradient of the output of halves beside each other: both read it, and each adds
    /// to the original.
    fn keep_output_gradient(
        &self,
        device: &dyn Device,
        d_stream_tc: &ViewMut<'_>,
        saved: &mut LayerSaved<'_>,
    ) -> Result<()> {
        if !self.is_parallel {
            return Ok(());
        }
        let middle_tc = saved.middle_tc.reborrow();
        device.copy(d_stream_tc.as_view().range(0..middle_tc.len()), middle_tc)
    }

    /// Zeroes undefined gradients to which sums over rows are added: those of norms and biases.
    fn zero_sums(&self, device: &dyn Device, grads: &mut Grads<'_>) -> Result<()> {
        let halves = [
            (&self.attention.norm_linear, &self.attention.out),
            (&self.feed_forward.norm_linear, &self.feed_forward.down),
        ];
        for (norm_linear, out) in halves {
            let shards = norm_linear.product.shards.iter().chain(&out.shards);
            let biases = shards.filter_map(|shard| shard.bias.as_ref());
            let post_norm = out.post_norm.iter().map(|norm| &norm.at);
            let norms = [&norm_linear.norm.at].into_iter().chain(post_norm);
            for params in biases.chain(&out.bias).chain(norms) {
                grads.zero(device, params)?;
            }
        }
        let head_norms = self.attention.head_norms.as_ref().map(HeadNorms::at);
        head_norms.map_or(Ok(()), |params| grads.zero(device, &params))
    }
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn frozen_weights(&self) -> Vec<&FrozenWeight> {
        let (attention, feed_forward) = (&self.attention, &self.feed_forward);
        let columns = [&attention.norm_linear.product, &feed_forward.norm_linear.product];
        let columns = columns.into_iter().flat_map(|columns| &columns.shards);
        let rows = [&attention.out, &feed_forward.down].into_iter().flat_map(|rows| &rows.shards);
        columns.chain(rows).filter_map(|shard| shard.frozen.as_ref()).collect()
    }

    fn io(&self) -> BlockIo {
        BlockIo::StreamToStream { input: self.width, output: self.width }
    }

    fn saved_len(&self, shape: MicrobatchShape) -> SavedLen {
        let attention = self.attention.saved_len(shape);
        let feed_forward = self.feed_forward.saved_len(shape.rows());
        let middle = self.formats().floats(self.stream_elements(shape));
        let [kept, rebuilt] = if self.is_parallel { [0, middle] } else { [middle, 0] };
        SavedLen {
            kept: attention.kept + kept + feed_forward.kept,
            rebuilt: attention.rebuilt + rebuilt + feed_forward.rebuilt,
        }
    }

    fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        self.attention.scratch_len(shape).max(self.feed_forward.scratch_len(shape))
    }

    fn operand_bytes(&self, shape: MicrobatchShape, products: ProductPlan) -> [usize; 2] {
        let (attention, feed_forward, t) = (&self.attention, &self.feed_forward, shape.rows());
        let columns = [&attention.norm_linear, &feed_forward.norm_linear];
        let columns = columns.map(|norm_linear| norm_linear.operand_bytes(t, products));
        let rows = [&attention.out, &feed_forward.down];
        let rows = rows.map(|row_parallel| row_parallel.operand_bytes(t, products));
        let largest = columns.into_iter().chain(rows).fold([0; 2], larger_operands);
        larger_operands([attention.workspace_bytes(shape), 0], largest)
    }

    fn flops_per_token(&self, num_tokens: usize) -> Flops {
        let a = self.attention.flops_per_token(num_tokens, self.is_frozen);
        let b = self.feed_forward.flops_per_token(self.is_frozen);
        Flops { forward: a.forward + b.forward, backward: a.backward + b.backward }
    }

    fn collective_calls(&self, shape: MicrobatchShape, pass: Pass<'_>) -> Vec<CollectiveCall> {
        let (t, tp_shards) = (shape.rows(), self.tp_shards());
        let gather = tp_shards.gather_call(self.formats().floats(t * self.width));
        let sum = tp_shards.sum_call(t * self.width);
        let half = |out: &RowParallel| gather.into_iter().chain([sum]).chain(out.adapter_call(t));
        let (attention, feed_forward) = (&self.attention, &self.feed_forward);
        // Backward runs the halves in reverse order.
        let halves = [
            (&feed_forward.norm_linear, &feed_forward.down, None),
            (&attention.norm_linear, &attention.out, attention.head_norms.as_ref()),
        ];
        let each = |calls: &HalfCalls<'_>| {
            let calls = halves.iter().flat_map(|(norm_linear, out, head_norms)| {
                let heads = |trained: &[Range<usize>]| {
                    head_norms.and_then(|norms| norms.sums_call(trained))
                };
                calls(norm_linear, out, &heads)
            });
            calls.collect()
        };
        match pass {
            Pass::Forward => half(&attention.out).chain(half(&feed_forward.down)).collect(),
            Pass::Recompute(Recompute::Full) if feed_forward.down.post_norm.is_some() => {
                half(&attention.out).chain(half(&feed_forward.down)).collect()
            }
            Pass::Recompute(Recompute::Full) => half(&attention.out).chain(gather).collect(),
            Pass::Recompute(_) => Vec::new(),
            Pass::Backward(trained) => each(&|norm_linear, out, heads| {
                let bias = tp_shards.row_blocks_call(out.bias.as_slice(), trained);
                let (heads, input) = (heads(trained), norm_linear.input_calls(t, trained));
                let adapters = [out.adapter_call(t), heads, norm_linear.adapters_call(t)];
                let adapters = adapters.into_iter().flatten();
                let output = out.post_norm_call(trained).into_iter().chain(gather);
                output.chain(bias).chain(adapters).chain(gather).chain(input).collect()
            }),
            Pass::BackwardInputs => each(&|norm_linear, out, heads| {
                let all = slice::from_ref(&norm_linear.norm.at);
                let whole = 0..self.num_params();
                let heads = heads(slice::from_ref(&whole));
                let output = out.post_norm_call(slice::from_ref(&whole)).into_iter().chain(gather);
                let adapters = norm_linear.adapters_call(t);
                let input = norm_linear.input_calls(t, all);
                output.chain(heads).chain(adapters).chain(input).collect()
            }),
            Pass::BackwardWeights(trained) => each(&|norm_linear, out, _| {
                let bias = tp_shards.row_blocks_call(out.bias.as_slice(), trained);
                let adapters = [out.adapter_call(t), norm_linear.adapters_call(t)];
                bias.into_iter().chain(adapters.into_iter().flatten()).chain(gather).collect()
            }),
        }
    }

    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        output_tc: ViewMut<'_>,
        saved: Saved<'_>,
    ) -> Result<()> {
        let LayerSaved { mut attention, mut middle_tc, mut feed_forward } =
            self.split(ctx.microbatch.shape, saved);
        self.attention.forward(ctx, params, input_tc, middle_tc.reborrow(), &mut attention)?;
        let middle_tc = middle_tc.as_view();
        let x = (self.feed_forward_input(input_tc, middle_tc), middle_tc);
        self.feed_forward.forward(ctx, params, x, output_tc, &mut feed_forward)
    }

    fn recompute(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        saved: Saved<'_>,
        what: Recompute,
    ) -> Result<()> {
        let LayerSaved { mut attention, mut middle_tc, mut feed_forward } =
            self.split(ctx.microbatch.shape, saved);
        match what {
            Recompute::None => Ok(()),
            Recompute::Selective => {
                let x_tc = self.feed_forward_input(input_tc, middle_tc.as_view());
                let device = ctx.device;
                self.feed_forward.rebuild(device, params, x_tc, &mut feed_forward)?;
                self.attention.rebuild(ctx, params, input_tc, &mut attention)
            }
            Recompute::Full => {
                let middle = middle_tc.reborrow();
                self.attention.forward(ctx, params, input_tc, middle, &mut attention)?;
                let x_tc = self.feed_forward_input(input_tc, middle_tc.as_view());
                self.feed_forward.recompute(ctx, params, x_tc, &mut feed_forward)
            }
        }
    }

    fn sets_gradients(&self) -> bool {
        true
    }

    fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        saved: Saved<'_>,
        mut d_stream_tc: ViewMut<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        let mut saved = self.split(ctx.microbatch.shape, saved);
        self.keep_output_gradient(ctx.device, &d_stream_tc, &mut saved)?;
        let halves = (&saved.attention, &saved.feed_forward);
        let x_tc = self.feed_forward_input(input_tc, saved.middle_tc.as_view());
        self.zero_sums(ctx.device, &mut grads)?;
        let (sum, own) = (d_stream_tc.reborrow(), grads.reborrow());
        let output = self.is_parallel.then(|| saved.middle_tc.as_view());
        let d_stream = StreamGradient { output, sum };
        self.feed_forward.backward(ctx, params, x_tc, halves.1, d_stream, own)?;
        let d_stream = StreamGradient { output, sum: d_stream_tc };
        self.attention.backward(ctx, params, input_tc, halves.0, d_stream, grads)
    }

    fn deferred_len(&self, shape: MicrobatchShape) -> usize {
        let halves = self.deferred_halves().into_iter();
        halves
            .map(|(norm_linear, others)| {
                DeferredWeightGrad::planned_len(norm_linear, others, shape.rows())
            })
            .sum()
    }

    fn backward_inputs(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        saved: Saved<'_>,
        mut d_stream_tc: ViewMut<'_>,
        deferred: ViewMut<'_>,
    ) -> Result<()> {
        let mut saved = self.split(ctx.microbatch.shape, saved);
        self.keep_output_gradient(ctx.device, &d_stream_tc, &mut saved)?;
        let halves = (&saved.attention, &saved.feed_forward);
        let [mut first, mut second] = self.split_deferred(ctx.microbatch.shape, deferred);
        let (attention, feed_forward) = (&self.attention, &self.feed_forward);
        let x_tc = self.feed_forward_input(input_tc, saved.middle_tc.as_view());
        let output = self.is_parallel.then(|| saved.middle_tc.as_view());
        let d_stream = StreamGradient { output, sum: d_stream_tc.reborrow() };
        feed_forward.backward_inputs(ctx, params, x_tc, halves.1, d_stream, &mut second)?;
        let d_stream = StreamGradient { output, sum: d_stream_tc };
        attention.backward_inputs(ctx, params, input_tc, halves.0, d_stream, &mut first)
    }

    fn backward_weights(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        saved: Saved<'_>,
        deferred: ViewMut<'_>,
        mut grads: Grads<'_>,
    ) -> Result<()> {
        let saved = self.split(ctx.microbatch.shape, saved);
        let x_tc = self.feed_forward_input(input_tc, saved.middle_tc.as_view());
        let halves = (&saved.attention, &saved.feed_forward);
        let [first, second] = self.split_deferred(ctx.microbatch.shape, deferred);
        let (attention, feed_forward) = (&self.attention, &self.feed_forward);
        self.zero_sums(ctx.device, &mut grads)?;
        let own = grads.reborrow();
        feed_forward.backward_weights(ctx, params, x_tc, halves.1, &second, own)?;
        attention.backward_weights(ctx, params, input_tc, halves.0, &first, grads)
    }

    fn cache_len(&self, num_positions: usize) -> usize {
        self.attention.cache_len(num_positions)
    }

    fn decode_scratch_len(&self, num_tokens: usize) -> usize {
        let attention = self.attention.decode_scratch_len(num_tokens);
        let feed_forward = self.feed_forward.decode_scratch_len(num_tokens);
        self.formats().floats(num_tokens * self.width) + attention.max(feed_forward)
    }

    fn decode(
        &self,
        ctx: &mut DecodeContext<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        output: ViewMut<'_>,
        cache: ViewMut<'_>,
    ) -> Result<()> {
        let mut frame = ctx.scratch.frame();
        let mut middle_tc = frame.take_as(input_tc.dtype(), input_tc.len());
        let (device, at) = (ctx.device, (ctx.tokens.len(), ctx.sequences));
        let cache = (cache, ctx.num_cache_parts);
        let (middle, inner) = (middle_tc.reborrow(), frame.nested());
        self.attention.decode(device, params, at, input_tc, middle, cache, inner)?;
        let middle_tc = middle_tc.into_view();
        let x = (self.feed_forward_input(input_tc, middle_tc), middle_tc);
        self.feed_forward.decode(device, params, x, output, frame)
    }
}
