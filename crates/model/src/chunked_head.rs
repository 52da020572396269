//! The head in chunks of rows, for micro-batches whose logits are too many to keep.
//!
//! Training makes the logits in backward: each chunk becomes losses, then gradients of logits, then
//! its terms of the two other products, before the next chunk takes its place (fused linear
//! cross-entropy, as in Liger Kernel: Hsu et al. 2024). So no more than a chunk of logits exists,
//! nothing is saved, and no product is made twice, except where weight gradients are deferred.
//!
//! Chunks are whole blocks of the products' sums over rows, and losses are added in the order of
//! rows, so on the CPU the bits are those of the head as a whole.

use crate::block::Context;
use crate::grads::Grads;
use crate::logit_transform::LogitTransform;
use crate::norm_linear::NormLinear;
use crate::row_sums::RowSums;
use lockstep_tensor::device::{Dtype, Result, Targets, View, ViewMut};
use lockstep_tensor::gemm::{K_BLOCK, Write};
use std::slice;

/// Most logits that exist at a time: 512 MiB in `f32`, and 1 GiB in two bytes, which accelerators
/// have: every chunk reads the weights and adds to their gradients.
pub(crate) const fn max_logits(activations: Dtype) -> usize {
    match activations {
        Dtype::F32 => 1 << 27,
        _ => 1 << 29,
    }
}

/// Places for what a training pass computes besides the loss.
pub(crate) struct Outputs<'a> {
    /// Gradients of weights, and of the normalisation unless `norm_sums` takes them.
    pub(crate) grads: Grads<'a>,
    /// Gradient of the input; without it there are no gradients of the normalisation.
    pub(crate) d_stream_tc: Option<ViewMut<'a>>,
    /// Contribution of the micro-batch to the gradients of the normalisation.
    pub(crate) norm_sums: Option<ViewMut<'a>>,
}

impl Outputs<'_> {
    /// Loss only.
    pub(crate) fn none() -> Self {
        Self { grads: Grads::none(), d_stream_tc: None, norm_sums: None }
    }
}

/// A head that processes a micro-batch in chunks.
pub(crate) struct ChunkedHead<'a> {
    norm_linear: &'a NormLinear,
    transform: LogitTransform,
    /// Rows of a chunk.
    pub(crate) chunk_rows: usize,
}

impl<'a> ChunkedHead<'a> {
    /// `None` where all logits of a micro-batch may exist at a time. A sharded vocabulary is not
    /// chunked: every chunk would need its own collective calls.
    pub(crate) fn new(
        norm_linear: &'a NormLinear,
        transform: LogitTransform,
        max_logits: usize,
        num_rows: usize,
    ) -> Option<Self> {
        let vocab = norm_linear.product.num_outputs();
        let chunk_rows = (max_logits / vocab / K_BLOCK).max(1) * K_BLOCK;
        let is_chunked = norm_linear.tp_shards.num == 1
            && num_rows * vocab > max_logits
            && num_rows > chunk_rows;
        is_chunked.then_some(Self { norm_linear, transform, chunk_rows })
    }

    /// Temporary elements of a pass.
    pub(crate) fn scratch_len(&self, num_rows: usize) -> usize {
        let Self { norm_linear, transform, chunk_rows } = self;
        let formats = norm_linear.formats();
        let num_copies = if transform.soft_cap.is_some() { 2 } else { 1 };
        let logits = formats.floats(chunk_rows * norm_linear.product.num_outputs());
        let logits = num_copies * logits + chunk_rows;
        let chunk = logits + norm_linear.product.spare_len(*chunk_rows);
        let streams = 2 * formats.floats(num_rows * norm_linear.width());
        let streams = streams + norm_linear.stats_len(num_rows);
        streams + chunk.max(norm_linear.norm.scratch_len(&norm_linear.tp_shards))
    }

