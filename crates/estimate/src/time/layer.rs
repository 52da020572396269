//! What one layer takes of a device and of its host, for one microbatch.
//!
//! A layer is products, attention, passes over memory, and messages between holders of its slices.
//! The host starts every kernel; where kernels are short, it sets the pace instead of the device.

use super::collective::{Group, Links};
use super::product::Product;
use crate::calibration::Calibration;
use crate::layout::{Job, Recompute};
use crate::model::Attention;

/// Backward passes over memory, relative to forward ones: gradients come in beside activations.
const BACKWARD_STREAM: f64 = 1.4;
/// Backward of fused attention computes scores again: five products instead of two. They reach less
/// of the peak than forward's, as measured on A100 and B200 alike.
const BACKWARD_ATTENTION: f64 = 2.5 / 0.82;
/// Rows of a sequence that a unit takes at once, and rounds of units whose time is lost forward and
/// backward: later rows see more of the sequence, so units end at different times. Measured as what
/// 4 to 128 heads reach.
const ATTENTION_ROWS: f64 = 128.0;
const ATTENTION_LOST: (f64, f64) = (2.0, 0.7);
/// What is waited for of messages that go piece by piece, as published by those who do it.
const PIECEWISE: f64 = 0.6;
/// Kernels of a layer forward and backward: with scores in memory, with fused attention, and with
/// that but norms, rotations and gates of several kernels.
const KERNELS_MATERIALISED: (f64, f64) = (22.0, 36.0);
const KERNELS_FUSED: (f64, f64) = (24.0, 38.0);
const KERNELS_EAGER: (f64, f64) = (45.0, 70.0);
/// More of them where tokens are sent to experts.
const KERNELS_ROUTED: (f64, f64) = (30.0, 40.0);

/// Seconds of one pass.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pass {
    /// Computing on the device.
    pub compute: f64,
    /// Communication that the device waits for.
    pub exposed: f64,
    /// The host.
    pub host: f64,
}

/// One layer or a stage of them.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Passes {
    /// Forward.
    pub forward: Pass,
    /// Backward, with what is computed again, without weight gradients.
    pub input_grad: Pass,
    /// Weight gradients.
    pub weight_grad: Pass,
}

impl Pass {
    /// So many of them.
    pub fn times(self, count: f64) -> Self {
        Self {
            compute: self.compute * count,
            exposed: self.exposed * count,
            host: self.host * count,
        }
    }

    /// One after the other.
    pub fn then(self, other: Self) -> Self {
        Self {
            compute: self.compute + other.compute,
            exposed: self.exposed + other.exposed,
            host: self.host + other.host,
        }
    }

    /// The slower of device and host.
    pub fn seconds(self) -> f64 {
        (self.compute + self.exposed).max(self.host)
    }
}

impl Passes {
    /// So many layers.
    pub fn times(self, count: f64) -> Self {
        Self {
            forward: self.forward.times(count),
            input_grad: self.input_grad.times(count),
            weight_grad: self.weight_grad.times(count),
        }
    }

    /// Layers one after the other.
    pub fn then(self, other: Self) -> Self {
        Self {
            forward: self.forward.then(other.forward),
            input_grad: self.input_grad.then(other.input_grad),
            weight_grad: self.weight_grad.then(other.weight_grad),
        }
    }
}

/// Bytes that pass memory for every number of a product's operands where it is of 8-bit floats:
/// once for the largest, once to be cast.
const CAST: f64 = 5.0;

/// What layers are priced with.
pub(super) struct Prices<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) calibration: &'a Calibration,
    pub(super) links: Links<'a>,
}

