//! What a layer keeps of a microbatch between forward and backward.
//!
//! With scores in memory this is the published sbh(10 + 24/t + 5as/ht) of a GPT: 10 bytes of what
//! holders of slices have whole, 24 of what they divide, 5 for every score. With fused attention
//! there are no scores, and without dropout no masks.

use crate::layout::{Job, Recompute};
use crate::model::Attention;

/// Bytes that a layer keeps of a microbatch under the layout's way to compute again.
pub fn kept(job: &Job<'_>, routed: bool) -> f64 {
    let layout = &job.layout;
    let rows = if layout.sequence { layout.tensor as f64 } else { 1.0 };
    match layout.recompute {
        Recompute::Full => 2.0 * job.tokens() * job.model.width as f64 / rows,
        Recompute::Selective if job.habits.keeps_products => products(job, rows),
        Recompute::None | Recompute::Selective => whole(job, routed),
    }
}

/// Bytes of a layer's input, of every second product (queries, values, the first of the gate, the
/// last) and of what attention gives.
fn products(job: &Job<'_>, rows: f64) -> f64 {
    let (model, t) = (job.model, job.layout.tensor as f64);
    let whole = 2 * model.width;
    let sliced = model.query_width() + model.key_width() + model.ffn + model.attended_width();
    2.0 * job.tokens() * (whole as f64 / rows + sliced as f64 / t)
}

/// Bytes that a layer keeps if nothing, or only scores, are computed again.
pub fn whole(job: &Job<'_>, routed: bool) -> f64 {
    let (model, layout) = (job.model, &job.layout);
    let (t, tokens) = (layout.tensor as f64, job.tokens());
    let rows = if layout.sequence { t } else { 1.0 };
    let h = model.width as f64;
    // Inputs of both norms and of what follows them, and a mask behind each half.
    let mask = if model.dropout { 2.0 } else { 0.0 };
    let alone = (8.0 + mask) * h;
    let values = if model.latent.is_some() { model.attended_width() } else { model.key_width() };
    let heads = model.query_width() + model.key_width() + values + model.attended_width();
    // Without a fused kernel the output product reads a copy in its own order.
    let copied = if job.habits.eager { model.attended_width() } else { 0 };
    let heads = 2.0 * (heads + copied) as f64;
    let latent = model.latent.map_or(0.0, |latent| {
        // Narrow vectors and their norms.
        4.0 * (latent.query_rank + latent.key_value_rank) as f64
    });
    let tokens_in = tokens * (alone / rows + heads / t + latent);
    tokens_in + scores(job) + if routed { experts(job) } else { inner(job, model.ffn, tokens) }
}

/// What a feed-forward part keeps: what comes out of its first product, and what goes into its
/// last.
fn inner(job: &Job<'_>, width: u64, tokens: f64) -> f64 {
    let (gated, t) = (job.model.gated, job.layout.tensor as f64);
    let numbers = match (gated, job.habits.eager) {
        (true, true) => 4.0,
        (true, false) => 3.0,
        (false, _) => 2.0,
    };
    2.0 * numbers * width as f64 * tokens / t
}

/// Tokens as experts see them, and what experts keep of them.
fn experts(job: &Job<'_>) -> f64 {
    let Some(experts) = job.model.experts else { return 0.0 };
    let (h, t) = (job.model.width as f64, job.layout.tensor as f64);
    let sent = job.tokens() * experts.per_token as f64;
    // What the first product of experts reads. Weights of experts go with the gate, so that nothing
    // is kept of what they give back.
    let moved = 2.0 * h * sent / t;
    let logits = 8.0 * job.tokens() * experts.num as f64;
    moved + logits + inner(job, experts.ffn, sent) + inner(job, experts.shared_ffn, job.tokens())
}

/// Softmax, its mask, and what is left of it; none where they are computed again or never written.
fn scores(job: &Job<'_>) -> f64 {
    let (model, layout) = (job.model, &job.layout);
    let is_kept =
        model.attention == Attention::Materialised && layout.recompute != Recompute::Selective;
    if !is_kept {
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
    use crate::layout::{Habits, Layout};
    use crate::model::Model;

    #[test]
    fn a_gpts_layers_keep_what_the_published_closed_form_says() {
        let model = Model::gpt("22B", 48, 6144, 64, 51_200, 2048);
        let cluster = named("8xa100-80gb").expect("a cluster");
        let (s, b, h, a, t) = (2048.0, 4.0, 6144.0, 64.0, 8.0);
        let scores = 5.0 * a * s / h;
        let selective = Recompute::Selective;
        for (sequence, recompute, each) in [
            (false, Recompute::None, 10.0 + (24.0 + scores) / t),
            (true, Recompute::None, (34.0 + scores) / t),
            (false, selective, 10.0 + 24.0 / t),
            (true, selective, 34.0 / t),
            (false, Recompute::Full, 2.0),
        ] {
            let layout = Layout { tensor: 8, sequence, recompute, microbatch: 4, ..Layout::ONE };
            let habits = Habits::MODERN;
            let job = Job { model: &model, cluster: &cluster, layout, batch: 4, habits };
            let said = kept(&job, false);
            assert!((said / (s * b * h * each) - 1.0).abs() < 1e-12, "{said} {each}");
        }
    }
}
