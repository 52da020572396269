//! Gradient compression.

use super::limits::{MAX_GROUPS, MAX_WORKERS};
use super::run::group_sizes;
use super::train::default_warmup;
use super::{Dtype, Group, OptimName, Recipe, SyncMode, WireDtype, matches_pattern};
use crate::error::ConfigError;
use crate::lint::{Lint, lints};
use crate::rule::{Rule, RuleContext, Rules};
use crate::topic::{choices, entry, topic};
use crate::value_type::Bound::{Closed, Open};
use crate::value_type::MAX_STEPS;

/// All methods but `none`.
const ANY: &[&str] = CompressMethod::NAMES.split_at(1).1;

/// Largest number of bits per element.
const MAX_BITS: i64 = 8;

/// Largest rank of the factors.
const MAX_RANK: i64 = 1024;

topic! {
    /// Gradient compression.
    pub struct Compress at compress, table "compress" {
        /// Gradient compression: bf16 and fp16 cast to two bytes; int8 and qsgd quantize with
        /// stochastic rounding; top-k, random-k and dgc send few elements; sign sends one bit per
        /// element; power-sgd sends low-rank factors; one-bit-adam sends the signs of Adam's
        /// momentum (the bits then depend on the number of workers).
        method: CompressMethod = "none", in_identity_unless_default();

        /// Fraction of elements that are sent.
        ratio: f64 = 0.01, float(Open(0.0), Closed(1.0)),
            when("compress.method", &["top-k", "random-k", "dgc"]);

        /// Steps over which the fraction falls from 0.25 to compress.ratio, by a factor of four
        /// each time.
        ratio_warmup_steps: u64 = ("= train.steps / 10", default_warmup), integer(0, MAX_STEPS),
            when("compress.method", &["dgc"]), inactive(0);

        /// Momentum of each worker's gradients before the selection, in place of the optimizer's
        /// (momentum correction).
        momentum: f64 = ("= 0.9 for optim.name = sgd, else 0", default_momentum),
            float(Closed(0.0), Open(1.0)), when("compress.method", &["dgc"]);

        /// Bits per element.
        bits: u32 = 4, integer(2, MAX_BITS), when("compress.method", &["qsgd"]);

        /// Rank of the factors.
        rank: usize = 4, integer(1, MAX_RANK), when("compress.method", &["power-sgd"]);

        /// Settings for single tensors: dense sends them uncompressed, the others replace the key
        /// of that name; the first entry whose match fits the parameter name applies.
        overrides: Vec<CompressOverride> = none, at_most(MAX_GROUPS), when("compress.method", ANY);

        /// Size of groups of consecutive workers, such as those of a host, that reduce uncompressed
        /// gradients among themselves; only traffic between groups is compressed. 0 has no groups.
        group_workers: usize = 0, integer(0, MAX_WORKERS), when("compress.method", ANY),
            in_identity_when(|r| r.compress.group_workers > 1);

        /// Steps at the beginning with uncompressed gradients.
        warmup_steps: u64 = (
            "= a fifth of train.steps for one-bit-adam, else 0",
            default_dense_steps
        ), integer(0, MAX_STEPS), when("compress.method", ANY);

        /// Whether the compression error is added to the next gradient.
        error_feedback: bool = (
            "= false for bf16, int8 and qsgd, else true",
            default_error_feedback
        ), when("compress.method", ANY);

        /// Allows a biased method without error feedback, for experiments; such a run may not
        /// converge.
        allow_biased: bool = false, when("compress.method", ANY);
    }
}

entry! {
    /// Compression settings for the parameters whose names match a pattern.
    pub struct CompressOverride {
        /// Pattern of parameter names, with `*` for any characters and `?` for one.
        pattern as match: String = required, not_empty();
        /// Whether they are sent uncompressed.
        dense: bool = none;
        /// Fraction of elements that are sent.
        ratio: Option<f64> = none, float(Open(0.0), Closed(1.0));
        /// Bits per element.
        bits: Option<u32> = none, integer(2, MAX_BITS);
        /// Rank of the factors.
        rank: Option<usize> = none, integer(1, MAX_RANK);
    }
}

fn default_dense_steps(recipe: &Recipe) -> u64 {
    match recipe.compress.method {
        CompressMethod::OneBitAdam => (recipe.train.steps / 5).max(1),
        _ => 0,
    }
}

fn default_error_feedback(recipe: &Recipe) -> bool {
    use CompressMethod::{Bf16, Int8, None, Qsgd};
    !matches!(recipe.compress.method, None | Bf16 | Int8 | Qsgd)
}

/// Momentum correction (Lin et al. 2018) for plain SGD; other optimizers have momentum already.
fn default_momentum(recipe: &Recipe) -> f64 {
    let is_plain = recipe.optim.name == OptimName::Sgd;
    let is_dgc = recipe.compress.method == CompressMethod::Dgc;
    if is_plain && is_dgc { 0.9 } else { 0.0 }
}

