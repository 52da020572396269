//! Device and host time of one layer for one micro-batch.
//!
//! A layer is matmuls, attention, elementwise kernels, and tensor-parallel collectives. The host
//! launches every kernel; where kernels are short, the host limits the layer instead of the device.

use super::matmul::MatMul;
use crate::collective::group::Group;
use crate::job::Workload;
use crate::model::Attention;
use lockstep_config::Recompute;

/// Memory traffic of backward elementwise kernels, relative to forward: gradients are read beside
/// activations.
const BACKWARD_STREAM: f64 = 1.4;
/// Time of the backward pass of fused attention, relative to forward. It recomputes scores (five
/// matmuls instead of two) and achieves less of the peak, as measured on A100 and B200.
const BACKWARD_ATTENTION: f64 = 2.5 / 0.82;
/// Rows of a sequence per multiprocessor at once, and waves of multiprocessors lost forward and
/// backward: later rows attend to more tokens, so blocks end at different times. Fitted to
/// measurements with 4 to 128 heads.
const ATTENTION_ROWS: f64 = 128.0;
const ATTENTION_LOST: (f64, f64) = (2.0, 0.7);
/// Exposed share of tensor-parallel collectives with async tensor parallelism, as published for
/// torchtitan.
const ASYNC_TP_EXPOSED: f64 = 0.6;
/// Kernels of a layer forward and backward: with materialised scores, with fused attention, and
/// with fused attention but unfused norms, rotary embeddings and gates.
const KERNELS_MATERIALISED: (f64, f64) = (22.0, 36.0);
const KERNELS_FUSED: (f64, f64) = (24.0, 38.0);
const KERNELS_EAGER: (f64, f64) = (45.0, 70.0);
/// Extra kernels of a mixture-of-experts layer.
const KERNELS_ROUTED: (f64, f64) = (30.0, 40.0);

/// Time of one pass in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pass {
    /// Computation on the device.
    pub compute: f64,
    /// Exposed communication.
    pub exposed: f64,
    /// Host time.
    pub host: f64,
}

/// Passes of a layer or of a stage.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Passes {
    /// Forward pass.
    pub forward: Pass,
    /// Backward pass with recomputation, without weight gradients.
    pub input_grad: Pass,
    /// Weight gradients.
    pub weight_grad: Pass,
}

impl Pass {
    /// Combines the times of two passes part by part.
    fn zip(self, other: Self, of: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            compute: of(self.compute, other.compute),
            exposed: of(self.exposed, other.exposed),
            host: of(self.host, other.host),
        }
    }

    /// Repeats the pass.
    pub fn times(self, count: f64) -> Self {
        self.zip(self, |own, _| own * count)
    }

    /// Runs another pass after this one.
    pub fn then(self, other: Self) -> Self {
        self.zip(other, |own, other| own + other)
    }

    /// The slower of device and host.
    pub fn seconds(self) -> f64 {
        (self.compute + self.exposed).max(self.host)
    }
}

impl Passes {
    /// Repeats the passes.
    pub fn times(self, count: f64) -> Self {
        let Self { forward, input_grad, weight_grad } = self;
        let [forward, input_grad, weight_grad] =
            [forward, input_grad, weight_grad].map(|pass| pass.times(count));
        Self { forward, input_grad, weight_grad }
    }

    /// Runs other layers after these.
    pub fn then(self, other: Self) -> Self {
        Self {
            forward: self.forward.then(other.forward),
            input_grad: self.input_grad.then(other.input_grad),
            weight_grad: self.weight_grad.then(other.weight_grad),
        }
    }

    /// Both gradients.
    pub fn backward(self) -> Pass {
        self.input_grad.then(self.weight_grad)
    }

    /// All passes.
    pub fn total(self) -> Pass {
        self.forward.then(self.input_grad).then(self.weight_grad)
    }
}

/// Memory traffic per operand element of an FP8 matmul: one read for the maximum, one read and
/// write for the cast.
const FP8_CAST_BYTES: f64 = 5.0;

