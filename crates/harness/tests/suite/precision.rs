//! Mixed precision: bf16, fp16 and fp8 give the bits of one worker on every layout, because
//! operands are rounded where they are multiplied; loss scaling.
//!
//! Few layouts that cover every technique; with `LOCKSTEP_SOAK=1` every valid layout.

use lockstep_config::{PipelineSchedule, Sources, resolve};
use lockstep_harness::layouts::Layout;
use lockstep_harness::recipes::{DROPOUT, GPT2, LLAMA, Small, THREE_MICROBATCHES, WIDE};
use lockstep_harness::runs::{Hashes, Runs, soak};
use lockstep_harness::traffic::assert_traffic_as_predicted;
use lockstep_trainer::Options;

const BF16: &str = "precision.compute=bf16";
const FP16: &str = "precision.compute=fp16";
const FP8: &str = "precision.compute=fp8";
const TENSOR_LEAVES: &str = "numerics.invariant_tensor_up_to=2";
const SHORT: [&str; 3] = ["train.steps=3", "train.eval_batches=1", "run.isolation=threads"];

/// Layouts that cover every technique.
fn few() -> Vec<Vec<String>> {
    let one = Layout::SINGLE;
    let zero_bubble = PipelineSchedule::ZeroBubble;
    let layouts = [
        (Layout { workers: 3, zero: 1, ..one }, "selective"),
        (Layout { workers: 2, zero: 2, ..one }, "full"),
        (Layout { workers: 5, zero: 3, ..one }, "none"),
        (Layout { workers: 2, tensor: 2, sequence: true, ..one }, "every-2"),
        (Layout { workers: 4, tensor: 2, zero: 3, ..one }, "none"),
        (Layout { workers: 2, pipeline: 2, schedule: zero_bubble, ..one }, "none"),
        (Layout { workers: 4, pipeline: 2, tensor: 2, sequence: true, ..one }, "selective"),
    ];
    let sets = |(layout, recompute): &(Layout, &str)| {
        [layout.sets(), vec![format!("parallel.recompute={recompute}")]].concat()
    };
    layouts.iter().map(sets).collect()
}

/// A few layouts; in the long suite every valid one.
fn layouts(small: &Small, sets: &[&str]) -> Vec<Vec<String>> {
    if !soak() {
        return few();
    }
    let all = Layout::all(&[1, 2, 3, 4, 8]);
    all.iter().filter(|layout| layout.resolve(small, sets).is_ok()).map(Layout::sets).collect()
}

/// Trains with one worker and with every layout, asserts equal hashes and returns them.
fn same_on_all_layouts(small: &Small, own: &[&str]) -> Hashes {
    same_on(&layouts(small, own), small, own)
}

fn same_on(layouts: &[Vec<String>], small: &Small, own: &[&str]) -> Hashes {
    let mut runs = Runs::new("precision");
    let mut outcome = |layout: &[String]| {
        let own = SHORT.iter().chain(own).map(|set| (*set).to_owned());
        let recipe = small.with(&own.chain(layout.to_vec()).collect::<Vec<_>>());
        let outcome = runs.finish(&recipe);
        assert_traffic_as_predicted(&recipe, &outcome);
        (outcome.hashes(), outcome.summary.validation_loss.map(f64::to_bits))
    };
    let alone = outcome(&["run.workers=1".to_owned(), "run.threads=2".to_owned()]);
    for layout in layouts {
        assert_eq!(outcome(layout), alone, "{}, {own:?}: {layout:?}", small.name);
    }
    alone.0
}

#[test]
fn a_llama_in_bf16_is_the_same_on_all_layouts() {
    let narrow = same_on_all_layouts(&LLAMA, &[BF16, TENSOR_LEAVES]);
    let recipe = LLAMA.with(&[&SHORT[..], &[TENSOR_LEAVES, "run.workers=1"]].concat());
    assert_ne!(Runs::new("precision").finish(&recipe).hashes(), narrow, "operands are rounded");
}

#[test]
fn a_tied_gpt2_in_fp16_is_the_same_on_all_layouts() {
    same_on_all_layouts(&GPT2, &[FP16, TENSOR_LEAVES, "model.dropout=0.1"]);
}

#[test]
fn fp8_is_the_same_on_all_layouts_and_differs_from_bf16() {
    // A CPU emulates fp8 slowly: the layouts that divide products.
    let own = [FP8, TENSOR_LEAVES];
    let layouts = if soak() { layouts(&LLAMA, &own) } else { few().split_off(4) };
    let narrow = same_on(&layouts, &LLAMA, &own);
    let recipe = LLAMA.with(&[&SHORT[..], &[BF16, TENSOR_LEAVES, "run.workers=1"]].concat());
    assert_ne!(Runs::new("precision").finish(&recipe).hashes(), narrow, "operands are quantised");
}