choices! {
    /// Compression method.
    CompressMethod {
        /// Uncompressed.
        None = "none",
        /// Cast to bfloat16.
        Bf16 = "bf16",
        /// Cast to half precision.
        Fp16 = "fp16",
        /// Eight bits with stochastic rounding.
        Int8 = "int8",
        /// Two to eight bits with stochastic rounding (Alistarh et al. 2017).
        Qsgd = "qsgd",
        /// The elements of largest magnitude.
        TopK = "top-k",
        /// Random elements.
        RandomK = "random-k",
        /// Deep gradient compression: top-k with momentum correction (Lin et al. 2018).
        Dgc = "dgc",
        /// Signs with a scale (Bernstein et al. 2018).
        Sign = "sign",
        /// 1-bit Adam: signs of the momentum (Tang et al. 2021).
        OneBitAdam = "one-bit-adam",
        /// PowerSGD: low-rank factors (Vogels et al. 2019).
        PowerSgd = "power-sgd",
    }
}

impl CompressOverride {
    /// Whether the pattern matches the name of a parameter.
    pub fn matches(&self, param: &str) -> bool {
        matches_pattern(&self.pattern, param)
    }
}

impl Compress {
    /// Whether anything is compressed.
    pub fn is_on(&self) -> bool {
        self.method != CompressMethod::None
    }

    /// Whether the gradients of a step are compressed.
    pub fn is_on_in(&self, step: u64) -> bool {
        self.is_on() && step >= self.warmup_steps
    }

    /// Whether the method is biased, so that it needs error feedback to converge.
    pub fn is_biased(&self) -> bool {
        use CompressMethod::{Dgc, OneBitAdam, PowerSgd, Sign, TopK};
        matches!(self.method, TopK | Dgc | Sign | OneBitAdam | PowerSgd)
    }

    /// The override of a parameter, if one matches.
    pub fn override_for(&self, param: &str) -> Option<&CompressOverride> {
        self.overrides.iter().find(|rule| rule.matches(param))
    }
}

pub(crate) const RULES: Rules =
    Rules::new(&[
        // Every worker decompresses and sums the gradients of the whole model.
        Rule::conflict(&["compress.method"], "none", |c, r| {
            let is_alone = r.sync.mode != SyncMode::AllReduce && !is_for_servers(r);
            c.because("compresses the gradients of the whole model in every step")
                .with_shards(r)
                .with("sync.mode", "\"all-reduce\"", is_alone);
        }),
        // Servers decode every message in the same format, and sparse rows are not compressed.
        Rule::conflict(&["compress.method"], "none", |c, r| {
            if !is_for_servers(r) {
                return;
            }
            c.because("has one format in all steps with parameter servers")
                .with("compress.warmup_steps", 0, r.compress.warmup_steps > 0)
                .because(
                    "is not supported per tensor with parameter servers, which hold flat shards",
                )
                .with("compress.overrides", "[]", !r.compress.overrides.is_empty())
                .because("is applied between each worker and the servers")
                .with("compress.group_workers", 0, r.compress.group_workers > 1)
                .because("compresses the gradients of the whole model")
                .with("sync.sparse_rows", false, r.sync.server.rows.sparse);
        }),
        // The wire format is that of the method, and error feedback needs a constant loss scale.
        Rule::conflict(&["compress.method"], "none", |c, r| {
            c.because("keeps compression errors, which need a constant loss scale")
                .with("precision.compute", "\"bf16\"", r.precision.compute == Dtype::F16)
                .because("sends gradients in its own format")
                .with("precision.wire", "\"f32\"", r.precision.wire != WireDtype::F32);
        }),
        // The compression error of a worker is lost when the worker leaves.
        Rule::conflict(&["compress.method"], "none", |c, r| {
            let keeps = r.compress.error_feedback || r.compress.momentum > 0.0;
            c.because("keeps compression errors on each worker, so the workers must not change")
                .with("run.workers", r.run.workers, keeps && r.run.elastic.is_some());
        }),
        // 1-bit Adam sends Adam's momentum of unclipped gradients, of all parameters in all steps.
        Rule::conflict(&["compress.method"], "none", |c, r| {
            let changes = |group: &Group| group.freeze_after.or(group.unfreeze_at).is_some();
            let is_one_bit = r.compress.method == CompressMethod::OneBitAdam;
            let is_adam = matches!(r.optim.name, OptimName::Adam | OptimName::AdamW);
            c.because("keeps compression errors of parameters, which must be trained throughout")
                .with("optim.groups", "[]", r.optim.groups.iter().any(changes))
                .because("sends the momentum of Adam")
                .with("optim.name", "\"adamw\"", is_one_bit && !is_adam)
                .because("sends momentum of unclipped gradients")
                .with("optim.clip", "0.0", is_one_bit && r.optim.clip > 0.0);
        }),
        // The second moments are frozen after the warm-up, so there must be one.
        Rule::new(&["compress.warmup_steps", "compress.method", "train.steps"], |c| {
            let Compress { method, warmup_steps, .. } = c.compress;
            let is_cold = method == CompressMethod::OneBitAdam && warmup_steps == 0;
            let fifth = (c.train.steps / 5).max(1);
            c.refuse(is_cold, "freezes Adam's second moments at zero", fifth)
        }),
        // Momentum before and after the selection would apply momentum twice.
        Rule::new(&["compress.momentum", "optim.name"], |c| {
            let name = c.optim.name;
            let rule = format!(
                "is applied before optim.name = \"{name}\", which may have momentum of its own"
            );
            let is_twice = c.compress.momentum > 0.0 && name != OptimName::Sgd;
            c.refuse(is_twice, rule, "0.0, or optim.name = \"sgd\"")
        }),
        // Groups have equal sizes, and there are at least two.
        Rule::new(&["compress.group_workers", "run.workers"], |c| {
            let (size, workers) = (c.compress.group_workers, c.run.workers);
            let fits = |size: usize| size < workers && workers.is_multiple_of(size);
            let rule = format!("does not divide run.workers = {workers} into groups");
            c.refuse(size >= 2 && !fits(size), rule, group_sizes(workers, fits))
        }),
        // A biased method needs error feedback.
        Rule::new(&["compress.error_feedback", "compress.method", "compress.allow_biased"], |c| {
            let compress = &c.compress;
            let is_lossy =
                compress.is_biased() && !compress.error_feedback && !compress.allow_biased;
            let method = compress.method;
            let rule = format!("is needed with compress.method = \"{method}\", which is biased");
            c.refuse(is_lossy, rule, "true, or compress.allow_biased = true for an experiment")
        }),
        Rule::each(&["compress.overrides"], overrides_fit_the_method),
    ])
    .when(&["compress.method"], |r| r.compress.is_on());

