//! Head: the last block of a transformer, with a normalisation, the projection to the vocabulary,
//! and the loss.
//!
//! One pass over the logits computes the loss and its gradient: in training, forward overwrites the
//! saved logits with their gradients (divided by the number of targets of the *global* batch, which
//! is known before the first micro-batch), so the largest activation of the model exists once.
//! Evaluation keeps the logits, as the first of the kept values. Micro-batches with very many
//! logits are processed in chunks, and keep none (`chunked_head`).
//!
//! The vocabulary is sharded; shards are stored one after another, each with all rows. With several
//! shards, no rank needs a whole row of logits
//! ([`lockstep_tensor::cross_entropy::vocab_parallel`]).

use crate::block::{
    Block, BlockIo, Context, DecodeContext, Flops, MicrobatchShape, Mode, Pass, ProductPlan, Saved,
    SavedLen,
};
use crate::chunked_head::{ChunkedHead, Outputs};
use crate::collectives::{CollectiveCall, CollectiveKind};
use crate::dropout::AdapterMasks;
use crate::grads::Grads;
use crate::logit_transform::LogitTransform;
use crate::norm_linear::{NormLinear, NormLinearSaved};
use crate::param::Param;
use crate::reduction_tree;
use crate::scratch::Frame;
use crate::teacher::Teacher;
use lockstep_tensor::device::{self, Result, RowEpilogue, View, ViewMut};
use lockstep_tensor::gemm::Write;
use std::slice;
use std::sync::Arc;

/// Final normalisation, projection and loss.
pub(crate) struct Head {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    /// Normalisation and projection to logits.
    pub(crate) norm_linear: NormLinear,
    /// Changes of the logits before the loss.
    pub(crate) transform: LogitTransform,
    /// Most logits that exist at a time.
    pub(crate) max_logits: usize,
    /// Whether only adapters of layers are trained.
    pub(crate) is_frozen: bool,
    /// Teacher, where the loss of training is that of a distillation.
    pub(crate) teacher: Option<Arc<Teacher>>,
}

/// Saved values of forward.
struct HeadSaved<'a> {
    /// Logits; after a training forward, their gradients.
    logits_tv: ViewMut<'a>,
    stats: ViewMut<'a>,
    losses_t: ViewMut<'a>,
}