#[test]
fn two_byte_gradients_on_the_wire_are_the_same_on_all_layouts_in_half_the_bytes() {
    let narrow = same_on_all_layouts(&LLAMA, &[BF16, TENSOR_LEAVES, "precision.wire=bf16"]);
    let mut runs = Runs::new("precision");
    let recipe = LLAMA.with(&[&SHORT[..], &[BF16, TENSOR_LEAVES, "run.workers=1"]].concat());
    assert_ne!(runs.finish(&recipe).hashes(), narrow, "sums are rounded");
    let mut hashes = |workers: &str, zero: &str| {
        let sets = [&SHORT[..], &[FP16, "precision.wire=fp16", workers, zero]].concat();
        runs.finish(&GPT2.with(&sets)).hashes()
    };
    let alone = hashes("run.workers=1", "parallel.zero=0");
    assert_eq!(hashes("run.workers=3", "parallel.zero=1"), alone);
    assert_eq!(hashes("run.workers=3", "parallel.zero=3"), alone);
    let mut bytes = |wire: &str| {
        let sets = [&SHORT[..], &["run.workers=2", "parallel.zero=0", wire]].concat();
        runs.finish(&GPT2.with(&sets)).summary.wire_bytes
    };
    assert_eq!(2 * bytes("precision.wire=bf16"), bytes("precision.wire=f32"));
}

#[test]
fn odd_sizes_and_three_microbatches_a_leaf_are_the_same_in_bf16() {
    let sets = |zero: usize| vec!["run.workers=3".to_owned(), format!("parallel.zero={zero}")];
    let mut runs = Runs::new("precision");
    let mut hashes = |layout: Vec<String>| {
        let own = SHORT.iter().chain(&[BF16, "precision.wire=bf16"]).map(|set| (*set).to_owned());
        runs.finish(&THREE_MICROBATCHES.with(&own.chain(layout).collect::<Vec<_>>())).hashes()
    };
    let alone = hashes(vec!["run.workers=1".to_owned()]);
    for zero in 0..4 {
        assert_eq!(hashes(sets(zero)), alone, "ZeRO-{zero}");
    }
}

#[test]
fn matrix_products_longer_than_one_block_are_the_same_in_bf16_and_fp16() {
    let mut runs = Runs::new("precision");
    for compute in [BF16, FP16] {
        let mut hashes = |workers: &str, zero: &str| {
            let more = ["train.batch=4", "numerics.invariant_up_to=2", "train.steps=2"];
            let sets = [&more[..], &SHORT[1..], &[compute, workers, zero]].concat();
            runs.finish(&WIDE.with(&sets)).hashes()
        };
        let alone = hashes("run.workers=1", "parallel.zero=0");
        assert_eq!(hashes("run.workers=2", "parallel.zero=0"), alone, "{compute}");
        assert_eq!(hashes("run.workers=2", "parallel.zero=3"), alone, "{compute}");
    }
}

