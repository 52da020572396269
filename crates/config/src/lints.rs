//! Lints: valid settings that are usually a mistake.
//!
//! A rule of this crate refuses a recipe that cannot work; a lint warns about one that usually does
//! not work well, from the recipe alone. Each lint has a name, a condition with its threshold, and
//! advice. A run prints its lints as warnings and continues. Each topic lists its own.
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

use crate::topics::{
    Recipe, compress, data, emulate, federated, gossip, mup, optim, parallel, parameter_server,
    precision, problem, run, sync, telemetry, train,
};

pub use crate::lint::{Finding, Lint};

/// Every lint, by group.
pub fn all() -> impl Iterator<Item = &'static Lint> {
    let run = [train::LINTS, optim::LINTS, mup::LINTS, precision::LINTS, data::LINTS];
    let layout =
        [run::LINTS, parallel::LINTS, run::DEADLINE_LINTS, emulate::LINTS, parallel::DEGREE_LINTS];
    let sync = [
        sync::LINTS,
        parameter_server::DELAY_LINTS,
        compress::LINTS,
        parameter_server::LINTS,
        federated::LINTS,
        gossip::LINTS,
    ];
    let monitoring = [train::VALIDATION_LINTS, run::STATE_LINTS, telemetry::LINTS, problem::LINTS];
    run.into_iter().chain(layout).chain(sync).chain(monitoring).flatten()
}

