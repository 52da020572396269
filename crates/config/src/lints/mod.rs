//! Lints: valid settings that are usually a mistake.
//!
//! A rule of this crate refuses a recipe that cannot work; a lint warns about one that usually does
//! not work well, from the recipe alone. Each lint has a name, a condition with its threshold, and
//! advice. A run prints its lints as warnings and continues.
//!
//! - `batch`: batch and micro-batch sizes
//! - `optimizer`: learning rate, warm-up, clipping, weight decay
//! - `precision`: number formats
//! - `data`: training data
//! - `layout`: workers, buckets, ZeRO, idle time
//! - `sync`: local steps, stragglers, delayed and compressed gradients
//! - `asynchronous`: parameter servers, gossip and federated clients
//! - `monitoring`: validation, checks and checkpoints
//!
//! ```
//! use lockstep_config::{Sources, lints, resolve};
//!
//! let recipe = resolve(&Sources { sets: vec!["optim.clip=0".to_owned()], ..Sources::default() })?;
//! let findings = lints::findings(&recipe);
//! assert_eq!(findings[0].lint.id, "no-clip");
//! assert!(findings[0].to_string().starts_with("optim.clip = 0 "));
//! # Ok::<(), lockstep_config::ConfigErrors>(())
//! ```

mod asynchronous;
mod batch;
mod data;
mod layout;
mod monitoring;
mod optimizer;
mod precision;
mod sync;

use crate::recipe::{Family, Model, Recipe};
use std::fmt;

/// A check for a setting that is usually a mistake.
#[derive(Debug)]
pub struct Lint {
    /// Name.
    pub id: &'static str,
    /// Condition in a sentence.
    pub condition: &'static str,
    /// Threshold of the condition.
    pub threshold: &'static str,
    /// Recommended change.
    pub advice: &'static str,
    /// The settings at fault and their consequence, if the condition holds.
    check: fn(&Recipe) -> Option<String>,
}

/// A lint that applies to a recipe; its text is one line.
#[derive(Debug)]
pub struct Finding {
    /// The lint.
    pub lint: &'static Lint,
    /// The settings at fault and their consequence.
    pub fault: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {} (lint {})", self.fault, self.lint.advice, self.lint.id)
    }
}

/// Every lint, by group.
pub fn all() -> impl Iterator<Item = &'static Lint> {
    let run = [batch::LINTS, optimizer::LINTS, precision::LINTS, data::LINTS];
    let workers = [layout::LINTS, sync::LINTS, asynchronous::LINTS, monitoring::LINTS];
    run.into_iter().chain(workers).flatten()
}

/// The lints that apply to a recipe.
pub fn findings(recipe: &Recipe) -> Vec<Finding> {
    all().filter_map(|lint| (lint.check)(recipe).map(|fault| Finding { lint, fault })).collect()
}

/// Whether the model is a language model.
fn is_text(recipe: &Recipe) -> bool {
    !recipe.model.family.is_problem()
}

