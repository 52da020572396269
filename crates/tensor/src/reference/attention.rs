//! Causal attention in `f64` with the whole matrix of probabilities in memory.
//!
//! Rows are tokens, sequence after sequence; a row holds its heads one after another. Query head
//! h reads key and value head h / (heads / kv_heads).

use crate::attention::{Heads, Options, Shape};

/// Forward: the outputs and the logarithms of the softmax sums, by (sequence, head, query).
///
/// Queries are the positions from `first_query` on; each sequence has `first_query + tokens` key
/// rows. `keep(sequence, head, query, key)` multiplies a probability after the softmax, as the
/// dropout of the options would.
pub fn forward(
    shape: &Shape,
    q_thd: &[f64],
    k_thd: &[f64],
    v_thd: &[f64],
    first_query: usize,
    options: &Options<'_>,
    keep: impl Fn(usize, usize, usize, usize) -> f64,
) -> (Vec<f64>, Vec<f64>) {
    let &Shape { sequences, tokens, heads, kv_heads, head_dim: d } = shape;
    let num_keys = first_query + tokens;
    let mut out_thd = vec![0.0; sequences * tokens * heads * d];
    let mut lse_bht = vec![0.0; sequences * heads * tokens];
    for (sequence, head, t) in queries(shape) {
        let q = &q_thd[((sequence * tokens + t) * heads + head) * d..][..d];
        let kv = |key: usize| ((sequence * num_keys + key) * kv_heads + shape.kv_head(head)) * d;
        let of = Scores { shape, options, sequence, head, query: first_query + t, first_query };
        let score = |key| of.score(key, dot(q, &k_thd[kv(key)..])).0;
        let scores: Vec<f64> = (0..=first_query + t).map(score).collect();
        let lse = log_sum_exp(&scores);
        lse_bht[(sequence * heads + head) * tokens + t] = lse;
        let out = &mut out_thd[((sequence * tokens + t) * heads + head) * d..][..d];
        for (key, score) in scores.iter().enumerate() {
            let p = (score - lse).exp() * keep(sequence, head, first_query + t, key);
            for (out, v) in out.iter_mut().zip(&v_thd[kv(key)..]) {
                *out += p * v;
            }
        }
    }
    (out_thd, lse_bht)
}

/// Backward of a forward pass with `first_query` zero: the gradients of q, k and v.
pub fn backward(
    shape: &Shape,
    q_thd: &[f64],
    k_thd: &[f64],
    v_thd: &[f64],
    dout_thd: &[f64],
    options: &Options<'_>,
    keep: impl Fn(usize, usize, usize, usize) -> f64,
) -> [Vec<f64>; 3] {
    let &Shape { tokens, heads, kv_heads, head_dim: d, .. } = shape;
    let mut dq_thd = vec![0.0; q_thd.len()];
    let mut dk_thd = vec![0.0; k_thd.len()];
    let mut dv_thd = vec![0.0; v_thd.len()];
    for (sequence, head, t) in queries(shape) {
        let at_q = ((sequence * tokens + t) * heads + head) * d;
        let kv = |key: usize| ((sequence * tokens + key) * kv_heads + shape.kv_head(head)) * d;
        let (q, dout) = (&q_thd[at_q..][..d], &dout_thd[at_q..][..d]);
        let of = Scores { shape, options, sequence, head, query: t, first_query: 0 };
        let score = |key| of.score(key, dot(q, &k_thd[kv(key)..]));
        let (scores, slopes): (Vec<f64>, Vec<f64>) = (0..=t).map(score).unzip();
        let lse = log_sum_exp(&scores);
        let p: Vec<f64> = scores.iter().map(|score| (score - lse).exp()).collect();
        // The gradient of each probability, before and after the softmax takes its mean away.
        let dp: Vec<f64> = (0..=t)
            .map(|key| dot(dout, &v_thd[kv(key)..]) * keep(sequence, head, t, key))
            .collect();
        let mean = dot(&p, &dp);
        for key in 0..=t {
            let ds = p[key] * (dp[key] - mean) * slopes[key];
            let kept = p[key] * keep(sequence, head, t, key);
            for i in 0..d {
                dq_thd[at_q + i] += ds * k_thd[kv(key) + i];
                dk_thd[kv(key) + i] += ds * q[i];
                dv_thd[kv(key) + i] += kept * dout[i];
            }
        }
    }
    [dq_thd, dk_thd, dv_thd]
}

/// Every (sequence, head, query) of a shape.
fn queries(shape: &Shape) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
    let &Shape { sequences, tokens, heads, .. } = shape;
    (0..sequences * heads * tokens)
        .map(move |i| (i / tokens / heads, i / tokens % heads, i % tokens))
}

/// Scores of one query of one head.
struct Scores<'a> {
    shape: &'a Shape,
    options: &'a Options<'a>,
    sequence: usize,
    head: usize,
    /// Position of the query.
    query: usize,
    first_query: usize,
}

impl Scores<'_> {
    /// The score of a key with this inner product, and its derivative by that product.
    fn score(&self, key: usize, product: f64) -> (f64, f64) {
        let Self { shape, options, sequence, head, query, first_query } = *self;
        let usual = 1.0 / (shape.head_dim as f64).sqrt();
        let scale = options.scale.map_or(usual, f64::from);
        let (mut score, mut slope) = (product * scale, scale);
        if let Some(cap) = options.soft_cap.map(f64::from) {
            let capped = (score / cap).tanh();
            (score, slope) = (cap * capped, slope * (1.0 - capped * capped));
        }
        if let Some(Heads { num, first, sequences }) = options.alibi {
            let head = first + sequence / sequences * shape.heads + head;
            score -= slope_of(num, head) * (query - key) as f64;
        }
        let is_far = options.window.is_some_and(|window| query - key >= window);
        let is_foreign = options.documents.is_some_and(|starts| {
            let row = sequence * shape.tokens + query - first_query;
            key < starts[row % starts.len()] as usize
        });
        if is_far || is_foreign { (f64::NEG_INFINITY, 0.0) } else { (score, slope) }
    }
}

/// ALiBi's slope of a head: a geometric sequence, as `transformers` builds it.
fn slope_of(num_heads: usize, head: usize) -> f64 {
    let below = num_heads.next_power_of_two() / if num_heads.is_power_of_two() { 1 } else { 2 };
    let base = |num: usize| 2.0_f64.powf(-8.0 / num as f64);
    if head < below {
        return base(below).powf((head + 1) as f64);
    }
    base(2 * below).powf((2 * (head - below) + 1) as f64)
}

/// Inner product over the length of `a`; `b` may be longer.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn log_sum_exp(scores: &[f64]) -> f64 {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    max + scores.iter().map(|score| (score - max).exp()).sum::<f64>().ln()
}