    /// Sets the loss and, in a training pass, what `outputs` has place for.
    pub(crate) fn pass(
        &self,
        ctx: &mut Context<'_>,
        params: View<'_>,
        input_tc: View<'_>,
        outputs: Outputs<'_>,
    ) -> Result<()> {
        let Outputs { mut grads, d_stream_tc, norm_sums } = outputs;
        let Context { device, microbatch, mode, scratch, collectives, loss, .. } = ctx;
        let NormLinear { norm, product, tp_shards, .. } = self.norm_linear;
        let (num_rows, width, vocab) = (microbatch.shape.rows(), norm.width, product.num_outputs());
        let mut frame = scratch.frame();
        let dtype = input_tc.dtype();
        let [mut normed_tc, mut d_normed_tc] =
            [(); 2].map(|()| frame.take_as(dtype, num_rows * width));
        let mut stats = frame.take(norm.stats_len(num_rows));
        norm.forward(*device, params, input_tc, normed_tc.reborrow(), stats.reborrow())?;
        for start in (0..num_rows).step_by(self.chunk_rows) {
            let rows = start..(start + self.chunk_rows).min(num_rows);
            let elements = rows.start * width..rows.end * width;
            let mut chunk = frame.nested();
            let (mut logits_tv, losses_t) =
                (chunk.take_as(dtype, rows.len() * vocab), chunk.take(rows.len()));
            let normed_tc = normed_tc.as_view().range(elements.clone());
            product.forward(*device, params, normed_tc, logits_tv.reborrow())?;
            let (ids, total) = (microbatch.targets.range(rows.clone()), loss.reborrow());
            let write = if start == 0 { Write::Set } else { Write::Add };
            let (logits, is_training) = (logits_tv.reborrow(), mode.loss_scale().is_some());
            let transform = self.transform;
            let kept_tv = transform.apply_and_keep(*device, logits, is_training, &mut chunk)?;
            let Some(loss_scale) = mode.loss_scale() else {
                device.cross_entropy(logits_tv.as_view(), ids, losses_t, total, write)?;
                continue;
            };
            let targets = Targets { ids, ..microbatch.loss_targets(loss_scale) };
            let logits = logits_tv.reborrow();
            device.cross_entropy_backward(logits, targets, losses_t, total, write)?;
            transform.backward(*device, kept_tv, logits_tv.reborrow())?;
            let d_logits_tv = logits_tv.as_view();
            product.backward_weight(*device, normed_tc, d_logits_tv, grads.reborrow())?;
            if d_stream_tc.is_some() {
                let (dx, spare) = (
                    d_normed_tc.reborrow().range(elements),
                    chunk.take(product.spare_len(rows.len())),
                );
                product.backward_input(*device, params, d_logits_tv, dx, spare)?;
            }
        }
        let Some(mut d_stream_tc) = d_stream_tc else { return Ok(()) };
        device.fill(d_stream_tc.reborrow(), 0.0)?;
        let grads = match norm_sums {
            Some(mut sums) => {
                // Adding to minus zero changes no bit, not even the sign of a zero.
                device.fill(sums.reborrow(), -0.0)?;
                Grads::new(sums, slice::from_ref(&norm.at))
            }
            None => grads,
        };
        let sums = RowSums { tp_shards, num_rows };
        let (stats, d_normed_tc) = (stats.as_view(), d_normed_tc.as_view());
        norm.backward(
            *device,
            *collectives,
            params,
            input_tc,
            stats,
            d_normed_tc,
            d_stream_tc,
            grads,
            &sums,
            frame,
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::block::{Block, Context, Microbatch, MicrobatchShape, Mode, Saved};
    use crate::collectives::SingleRank;
    use crate::describe::{embedding, head};
    use crate::formats::Formats;
    use crate::grads::Grads;
    use crate::head::Head;
    use crate::init;
    use crate::param::Param;
    use crate::scratch::Scratch;
    use crate::tensor_shards::TensorShards;
    use lockstep_config::{Family, GptNeox, LlamaVariant, Lora, LossScale, Model, Mup, Problem};
    use lockstep_tensor::cross_entropy::IGNORE;
    use lockstep_tensor::device::{View, ViewMut};
    use lockstep_tensor::gemm::Precision;
    use lockstep_tensor::{Cpu, Isa};

    const MODEL: Model = Model {
        family: Family::Gpt2,
        layers: 1,
        width: 24,
        heads: 2,
        kv_heads: 2,
        ffn: 32,
        vocab: 40,
        context: 650,
        tied: false,
        dropout: 0.0,
        norm_eps: 1e-5,
        rope_theta: 1e4,
        variant: LlamaVariant::PLAIN,
        gpt_neox: GptNeox::PYTHIA,
        mup: Mup::OFF,
        lora: Lora::NONE,
        problem: Problem::NONE,
    };
    const SHAPE: MicrobatchShape = MicrobatchShape { sequences: 2, tokens: 650 };
    const TRAIN: Mode = Mode::Train { seed: 1, step: 0, loss_scale: LossScale::ONE };

    /// Kind of backward pass.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Backward {
        Whole,
        Split,
        None,
    }

    /// Bits of loss, input gradient and parameter gradients.
    fn bits(head: &Head, cpu: &Cpu, backward: Backward) -> (u64, Vec<u32>, Vec<u32>) {
        let rows = SHAPE.rows();
        let mut params = vec![0.0; head.num_params()];
        for param in head.params() {
            init::fill(cpu, 3, param, 0, &mut params[param.range()]);
        }
        let number = |i: usize| ((i * 7919) % 1009) as f32 / 500.0 - 1.0;
        let input: Vec<f32> = (0..rows * MODEL.width).map(number).collect();
        let target = |i: usize| if i % 11 == 5 { IGNORE } else { (i * 31 % MODEL.vocab) as u32 };
        let targets: Vec<u32> = (0..rows).map(target).collect();
        let microbatch = Microbatch {
            shape: SHAPE,
            inputs: View::of(&targets),
            targets: View::of(&targets),
            first_sample: 0,
            num_targets: 1234,
            documents: None,
            preferences: None,
        };
        let mut loss = [f64::NAN];
        let mut scratch = Scratch::new(cpu, head.scratch_len(SHAPE)).unwrap();
        let len = head.saved_len(SHAPE);
        let (mut kept, mut rebuilt) = (vec![f32::NAN; len.kept], vec![f32::NAN; len.rebuilt]);
        let mut d_stream = vec![f32::NAN; rows * MODEL.width];
        // Gradients of earlier micro-batches are there already.
        let mut grads: Vec<f32> = (0..params.len()).map(|i| number(i) / 100.0).collect();
        let trained: Vec<_> = head.params().iter().map(Param::range).collect();
        let mut deferred = vec![f32::NAN; head.deferred_len(SHAPE)];
        let mut ctx = Context {
            device: cpu,
            microbatch: &microbatch,
            mode: if backward == Backward::None { Mode::Evaluate } else { TRAIN },
            scratch: &mut scratch,
            collectives: &mut SingleRank,
            loss: ViewMut::of(&mut loss),
            pairs: ViewMut::of::<f64>(&mut []),
        };
        let (params, x) = (View::of(&params), View::of(&input));
        let mut saved = Saved { kept: ViewMut::of(&mut kept), rebuilt: ViewMut::of(&mut rebuilt) };
        let nothing = ViewMut::of::<f32>(&mut []);
        head.forward(&mut ctx, params, x, nothing, saved.reborrow()).unwrap();
        let (dx, sums) = (ViewMut::of(&mut d_stream), ViewMut::of(&mut deferred));
        let of_params = Grads::new(ViewMut::of(&mut grads), &trained);
        match backward {
            Backward::Whole => head.backward(&mut ctx, params, x, saved, dx, of_params).unwrap(),
            Backward::Split => {
                let (mut sums, first) = (sums, saved.reborrow());
                head.backward_inputs(&mut ctx, params, x, first, dx, sums.reborrow()).unwrap();
                head.backward_weights(&mut ctx, params, x, saved, sums, of_params).unwrap();
            }
            Backward::None => {}
        }
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect();
        (loss[0].to_bits(), bits(&d_stream), bits(&grads))
    }

    #[test]
    fn chunks_give_the_bits_of_the_whole() {
        let cpu = Cpu::single(Isa::detect());
        let formats = Formats::on_cpu(Precision::F32);
        let tables = embedding(&MODEL, (&TensorShards::WHOLE, formats)).params;
        for family in [Family::Gpt2, Family::Llama] {
            let model = Model { family, ..MODEL };
            for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
                let shards = (&TensorShards::WHOLE, Formats::on_cpu(precision));
                let whole = head(&model, shards, &tables);
                let chunked =
                    Head { max_logits: 512 * MODEL.vocab, ..head(&model, shards, &tables) };
                assert!(whole.chunked(SHAPE.rows()).is_none());
                let chunk_rows = chunked.chunked(SHAPE.rows()).map(|chunked| chunked.chunk_rows);
                assert_eq!(chunk_rows, Some(512), "three chunks");
                assert!(chunked.scratch_len(SHAPE) < whole.saved_len(SHAPE).kept * 3);
                for pass in [Backward::Whole, Backward::Split, Backward::None] {
                    let [whole, chunked] = [&whole, &chunked].map(|head| bits(head, &cpu, pass));
                    assert_eq!(chunked, whole, "{family:?} {precision:?} {pass:?}");
                }
            }
        }
    }
}