impl Head {
    /// The head in chunks, where a micro-batch has too many logits.
    pub(crate) fn chunked(&self, num_rows: usize) -> Option<ChunkedHead<'_>> {
        ChunkedHead::new(&self.norm_linear, self.transform, self.max_logits, num_rows)
    }

    fn split<'a>(&self, num_rows: usize, Saved { kept, .. }: Saved<'a>) -> HeadSaved<'a> {
        let mut kept = Frame::over(kept);
        let saved = HeadSaved {
            logits_tv: kept.take_as(
                self.norm_linear.formats().activations,
                self.norm_linear.num_outputs(num_rows),
            ),
            stats: kept.take(self.norm_linear.stats_len(num_rows)),
            losses_t: kept.take(num_rows),
        };
        kept.finish();
        saved
    }

    /// Vocab-parallel loss; turns logits into gradients while training.
    fn vocab_parallel_loss(
        &self,
        ctx: &mut Context<'_>,
        mut logits_tv: ViewMut<'_>,
        losses_t: ViewMut<'_>,
    ) -> Result<()> {
        let (device, microbatch, collectives) = (ctx.device, ctx.microbatch, &mut *ctx.collectives);
        let (t, ids) = (microbatch.shape.rows(), microbatch.targets);
        let (vocab, local) =
            (self.norm_linear.product.num_outputs(), self.norm_linear.tp_shards.local.clone());
        let of_shard = |index: usize| index * t * vocab..(index + 1) * t * vocab;
        let first_column = |index: usize| (local.start + index) * vocab;
        let mut frame = ctx.scratch.frame();
        let (is_training, rest) = (ctx.mode.loss_scale().is_some(), &mut frame);
        let logits = logits_tv.reborrow();
        let kept_tv = self.transform.apply_and_keep(device, logits, is_training, rest)?;
        let mut max_t = frame.take(t);
        device.fill(max_t.reborrow(), f32::NEG_INFINITY)?;
        for index in 0..local.len() {
            device.raise_maxima(logits_tv.as_view().range(of_shard(index)), max_t.reborrow())?;
        }
        collectives.all_reduce_max(max_t.reborrow());

        // The sums of exponentials and the target logits, reduced in one call.
        let mut reduced = frame.take(2 * t);
        let (sums_t, mut target_logits_t) = reduced.reborrow().split_at(t);
        device.fill(target_logits_t.reborrow(), -0.0)?;
        for index in 0..local.len() {
            let logits_tv = logits_tv.as_view().range(of_shard(index));
            let target_logits_t = target_logits_t.reborrow();
            device.target_logits(logits_tv, first_column(index), ids, target_logits_t)?;
        }
        let spare = frame.take(t * reduction_tree::num_spare(local.len(), false));
        let max_t = max_t.as_view();
        let targets = ctx.mode.loss_scale().map(|loss_scale| microbatch.loss_targets(loss_scale));
        let mut of_index = |index: usize, sums_t: ViewMut<'_>, write| {
            debug_assert_eq!(write, Write::Set, "sums are not fused");
            let logits_tv = logits_tv.reborrow().range(of_shard(index));
            device.exponential_sums(logits_tv, ids, max_t, sums_t, targets.is_some())
        };
        reduction_tree::sum(device, 0..local.len(), false, sums_t, spare, &mut of_index)?;
        collectives.all_reduce(reduced.reborrow());

        let (sums_t, target_logits_t) = reduced.as_view().split_at(t);
        if let Some(targets) = targets {
            for index in 0..local.len() {
                let logits_tv = logits_tv.reborrow().range(of_shard(index));
                device.shard_gradients(logits_tv, first_column(index), targets, max_t, sums_t)?;
            }
            self.transform.backward(device, kept_tv, logits_tv)?;
        }
        let total = ctx.loss.reborrow();
        device.shard_losses(ids, max_t, sums_t, target_logits_t, losses_t, total)
    }

    /// Loss of the whole vocabulary; turns logits into gradients while training.
    fn whole_loss(
        &self,
        ctx: &mut Context<'_>,
        mut logits_tv: ViewMut<'_>,
        losses_t: ViewMut<'_>,
    ) -> Result<()> {
        let (device, microbatch) = (ctx.device, ctx.microbatch);
        let (total, mut frame, loss_scale) =
            (ctx.loss.reborrow(), ctx.scratch.frame(), ctx.mode.loss_scale());
        let (logits, is_training) = (logits_tv.reborrow(), loss_scale.is_some());
        let kept_tv = self.transform.apply_and_keep(device, logits, is_training, &mut frame)?;
        let Some(loss_scale) = loss_scale else {
            let (logits_tv, ids) = (logits_tv.as_view(), microbatch.targets);
            return device.cross_entropy(logits_tv, ids, losses_t, total, Write::Set);
        };
        let targets = microbatch.loss_targets(loss_scale);
        if let Some(teacher) = &self.teacher {
            let settings = teacher.settings;
            let (mut losses_t, mut total) = (losses_t, total);
            teacher.with_logits(device, microbatch, &mut |of_teacher| {
                let teacher = device::Teacher { logits: of_teacher, settings };
                let (logits, losses) = (logits_tv.reborrow(), losses_t.reborrow());
                device.distillation_backward(logits, teacher, targets, losses, total.reborrow())
            })?;
        } else {
            let logits = logits_tv.reborrow();
            device.cross_entropy_backward(logits, targets, losses_t, total, Write::Set)?;
        }
        self.transform.backward(device, kept_tv, logits_tv)
    }

    /// Turns the losses of sequences into that of preferences, where the micro-batch has pairs.
    fn preference_loss(
        &self,
        ctx: &mut Context<'_>,
        mut logits_tv: ViewMut<'_>,
        losses_t: View<'_>,
    ) -> Result<()> {
        let (device, microbatch) = (ctx.device, ctx.microbatch);
        let Some(preferences) = microbatch.preferences else { return Ok(()) };
        // A sequence has rows, so the memory of the rows' losses has room.
        let mut frame = ctx.scratch.frame();
        let mut factors_s = frame.take(microbatch.shape.sequences);
        let (factors, total) = (factors_s.reborrow(), ctx.loss.reborrow());
        let (ids, pairs) = (microbatch.targets, ctx.pairs.reborrow());
        device.preference_loss(losses_t, ids, preferences, factors, total, pairs)?;
        if ctx.mode.loss_scale().is_none() {
            return Ok(());
        }
        let len = logits_tv.len() / self.norm_linear.tp_shards.num_local();
        for shard in 0..self.norm_linear.tp_shards.num_local() {
            let logits_tv = logits_tv.reborrow().range(shard * len..(shard + 1) * len);
            device.scale_sequences(logits_tv, factors_s.as_view())?;
        }
        Ok(())
    }
}

