//! Optimizers, parameter groups, freezing and batch-size schedules: equal bits on every layout and
//! across restarts at any step.

use lockstep_harness::Runs;
use lockstep_harness::recipes::{GPT2, LLAMA, Small};
use lockstep_harness::runs::{Hashes, Outcome, soak, some};
use lockstep_trainer::{Options, Summary};

/// Progressive freezing: trained then frozen, frozen then trained, frozen in between, and frozen
/// throughout (the embedding).
const PROGRESSIVE: &str = "optim.groups=[\
    {match=\"model.embed_tokens.*\", frozen=true},\
    {match=\"model.layers.0.*\", freeze_after=2},\
    {match=\"model.layers.1.mlp.*\", unfreeze_at=1, lr_scale=2, clip=0.05},\
    {match=\"lm_head.*\", freeze_after=1, unfreeze_at=3}]";

/// Cases by name: model and settings.
fn cases() -> Vec<(&'static str, Small, Vec<&'static str>)> {
    let rules = [
        "optim.name=sgd",
        "optim.name=momentum",
        "optim.name=nesterov",
        "optim.name=adam",
        "optim.name=adamw",
        "optim.name=lars",
        "optim.name=lamb",
        "optim.name=lion",
        "optim.name=schedule-free-adamw",
        "optim.name=muon",
        "optim.name=adafactor",
        "optim.name=adamw-8bit",
    ];
    let case = |rule| (rule, LLAMA, vec![rule, "train.steps=3"]);
    let mut cases: Vec<_> = rules.into_iter().map(case).collect();
    // LARS scales steps by the norms of tensors, so its learning rates are far larger.
    cases[5].2.push("optim.lr=2");
    let groups = "optim.groups=[{match=\"*.bias\", weight_decay=0.3, lr_scale=3},\
                  {match=\"*attn*\", clip=0.02}, {match=\"transformer.wte.*\", lr_scale=0.1}]";
    let bf16 = vec!["optim.name=muon", "precision.compute=bf16", "train.steps=3"];
    cases.push(("muon in bf16", GPT2, bf16));
    cases.push(("groups", GPT2, vec![groups, "optim.name=lamb"]));
    let tied = "optim.groups=[{match=\"transformer.wte.*\", frozen=true},\
                {match=\"transformer.h.1.*\", frozen=true}]";
    cases.push(("frozen and tied", GPT2, vec![tied]));
    let biases = "optim.groups=[{match=\"*.bias\", clip=0.1}, {match=\"*\", frozen=true}]";
    cases.push(("only biases", GPT2, vec![biases]));
    let inside = "optim.groups=[{match=\"*.q_proj.*\", frozen=true},\
                  {match=\"*.up_proj.*\", freeze_after=2}, {match=\"*norm*\", unfreeze_at=3}]";
    cases.push(("freezing inside blocks", LLAMA, vec![inside, "optim.name=lamb"]));
    cases.push(("progressive freezing", LLAMA, vec![PROGRESSIVE]));
    let ramp = "train.batch_schedule=[{tokens=600, batch=32}, {tokens=2500, batch=48}]";
    cases.push(("a batch that grows", LLAMA, vec![ramp, "optim.lr_scaling=sqrt"]));
    cases.push(("all of it", LLAMA, vec![ramp, PROGRESSIVE, "optim.name=lamb"]));
    cases
}

const COMMON: [&str; 4] =
    ["train.steps=5", "train.eval_batches=1", "run.isolation=threads", "model.context=32"];

fn train(runs: &mut Runs, small: &Small, sets: &[&str], layout: &[String]) -> Outcome {
    let sets = COMMON.iter().chain(sets).map(|set| (*set).to_owned());
    let sets: Vec<String> = sets.chain(layout.iter().cloned()).collect();
    runs.finish(&small.with(&sets))
}

fn layout(workers: usize, zero: usize, index: usize) -> Vec<String> {
    let bucket = ["1", "64KiB", "0"][index % 3];
    vec![
        format!("run.workers={workers}"),
        format!("parallel.zero={zero}"),
        format!("parallel.bucket_bytes={bucket}"),
        format!("parallel.overlap={}", index.is_multiple_of(2)),
        format!("parallel.recompute={}", ["none", "full", "selective"][index / 2 % 3]),
    ]
}

/// All layouts in the long suite; else four for each case: every case with every ZeRO stage, and
/// all cases together every pair of a stage and a number of workers.
fn layouts(case: usize) -> Vec<Vec<String>> {
    if soak() {
        let all = (1..=4).flat_map(|workers| (0..4).map(move |zero| (workers, zero)));
        return all.enumerate().map(|(i, (workers, zero))| layout(workers, zero, i)).collect();
    }
    (0..4).map(|zero| layout(1 + (case + zero + 1) % 4, zero, case + zero)).collect()
}

