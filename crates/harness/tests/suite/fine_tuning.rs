//! Low-rank adapters: the bits of one worker under every layout, exact forecasts, exact resumption,
//! and the folders of `peft` and `transformers`.

use lockstep_checkpoint::peft::AdapterFolder;
use lockstep_checkpoint::{ElementType, Tensors};
use lockstep_config::{Dtype, LoraTargets, Recipe, Sources};
use lockstep_harness::golden;
use lockstep_harness::recipes::LLAMA;
use lockstep_harness::traffic::assert_traffic_and_memory_as_predicted;
use lockstep_harness::{Runs, Tolerance};
use lockstep_model::{describe, lora};
use lockstep_platform::World;
use lockstep_trainer::adapter_folder::ModelPath;
use lockstep_trainer::convert::{Target, convert};
use lockstep_trainer::generate::Generator;
use lockstep_trainer::pretrained::{self, Pretrained};
use lockstep_trainer::{Options, RunFolder};
use std::path::{Path, PathBuf};

const ALL_TARGETS: &str = "finetune.lora_targets=all-linear";

/// Adapters beside all linear layers, with dropout, in a model of two tensor shards.
const ADAPTERS: [&str; 7] = [
    "finetune.lora_rank=3",
    "finetune.lora_alpha=6",
    "finetune.lora_dropout=0.2",
    ALL_TARGETS,
    "numerics.invariant_tensor_up_to=2",
    "train.steps=3",
    "train.eval_batches=1",
];

fn small(sets: &[&str]) -> Recipe {
    LLAMA.with(&[&ADAPTERS[..], &["run.isolation=threads", "run.threads=1"], sets].concat())
}

#[test]
fn every_layout_trains_adapters_to_the_bits_of_one_worker() {
    let mut runs = Runs::new("fine-tuning");
    let alone = runs.finish(&small(&["run.workers=1"]));
    let layouts: &[&[&str]] = &[
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
    for layout in layouts {
        let recipe = small(layout);
        let outcome = runs.finish(&recipe);
        assert_eq!(outcome.hashes(), alone.hashes(), "{layout:?}");
        assert_traffic_and_memory_as_predicted(&recipe, &outcome);
    }
}

#[test]
fn only_adapters_are_trained_sent_and_kept_by_the_optimizer() {
    let mut runs = Runs::new("fine-tuning");
    let sets = ["run.workers=2", "parallel.zero=1"];
    let adapted = runs.finish(&small(&sets));
    let full = runs.finish(&LLAMA.with(&[&ADAPTERS[4..], &sets].concat()));
    let sent = |bytes: &[u64]| bytes.iter().sum::<u64>();
    let bytes = [&adapted, &full].map(|outcome| sent(&outcome.summary.wire_bytes_by_rank));
    assert!(bytes[0] * 2 < bytes[1], "{bytes:?}");
    let world = runs.world();
    let folder = RunFolder::finished(&adapted.dir, world).expect("a run");
    let open = |path: &Path| Tensors::open(world, path).expect("tensors");
    let (weights, state) = (open(&folder.weights()), open(&folder.optimizer()));
    assert!(state.names().all(|name| name.contains(".lora_")), "state of adapters only");
    let untrained = small(&[&sets[..], &["optim.lr=1e-30"]].concat());
    let initial = runs.finish(&untrained);
    let before = Tensors::open(runs.world(), &initial.dir.join("model.safetensors")).unwrap();
    for name in before.names() {
        let len = before.shape(name).expect("its shape").iter().product();
        let [mut old, mut new] = [vec![0.0_f32; len], vec![0.0; len]];
        before.read(name, 0, &mut old).unwrap();
        weights.read(name, 0, &mut new).unwrap();
        assert_eq!(old != new, lora::is_adapter(name), "{name}");
    }
}

#[test]
fn adapters_resume_bit_for_bit_under_another_layout() {
    let mut runs = Runs::new("fine-tuning");
    let (one, two) = (small(&["run.workers=1"]), ["run.workers=2", "parallel.tensor=2"]);
    let whole = runs.finish(&one);
    let options = Options { stop_after: Some(2), ..Options::default() };
    let part = runs.run(&one, options).expect("the first part");
    let options = Options { resume: Some(part.dir), ..Options::default() };
    let rest = runs.run(&small(&two), options).expect("the second part");
    assert_eq!(rest.hashes(), whole.hashes());
}

/// Recipe that fine-tunes a folder of Hugging Face.
fn from_folder(folder: &Path, sets: &[&str]) -> Recipe {
    let mut all = vec![
        format!("model.from={}", folder.display()),
        format!("data.source={}", golden::folder().join("README.md").display()),
        "train.batch=8".to_owned(),
        "train.microbatch=1".to_owned(),
        "train.steps=3".to_owned(),
        "train.eval_batches=1".to_owned(),
        "run.workers=1".to_owned(),
        "run.threads=1".to_owned(),
        "optim.lr=0.01".to_owned(),
    ];
    all.extend(sets.iter().map(|set| (*set).to_owned()));
    let sources = Sources { sets: all, ..Sources::default() };
    pretrained::resolve(&sources, &lockstep_platform::real()).expect("a valid recipe")
}

fn logits<'a>(folder: impl Into<ModelPath<'a>>, world: &World) -> Vec<f32> {
    let pretrained = Pretrained::open(folder, world).expect("a valid folder");
    let recipe = pretrained.recipe(world).expect("its recipe");
    let generator = Generator::load(&pretrained, &recipe, world).expect("all its tensors");
    generator.logits(&[7, 0, 259, 3]).expect("the CPU runs every operation").concat()
}