/// Whether servers decode the messages one by one.
fn is_for_servers(recipe: &Recipe) -> bool {
    use CompressMethod::{Bf16, Fp16, Int8, Qsgd, Sign, TopK};
    recipe.sync.mode == SyncMode::ParameterServer
        && matches!(recipe.compress.method, Bf16 | Fp16 | Int8 | Qsgd | TopK | Sign)
}

/// Each override sets one value that its method has.
fn overrides_fit_the_method(c: &RuleContext<'_>) -> Vec<ConfigError> {
    let method = c.compress.method;
    let known = match method {
        CompressMethod::TopK | CompressMethod::RandomK | CompressMethod::Dgc => "ratio",
        CompressMethod::Qsgd => "bits",
        CompressMethod::PowerSgd => "rank",
        _ => "dense",
    };
    let check = |(index, rule): (usize, &CompressOverride)| {
        let set = [
            rule.dense.then_some("dense"),
            rule.ratio.map(|_| "ratio"),
            rule.bits.map(|_| "bits"),
            rule.rank.map(|_| "rank"),
        ];
        let set: Vec<&str> = set.into_iter().flatten().collect();
        if set == [known] || set == ["dense"] {
            return None;
        }
        let rule = format!("has no effect on a tensor with compress.method = \"{method}\"");
        let fix = match known {
            "dense" => "try dense = true alone".to_owned(),
            known => format!("try {known} alone, or dense = true alone"),
        };
        let given = format!("{{{}}}", set.join(", "));
        Some(c.entry_error(&format!("[{index}]"), given, rule, fix))
    };
    c.compress.overrides.iter().enumerate().filter_map(check).collect()
}

/// Samples or tokens per worker below which gradient noise and compression error add up.
const MIN_COMPRESSED_BATCH: usize = 32;
/// Smallest useful fraction of sent elements.
const MIN_RATIO: f64 = 0.001;

pub(crate) const LINTS: &[Lint] = lints! {
    "compressed-noise": "gradients of few samples are noisy, and compression adds to the noise";
        if "compress.method with fewer than 32 samples or tokens per worker and step";
        advice "raise train.batch";
        |r| let (method, each) = (r.compress.method, r.tokens_per_step() / r.parallel.data);
            when r.compress.is_on() && each < MIN_COMPRESSED_BATCH =>
                "compress.method = \"{method}\" compresses gradients of {each} samples";

    "compressed-moments": "compression noise inflates Adam's second moments";
        if "compress.method with adam, adamw or lamb, but one-bit-adam";
        advice "compare the losses, or use one-bit-adam";
        |r| let (method, name) = (r.compress.method, r.optim.name);
            let is_one_bit = method == CompressMethod::OneBitAdam;
            when r.compress.is_on() && !is_one_bit && name.is_adam() =>
                "compress.method = \"{method}\" inflates the second moments of {name}";

    "low-compression-ratio": "so few elements are sent that most are delayed by thousands of steps";
        if "compress.ratio < 0.001"; advice "try 0.01";
        |r| let Compress { method, ratio, .. } = r.compress;
            let is_sparse = matches!(method, CompressMethod::TopK | CompressMethod::RandomK);
            let inverse = 1.0 / ratio;
            when is_sparse && ratio < MIN_RATIO =>
                "compress.ratio = {ratio} sends one of {inverse:.0} elements";
};
