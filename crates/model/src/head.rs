//! The last block: a normalisation, the projection to the vocabulary, and the loss.
//!
//! The loss and its derivative by the logits come out of one pass over them: while training,
//! forward already turns the logits it saved into their gradients (divided by the number of targets
//! of the *global* batch, which is known before the first lane runs), so the largest activation of
//! the model exists once. Evaluation leaves the logits as they are; they are the first values of
//! what is kept.

use crate::block::{
    Block, BlockIo, Context, DecodeContext, Flops, LaneShape, Mode, Saved, SavedLen,
};
use crate::grads::Grads;
use crate::linear::Linear;
use crate::norm::Norm;
use crate::param::Param;
use crate::scratch::Frame;
use lockstep_tensor::cross_entropy;

/// See the module's text.
pub(crate) struct Head {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) norm: Norm,
    pub(crate) project: Linear,
}

/// What forward saves.
struct HeadSaved<'a> {
    /// Logits; after a training forward, their gradients.
    logits_tv: &'a mut [f32],
    stats: &'a mut [f32],
    losses_t: &'a mut [f32],
}

impl Head {
    fn split<'a>(&self, num_rows: usize, Saved { kept, .. }: Saved<'a>) -> HeadSaved<'a> {
        let mut kept = Frame::over(kept);
        let saved = HeadSaved {
            logits_tv: kept.take(num_rows * self.project.num_outputs),
            stats: kept.take(self.norm.stats_len(num_rows)),
            losses_t: kept.take(num_rows),
        };
        kept.finish();
        saved
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
        BlockIo::StreamToLoss { input: self.norm.width }
    }

    fn saved_len(&self, shape: LaneShape) -> SavedLen {
        let t = shape.rows();
        let kept = t * self.project.num_outputs + self.norm.stats_len(t) + t;
        SavedLen { kept, rebuilt: 0 }
    }

    fn scratch_len(&self, shape: LaneShape) -> usize {
        2 * shape.rows() * self.norm.width
    }

    fn flops_per_token(&self, _num_tokens: usize) -> Flops {
        let forward = self.project.flops();
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
        let (cpu, lane) = (ctx.cpu, ctx.lane);
        let HeadSaved { logits_tv, stats, losses_t } = self.split(lane.shape.rows(), saved);
        let normed_tc = ctx.scratch.frame().take(input_tc.len());
        self.norm.forward(cpu, params, input_tc, normed_tc, stats);
        self.project.forward(cpu, params, normed_tc, logits_tv);
        let vocab = self.project.num_outputs;
        let targets = lane.targets;
        match ctx.mode {
            Mode::Train { .. } => cross_entropy::forward_backward(
                cpu,
                logits_tv,
                vocab,
                targets,
                lane.num_targets,
                losses_t,
            ),
            Mode::Evaluate => cross_entropy::forward(cpu, logits_tv, vocab, targets, losses_t),
        }
    }

    fn backward(
        &self,
        ctx: &mut Context<'_>,
        params: &[f32],
        input_tc: &[f32],
        saved: Saved<'_>,
        d_stream_tc: &mut [f32],
        mut grads: Grads<'_>,
    ) {
        let cpu = ctx.cpu;
        let HeadSaved { logits_tv, stats, .. } = self.split(ctx.lane.shape.rows(), saved);
        let mut frame = ctx.scratch.frame();
        let normed_tc = frame.take(input_tc.len());
        self.norm.normalize(cpu, params, input_tc, stats, normed_tc);
        self.project.backward_weight(cpu, normed_tc, logits_tv, grads.reborrow());
        let d_normed_tc = frame.take(input_tc.len());
        self.project.backward_input(cpu, params, logits_tv, d_normed_tc);
        d_stream_tc.fill(0.0);
        self.norm.backward(cpu, params, input_tc, stats, d_normed_tc, d_stream_tc, grads);
    }

    fn decode_scratch_len(&self, _num_tokens: usize) -> usize {
        self.norm.width + self.norm.stats_len(1)
    }

    fn decode(
        &self,
        ctx: &mut DecodeContext<'_>,
        params: &[f32],
        input_tc: &[f32],
        output: &mut [f32],
        _cache: &mut [f32],
    ) {
        let last_c = &input_tc[input_tc.len() - self.norm.width..];
        let mut frame = ctx.scratch.frame();
        let normed_c = frame.take(self.norm.width);
        let stats = frame.take(self.norm.stats_len(1));
        self.norm.forward(ctx.cpu, params, last_c, normed_c, stats);
        self.project.forward(ctx.cpu, params, normed_c, output);
    }
}