impl Prices<'_> {
    fn product(&self, product: Product) -> f64 {
        product.seconds(&self.job.cluster.device, self.calibration, self.job.habits.fp8)
    }

    /// Bytes past memory.
    pub(super) fn stream(&self, bytes: f64) -> f64 {
        bytes / (self.job.cluster.device.memory_gbps * 1e9 * self.calibration.memory_share)
    }

    pub(super) fn tensor_group(&self) -> Group {
        Group { ranks: self.job.layout.tensor, stride: 1 }
    }

    /// A product forward, and both gradients.
    pub(super) fn matrix(&self, product: Product) -> (f64, f64, f64) {
        let cast = |numbers: f64| {
            if self.job.habits.fp8 { self.stream(CAST * product.count * numbers) } else { 0.0 }
        };
        let (given, weight) = (product.m * product.n, product.k * product.n);
        (
            self.product(product) + cast(product.m * product.k + weight),
            self.product(product.input_gradient()) + cast(given),
            self.product(product.weight_gradient()),
        )
    }

    /// Products of a layer's attention.
    fn attention_products(&self) -> Vec<Product> {
        let (model, t) = (self.job.model, self.job.layout.tensor as f64);
        let (tokens, h) = (self.job.tokens(), model.width as f64);
        let out = Product::one(tokens, model.attended_width() as f64 / t, h);
        let Some(latent) = model.latent else {
            let keys = (model.key_width() as f64 / t).max(model.head_dim as f64);
            let inputs = model.query_width() as f64 / t + 2.0 * keys;
            return vec![Product::one(tokens, h, inputs), out];
        };
        let (query, narrow) = (latent.query_rank as f64, latent.key_value_rank as f64);
        let wide = (model.heads * (latent.plain_dim + latent.value_dim)) as f64 / t;
        vec![
            Product::one(tokens, h, query),
            Product::one(tokens, query, model.query_width() as f64 / t),
            Product::one(tokens, h, narrow + latent.rotary_dim as f64),
            Product::one(tokens, narrow, wide),
            out,
        ]
    }

    /// Products of a feed-forward part of this inner width.
    fn ffn_products(&self, inner: u64) -> Vec<Product> {
        let (model, t) = (self.job.model, self.job.layout.tensor as f64);
        let (tokens, h, f) = (self.job.tokens(), model.width as f64, inner as f64 / t);
        let inputs = model.ffn_inputs() as f64 * f;
        vec![Product::one(tokens, h, inputs), Product::one(tokens, f, h)]
    }

    /// Products of the experts that a device holds, each with its share of tokens.
    fn expert_products(&self) -> Vec<Product> {
        let model = self.job.model;
        let Some(experts) = model.experts else { return Vec::new() };
        let t = self.job.layout.tensor as f64;
        let held = (experts.num / self.job.layout.expert) as f64;
        let tokens = (self.job.tokens() * experts.per_token as f64 / held).max(1.0);
        let (h, f) = (model.width as f64, experts.ffn as f64 / t);
        let inputs = model.ffn_inputs() as f64 * f;
        vec![
            Product { count: held, m: tokens, k: h, n: inputs },
            Product { count: held, m: tokens, k: f, n: h },
        ]
    }

    /// Scores and their use, forward and backward.
    fn scores(&self) -> (f64, f64) {
        let (model, layout) = (self.job.model, &self.job.layout);
        let (tokens, s) = (self.job.tokens(), model.context as f64);
        let heads = model.heads as f64 / layout.tensor as f64;
        match model.attention {
            Attention::Fused => {
                let widths = (model.query_width() + model.attended_width()) as f64;
                // Scores of causal pairs, and sums of values by them.
                let flops = tokens * s * widths / layout.tensor as f64;
                let device = &self.job.cluster.device;
                let clock = device.clock(self.calibration.watts);
                let seconds = flops / (device.peak() * clock * self.calibration.attention_share);
                let rounds = (tokens / ATTENTION_ROWS).ceil() * heads / device.num_units as f64;
                let (lost, lost_back) = (ATTENTION_LOST.0 / rounds, ATTENTION_LOST.1 / rounds);
                (seconds * (1.0 + lost), BACKWARD_ATTENTION * seconds * (1.0 + lost_back))
            }
            Attention::Materialised => {
                let count = layout.microbatch as f64 * heads;
                let rows = s / layout.context as f64;
                let d = model.head_dim as f64;
                let scores = self.product(Product { count, m: rows, k: d, n: s });
                let values = self.product(Product { count, m: rows, k: s, n: d });
                // Softmax reads and writes; dropout reads, writes and keeps a mask.
                let each = if model.dropout { 9.0 } else { 4.0 };
                let stream = self.stream(each * count * rows * s);
                (scores + values + stream, 2.0 * (scores + values) + BACKWARD_STREAM * stream)
            }
        }
    }

    /// Bytes that norms, residuals, gates and dropout move of a layer forward: of what holders of
    /// slices have whole unless they divide rows, and of what they divide.
    fn streamed(&self, inner: f64) -> f64 {
        let (model, layout) = (self.job.model, &self.job.layout);
        let (tokens, t) = (self.job.tokens(), layout.tensor as f64);
        let rows = if layout.sequence { t } else { 1.0 };
        // Two norms that read and write, two sums that read twice and write, dropout with a mask.
        let whole = (8.0 + 12.0 + if model.dropout { 2.0 } else { 0.0 }) * model.width as f64;
        let heads = (model.query_width() + 2 * model.key_width()) as f64;
        let mut gate = if model.gated { 6.0 } else { 4.0 } * inner;
        let mut alone = whole;
        if self.job.habits.eager {
            // Norms cast, square, scale and cast back; gates are two kernels.
            alone += 24.0 * model.width as f64;
            gate += 4.0 * inner;
        }
        tokens * (alone / rows + (4.0 * heads + gate) / t)
    }

    /// Bytes that move where tokens are laid out by expert and put back: a row for each of a
    /// token's experts is read and written both times, and once more on both sides where rows come
    /// from other devices and are sorted by expert there.
    fn sorted(&self) -> f64 {
        let (model, layout) = (self.job.model, &self.job.layout);
        let copies = model.experts.map_or(0, |experts| experts.per_token) as f64;
        let passes = if layout.expert > 1 { 4.0 } else { 2.0 };
        let row = model.width as f64 / layout.tensor as f64;
        4.0 * passes * self.job.tokens() * copies * row
    }

    /// Messages between holders of slices in one direction of a layer: two all-reduces, or as
    /// many bytes as a gather and a scatter of rows where rows are divided.
    fn tensor_messages(&self) -> f64 {
        let bytes = 2.0 * self.job.tokens() * self.job.model.width as f64;
        if self.job.layout.sequence {
            return 4.0 * self.links.half(self.tensor_group(), bytes);
        }
        2.0 * self.links.all_reduce(self.tensor_group(), bytes)
    }

    /// Share of these messages that is waited for: less where they go piece by piece beside their
    /// products, whose pieces are slower than the whole.
    const fn waited(&self) -> f64 {
        if self.job.habits.slices_piecewise { PIECEWISE } else { 1.0 }
    }

    /// Keys and values of a sequence's other parts.
    fn context_messages(&self) -> f64 {
        let layout = &self.job.layout;
        let group = Group { ranks: layout.context, stride: layout.tensor };
        let keys = 2.0 * self.job.model.key_width() as f64 / layout.tensor as f64;
        self.links.half(group, 2.0 * keys * self.job.tokens() * layout.context as f64)
    }

    /// Tokens to their experts and back.
    fn expert_messages(&self) -> f64 {
        let (layout, model) = (&self.job.layout, self.job.model);
        let group = Group { ranks: layout.expert, stride: layout.tensor * layout.context };
        let copies = model.experts.map_or(0, |experts| experts.per_token) as f64;
        let bytes = 2.0 * self.job.tokens() * model.width as f64 * copies;
        2.0 * self.links.all_to_all(group, bytes / layout.tensor as f64)
    }

    /// Adding a layer's gradients to those of other microbatches, where that is a pass of its own.
    fn adding(&self, routed: bool) -> f64 {
        let (model, layout) = (self.job.model, &self.job.layout);
        let params = if routed {
            model.expert_layer_shared_params() as f64
                + model.experts_params() as f64 / layout.expert as f64
        } else {
            model.dense_layer_params() as f64
        };
        let m = self.job.num_microbatches() as f64;
        let bytes = self.job.habits.adding_bytes as f64 * (m - 1.0) / m;
        self.stream(bytes * params / layout.tensor as f64)
    }

    /// A layer, with experts or without.
    pub(super) fn layer(&self, routed: bool) -> Passes {
        let (model, layout) = (self.job.model, &self.job.layout);
        let mut products = self.attention_products();
        let inner = match model.experts {
            Some(experts) if routed => {
                products.extend(self.expert_products());
                if experts.shared_ffn > 0 {
                    products.extend(self.ffn_products(experts.shared_ffn));
                }
                experts.shared_ffn + experts.per_token * experts.ffn
            }
            _ => {
                products.extend(self.ffn_products(model.ffn));
                model.ffn
            }
        };
        let (mut forward, mut input, mut weight) = (0.0, 0.0, self.adding(routed));
        for product in products {
            let (f, i, w) = self.matrix(product);
            let slower =
                if product.count > 1.0 { 1.0 / self.calibration.grouped_share } else { 1.0 };
            (forward, input, weight) =
                (forward + slower * f, input + slower * i, weight + slower * w);
        }
        let (scores, scores_backward) = self.scores();
        let sorted = if routed { self.sorted() } else { 0.0 };
        let stream = self.stream(self.streamed(inner as f64) + sorted);
        let messages = self.tensor_messages() * self.waited()
            + self.context_messages()
            + if routed { self.expert_messages() } else { 0.0 };
        let products = forward;
        let forward = Pass {
            compute: forward + scores + stream + self.floors(routed, false),
            exposed: messages,
            host: self.host(routed, false),
        };
        let hidden = self.calibration.tensor_hidden * self.tensor_messages() * self.waited();
        let input_grad = Pass {
            compute: input + scores_backward + BACKWARD_STREAM * stream + self.floors(routed, true),
            exposed: messages - hidden,
            host: self.host(routed, true) * 2.0 / 3.0,
        };
        let weight_grad =
            Pass { compute: weight, exposed: 0.0, host: self.host(routed, true) / 3.0 };
        let again = match layout.recompute {
            Recompute::Full => forward,
            Recompute::Selective if self.job.habits.keeps_products => Pass {
                // Every second product, and everything that is no product or attention.
                compute: 0.5 * products + stream,
                exposed: 0.5 * forward.exposed,
                host: 0.7 * forward.host,
            },
            Recompute::Selective if model.attention == Attention::Materialised => {
                Pass { compute: scores, exposed: 0.0, host: 0.3 * forward.host }
            }
            _ => Pass::default(),
        };
        Passes { forward, input_grad: input_grad.then(again), weight_grad }
    }

    /// Kernels of a layer in one direction.
    fn kernels(&self, routed: bool, backward: bool) -> f64 {
        let pick = |(forward, back): (f64, f64)| if backward { back } else { forward };
        let dense = match self.job.model.attention {
            Attention::Materialised => pick(KERNELS_MATERIALISED),
            Attention::Fused if self.job.habits.eager => pick(KERNELS_EAGER),
            Attention::Fused => pick(KERNELS_FUSED),
        };
        dense + if routed { pick(KERNELS_ROUTED) } else { 0.0 }
    }

    /// What they take of the device however little they do.
    fn floors(&self, routed: bool, backward: bool) -> f64 {
        1e-6 * self.calibration.kernel_us * self.kernels(routed, backward)
    }

    /// The host's time to start a layer's kernels in one direction.
    fn host(&self, routed: bool, backward: bool) -> f64 {
        let kernels = self.kernels(routed, backward);
        let layout = &self.job.layout;
        let mut calls = if layout.tensor > 1 { 2.0 } else { 0.0 };
        if layout.sequence && layout.tensor > 1 {
            // A gather before and a scatter behind each half; backward gathers again.
            calls = if backward { 6.0 } else { 4.0 };
        }
        if layout.context > 1 {
            calls += 1.0;
        }
        let calibration = self.calibration;
        let mut call = calibration.collective_launch_us;
        if self.job.habits.waits_in_stages && layout.pipeline > 1 && self.job.cluster.nodes() > 1 {
            call += calibration.stage_wait_us * (layout.tensor - 1) as f64;
        }
        1e-6 * (kernels * calibration.launch_us + calls * call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::named;
    use crate::layout::{Habits, Layout};
    use crate::model::Model;

    #[test]
    fn attention_of_few_heads_reaches_as_little_as_measured() {
        // Shares of the peak, causal pairs counted, of 4,096 tokens and heads of 128: published by
        // SimuMax for its A100 and B200.
        for (cluster, calibration, heads, forward, backward) in [
            ("1xa100-80gb", "a100", 16, 0.494, 0.444),
            ("1xa100-80gb", "a100", 64, 0.594, 0.503),
            ("1xb200-180gb", "b200", 16, 0.289, 0.378),
            ("1xb200-180gb", "b200", 64, 0.436, 0.365),
        ] {
            let mut model = Model::gpt("attention", 1, heads * 128, heads, 51_200, 4096);
            model.attention = Attention::Fused;
            let cluster = named(cluster).expect("a cluster");
            let (layout, habits) = (Layout::ONE, Habits::MODERN);
            let job = Job { model: &model, cluster: &cluster, layout, batch: 1, habits };
            let calibration = &Calibration::before(calibration);
            let links = Links::new(&cluster, calibration);
            let (there, back) = Prices { job: &job, calibration, links }.scores();
            let flops = 2.0 * 4096.0 * 4096.0 * (heads * 128) as f64 / cluster.device.peak();
            for (said, was) in [(flops / there, forward), (2.5 * flops / back, backward)] {
                assert!((said / was - 1.0).abs() < 0.15, "{heads} heads: {said} for {was}");
            }
        }
    }
}
