//! Activation memory of a layer per micro-batch.
//!
//! For a GPT with materialised attention scores this is sbh(10 + 24/t + 5as/ht) (Korthikanti et al.
//! 2022): 10 bytes per element that tensor-parallel ranks replicate, 24 per element that they
//! split, 5 per attention score. Fused attention saves no scores, and models without dropout save
//! no masks.

use crate::layout::{Job, Recompute};
use crate::model::Attention;

/// Bytes that a layer saves for backward under the layout's recomputation.
pub fn saved_bytes(job: &Job<'_>, routed: bool) -> f64 {
    let layout = &job.layout;
    let rows = if layout.sequence { layout.tensor as f64 } else { 1.0 };
    match layout.recompute {
        Recompute::Full => 2.0 * job.tokens() * job.model.width as f64 / rows,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::named;
    use crate::layout::{Framework, Layout};
    use crate::model::Model;

    #[test]
    fn a_gpt_layer_matches_the_published_closed_form() {
        let model = Model::gpt("22B", 48, 6144, 64, 51_200, 2048);
        let cluster = named("8xa100-80gb").expect("a cluster");
        let (s, b, h, a, t) = (2048.0, 4.0, 6144.0, 64.0, 8.0);
        let score_bytes = 5.0 * a * s / h;
        let selective = Recompute::Selective;
        for (sequence, recompute, each) in [
            (false, Recompute::None, 10.0 + (24.0 + score_bytes) / t),
            (true, Recompute::None, (34.0 + score_bytes) / t),
            (false, selective, 10.0 + 24.0 / t),
            (true, selective, 34.0 / t),
            (false, Recompute::Full, 2.0),
        ] {
            let layout = Layout { tensor: 8, sequence, recompute, microbatch: 4, ..Layout::ONE };
            let framework = Framework::MODERN;
            let job = Job { model: &model, cluster: &cluster, layout, batch: 4, framework };
            let said = saved_bytes(&job, false);
            assert!((said / (s * b * h * each) - 1.0).abs() < 1e-12, "{said} {each}");
        }
    }
}