#[test]
fn every_optimizer_group_and_phase_is_the_same_on_all_layouts() {
    let mut runs = Runs::new("optimizers");
    let mut results: Vec<Hashes> = Vec::new();
    for (index, (name, small, sets)) in some(cases().iter().enumerate(), 6) {
        let alone = train(&mut runs, small, sets, &layout(1, 0, 0)).hashes();
        for layout in layouts(index) {
            let found = train(&mut runs, small, sets, &layout).hashes();
            assert_eq!(found, alone, "{name}: {layout:?} against one worker");
        }
        assert!(!results.contains(&alone), "{name} differs from all others");
        results.push(alone);
    }
}

#[test]
fn an_interruption_at_any_change_changes_no_bit() {
    let mut runs = Runs::new("optimizers");
    let ramp = "train.batch_schedule=[{tokens=600, batch=32}, {tokens=2500, batch=48}]";
    for (workers, zero) in [(1, 0), (2, 1), (3, 2), (2, 3)] {
        let sets: Vec<String> = COMMON
            .iter()
            .chain(&[ramp, PROGRESSIVE])
            .map(|set| (*set).to_owned())
            .chain(layout(workers, zero, 1))
            .collect();
        let recipe = LLAMA.with(&sets);
        let whole = runs.finish(&recipe);
        let stops: &[u64] = if soak() || workers == 1 { &[1, 2, 3, 4] } else { &[2] };
        for &stop in stops {
            let first = Options { stop_after: Some(stop), ..Options::default() };
            let part = runs.run(&recipe, first).expect("the first part");
            let rest = Options { resume: Some(part.dir.clone()), ..Options::default() };
            // The second part has another layout.
            let second: Vec<String> =
                sets.iter().cloned().chain(layout(1 + workers % 3, 3 - zero, 0)).collect();
            let rest = runs.run(&LLAMA.with(&second), rest).expect("the second part");
            assert_eq!(rest.hashes(), whole.hashes(), "{workers} workers, stopped after {stop}");
            assert_eq!(rest.summary.tokens, whole.summary.tokens);
        }
    }
}

#[test]
fn a_schedule_free_run_evaluates_and_saves_averages_and_resumes_at_its_points() {
    let mut runs = Runs::new("optimizers");
    let sets = ["optim.name=schedule-free-adamw", "optim.beta1=0.75"];
    let whole = train(&mut runs, &LLAMA, &sets, &layout(2, 1, 0));
    let watched = [&sets[..], &["train.eval_every=1", "checkpoint.every=1"]].concat();
    let watched = train(&mut runs, &LLAMA, &watched, &layout(3, 3, 0));
    assert_eq!(watched.hashes(), whole.hashes(), "evaluations and checkpoints change nothing");
    let world = runs.world();
    let load = |file| lockstep_checkpoint::weights::load(world, &whole.dir.join(file)).unwrap();
    let (weights, state) = (load("model.safetensors"), load("optimizer.safetensors"));
    let mut largest = 0.0f32;
    for (name, x) in &weights.tensors {
        let [y, z] = ["y", "z"].map(|kind| &state.tensors[&format!("{name}.{kind}")]);
        for ((x, y), z) in x.data.iter().zip(&y.data).zip(&z.data) {
            let error = (0.25 * z + 0.75 * x - y).abs();
            assert!(error < 1e-6 * (1.0 + y.abs()), "{name}: {x}, {y}, {z}");
            largest = largest.max((x - y).abs());
        }
    }
    assert!(largest > 1e-4, "averages differ from the points of the gradients: {largest}");
}

#[test]
fn moments_of_eight_bits_take_a_quarter_and_learn_as_much() {
    let mut runs = Runs::new("optimizers");
    let mut train = |name: &str| {
        let sets = [name, "model.width=96", "model.ffn=192", "train.steps=15", "optim.lr=3e-3"];
        train(&mut runs, &LLAMA, &sets, &layout(1, 0, 0))
    };
    let [wide, narrow, factored] = ["adamw", "adamw-8bit", "adafactor"]
        .map(|name| train(&format!("optim.name={name}")).summary);
    let [all, coded, moments] =
        [&wide, &narrow, &factored].map(|summary| summary.accounted_bytes_by_rank[0].optimizer);
    assert!(coded * 100 < all * 28, "{coded} of {all} bytes");
    assert!(moments * 100 < all * 3, "{moments} of {all} bytes");
    let [wide, narrow, factored] =
        [wide, narrow, factored].map(|summary| summary.validation_loss.expect("one is measured"));
    assert!((narrow - wide).abs() < 0.01, "{narrow} but {wide} with moments of 32 bits");
    assert!(factored < wide + 0.3, "{factored} but {wide}");
}

