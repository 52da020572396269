//! Activation memory of a layer per micro-batch.
//!
//! For a GPT with materialised attention scores this is sbh(10 + 24/t + 5as/ht) (Korthikanti et al.
//! 2022, arXiv:2205.05198): 10 bytes per element that tensor-parallel ranks replicate, 24 per
//! element that they split, 5 per attention score ([`Layer`]). Fused attention saves no scores, and
//! models without dropout save no masks, so other models are counted tensor by tensor
//! ([`saved_bytes`]). Activations of this engine are counted block by block instead
//! ([`super::activations_by_block`]).

use crate::job::Job;
use crate::model::Attention;
use lockstep_config::Recompute;

/// Bytes that a layer saves for backward under the layout's recomputation.
pub fn saved_bytes(job: &Job<'_>, routed: bool) -> f64 {
    let layout = &job.layout;
    let rows = if layout.sequence { layout.tensor as f64 } else { 1.0 };
    let input = 2.0 * job.tokens() * job.model.width as f64 / rows;
    match layout.recompute {
        Recompute::Full => input,
        Recompute::Every(layers) => {
            let all = full_bytes(job, routed);
            all + (input - all) / layers as f64
        }
        Recompute::Selective if job.framework.saves_alternate_matmuls => matmul_bytes(job, rows),
        Recompute::None | Recompute::Selective => full_bytes(job, routed),
    }
}

/// Bytes of a layer's input, of every second matmul (queries, values, the first of the gate, the
/// last) and of the attention output.
fn matmul_bytes(job: &Job<'_>, rows: f64) -> f64 {
    let (model, t) = (job.model, job.layout.tensor as f64);
    let full_bytes = 2 * model.width;
    let sliced = model.query_width() + model.key_width() + model.ffn + model.attended_width();
    2.0 * job.tokens() * (full_bytes as f64 / rows + sliced as f64 / t)
}

/// Bytes that a layer saves without recomputation, or with recomputation of attention scores only.
pub fn full_bytes(job: &Job<'_>, routed: bool) -> f64 {
    let (model, layout) = (job.model, &job.layout);
    let (t, tokens) = (layout.tensor as f64, job.tokens());
    let rows = if layout.sequence { t } else { 1.0 };
    let h = model.width as f64;
    // Inputs of both norms and of the matmuls behind them, and a dropout mask behind each half.
    let mask = if model.dropout { 2.0 } else { 0.0 };
    let alone = (8.0 + mask) * h;
    let values = if model.latent.is_some() { model.attended_width() } else { model.key_width() };
    let heads = model.query_width() + model.key_width() + values + model.attended_width();
    // Without a fused kernel the output projection reads a transposed copy.
    let reordered = if job.framework.eager { model.attended_width() } else { 0 };
    let heads = 2.0 * (heads + reordered) as f64;
    let latent = model.latent.map_or(0.0, |latent| {
        // Low-rank vectors and their norms.
        4.0 * (latent.query_rank + latent.key_value_rank) as f64
    });
    let tokens_in = tokens * (alone / rows + heads / t + latent);
    tokens_in
        + score_bytes(job)
        + if routed { expert_bytes(job) } else { ffn_bytes(job, model.ffn, tokens) }
}

/// Bytes that a feed-forward part saves: the output of its first matmul and the input of its last.
fn ffn_bytes(job: &Job<'_>, width: u64, tokens: f64) -> f64 {
    let (gated, t) = (job.model.gated, job.layout.tensor as f64);
    let numbers = match (gated, job.framework.eager) {
        (true, true) => 4.0,
        (true, false) => 3.0,
        (false, _) => 2.0,
    };
    2.0 * numbers * width as f64 * tokens / t
}

/// Bytes that routed experts save, with the tokens sent to them.
fn expert_bytes(job: &Job<'_>) -> f64 {
    let Some(experts) = job.model.experts else { return 0.0 };
    let (h, t) = (job.model.width as f64, job.layout.tensor as f64);
    let sent = job.tokens() * experts.per_token as f64;
    // Input of the experts' first matmul. Router weights are applied with the gate, so expert
    // outputs are not saved.
    let moved = 2.0 * h * sent / t;
    let logits = 8.0 * job.tokens() * experts.num as f64;
    moved
        + logits
        + ffn_bytes(job, experts.ffn, sent)
        + ffn_bytes(job, experts.shared_ffn, job.tokens())
}

