//! Decoding: attention of new tokens over the past in a cache of keys and values.

use super::{Attention, AttentionSaved};
use crate::block::{CachedSequence, MicrobatchShape, SavedLen};
use crate::collectives::SingleRank;
use crate::dropout::AdapterMasks;
use crate::scratch::Frame;
use lockstep_tensor::attention::Shape;
use lockstep_tensor::device::{Device, HeadRows, Result, RowEpilogue, View, ViewMut};

impl Attention {
    /// One key row and one value row per position.
    pub(crate) fn cache_len(&self, num_positions: usize) -> usize {
        let row = 2 * self.kv_heads * self.head_dim * self.tp_shards().num_local();
        self.formats().floats(num_positions * row)
    }

    pub(crate) fn decode_scratch_len(&self, num_tokens: usize) -> usize {
        let microbatch = MicrobatchShape { sequences: 1, tokens: num_tokens };
        let SavedLen { kept, rebuilt } = self.saved_len(microbatch);
        let normed = self.formats().floats(num_tokens * self.norm_linear.width());
        let normed = normed + self.norm_linear.adapters.scratch_len(num_tokens);
        let spare = self.out.scratch_len(num_tokens);
        kept + rebuilt + normed.max(spare).max(self.attend_scratch_len(self.shape(microbatch)))
    }

    /// Forward for `num_tokens` new tokens of one sequence, or of several that have one each, over
    /// the past in their parts of the cache.
    ///
    /// # Panics
    /// With several sequences and several tensor shards: shards lie one after another.
    pub(crate) fn decode(
        &self,
        device: &dyn Device,
        params: View<'_>,
        (num_tokens, sequences): (usize, &[CachedSequence]),
        x_tc: View<'_>,
        y_tc: ViewMut<'_>,
        (cache, num_cache_parts): (ViewMut<'_>, usize),
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let microbatch = MicrobatchShape { sequences: 1, tokens: num_tokens };
        let mut rebuilt = Frame::over(frame.take(self.saved_len(microbatch).rebuilt));
        let mut saved = self.split(microbatch, &mut frame, &mut rebuilt);
        let (none, row) = (RowEpilogue::None, saved.qkv.reborrow());
        if !self.norm_linear.forward_row(device, params, x_tc, none, row)? {
            let (mut inner, masks) = (frame.nested(), AdapterMasks::NONE);
            let mut normed_tc = inner.take_as(x_tc.dtype(), x_tc.len());
            let (normed, stats) = (normed_tc.reborrow(), saved.stats.reborrow());
            self.norm_linear.norm.forward(device, params, x_tc, normed, stats)?;
            let (normed_tc, qkv) = (normed_tc.as_view(), saved.qkv.reborrow());
            self.norm_linear.project(device, params, normed_tc, qkv, masks, inner)?;
        }
        self.normalize_heads(device, params, &mut saved)?;
        let AttentionSaved { mut qkv, mut out_thd, mut lse_bht, post_norm, .. } = saved;
        let mut cache = cache.cast(self.formats().activations);
        let num = sequences.len();
        assert!(num == 1 || self.tp_shards().num_local() == 1, "rows of a sequence lie together");
        for (index, sequence) in sequences.iter().enumerate() {
            let own = |len: usize| index * (len / num)..(index + 1) * (len / num);
            let part_len = cache.len() / num_cache_parts;
            let part = sequence.part * part_len..(sequence.part + 1) * part_len;
            let (of_qkv, of_out, of_lse) = (own(qkv.len()), own(out_thd.len()), own(lse_bht.len()));
            let (mut qkv, mut cache) = (qkv.reborrow().range(of_qkv), cache.reborrow().range(part));
            let mut out = out_thd.reborrow().range(of_out);
            let at = (num_tokens / num, sequence.first_position);
            if self.attend_token(device, at, qkv.as_view(), cache.reborrow(), out.reborrow())? {
                continue;
            }
            self.rotate(device, qkv.reborrow(), at, false)?;
            let outputs = (out, lse_bht.reborrow().range(of_lse));
            self.attend_cached(device, at, qkv.into_view(), cache, outputs, frame.nested())?;
        }
        let (x, residual, masks) = (out_thd.as_view(), Some(x_tc), AdapterMasks::NONE);
        let alone = &mut SingleRank;
        self.out.forward(device, alone, params, x, residual, y_tc, post_norm, masks, frame)
    }

    /// Rotation, cache and attention of one new token in one operation; `false` where the device
    /// has none for it.
    fn attend_token(
        &self,
        device: &dyn Device,
        (num_tokens, position): (usize, usize),
        qkv: View<'_>,
        cache: ViewMut<'_>,
        out: ViewMut<'_>,
    ) -> Result<bool> {
        let turns_whole = self.rope.as_ref().is_none_or(|rope| rope.dims == self.head_dim);
        let is_plain = turns_whole && self.options(1, None).is_plain();
        if num_tokens > 1 || self.tp_shards().num_local() > 1 || !is_plain {
            return Ok(false);
        }
        let shape = self.shape(MicrobatchShape { sequences: 1, tokens: 1 });
        let angles = self.rope.as_ref().map(|rope| rope.angles(device)).transpose()?;
        device.attend_token(self.precision(), shape, qkv, angles, cache, position, out)
    }

    /// Appends the keys and values of rotated rows to the cache, and attends, shard by shard.
    fn attend_cached(
        &self,
        device: &dyn Device,
        (num_tokens, first): (usize, usize),
        qkv: View<'_>,
        cache: ViewMut<'_>,
        (out_thd, lse_bht): (ViewMut<'_>, ViewMut<'_>),
        mut frame: Frame<'_>,
    ) -> Result<()> {
        let num_shards = self.tp_shards().num_local();
        let microbatch = MicrobatchShape { sequences: 1, tokens: num_tokens };
        let shape = Shape { sequences: 1, ..self.shape(microbatch) };
        let (width, kv_len) =
            (self.norm_linear.product.num_outputs(), 2 * self.kv_heads * self.head_dim);
        let len = |all: usize| all / num_shards;
        let (out_len, lse_len, cache_len) =
            (len(out_thd.len()), len(lse_bht.len()), len(cache.len()));
        let (mut outs, mut lses) = (Frame::over(out_thd), Frame::over(lse_bht));
        let mut caches = Frame::over(cache);
        for shard in 0..num_shards {
            let rows = num_tokens * width;
            let qkv = qkv.range(shard * rows..(shard + 1) * rows);
            let mut cache = caches.take(cache_len);
            let new = qkv.range(self.heads * self.head_dim..qkv.len());
            let cached = cache.reborrow().range(first * kv_len..cache_len);
            device.copy_rows((num_tokens, kv_len), (new, width), (cached, kv_len))?;
            let cache = cache.into_view();
            let values = cache.range(kv_len / 2..cache_len);
            let rows = [(qkv, width), (cache, kv_len), (values, kv_len)]
                .map(|(data, stride)| HeadRows { data, stride });
            let scratch = frame.nested().take(self.attend_scratch_len(shape));
            let (out, lse) = (outs.take(out_len), lses.take(lse_len));
            let (precision, mut options) = (self.precision(), self.options(1, None));
            if let Some(heads) = &mut options.alibi {
                heads.first += shard * self.heads;
            }
            device.attention_forward(precision, shape, rows, first, &options, out, lse, scratch)?;
        }
        Ok(())
    }
}