#[test]
fn a_fine_tuned_folder_is_merged_written_for_peft_and_continued() {
    let base: PathBuf = golden::folder().join("huggingface").join("qwen3");
    let mut runs = Runs::new("fine-tuning");
    let adapters = ["finetune.lora_rank=4", "finetune.lora_alpha=16", ALL_TARGETS];
    let tuned = from_folder(&base, &adapters);
    assert_eq!(tuned.model.lora.targets, LoraTargets::ALL);
    let outcome = runs.finish(&tuned);
    let world = runs.world();
    let [merged, exported] = ["merged", "exported"].map(|name| runs.path().join(name));
    let (format, no_progress) = (ElementType::F32, &mut |_: u64, _: u64| {});
    let target = Target::HuggingFace { format, shard_bytes: 1 << 30, max_positions: None };
    convert(&outcome.dir, &merged, target, world, no_progress).expect("a finished run");
    convert(&outcome.dir, &exported, Target::Peft { format }, world, no_progress).expect("a run");

    // Merged weights compute what the adapters do, and something else than the base.
    let [unmerged, merged, plain] =
        [&outcome.dir, &merged, &base].map(|folder| logits(folder, world));
    let tolerance = Tolerance::Close(Dtype::F32, tuned.model.vocab);
    tolerance.assert("merged logits", &merged, &unmerged);
    assert!(tolerance.compare("base", &plain, &unmerged).is_err(), "training changed the logits");

    // The adapters alone compute the same beside the model that they name, and beside a copy.
    let alone = logits(&exported, world);
    assert_eq!(alone, unmerged, "adapters beside their base");
    let copied = ModelPath { folder: &exported, base: Some(&base) };
    assert_eq!(logits(copied, world), unmerged, "adapters beside a named base");

    // The run's own folder of adapters is the exported one.
    let written = outcome.dir.join("adapter");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        let read = |folder: &Path| world.files().read(&folder.join(file)).expect(file);
        assert_eq!(read(&written), read(&exported), "{file}");
    }
    let adapter = AdapterFolder::open(world, &exported).expect("an adapter folder");
    assert_eq!(adapter.lora, tuned.model.lora);
    assert_eq!(adapter.tensors.names().count(), 2 * 7 * tuned.model.layers);

    // Base and adapter folder, and the run's folder, are the same beginning of another run.
    let key = format!("finetune.adapter={}", exported.display());
    let apart = from_folder(&base, &[&key]);
    let together = from_folder(&outcome.dir, &[]);
    assert_eq!((apart.model.lora, together.model.lora), (tuned.model.lora, tuned.model.lora));
    let [apart, together] = [apart, together].map(|recipe| runs.finish(&recipe));
    assert_eq!(apart.hashes(), together.hashes());
    assert_ne!(apart.hashes(), outcome.hashes(), "it continues");
    // Both name the model without adapters as their base.
    let [apart, together] = [apart, together].map(|outcome| {
        let config = outcome.dir.join("adapter").join("adapter_config.json");
        runs.world().files().read(&config).expect("the adapters of a run")
    });
    assert_eq!(apart, together);
}

#[test]
fn settings_that_contradict_an_adapter_are_refused() {
    let base = golden::folder().join("huggingface").join("llama3");
    let mut runs = Runs::new("fine-tuning");
    let outcome = runs.finish(&from_folder(&base, &["finetune.lora_rank=2", "train.steps=1"]));
    let resolve = |sets: &[String]| {
        let sources = Sources { sets: sets.to_vec(), ..Sources::default() };
        pretrained::resolve(&sources, runs.world()).map_err(|error| error.to_string())
    };
    let adapter = format!("finetune.adapter={}", outcome.dir.join("adapter").display());
    let from = format!("model.from={}", base.display());
    let error = resolve(&[from.clone(), adapter.clone(), "finetune.lora_rank=4".to_owned()]);
    let error = error.expect_err("another rank");
    assert!(error.starts_with("finetune.lora_rank = 4 contradicts "), "{error}");
    // Of another model: its layers have other shapes.
    let other = resolve(&[adapter, "model.width=32".to_owned()]).expect("keys alone agree");
    assert!(pretrained::check(&other, runs.world()).is_err());
    let without = resolve(&[from, "finetune.lora_rank=0".to_owned()]).expect("no adapters");
    assert!(describe(&without.model).params().all(|(_, param)| !lora::is_adapter(&param.name)));
}
