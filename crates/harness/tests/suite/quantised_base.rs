//! QLoRA: adapters beside a base that is frozen in four bits. PyTorch's losses, the bits of one
//! worker under every layout, exact forecasts, resumption, and the folders of runs.

use lockstep_checkpoint::{ElementType, Tensors};
use lockstep_comm::{Comm, Options as CommOptions};
use lockstep_config::{Dtype, Recipe, Sources};
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::traffic::assert_traffic_and_memory_as_predicted;
use lockstep_harness::{Runs, Tolerance, golden};
use lockstep_model::{Microbatch, MicrobatchShape, lora};
use lockstep_optim::{Clip, Update};
use lockstep_parallel::Groups;
use lockstep_parallel::from_recipe::{blueprint_of_rank, mesh_of};
use lockstep_planner::memory::Memory;
use lockstep_platform::World;
use lockstep_tensor::device::{Compute, View};
use lockstep_tensor::{Isa, nf4};
use lockstep_trainer::convert::{Target, convert};
use lockstep_trainer::generate::Generator;
use lockstep_trainer::pretrained::{self, Pretrained};
use lockstep_trainer::{Options, RunFolder, materialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

const ALL_TARGETS: &str = "finetune.lora_targets=[\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\", \
                           \"gate_proj\", \"up_proj\", \"down_proj\"]";

/// Rows of whole blocks in two tensor shards.
const QUANTISED: [&str; 8] = [
    "finetune.lora_rank=3",
    "finetune.quant_type=nf4",
    "finetune.lora_dropout=0.2",
    "numerics.invariant_tensor_up_to=2",
    "model.width=128",
    "model.ffn=256",
    "train.steps=3",
    "train.eval_batches=1",
];

fn small(sets: &[&str]) -> Recipe {
    let threads = ["run.isolation=threads", "run.threads=1", ALL_TARGETS];
    LLAMA.with(&[&QUANTISED[..], &threads, sets].concat())
}

fn folder() -> PathBuf {
    golden::folder().join("qlora")
}

/// Recipe that fine-tunes the recorded folder, or another one.
fn from_folder(folder: &Path, sets: &[&str]) -> Recipe {
    let mut all = vec![
        format!("model.from={}", folder.display()),
        format!("data.source={}", golden::folder().join("README.md").display()),
    ];
    let others = [
        "finetune.quant_type=nf4",
        "train.batch=2",
        "train.microbatch=2",
        "numerics.invariant_up_to=1",
        "train.steps=10",
        "train.eval_batches=1",
        "optim.warmup_steps=0",
        "optim.schedule=constant",
        "optim.clip=0",
        "optim.lr=1e-3",
        "optim.beta1=0.9",
        "optim.beta2=0.95",
        "optim.eps=1e-8",
        "optim.weight_decay=0.1",
        "run.workers=1",
        "run.threads=1",
        "run.device=cpu",
    ];
    all.extend(others.iter().chain(sets).map(|set| (*set).to_owned()));
    let sources = Sources { sets: all, ..Sources::default() };
    pretrained::resolve(&sources, &lockstep_platform::real()).expect("a valid recipe")
}

#[test]
fn losses_and_gradients_agree_with_pytorch_over_the_base_of_bitsandbytes() {
    let world = lockstep_platform::real();
    let adapter = format!("finetune.adapter={}", folder().join("adapter").display());
    let recipe = from_folder(&folder(), &[&adapter]);
    let compute = Compute::single(Isa::detect());
    let alone = &Comm::threads(&world, 1, &CommOptions::default()).expect("one worker")[0];
    let groups = Groups::new(alone, mesh_of(&recipe)).expect("one worker");
    let mut learner = materialize(&recipe, &compute, &groups, &world).expect("one worker");
    pretrained::load(&recipe, &world, &mut learner).expect("the recorded folder");

    let text = world.files().read_to_string(&folder().join("losses.json")).expect("committed");
    let recorded: Value = serde_json::from_str(&text).expect("JSON");
    let numbers = |name: &str| -> Vec<f64> {
        let flat = |value: &Value| match value {
            Value::Array(row) => row.clone(),
            number => vec![number.clone()],
        };
        let rows = recorded[name].as_array().expect("a list");
        rows.iter().flat_map(flat).map(|x| x.as_f64().expect("a number")).collect()
    };
    let tokens = |name: &str| numbers(name).iter().map(|id| *id as u32).collect::<Vec<_>>();
    let (inputs, targets, losses) = (tokens("inputs"), tokens("targets"), numbers("losses"));
    let shape = MicrobatchShape { sequences: 2, tokens: recipe.model.context };
    let num_targets = targets.len() as u64;
    let microbatch = |_: usize| Microbatch {
        shape,
        inputs: View::of(&inputs),
        targets: View::of(&targets),
        first_sample: 0,
        num_targets,
        documents: None,
        preferences: None,
    };
    let grads = Tensors::open(&world, &folder().join("grads.safetensors")).expect("committed");
    let tolerance = Tolerance::Close(Dtype::F32, recipe.model.vocab);
    for (step, expected) in (0..).zip(&losses) {
        let sum = learner.replica.run_microbatches(&compute, 1, step, &microbatch);
        let loss = sum.expect("one worker") / num_targets as f64;
        learner.replica.finish_reduce(&compute).expect("one worker");
        tolerance.assert(&format!("loss of step {step}"), &[loss], &[*expected]);
        if step == 0 {
            let mut num_checked = 0;
            for (slot, grad) in learner.replica.own_grads() {
                let mut expected = vec![0.0; grad.len()];
                grads.read(&slot.name, 0, &mut expected).expect("a recorded gradient");
                tolerance.assert(&slot.name, grad, &expected);
                num_checked += 1;
            }
            assert_eq!(num_checked, 2 * 7 * recipe.model.layers, "adapters and nothing else");
        }
        let update = Update { count: step + 1, lr: learner.lr(step), clip: Clip::uniform(1.0) };
        learner.replica.step(&compute, &mut learner.optimizer, &update).expect("one worker");
    }
}

/// Compares the accounted memory of weights to the forecast.
fn assert_weights_as_predicted(recipe: &Recipe, measured: &lockstep_trainer::Summary) {
    let memory = Memory::of(recipe, &blueprint_of_rank(recipe, 0));
    for (predicted, measured) in memory.ranks.iter().zip(&measured.accounted_bytes_by_rank) {
        assert_eq!(predicted.weights.0, measured.weights);
    }
}

#[test]
fn every_layout_trains_beside_a_quantised_base_to_the_bits_of_one_worker() {
    let mut runs = Runs::new("quantised-base");
    let llama: &[&[&str]] = &[
        &["run.workers=2", "parallel.zero=0"],
        &["run.workers=4", "parallel.zero=1"],
        &["run.workers=2", "parallel.zero=2", "parallel.recompute=selective"],
        &["run.workers=2", "parallel.zero=3", "parallel.recompute=full"],
        &["run.workers=2", "parallel.tensor=2"],
        &["run.workers=4", "parallel.tensor=2", "parallel.sequence=true", "parallel.zero=1"],
        &["run.workers=2", "parallel.pipeline=2", "parallel.recompute=full"],
        &["run.workers=4", "parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true"],
        &["run.workers=2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
    ];
    // Biases, and scales that are not quantised.
    let sharded: &[&[&str]] = &[&["run.workers=2", "parallel.tensor=2", "parallel.zero=3"]];
    for (variant, layouts) in
        [(&[][..], llama), (&["model.qkv_bias=true", "finetune.double_quant=false"][..], sharded)]
    {
        let alone = runs.finish(&small(&[variant, &["run.workers=1"]].concat()));
        for layout in layouts {
            let recipe = small(&[variant, layout].concat());
            let outcome = runs.finish(&recipe);
            assert_eq!(outcome.hashes(), alone.hashes(), "{variant:?} {layout:?}");
            assert_traffic_and_memory_as_predicted(&recipe, &outcome);
            assert_weights_as_predicted(&recipe, &outcome.summary);
        }
    }
}

#[test]
fn the_base_takes_four_bits_and_is_in_no_file() {
    let mut runs = Runs::new("quantised-base");
    let recipe = small(&["run.workers=1"]);
    let quantised = runs.finish(&recipe);
    let plain = small(&["run.workers=1", "finetune.quant_type=none"]);
    let plain = runs.finish(&plain);
    let bytes = |summary: &lockstep_trainer::Summary| summary.accounted_bytes_by_rank[0];
    let (few, all) = (bytes(&quantised.summary), bytes(&plain.summary));
    let blueprint = blueprint_of_rank(&recipe, 0);
    let num_frozen = blueprint.num_frozen_params() as u64;
    assert_eq!(quantised.summary.num_params, plain.summary.num_params);
    let saved = all.weights - few.weights;
    let bits = 8.0 * (4.0 - saved as f64 / num_frozen as f64);
    assert!((4.1..4.3).contains(&bits), "{bits} bits a weight");
    assert_eq!((few.gradients, few.optimizer), (all.gradients, all.optimizer));
    assert_eq!(few.activations, all.activations);
    assert!(few.buffers <= all.buffers + 4 * nf4::tile_len(512, 512) as u64, "one tile");
    let world = runs.world();
    let weights = RunFolder::finished(&quantised.dir, world).expect("a run").weights();
    let tensors = Tensors::open(world, &weights).expect("tensors");
    assert!(tensors.names().all(|name| !name.contains("_proj.weight")), "no base");
    assert!(tensors.names().any(lora::is_adapter));
    assert_ne!(quantised.summary.losses_hash, plain.summary.losses_hash);
}

#[test]
fn a_run_beside_a_quantised_base_resumes_bit_for_bit_under_another_layout() {
    let mut runs = Runs::new("quantised-base");
    let (one, two) = (small(&["run.workers=1"]), ["run.workers=2", "parallel.tensor=2"]);
    let whole = runs.finish(&one);
    let options = Options { stop_after: Some(2), ..Options::default() };
    let part = runs.run(&one, options).expect("the first part");
    let options = Options { resume: Some(part.dir), ..Options::default() };
    let rest = runs.run(&small(&two), options).expect("the second part");
    assert_eq!(rest.hashes(), whole.hashes());
}

fn logits(folder: &Path, world: &World) -> Vec<f32> {
    let pretrained = Pretrained::open(folder, world).expect("a valid folder");
    let recipe = pretrained.recipe(world).expect("its recipe");
    assert!(!recipe.model.lora.is_quantised(), "weights of f32");
    let generator = Generator::load(&pretrained, &recipe, world).expect("all its tensors");
    generator.logits(&[7, 0, 255, 3]).expect("the CPU runs every operation").concat()
}

#[test]
fn a_run_is_merged_written_for_peft_and_continued_with_the_codes_of_its_base() {
    let mut runs = Runs::new("quantised-base");
    let sets = ["finetune.lora_rank=4", "finetune.lora_alpha=16", ALL_TARGETS, "optim.lr=0.01"];
    let tuned = from_folder(&folder(), &sets);
    let outcome = runs.finish(&tuned);
    let world = runs.world();
    let names = ["merged", "exported", "copied"];
    let [merged, exported, copied] = names.map(|name| runs.path().join(name));
    let (format, no_progress) = (ElementType::F32, &mut |_: u64, _: u64| {});
    let target = Target::HuggingFace { format, shard_bytes: 1 << 30, max_positions: None };
    convert(&outcome.dir, &merged, target, world, no_progress).expect("a finished run");
    convert(&outcome.dir, &exported, Target::Peft { format }, world, no_progress).expect("a run");
    convert(&outcome.dir, &copied, Target::Lockstep, world, no_progress).expect("a run");

    // The folder has the values that training multiplied with, as its copy in `f32` has.
    let all = [&outcome.dir, &merged, &copied, &folder()].map(|folder| logits(folder, world));
    let [unmerged, merged, copied, plain] = all;
    assert_eq!(unmerged, copied);
    let tolerance = Tolerance::Close(Dtype::F32, tuned.model.vocab);
    tolerance.assert("merged logits", &merged, &unmerged);
    assert!(tolerance.compare("base", &plain, &unmerged).is_err(), "training changed the logits");

    // A run from the folder quantises what the folder's own base was quantised from.
    let key = format!("finetune.adapter={}", exported.display());
    let apart = from_folder(&folder(), &[&key]);
    let together = from_folder(&outcome.dir, &[]);
    assert_eq!(apart.model.lora, together.model.lora);
    assert!(together.model.lora.is_quantised());
    let [apart, together] = [apart, together].map(|recipe| runs.finish(&recipe));
    assert_eq!(apart.hashes(), together.hashes());
    assert_ne!(apart.hashes(), outcome.hashes(), "it continues");
}