#[test]
fn a_run_resumes_bit_for_bit_under_another_layout_in_bf16_and_fp16() {
    let mut runs = Runs::new("precision");
    for compute in [BF16, FP16] {
        let sets = |layout: &[&'static str]| [&SHORT[..], &[compute], layout].concat();
        let whole = runs.finish(&DROPOUT.with(&sets(&["run.workers=1"])));
        let first = DROPOUT.with(&sets(&["run.workers=2", "parallel.zero=3"]));
        let options = Options { stop_after: Some(2), ..Options::default() };
        let part = runs.run(&first, options).expect("two steps");
        let options = Options { resume: Some(part.dir), ..Options::default() };
        let rest = runs.run(&DROPOUT.with(&sets(&["run.workers=3"])), options).expect("the rest");
        assert_eq!(rest.hashes(), whole.hashes(), "{compute}");
        let class = if compute == BF16 { "bf16-amx" } else { "f16-fma" };
        assert_eq!(rest.summary.kernel_class, class);
    }
}

/// Settings with so few targets that gradients overflow at the largest scale.
const OVERFLOWS: [&str; 6] = [
    FP16,
    "precision.loss_scale_start=16777216",
    "train.batch=8",
    "train.microbatch=1",
    "model.context=8",
    "train.steps=12",
];

#[test]
fn dynamic_loss_scaling_recovers_and_all_workers_skip_the_same_steps() {
    let mut runs = Runs::new("precision");
    let sets = |layout: &[&'static str]| [&OVERFLOWS[..], &SHORT[1..], layout].concat();
    let alone = runs.finish(&LLAMA.with(&sets(&["run.workers=1"])));
    let summary = &alone.summary;
    assert!(
        summary.scaling.overflowed_steps >= 2,
        "{} overflows",
        summary.scaling.overflowed_steps
    );
    assert!(summary.scaling.overflowed_steps < 6, "{} overflows", summary.scaling.overflowed_steps);
    assert_eq!(summary.skipped_steps, summary.scaling.overflowed_steps);
    let scale = f64::from(1u32 << (24 - summary.scaling.overflowed_steps));
    assert_eq!(summary.scaling.loss_scale.map(f64::to_bits), Some(scale.to_bits()));
    assert!(summary.final_loss < summary.first_loss, "it learns");
    let others = [
        ["run.workers=3", "parallel.zero=3", "parallel.pipeline=1"],
        ["run.workers=2", "parallel.zero=0", "parallel.pipeline=2"],
        ["run.workers=2", "parallel.zero=1", "parallel.pipeline=1"],
    ];
    for layout in others {
        let other = runs.finish(&LLAMA.with(&sets(&layout)));
        assert_eq!(other.hashes(), alone.hashes(), "{layout:?}");
        assert_eq!(other.summary.scaling.overflowed_steps, summary.scaling.overflowed_steps);
        let zeroed = |summary: &lockstep_trainer::Summary| summary.scaling.zeroed_fraction;
        assert_eq!(zeroed(&other.summary), zeroed(summary), "{layout:?}");
    }
}

#[test]
fn a_resumed_run_restores_the_loss_scale() {
    let mut runs = Runs::new("precision");
    let sets = |layout: &[&'static str]| [&OVERFLOWS[..], &SHORT[1..], layout].concat();
    let recipe = GPT2.with(&sets(&["run.workers=1", "precision.loss_scale_interval=3"]));
    let whole = runs.finish(&recipe);
    for stop in [1, 7] {
        let options = Options { stop_after: Some(stop), ..Options::default() };
        let part = runs.run(&recipe, options).expect("a part");
        let options = Options { resume: Some(part.dir), ..Options::default() };
        let more = ["run.workers=2", "parallel.zero=1", "precision.loss_scale_interval=3"];
        let rest = runs.run(&GPT2.with(&sets(&more)), options).expect("the rest");
        assert_eq!(rest.hashes(), whole.hashes(), "after step {stop}");
        assert_eq!(
            rest.summary.scaling.loss_scale, whole.summary.scaling.loss_scale,
            "after step {stop}"
        );
    }
}

#[test]
fn a_static_scale_that_is_too_large_ends_the_run_with_one_line() {
    let mut runs = Runs::new("precision");
    let more = ["precision.loss_scale=16777216", "run.workers=1"];
    let sets: Vec<_> = OVERFLOWS.iter().filter(|set| !set.contains("start")).copied().collect();
    let recipe = LLAMA.with(&[&sets[..], &SHORT[1..], &more].concat());
    let error = runs.run(&recipe, Options::default()).expect_err("a static scale never shrinks");
    let line = error.to_string();
    assert!(line.contains("gradient") && !line.contains('\n'), "{line}");
}

#[test]
fn a_static_scale_changes_gradients_by_underflow_only() {
    // In f32 a power of two scales every product exactly, so only fp16 underflow may differ.
    let mut runs = Runs::new("precision");
    let mut losses = |scale: &'static str| {
        let sets = [&SHORT[..], &[FP16, scale, "run.workers=1"]].concat();
        runs.finish(&LLAMA.with(&sets)).losses
    };
    let (small, large) = (losses("precision.loss_scale=1024"), losses("precision.loss_scale=4096"));
    assert_eq!(small[0].to_bits(), large[0].to_bits(), "forward is not scaled");
    let difference = (small[2] - large[2]).abs() / large[2];
    assert!(difference < 1e-4, "{difference}");
}

#[test]
fn bf16_ends_within_one_percent_of_f32() {
    let mut runs = Runs::new("precision");
    let mut validation_loss = |compute: &str| {
        let sets = vec![compute.to_owned(), "run.workers=1".to_owned()];
        let recipe = if soak() {
            let preset = Some("bible-small".to_owned());
            resolve(&Sources { sets, preset, ..Sources::default() }).expect("a sound recipe")
        } else {
            let short = ["train.steps=40".to_owned(), "train.eval_batches=4".to_owned()];
            LLAMA.with(&[&sets[..], &short].concat())
        };
        runs.finish(&recipe).summary.validation_loss.expect("there is held-out text")
    };
    let (wide, narrow) = (validation_loss("precision.compute=f32"), validation_loss(BF16));
    assert!((narrow - wide).abs() < 0.01 * wide, "{narrow} in bf16, {wide} in f32");
}