/// Exact number of parameters of a language model, tied weights counted once; none for a problem.
fn num_params(model: &Model) -> Option<usize> {
    let Model { layers, width: c, ffn: f, vocab: v, context: t, .. } = *model;
    let head = if model.tied { 0 } else { v * c };
    match model.family {
        Family::Llama => {
            let kv = model.kv_heads * model.head_dim();
            Some(layers * (2 * c * c + 2 * c * kv + 3 * c * f + 2 * c) + v * c + c + head)
        }
        Family::Gpt2 => {
            let layer = 4 * c * c + 4 * c + 2 * c * f + f + c + 4 * c;
            Some(layers * layer + (v + t) * c + 2 * c + head)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sources, presets, resolve};
    use std::collections::BTreeSet;

    fn ids(preset: &str, sets: &[&str]) -> Vec<&'static str> {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let sources = Sources { preset: Some(preset.to_owned()), sets, ..Sources::default() };
        let recipe = resolve(&sources).unwrap_or_else(|errors| panic!("{errors}"));
        findings(&recipe).iter().map(|finding| finding.lint.id).collect()
    }

    /// For every lint, settings to which it applies and settings just below its threshold.
    const CASES: &[(&str, &str, &[&str], &[&str])] = &[
        ("tiny-micro-batch", "tiny", &["model.context=31"], &["model.context=32"]),
        (
            "little-work",
            "tiny",
            &["run.workers=8", "model.context=63"],
            &["run.workers=8", "model.context=64"],
        ),
        (
            "noisy-batch",
            "digits",
            &["train.batch=56", "train.microbatch=1"],
            &["train.batch=64", "train.microbatch=1"],
        ),
        ("sum-of-gradients", "tiny", &["train.reduction=sum"], &["train.reduction=mean"]),
        ("no-warm-up", "bible-small", &["optim.warmup_steps=0"], &["optim.warmup_steps=1"]),
        (
            "cold-scaling",
            "quadratic",
            &["optim.lr_scaling=linear", "optim.lr_base_batch=3"],
            &["optim.lr_scaling=linear", "optim.lr_base_batch=4"],
        ),
        (
            "adam-scaling",
            "tiny",
            &["optim.lr_scaling=linear", "optim.lr_base_batch=8"],
            &["optim.lr_scaling=sqrt", "optim.lr_base_batch=8"],
        ),
        (
            "unscaled-ramp",
            "bible-small",
            &["train.batch_schedule=[{tokens=100000,batch=32}]"],
            &["train.batch_schedule=[{tokens=100000,batch=32}]", "optim.lr_scaling=sqrt"],
        ),
        (
            "local-data",
            "bible-small",
            &["data.placement=local", "data.source=part-{rank}.txt", "run.workers=2"],
            &["data.placement=local", "data.source=part-{rank}.txt", "run.workers=1"],
        ),
        ("sequential-order", "tiny", &["data.order=sequential"], &["data.order=random"]),
        ("adam-rate", "bible-small", &["optim.lr=0.011"], &["optim.lr=0.01"]),
        ("tight-clip", "bible-small", &["optim.clip=0.09"], &["optim.clip=0.1"]),
        ("no-clip", "bible-small", &["optim.clip=0"], &["optim.clip=1"]),
        (
            "unscaled-fp16",
            "bible-small",
            &["precision.compute=fp16", "precision.loss_scale=1"],
            &["precision.compute=fp16", "precision.loss_scale=2"],
        ),
        (
            "fp16-wire",
            "bible-small",
            &["precision.wire=fp16"],
            &["precision.wire=fp16", "precision.compute=fp16"],
        ),
        ("unstable-step", "quadratic", &["optim.lr=3.8"], &["optim.lr=3.79"]),
        ("unused-weight-decay", "ridge", &["optim.weight_decay=0.1"], &["optim.weight_decay=0"]),
        (
            "small-model",
            "bible-small",
            &["run.workers=8", "model.layers=2"],
            &["run.workers=8", "model.layers=3"],
        ),
        (
            "unequal-shares",
            "bible-small",
            &["run.workers=2", "parallel.leaf_shares=6,2"],
            &["run.workers=2", "parallel.leaf_shares=5,3"],
        ),
        ("idle-workers", "bible-small", &["run.workers=3"], &["run.workers=4"]),
        (
            "small-buckets",
            "bible-small",
            &["run.workers=2", "parallel.bucket_bytes=511KiB"],
            &["run.workers=2", "parallel.bucket_bytes=512KiB"],
        ),
        (
            "large-buckets",
            "bible-small",
            &["run.workers=2", "parallel.bucket_bytes=8MiB"],
            &["run.workers=2", "parallel.bucket_bytes=2MiB"],
        ),
        (
            "no-overlap",
            "bible-small",
            &["run.workers=2", "parallel.overlap=false"],
            &["run.workers=1", "parallel.overlap=false"],
        ),
        (
            "many-passes",
            "bible-small",
            &["run.workers=3", "parallel.zero=2"],
            &["run.workers=4", "parallel.zero=2"],
        ),
        (
            "short-deadline",
            "bible-small",
            &["run.workers=2", "run.deadline=4.9"],
            &["run.workers=2", "run.deadline=5"],
        ),
        (
            "long-deadline",
            "bible-small",
            &["run.workers=2", "run.deadline=601"],
            &["run.workers=2", "run.deadline=600"],
        ),
        (
            "slow-link",
            "bible-small",
            &["run.workers=2", "run.transport=tcp", "emulate.bandwidth=1200MB"],
            &["run.workers=2", "run.transport=tcp", "emulate.bandwidth=1300MB"],
        ),
        (
            "sequence-alone",
            "bible-small",
            &["parallel.sequence=true"],
            &["parallel.sequence=true", "parallel.tensor=2", "run.workers=2"],
        ),
        (
            "interleaved-alone",
            "bible-small",
            &["run.workers=2", "parallel.pipeline=2", "parallel.schedule=interleaved"],
            &[
                "run.workers=2",
                "parallel.pipeline=2",
                "parallel.schedule=interleaved",
                "parallel.virtual_stages=2",
            ],
        ),
        (
            "long-rounds",
            "bible-small",
            &["sync.mode=local-sgd", "sync.local_steps=9", "run.workers=2"],
            &["sync.mode=local-sgd", "sync.local_steps=8", "run.workers=2"],
        ),
        (
            "long-rounds-many-workers",
            "bible-small",
            &["sync.mode=local-sgd", "sync.local_steps=1000", "run.workers=2"],
            &["sync.mode=local-sgd", "sync.local_steps=999", "run.workers=2"],
        ),
        (
            "skewed-rounds",
            "digits",
            &["sync.mode=local-sgd", "run.workers=2", "sync.partition=by-class"],
            &["sync.mode=local-sgd", "run.workers=2", "sync.partition=iid"],
        ),
        (
            "dropped-samples",
            "digits",
            &["sync.stragglers=exclude", "run.workers=2", "sync.partition=by-class"],
            &["sync.stragglers=shares", "run.workers=2", "sync.partition=by-class"],
        ),
        (
            "delayed-momentum",
            "quadratic",
            &["sync.gradient_delay=1", "optim.momentum=0.51", "optim.lr=0.1"],
            &["sync.gradient_delay=1", "optim.momentum=0.5", "optim.lr=0.1"],
        ),
        (
            "compressed-noise",
            "quadratic",
            &["compress.method=int8", "train.batch=32", "run.workers=2"],
            &["compress.method=int8", "train.batch=64", "run.workers=2"],
        ),
        (
            "compressed-moments",
            "bible-small",
            &["compress.method=qsgd", "run.workers=2", "optim.name=adamw"],
            &["compress.method=none", "run.workers=2", "optim.name=adamw"],
        ),
        (
            "low-compression-ratio",
            "bible-small",
            &["compress.method=top-k", "compress.ratio=0.0009", "run.workers=2"],
            &["compress.method=top-k", "compress.ratio=0.001", "run.workers=2"],
        ),
        (
            "no-validation",
            "bible-small",
            &["train.eval_every=0", "train.steps=1000"],
            &["train.eval_every=0", "train.steps=999"],
        ),
        ("frequent-validation", "bible-small", &["train.eval_every=13"], &["train.eval_every=14"]),
        ("many-skips", "bible-small", &["train.max_skipped=11"], &["train.max_skipped=10"]),
        (
            "unchecked-replicas",
            "bible-small",
            &["run.workers=2", "train.steps=10000"],
            &["run.workers=2", "train.steps=9999"],
        ),
        (
            "no-optimizer-state",
            "bible-small",
            &["run.save_optimizer=false"],
            &["run.save_optimizer=true"],
        ),
        ("easy-problem", "quadratic", &["problem.condition=9.9"], &["problem.condition=10"]),
    ];

    #[test]
    fn every_lint_applies_beyond_its_threshold_and_not_below() {
        for (id, preset, beyond, before) in CASES.iter().chain(asynchronous::CASES) {
            assert!(ids(preset, beyond).contains(id), "{id}: {beyond:?}");
            assert!(!ids(preset, before).contains(id), "{id}: {before:?}");
        }
        let tried: BTreeSet<&str> =
            CASES.iter().chain(asynchronous::CASES).map(|(id, ..)| *id).collect();
        assert_eq!(tried, all().map(|lint| lint.id).collect(), "every lint is tried");
    }

    #[test]
    fn names_are_unique_and_every_lint_has_a_threshold_and_one_line() {
        let names: BTreeSet<&str> = all().map(|lint| lint.id).collect();
        assert_eq!(names.len(), all().count());
        for lint in all() {
            assert!(!lint.threshold.is_empty(), "{}", lint.id);
            for text in [lint.condition, lint.threshold, lint.advice] {
                assert!(!text.contains('\n') && !text.contains("  ") && !text.ends_with('.'));
            }
        }
        for (_, preset, beyond, _) in CASES.iter().chain(asynchronous::CASES) {
            let sets = beyond.iter().map(|set| (*set).to_owned()).collect();
            let sources = Sources { preset: Some((*preset).into()), sets, ..Sources::default() };
            for finding in findings(&resolve(&sources).expect("sound")) {
                let line = finding.to_string();
                assert!(!line.contains('\n') && !line.contains("  "), "{line}");
                assert!(line.contains(" = "), "it names a setting: {line}");
            }
        }
    }

    #[test]
    fn presets_have_no_lints() {
        for (preset, _) in presets() {
            let mut found = ids(preset, &["run.workers=2"]);
            // The methods preset compares methods on a slow link on purpose.
            found.retain(|id| preset != "methods" || *id != "slow-link");
            assert_eq!(found, [""; 0], "{preset}");
        }
    }

    #[test]
    fn parameters_are_counted_as_they_were_published() {
        let recipe = |preset: &str, sets: &[&str]| {
            let sets = sets.iter().map(|set| (*set).to_owned()).collect();
            let sources = Sources { preset: Some(preset.to_owned()), sets, ..Sources::default() };
            resolve(&sources).expect("a sound recipe")
        };
        assert_eq!(num_params(&recipe("gpt2", &[]).model), Some(124_439_808));
        let llama = [
            "model.layers=32",
            "model.width=4096",
            "model.heads=32",
            "model.ffn=11008",
            "model.vocab=32000",
        ];
        assert_eq!(num_params(&recipe("tiny", &llama).model), Some(6_738_415_616));
    }
}