impl Workload<'_> {
    fn matmul(&self, matmul: MatMul) -> f64 {
        matmul.seconds(&self.job.cluster.device, self.calibration, self.job.framework.fp8)
    }

    /// Seconds to move bytes through device memory.
    pub(super) fn stream(&self, bytes: f64) -> f64 {
        bytes / (self.job.cluster.device.memory_gbps * 1e9 * self.calibration.memory_share)
    }

    pub(super) fn tensor_group(&self) -> Group {
        Group { ranks: self.job.layout.tensor, stride: 1 }
    }

    /// Seconds of a matmul: forward, input gradient, weight gradient.
    pub(super) fn matrix(&self, matmul: MatMul) -> (f64, f64, f64) {
        let cast = |numbers: f64| {
            if self.job.framework.fp8 {
                self.stream(FP8_CAST_BYTES * matmul.count * numbers)
            } else {
                0.0
            }
        };
        let (given, weight) = (matmul.m * matmul.n, matmul.k * matmul.n);
        (
            self.matmul(matmul) + cast(matmul.m * matmul.k + weight),
            self.matmul(matmul.input_gradient()) + cast(given),
            self.matmul(matmul.weight_gradient()),
        )
    }

    /// Matmuls of a layer's attention.
    fn attention_matmuls(&self) -> Vec<MatMul> {
        let (model, t) = (self.job.model, self.job.layout.tensor as f64);
        let (tokens, h) = (self.job.tokens(), model.width as f64);
        let out = MatMul::one(tokens, model.attended_width() as f64 / t, h);
        let Some(latent) = model.latent else {
            let keys = (model.key_width() as f64 / t).max(model.head_dim as f64);
            let inputs = model.query_width() as f64 / t + 2.0 * keys;
            return vec![MatMul::one(tokens, h, inputs), out];
        };
        let (query, narrow) = (latent.query_rank as f64, latent.key_value_rank as f64);
        let wide = (model.heads * (latent.plain_dim + latent.value_dim)) as f64 / t;
        vec![
            MatMul::one(tokens, h, query),
            MatMul::one(tokens, query, model.query_width() as f64 / t),
            MatMul::one(tokens, h, narrow + latent.rotary_dim as f64),
            MatMul::one(tokens, narrow, wide),
            out,
        ]
    }

    /// Matmuls of `count` feed-forward parts of this inner width, each with its tokens.
    fn ffn_matmuls(&self, count: f64, tokens: f64, inner: u64) -> [MatMul; 2] {
        let (model, t) = (self.job.model, self.job.layout.tensor as f64);
        let (h, f) = (model.width as f64, inner as f64 / t);
        let inputs = model.ffn_inputs() as f64 * f;
        [MatMul { count, m: tokens, k: h, n: inputs }, MatMul { count, m: tokens, k: f, n: h }]
    }

    /// Attention itself, forward and backward.
    fn scores(&self) -> (f64, f64) {
        let (model, layout) = (self.job.model, &self.job.layout);
        let (tokens, s) = (self.job.tokens(), model.context as f64);
        let heads = model.heads as f64 / layout.tensor as f64;
        match model.attention {
            Attention::Fused => {
                let widths = (model.query_width() + model.attended_width()) as f64;
                // Scores of causal pairs and their weighted sums of values.
                let flops = tokens * s * widths / layout.tensor as f64;
                let device = &self.job.cluster.device;
                let clock = device.clock(self.calibration.watts);
                let seconds = flops / (device.peak() * clock * self.calibration.attention_share);
                let rounds =
                    (tokens / ATTENTION_ROWS).ceil() * heads / device.num_multiprocessors as f64;
                let (lost, lost_back) = (ATTENTION_LOST.0 / rounds, ATTENTION_LOST.1 / rounds);
                (seconds * (1.0 + lost), BACKWARD_ATTENTION * seconds * (1.0 + lost_back))
            }
            Attention::Materialised => {
                let count = layout.microbatch as f64 * heads;
                let rows = s / layout.context as f64;
                let d = model.head_dim as f64;
                let scores = self.matmul(MatMul { count, m: rows, k: d, n: s });
                let values = self.matmul(MatMul { count, m: rows, k: s, n: d });
                // Softmax reads and writes; dropout reads, writes and saves a mask.
                let each = if model.dropout { 9.0 } else { 4.0 };
                let stream = self.stream(each * count * rows * s);
                (scores + values + stream, 2.0 * (scores + values) + BACKWARD_STREAM * stream)
            }
        }
    }

    /// Memory traffic of norms, residuals, gates and dropout in a layer's forward pass. Sequence
    /// parallelism splits the part that tensor-parallel ranks otherwise replicate.
    fn elementwise_bytes(&self, inner: f64) -> f64 {
        let (model, layout) = (self.job.model, &self.job.layout);
        let (tokens, t) = (self.job.tokens(), layout.tensor as f64);
        let rows = if layout.sequence { t } else { 1.0 };
        // Two norms that read and write, two residual sums that read twice and write, dropout with
        // a mask.
        let whole = (8.0 + 12.0 + if model.dropout { 2.0 } else { 0.0 }) * model.width as f64;
        let heads = (model.query_width() + 2 * model.key_width()) as f64;
        let mut gate = if model.gated { 6.0 } else { 4.0 } * inner;
        let mut alone = whole;
        if self.job.framework.eager {
            // Unfused norms cast, square, scale and cast back; gates are two kernels.
            alone += 24.0 * model.width as f64;
            gate += 4.0 * inner;
        }
        tokens * (alone / rows + (4.0 * heads + gate) / t)
    }

    /// Memory traffic of permuting tokens by expert and back: each routed token is read and written
    /// both times, and twice more where tokens arrive from other ranks and are sorted by expert.
    fn permutation_bytes(&self) -> f64 {
        let (model, layout) = (self.job.model, &self.job.layout);
        let copies = model.experts.map_or(0, |experts| experts.per_token) as f64;
        let passes = if layout.expert > 1 { 4.0 } else { 2.0 };
        let row = model.width as f64 / layout.tensor as f64;
        4.0 * passes * self.job.tokens() * copies * row
    }

    /// Tensor-parallel collectives of a layer in one direction: two all-reduces, or with sequence
    /// parallelism all-gathers and reduce-scatters of the same bytes.
    fn tensor_messages(&self) -> f64 {
        let bytes = 2.0 * self.job.tokens() * self.job.model.width as f64;
        if self.job.layout.sequence {
            return 4.0 * self.links().all_gather(self.tensor_group(), bytes);
        }
        2.0 * self.links().all_reduce(self.tensor_group(), bytes)
    }

    /// Exposed share of tensor-parallel collectives.
    const fn exposed_fraction(&self) -> f64 {
        if self.job.framework.async_tensor_parallel { ASYNC_TP_EXPOSED } else { 1.0 }
    }

    /// Keys and values from the other context-parallel ranks.
    fn context_messages(&self) -> f64 {
        let layout = &self.job.layout;
        let group = Group { ranks: layout.context, stride: layout.tensor };
        let keys = 2.0 * self.job.model.key_width() as f64 / layout.tensor as f64;
        self.links().all_gather(group, 2.0 * keys * self.job.tokens() * layout.context as f64)
    }

    /// All-to-alls of tokens to their experts and back.
    fn expert_messages(&self) -> f64 {
        let (layout, model) = (&self.job.layout, self.job.model);
        let group = Group { ranks: layout.expert, stride: layout.tensor * layout.context };
        let copies = model.experts.map_or(0, |experts| experts.per_token) as f64;
        let bytes = 2.0 * self.job.tokens() * model.width as f64 * copies;
        2.0 * self.links().all_to_all(group, bytes / layout.tensor as f64)
    }

    /// Accumulation of a layer's gradients, where it is a separate pass over memory.
    fn accumulation(&self, routed: bool) -> f64 {
        let (model, layout) = (self.job.model, &self.job.layout);
        let params = if routed {
            model.expert_layer_shared_params() as f64
                + model.experts_params() as f64 / layout.expert as f64
        } else {
            model.dense_layer_params() as f64
        };
        let m = self.job.num_microbatches() as f64;
        let bytes = self.job.framework.accumulation_bytes as f64 * (m - 1.0) / m;
        self.stream(bytes * params / layout.tensor as f64)
    }

    /// Passes of a layer, dense or mixture-of-experts.
    pub(super) fn layer(&self, routed: bool) -> Passes {
        let (model, layout, tokens) = (self.job.model, &self.job.layout, self.job.tokens());
        let mut matmuls = self.attention_matmuls();
        let inner = match model.experts {
            Some(experts) if routed => {
                let held = (experts.num / layout.expert) as f64;
                let sent = (tokens * experts.per_token as f64 / held).max(1.0);
                matmuls.extend(self.ffn_matmuls(held, sent, experts.ffn));
                if experts.shared_ffn > 0 {
                    matmuls.extend(self.ffn_matmuls(1.0, tokens, experts.shared_ffn));
                }
                experts.shared_ffn + experts.per_token * experts.ffn
            }
            _ => {
                matmuls.extend(self.ffn_matmuls(1.0, tokens, model.ffn));
                model.ffn
            }
        };
        let (mut forward, mut input, mut weight) = (0.0, 0.0, self.accumulation(routed));
        for matmul in matmuls {
            let (f, i, w) = self.matrix(matmul);
            let slower =
                if matmul.count > 1.0 { 1.0 / self.calibration.grouped_share } else { 1.0 };
            (forward, input, weight) =
                (forward + slower * f, input + slower * i, weight + slower * w);
        }
        let (scores, scores_backward) = self.scores();
        let permutation_bytes = if routed { self.permutation_bytes() } else { 0.0 };
        let stream = self.stream(self.elementwise_bytes(inner as f64) + permutation_bytes);
        let messages = self.tensor_messages() * self.exposed_fraction()
            + self.context_messages()
            + if routed { self.expert_messages() } else { 0.0 };
        let matmuls = forward;
        let forward = Pass {
            compute: forward + scores + stream + self.kernel_floor(routed, false),
            exposed: messages,
            host: self.host(routed, false),
        };
        let hidden =
            self.calibration.tensor_hidden * self.tensor_messages() * self.exposed_fraction();
        let input_grad = Pass {
            compute: input
                + scores_backward
                + BACKWARD_STREAM * stream
                + self.kernel_floor(routed, true),
            exposed: messages - hidden,
            host: self.host(routed, true) * 2.0 / 3.0,
        };
        let weight_grad =
            Pass { compute: weight, exposed: 0.0, host: self.host(routed, true) / 3.0 };
        let recomputed = match layout.recompute {
            Recompute::Full => forward,
            Recompute::Every(layers) => forward.times(1.0 / layers as f64),
            Recompute::Selective if self.job.framework.saves_alternate_matmuls => Pass {
                // Every second matmul, and all kernels but matmuls and attention.
                compute: 0.5 * matmuls + stream,
                exposed: 0.5 * forward.exposed,
                host: 0.7 * forward.host,
            },
            Recompute::Selective if model.attention == Attention::Materialised => {
                Pass { compute: scores, exposed: 0.0, host: 0.3 * forward.host }
            }
            _ => Pass::default(),
        };
        Passes { forward, input_grad: input_grad.then(recomputed), weight_grad }
    }

    /// Number of kernels of a layer in one direction.
    fn kernels(&self, routed: bool, backward: bool) -> f64 {
        let pick = |(forward, back): (f64, f64)| if backward { back } else { forward };
        let dense = match self.job.model.attention {
            Attention::Materialised => pick(KERNELS_MATERIALISED),
            Attention::Fused if self.job.framework.eager => pick(KERNELS_EAGER),
            Attention::Fused => pick(KERNELS_FUSED),
        };
        dense + if routed { pick(KERNELS_ROUTED) } else { 0.0 }
    }

    /// Minimum device time of these kernels.
    fn kernel_floor(&self, routed: bool, backward: bool) -> f64 {
        1e-6 * self.calibration.kernel_us * self.kernels(routed, backward)
    }

    /// Host time to launch a layer's kernels in one direction.
    fn host(&self, routed: bool, backward: bool) -> f64 {
        let kernels = self.kernels(routed, backward);
        let layout = &self.job.layout;
        let mut calls = if layout.tensor > 1 { 2.0 } else { 0.0 };
        if layout.sequence && layout.tensor > 1 {
            // An all-gather before and a reduce-scatter after attention and feed-forward; backward
            // gathers once more.
            calls = if backward { 6.0 } else { 4.0 };
        }
        if layout.context > 1 {
            calls += 1.0;
        }
        let calibration = self.calibration;
        let mut call = calibration.collective_launch_us;
        if self.job.framework.syncs_hosts_in_stages
            && layout.pipeline > 1
            && self.job.cluster.nodes() > 1
        {
            call += calibration.stage_wait_us * (layout.tensor - 1) as f64;
        }
        1e-6 * (kernels * calibration.launch_us + calls * call)
    }

    /// Embedding lookup, positions and dropout, with an all-reduce over tensor-parallel ranks.
    pub(super) fn embedding(&self) -> Passes {
        let bytes = self.job.tokens() * self.job.model.width as f64;
        let launch = self.calibration.launch_us * 1e-6;
        let pass = Pass {
            compute: self.stream(8.0 * bytes),
            exposed: self.links().all_reduce(self.tensor_group(), 2.0 * bytes),
            host: 8.0 * launch,
        };
        Passes {
            forward: pass,
            input_grad: Pass { exposed: 0.0, ..pass },
            weight_grad: Pass::default(),
        }
    }

    /// Final norm, logits and loss.
    pub(super) fn head(&self) -> Passes {
        let (job, model) = (self.job, self.job.model);
        let vocab = model.vocab as f64 / job.layout.tensor as f64;
        let matmul = MatMul::one(job.tokens(), model.width as f64, vocab);
        let (forward, input, weight) = self.matrix(matmul);
        let launch = self.calibration.launch_us * 1e-6;
        // Logits are cast, and read for their maximum, their sum and their gradient.
        let stream = self.stream(14.0 * job.tokens() * vocab);
        let sums = 3.0 * self.links().all_reduce(self.tensor_group(), 4.0 * job.tokens());
        let rows =
            self.links().all_reduce(self.tensor_group(), 2.0 * job.tokens() * model.width as f64);
        Passes {
            forward: Pass { compute: forward + stream, exposed: sums, host: 20.0 * launch },
            input_grad: Pass { compute: input + stream, exposed: rows, host: 12.0 * launch },
            weight_grad: Pass { compute: weight, exposed: 0.0, host: 2.0 * launch },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Calibration;
    use crate::framework::Framework;
    use crate::hardware::named;
    use crate::job::Job;
    use crate::layout::Layout;
    use crate::model::Model;

    #[test]
    fn attention_with_few_heads_matches_measured_rates() {
        // Shares of the peak, counting causal pairs, for 4,096 tokens and heads of 128: published
        // by SimuMax for A100 and B200.
        for (cluster, calibration, heads, forward, backward) in [
            ("1xa100-80gb", "a100", 16, 0.494, 0.444),
            ("1xa100-80gb", "a100", 64, 0.594, 0.503),
            ("1xb200-180gb", "b200", 16, 0.289, 0.378),
            ("1xb200-180gb", "b200", 64, 0.436, 0.365),
        ] {
            let mut model = Model::gpt("attention", 1, heads * 128, heads, 51_200, 4096);
            model.attention = Attention::Fused;
            let cluster = named(cluster).expect("a cluster");
            let (layout, framework) = (Layout::ONE, Framework::MODERN);
            let job = Job { model: &model, cluster: &cluster, layout, batch: 1, framework };
            let calibration = &Calibration::prior(calibration);
            let (there, back) = Workload { job, calibration, reserve: 0.0 }.scores();
            let flops = 2.0 * 4096.0 * 4096.0 * (heads * 128) as f64 / cluster.device.peak();
            for (said, was) in [(flops / there, forward), (2.5 * flops / back, backward)] {
                assert!((said / was - 1.0).abs() < 0.15, "{heads} heads: {said} for {was}");
            }
        }
    }
}