impl Block for Head {
    fn name(&self) -> &str {
        &self.name
    }

    fn params(&self) -> &[Param] {
        &self.params
    }

    fn io(&self) -> BlockIo {
        BlockIo::StreamToLoss { input: self.norm_linear.width() }
    }

    fn saved_len(&self, shape: MicrobatchShape) -> SavedLen {
        let t = shape.rows();
        if self.chunked(t).is_some() {
            return SavedLen::default();
        }
        let kept = self.norm_linear.outputs_len(t) + self.norm_linear.stats_len(t) + t;
        SavedLen { kept, rebuilt: 0 }
    }

    fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        let t = shape.rows();
        if let Some(chunked) = self.chunked(t) {
            return chunked.scratch_len(t);
        }
        let loss =
            t * (3 + reduction_tree::num_spare(self.norm_linear.tp_shards.num_local(), false));
        let capped =
            if self.transform.soft_cap.is_some() { self.norm_linear.outputs_len(t) } else { 0 };
        self.norm_linear.scratch_len(t).max(capped + loss)
    }

    fn operand_bytes(&self, shape: MicrobatchShape, products: ProductPlan) -> [usize; 2] {
        let t = shape.rows();
        let rows = self.chunked(t).map_or(t, |chunked| chunked.chunk_rows);
        self.norm_linear.operand_bytes(rows, products)
    }

    fn flops_per_token(&self, num_tokens: usize) -> Flops {
        let own = Flops::of_half(self.norm_linear.product.flops(), 0, self.is_frozen);
        let teacher = self.teacher.as_ref().map_or(0, |it| it.flops_per_token(num_tokens));
        Flops { forward: own.forward + teacher, ..own }
    }

    fn collective_calls(&self, shape: MicrobatchShape, pass: Pass<'_>) -> Vec<CollectiveCall> {
        let t = shape.rows();
        let gather = self.norm_linear.gather_call(t).into_iter();
        let loss = [
            CollectiveCall::new(CollectiveKind::AllReduceMax, t),
            CollectiveCall::new(CollectiveKind::AllReduce, 2 * t),
        ];
        match pass {
            Pass::Forward if self.norm_linear.tp_shards.num == 1 => gather.collect(),
            Pass::Forward => gather.chain(loss).collect(),
            Pass::Recompute(_) => Vec::new(),
            Pass::Backward(trained) => {
                gather.chain(self.norm_linear.input_calls(t, trained)).collect()
            }
            Pass::BackwardInputs => self
                .norm_linear
                .input_calls(t, slice::from_ref(&self.norm_linear.norm.at))
                .collect(),
            Pass::BackwardWeights(_) => gather.collect(),
        }
    }

    fn defers_loss(&self, shape: MicrobatchShape) -> bool {
        self.chunked(shape.rows()).is_some()
    }

    fn forward(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        _output: ViewMut<'_>,
        saved: Saved<'_>,
    ) -> Result<()> {
        if let Some(chunked) = self.chunked(ctx.microbatch.shape.rows()) {
            assert!(ctx.microbatch.preferences.is_none(), "resolve limits the logits of pairs");
            let is_taught = self.teacher.is_some();
            return match ctx.mode {
                Mode::Train { .. } if is_taught => panic!("resolve limits the logits of students"),
                Mode::Train { .. } => Ok(()),
                Mode::Evaluate => chunked.pass(ctx, params, input_tc, Outputs::none()),
            };
        }
        let HeadSaved { mut logits_tv, stats, mut losses_t } =
            self.split(ctx.microbatch.shape.rows(), saved);
        let (logits, none) = (logits_tv.reborrow(), ViewMut::of::<f32>(&mut []));
        let masks = AdapterMasks::NONE;
        self.norm_linear.forward(ctx, params, input_tc, logits, stats, none, masks)?;
        let (logits, losses) = (logits_tv.reborrow(), losses_t.reborrow());
        if self.norm_linear.tp_shards.num > 1 {
            self.vocab_parallel_loss(ctx, logits, losses)?;
        } else {
            self.whole_loss(ctx, logits, losses)?;
        }
        self.preference_loss(ctx, logits_tv, losses_t.as_view())
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
        let (device, num_rows) = (ctx.device, ctx.microbatch.shape.rows());
        if let Some(chunked) = self.chunked(num_rows) {
            let outputs = Outputs { grads, d_stream_tc: Some(d_stream_tc), norm_sums: None };
            return chunked.pass(ctx, params, input_tc, outputs);
        }
        let HeadSaved { logits_tv, stats, .. } = self.split(num_rows, saved);
        let (logits_tv, stats) = (logits_tv.into_view(), stats.into_view());
        let read = read_of(input_tc, stats, num_rows);
        let (collectives, mut frame) = (&mut *ctx.collectives, ctx.scratch.frame());
        let (own, spare) = (grads.reborrow(), frame.nested());
        self.norm_linear.backward_weight(
            device,
            collectives,
            params,
            read,
            logits_tv,
            own,
            spare,
        )?;
        device.fill(d_stream_tc.reborrow(), 0.0)?;
        let norm_linear = &self.norm_linear;
        norm_linear.backward_input(
            device,
            collectives,
            params,
            read,
            logits_tv,
            d_stream_tc,
            grads,
            frame,
        )
    }

    /// The gradients of logits are saved; only the terms of the norm's gradients remain.
    fn deferred_len(&self, _shape: MicrobatchShape) -> usize {
        self.norm_linear.norm.at.len()
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
        let (device, num_rows) = (ctx.device, ctx.microbatch.shape.rows());
        if let Some(chunked) = self.chunked(num_rows) {
            let (d_stream_tc, norm_sums) = (Some(d_stream_tc), Some(deferred));
            let outputs = Outputs { d_stream_tc, norm_sums, ..Outputs::none() };
            return chunked.pass(ctx, params, input_tc, outputs);
        }
        let HeadSaved { logits_tv, stats, .. } = self.split(num_rows, saved);
        let (logits_tv, stats) = (logits_tv.into_view(), stats.into_view());
        let read = read_of(input_tc, stats, num_rows);
        device.fill(d_stream_tc.reborrow(), 0.0)?;
        let (norm_linear, collectives, frame) =
            (&self.norm_linear, &mut *ctx.collectives, ctx.scratch.frame());
        let (dy, dx) = (logits_tv, d_stream_tc);
        norm_linear.backward_input_only(device, collectives, params, read, dy, dx, deferred, frame)
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
        let (device, num_rows) = (ctx.device, ctx.microbatch.shape.rows());
        if let Some(chunked) = self.chunked(num_rows) {
            let outputs = Outputs { grads: grads.reborrow(), ..Outputs::none() };
            chunked.pass(ctx, params, input_tc, outputs)?;
            return self.norm_linear.norm.add_sums(device, deferred.as_view(), grads);
        }
        let HeadSaved { logits_tv, stats, .. } = self.split(num_rows, saved);
        let (logits_tv, stats) = (logits_tv.into_view(), stats.into_view());
        let read = read_of(input_tc, stats, num_rows);
        let (norm_linear, collectives, frame) =
            (&self.norm_linear, &mut *ctx.collectives, ctx.scratch.frame());
        let own = grads.reborrow();
        norm_linear.backward_weight(device, collectives, params, read, logits_tv, own, frame)?;
        norm_linear.norm.add_sums(device, deferred.as_view(), grads)
    }

    fn decode_scratch_len(&self, num_tokens: usize) -> usize {
        let NormLinear { norm, .. } = &self.norm_linear;
        self.norm_linear.formats().floats(num_tokens * norm.width) + norm.stats_len(num_tokens)
    }

    fn decode(
        &self,
        ctx: &mut DecodeContext<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        mut output: ViewMut<'_>,
        _cache: ViewMut<'_>,
    ) -> Result<()> {
        let NormLinear { norm, product, .. } = &self.norm_linear;
        // The last token of one sequence, or the only one of each of several.
        let num_rows = ctx.sequences.len();
        let last_tc = input_tc.range(input_tc.len() - num_rows * norm.width..input_tc.len());
        let (device, none) = (ctx.device, RowEpilogue::None);
        if self.norm_linear.forward_row(device, params, last_tc, none, output.reborrow())? {
            return self.transform.apply(device, output);
        }
        let mut frame = ctx.scratch.frame();
        let mut normed_tc = frame.take_as(last_tc.dtype(), last_tc.len());
        let stats = frame.take(norm.stats_len(num_rows));
        norm.forward(ctx.device, params, last_tc, normed_tc.reborrow(), stats)?;
        product.forward(ctx.device, params, normed_tc.as_view(), output.reborrow())?;
        self.transform.apply(device, output)
    }
}

/// Values of forward that backward reads; the head has no adapters.
fn read_of<'a>(x_tc: View<'a>, stats: View<'a>, num_rows: usize) -> NormLinearSaved<'a> {
    let (normed_tc, masks) = (View::of::<f32>(&[]), AdapterMasks::NONE);
    NormLinearSaved { x_tc, stats, normed_tc, num_rows, masks }
}