/// The lints that apply to a recipe.
pub fn findings(recipe: &Recipe) -> Vec<Finding> {
    all().filter_map(|lint| (lint.check)(recipe).map(|fault| Finding { lint, fault })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Sources, presets, resolve};
    use std::collections::BTreeSet;

    fn recipe(preset: &str, sets: &[&str]) -> Recipe {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let sources = Sources { preset: Some(preset.to_owned()), sets, ..Sources::default() };
        resolve(&sources).unwrap_or_else(|errors| panic!("{errors}"))
    }

    fn ids(preset: &str, sets: &[&str]) -> Vec<&'static str> {
        findings(&recipe(preset, sets)).iter().map(|finding| finding.lint.id).collect()
    }

    /// For every lint: its name, a preset and settings of both cases, settings to which it applies,
    /// and settings just below its threshold.
    const CASES: &str = "
        tiny-micro-batch tiny | model.context=31 | model.context=32
        little-work tiny run.workers=8 | model.context=63 | model.context=64
        noisy-batch digits train.microbatch=1 | train.batch=56 | train.batch=64
        sum-of-gradients tiny | train.reduction=sum | train.reduction=mean
        no-warm-up bible-small | optim.warmup_steps=0 | optim.warmup_steps=1
        cold-scaling quadratic optim.lr_scaling=linear | optim.lr_base_batch=3 | \
            optim.lr_base_batch=4
        adam-scaling tiny optim.lr_base_batch=8 | optim.lr_scaling=linear | optim.lr_scaling=sqrt
        unscaled-ramp bible-small train.batch_schedule=[{tokens=100000,batch=32}] |  | \
            optim.lr_scaling=sqrt
        local-data bible-small data.placement=local data.source=part-{rank}.txt | \
            run.workers=2 | run.workers=1
        sequential-order tiny | data.order=sequential | data.order=random
        adam-rate bible-small | optim.lr=0.011 | optim.lr=0.01
        tight-clip bible-small | optim.clip=0.09 | optim.clip=0.1
        no-clip bible-small | optim.clip=0 | optim.clip=1
        mup-optimizer tiny optim.name=lamb | model.mup_base_width=16 | model.mup_base_width=32
        unscaled-fp16 bible-small precision.compute=fp16 | precision.loss_scale=1 | \
            precision.loss_scale=2
        fp16-wire bible-small precision.wire=fp16 |  | precision.compute=fp16
        emulated-fp8 bible-small precision.compute=fp8 | run.device=cpu | run.device=cuda
        fp8-shapes bible-small precision.compute=fp8 | model.ffn=520 | model.ffn=528
        unstable-step quadratic | optim.lr=3.8 | optim.lr=3.79
        unused-weight-decay ridge | optim.weight_decay=0.1 | optim.weight_decay=0
        small-model bible-small run.workers=8 | model.layers=2 | model.layers=3
        unequal-shares bible-small run.workers=2 | parallel.leaf_shares=6,2 | \
            parallel.leaf_shares=5,3
        idle-workers bible-small | run.workers=3 | run.workers=4
        small-buckets bible-small run.workers=2 | parallel.bucket_bytes=511KiB | \
            parallel.bucket_bytes=512KiB
        large-buckets bible-small run.workers=2 | parallel.bucket_bytes=8MiB | \
            parallel.bucket_bytes=2MiB
        no-overlap bible-small parallel.overlap=false | run.workers=2 | run.workers=1
        many-passes bible-small parallel.zero=2 | run.workers=3 | run.workers=4
        short-deadline bible-small run.workers=2 | run.deadline=4.9 | run.deadline=5
        long-deadline bible-small run.workers=2 | run.deadline=601 | run.deadline=600
        slow-link bible-small run.workers=2 run.transport=tcp | emulate.bandwidth=1200MB | \
            emulate.bandwidth=1300MB
        sequence-alone bible-small parallel.sequence=true |  | parallel.tensor=2 run.workers=2
        interleaved-alone bible-small run.workers=2 parallel.pipeline=2 \
            parallel.schedule=interleaved |  | parallel.virtual_stages=2
        long-rounds bible-small sync.mode=local-sgd run.workers=2 | sync.local_steps=9 | \
            sync.local_steps=8
        long-rounds-many-workers bible-small sync.mode=local-sgd run.workers=2 | \
            sync.local_steps=1000 | sync.local_steps=999
        skewed-rounds digits sync.mode=local-sgd run.workers=2 | sync.partition=by-class | \
            sync.partition=iid
        dropped-samples digits run.workers=2 sync.partition=by-class | sync.stragglers=exclude \
            | sync.stragglers=shares
        delayed-momentum quadratic sync.gradient_delay=1 optim.lr=0.1 | optim.momentum=0.51 | \
            optim.momentum=0.5
        compressed-noise quadratic compress.method=int8 run.workers=2 | train.batch=32 | \
            train.batch=64
        compressed-moments bible-small run.workers=2 optim.name=adamw | compress.method=qsgd | \
            compress.method=none
        low-compression-ratio bible-small compress.method=top-k run.workers=2 | \
            compress.ratio=0.0009 | compress.ratio=0.001
        no-validation bible-small train.eval_every=0 | train.steps=1000 | train.steps=999
        frequent-validation bible-small | train.eval_every=13 | train.eval_every=14
        many-skips bible-small | train.max_skipped=11 | train.max_skipped=10
        unchecked-replicas bible-small run.workers=2 | train.steps=10000 | train.steps=9999
        no-optimizer-state bible-small | run.save_optimizer=false | run.save_optimizer=true
        empty-trace tiny telemetry.trace=true | train.steps=63 | train.steps=64
        easy-problem quadratic | problem.condition=9.9 | problem.condition=10
        unstable-delay quadratic sync.mode=parameter-server sync.read_delay=4 optim.name=sgd | \
            optim.lr=0.25 | optim.lr=0.24
        busy-servers tiny sync.mode=parameter-server train.batch=32 \
            numerics.invariant_up_to=32 | run.workers=11 | run.workers=10
        overloaded-server tiny sync.mode=parameter-server sync.sparse_rows=true sync.servers=2 | \
            sync.row_sharding=range | sync.row_sharding=hash
        no-rare-rows tiny sync.mode=parameter-server sync.sparse_rows=true train.batch=8 \
            run.workers=2 | model.context=64 | model.context=63
        row-cache-momentum tiny sync.mode=parameter-server sync.sparse_rows=true \
            sync.row_cache=9 | optim.beta1=0.51 | optim.beta1=0.5
        long-client-rounds federated | sync.local_steps=12 | sync.local_steps=11
        skewed-clients federated | sync.dirichlet_alpha=0.09 | sync.dirichlet_alpha=0.1
        slow-mixing tiny sync.mode=gossip train.batch=32 numerics.invariant_up_to=32 | \
            run.workers=17 | run.workers=16
        few-neighbours tiny sync.mode=gossip run.workers=5 sync.aggregation=krum |  | \
            sync.graph=torus
    ";

    struct Case {
        id: &'static str,
        preset: &'static str,
        beyond: Vec<&'static str>,
        before: Vec<&'static str>,
    }

    fn cases() -> impl Iterator<Item = Case> {
        CASES.trim().lines().map(|line| {
            let parts: Vec<&'static str> = line.split('|').collect();
            let mut names = parts[0].split_whitespace();
            let (id, preset) = (names.next().expect("a name"), names.next().expect("a preset"));
            let common: Vec<&str> = names.collect();
            let with = |part: &'static str| common.iter().copied().chain(part.split_whitespace());
            Case { id, preset, beyond: with(parts[1]).collect(), before: with(parts[2]).collect() }
        })
    }

    #[test]
    fn every_lint_applies_beyond_its_threshold_and_not_below() {
        let mut tried = BTreeSet::new();
        for Case { id, preset, beyond, before } in cases() {
            assert!(ids(preset, &beyond).contains(&id), "{id}: {beyond:?}");
            assert!(!ids(preset, &before).contains(&id), "{id}: {before:?}");
            tried.insert(id);
        }
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
        for Case { preset, beyond, .. } in cases() {
            for finding in findings(&recipe(preset, &beyond)) {
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
        assert_eq!(recipe("gpt2", &[]).model.num_params(), Some(124_439_808));
        let llama = [
            "model.layers=32",
            "model.width=4096",
            "model.heads=32",
            "model.ffn=11008",
            "model.vocab=32000",
        ];
        assert_eq!(recipe("tiny", &llama).model.num_params(), Some(6_738_415_616));
    }
}