#[test]
fn a_batch_schedule_consumes_the_samples_of_its_batches() {
    let mut runs = Runs::new("optimizers");
    let ramp = ["train.batch_schedule=[{tokens=600, batch=32}, {tokens=2500, batch=48}]"];
    let outcome = train(&mut runs, &LLAMA, &ramp, &layout(2, 0, 0));
    // Sixteen sequences of 32 tokens are 512 of 600, so the second step still has sixteen.
    assert_eq!(outcome.summary.tokens, (16 + 16 + 32 + 32 + 48) * 32);
    assert_eq!(outcome.summary.steps, 5);
    assert_eq!(outcome.summary.microbatches_by_rank, [12, 12], "micro-batches of the last batch");
}

#[test]
fn frozen_parameters_cost_neither_traffic_nor_optimizer_memory() {
    let mut runs = Runs::new("optimizers");
    // Trained: the last layer and the head, or single tensors of every layer.
    let whole_blocks = "optim.groups=[{match=\"model.embed_tokens.*\", frozen=true},\
                        {match=\"model.layers.0.*\", frozen=true}]";
    let inside = "optim.groups=[{match=\"*.k_proj.*\"}, {match=\"*.gate_proj.*\"},\
                  {match=\"*layernorm*\"}, {match=\"*\", frozen=true}]";
    let all_cases = (0..4).flat_map(|zero| [(zero, whole_blocks), (zero, inside)]);
    for (zero, frozen) in all_cases {
        let layout = [
            "run.workers=2".to_owned(),
            format!("parallel.zero={zero}"),
            "parallel.bucket_bytes=1".to_owned(),
        ];
        let all = train(&mut runs, &LLAMA, &[], &layout).summary;
        let some = train(&mut runs, &LLAMA, &[frozen], &layout).summary;
        let [before, after] = [&all, &some].map(|summary| summary.accounted_bytes_by_rank[0]);
        assert!(some.wire_bytes < all.wire_bytes, "ZeRO {zero}");
        assert!(after.gradients < before.gradients, "ZeRO {zero}");
        assert!(after.optimizer < before.optimizer, "ZeRO {zero}");
        assert_eq!(after.weights, before.weights);
        if zero < 3 {
            // Only trained parameters are communicated.
            let state = |summary: &Summary| {
                summary.accounted_bytes_by_rank.iter().map(|bytes| bytes.optimizer).sum::<u64>()
            };
            let share = state(&some) as f64 / state(&all) as f64;
            // Summed over workers: one may own more of the trained parameters than another.
            let wires = |summary: &Summary| summary.wire_bytes_by_rank.iter().sum::<u64>() as f64;
            let wires = wires(&some) / wires(&all);
            assert!((share - wires).abs() < 0.05, "ZeRO {zero}: {share} but {wires}");
        }
    }
}

#[test]
fn frozen_tensors_keep_their_bits_and_others_change() {
    let mut runs = Runs::new("optimizers");
    let frozen = ["optim.groups=[{match=\"*.mlp.*\", frozen=true},\
                   {match=\"model.layers.0.*\", frozen=true}]"];
    let outcome = train(&mut runs, &LLAMA, &frozen, &layout(2, 1, 0));
    let short = ["train.steps=1", "optim.lr=1e-30", "optim.weight_decay=0"];
    let start = train(&mut runs, &LLAMA, &short, &layout(1, 0, 0));
    let world = runs.world();
    let load = |outcome: &Outcome| {
        lockstep_checkpoint::weights::load(world, &outcome.dir.join("model.safetensors")).unwrap()
    };
    let (start, end) = (load(&start), load(&outcome));
    for (name, tensor) in &start.tensors {
        let is_frozen = name.contains(".mlp.") || name.contains("layers.0.");
        let is_same = end.tensors[name] == *tensor;
        assert_eq!(is_same, is_frozen, "{name}");
    }
}

#[test]
fn a_run_stops_at_its_target_on_all_workers_and_reports_the_cost() {
    let mut runs = Runs::new("optimizers");
    let target = ["train.steps=40", "train.eval_every=2", "train.target_loss=5.0"];
    let alone = train(&mut runs, &LLAMA, &target, &layout(1, 0, 0));
    let two = train(&mut runs, &LLAMA, &target, &layout(2, 2, 0));
    assert_eq!(alone.hashes(), two.hashes());
    let reached = two.summary.target.expect("it was reached");
    assert!(reached.validation_loss <= 5.0 && two.summary.validation_loss < Some(5.0));
    assert!(reached.steps < 40 && reached.steps.is_multiple_of(2), "{reached:?}");
    assert_eq!(reached.tokens, reached.steps * 16 * 32);
    let step_bytes: u64 = two.summary.wire_bytes_by_rank.iter().sum();
    assert_eq!(reached.wire_bytes, step_bytes * reached.steps);
    assert!(reached.seconds > 0.0);
    let far = ["train.target_loss=0.1", "train.eval_every=2"];
    let far = train(&mut runs, &LLAMA, &far, &layout(1, 0, 0));
    assert!(far.summary.target.is_none() && far.summary.steps == 5);
}