/// Bytes of softmax output, dropout mask and dropped-out scores; zero where they are recomputed or
/// never written.
fn score_bytes(job: &Job<'_>) -> f64 {
    let (model, layout) = (job.model, &job.layout);
    let is_saved =
        model.attention == Attention::Materialised && layout.recompute != Recompute::Selective;
    if !is_saved {
        return 0.0;
    }
    let each = if model.dropout { 5.0 } else { 2.0 };
    let pairs = job.tokens() * model.context as f64;
    each * pairs * model.heads as f64 / layout.tensor as f64
}

/// A layer and a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layer {
    /// Tokens of a sequence (s).
    pub tokens: u64,
    /// Sequences of the micro-batch (b).
    pub sequences: u64,
    /// Hidden size (h).
    pub width: u64,
    /// Attention heads (a).
    pub heads: u64,
    /// Tensor-parallel degree (t).
    pub tensor_degree: u64,
}

impl Layer {
    /// sbh: one element per token and dimension.
    const fn stream(self) -> f64 {
        (self.tokens * self.sequences * self.width) as f64
    }

    /// Bytes of one layer.
    ///
    /// Of the 34 bytes, 11 are attention's, 19 the feed-forward part's and 4 the norms'; 24 of them
    /// lie inside the tensor-parallel regions. A score takes 5: its softmax, a mask, and the
    /// softmax with dropout.
    pub fn bytes(self, recompute: Recompute, sequence_parallel: bool) -> f64 {
        let t = self.tensor_degree as f64;
        let scores = 5.0 * (self.heads * self.tokens) as f64 / self.width as f64;
        let with = |scores: f64| {
            if sequence_parallel { (34.0 + scores) / t } else { 10.0 + (24.0 + scores) / t }
        };
        let input = 2.0 / if sequence_parallel { t } else { 1.0 };
        let each = match recompute {
            Recompute::None => with(scores),
            Recompute::Selective => with(0.0),
            Recompute::Full => input,
            Recompute::Every(layers) => with(scores) + (input - with(scores)) / layers as f64,
        };
        self.stream() * each
    }

    /// Bytes of the head with 32-bit logits over a vocabulary.
    pub fn head_bytes(self, vocab: u64) -> f64 {
        let each = 4.0 * (1.0 + vocab as f64 / self.width as f64);
        self.stream() * each / self.tensor_degree as f64
    }
}

/// Number of recomputation segments with the least memory (Chen et al. 2016): c·A_in + (l/c)·A_mid
/// is least at √(l·A_mid/A_in).
pub fn best_segments(num_layers: u64, input_bytes: f64, layer_bytes: f64) -> f64 {
    (num_layers as f64 * layer_bytes / input_bytes).sqrt()
}

/// Bytes of a number of segments.
pub fn segmented_bytes(
    num_layers: u64,
    num_segments: f64,
    input_bytes: f64,
    layer_bytes: f64,
) -> f64 {
    num_segments * input_bytes + num_layers as f64 / num_segments * layer_bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::Framework;
    use crate::hardware::named;
    use crate::layout::Layout;
    use crate::model::Model;

    #[test]
    fn a_gpt_layer_matches_the_published_closed_form() {
        let model = Model::gpt("22B", 48, 6144, 64, 51_200, 2048);
        let cluster = named("8xa100-80gb").expect("a cluster");
        let layer = Layer { tokens: 2048, sequences: 4, width: 6144, heads: 64, tensor_degree: 8 };
        let modes = [Recompute::None, Recompute::Selective, Recompute::Full, Recompute::Every(4)];
        for (sequence, recompute) in modes.into_iter().flat_map(|one| [(false, one), (true, one)]) {
            let layout = Layout { tensor: 8, sequence, recompute, microbatch: 4, ..Layout::ONE };
            let framework = Framework::MODERN;
            let job = Job { model: &model, cluster: &cluster, layout, batch: 4, framework };
            let (counted, closed) = (saved_bytes(&job, false), layer.bytes(recompute, sequence));
            assert!((counted / closed - 1.0).abs() < 1e-12, "{recompute}: {counted} {closed}");
        }
    }
}
