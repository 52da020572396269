//! Model folders of Hugging Face `transformers`: equal logits, training from them under any layout,
//! and byte-for-byte export.
//!
//! scripts/interop makes the folders and their logits, and compares many more models with the
//! library itself.

use lockstep_comm::Comm;
use lockstep_config::{Dtype, Recipe, Sources};
use lockstep_harness::golden;
use lockstep_harness::{Runs, Tolerance};
use lockstep_model::describe;
use lockstep_parallel::Groups;
use lockstep_parallel::from_recipe::mesh_of;
use lockstep_trainer::convert::{Target, convert};
use lockstep_trainer::generate::Generator;
use lockstep_trainer::pretrained::{self, Pretrained};
use lockstep_trainer::{TrainError, device, materialize};
use serde_json::Value;
use std::path::{Path, PathBuf};

const FOLDERS: [&str; 12] = [
    "gpt2",
    "llama-sharded",
    "llama-tied-bf16",
    "llama3",
    "mistral",
    "qwen2",
    "qwen3",
    "olmo2",
    "phi3",
    "gemma2",
    "gpt-neox",
    "bloom",
];

fn folder(name: &str) -> PathBuf {
    golden::folder().join("huggingface").join(name)
}

/// Recipe that trains from a folder with these settings.
fn recipe(folder: &Path, sets: &[&str]) -> Recipe {
    let mut all = vec![
        format!("model.from={}", folder.display()),
        // Any short text will do.
        format!("data.source={}", golden::folder().join("README.md").display()),
        "train.batch=8".to_owned(),
        "train.microbatch=1".to_owned(),
        "train.steps=2".to_owned(),
        "train.eval_batches=1".to_owned(),
        "run.workers=1".to_owned(),
        "run.threads=1".to_owned(),
    ];
    all.extend(sets.iter().map(|set| (*set).to_owned()));
    let sources = Sources { sets: all, ..Sources::default() };
    pretrained::resolve(&sources, &lockstep_platform::real()).expect("a valid recipe")
}

#[test]
fn logits_agree_with_transformers() {
    let world = lockstep_platform::real();
    for name in FOLDERS {
        let text = world.files().read(&folder(name).join("logits.json")).expect("it is committed");
        let record: Value = serde_json::from_slice(&text).expect("the record is JSON");
        let tokens: Vec<u32> =
            serde_json::from_value(record["tokens"].clone()).expect("a list of tokens");
        let expected: Vec<Vec<f32>> =
            serde_json::from_value(record["logits"].clone()).expect("a row for each token");
        let pretrained = Pretrained::open(&folder(name), &world).expect("a valid folder");
        let recipe = recipe(&folder(name), &[]);
        let generator = Generator::load(&pretrained, &recipe, &world).expect("all its tensors");
        let found = generator.logits(&tokens).expect("the CPU runs every operation").concat();
        let tolerance = Tolerance::Close(Dtype::F32, recipe.model.vocab);
        tolerance.assert(&format!("logits of {name}"), &found, &expected.concat());
    }
}

#[test]
fn every_layout_trains_from_a_folder_to_the_same_bits() {
    let mut runs = Runs::new("huggingface");
    for name in FOLDERS {
        let alone = runs.finish(&recipe(&folder(name), &[])).hashes();
        for (workers, zero) in [(2, 0), (3, 1), (2, 2), (3, 3)] {
            let workers = format!("run.workers={workers}");
            let zero = format!("parallel.zero={zero}");
            let layout = recipe(&folder(name), &[&workers, &zero]);
            assert_eq!(runs.finish(&layout).hashes(), alone, "{name}: {workers} {zero}");
        }
        let random = Recipe { from: String::new(), ..recipe(&folder(name), &[]) };
        assert_ne!(runs.finish(&random).hashes(), alone, "{name}: its weights make a difference");
    }
}

#[test]
fn tensor_parallel_ranks_and_stages_train_every_family_to_the_same_bits() {
    let mut runs = Runs::new("huggingface");
    for name in ["llama3", "qwen2", "qwen3", "phi3", "gemma2", "gpt-neox", "bloom"] {
        let sharded = "numerics.invariant_tensor_up_to=2";
        let alone = runs.finish(&recipe(&folder(name), &[sharded])).hashes();
        for layout in [
            &["run.workers=2", "parallel.tensor=2"][..],
            &["run.workers=2", "parallel.tensor=2", "parallel.sequence=true"],
            &["run.workers=2", "parallel.pipeline=2", "parallel.recompute=full"],
            &["run.workers=2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
            &["run.workers=4", "parallel.tensor=2", "parallel.zero=1"],
        ] {
            let sets = [&[sharded], layout].concat();
            let found = runs.finish(&recipe(&folder(name), &sets)).hashes();
            assert_eq!(found, alone, "{name}: {layout:?}");
        }
    }
}

/// Rows of fused tensors have another order in memory than in their file.
#[test]
fn fused_rows_keep_their_order_under_other_optimizers_and_strategies() {
    let mut runs = Runs::new("huggingface");
    let mut finish = |sets: &[&str]| runs.finish(&recipe(&folder("gpt-neox"), sets));
    let muon = finish(&["optim.name=muon"]).hashes();
    for zero in ["parallel.zero=0", "parallel.zero=3"] {
        let found = finish(&["optim.name=muon", "run.workers=2", zero]).hashes();
        assert_eq!(found, muon, "{zero}");
    }
    let sgd = ["optim.name=sgd", "optim.weight_decay=0", "optim.schedule=constant", "optim.lr=0.1"];
    let plain = finish(&sgd).losses;
    let thread = finish(&[&sgd[..], &["sync.mode=hogwild", "sync.threads=1"]].concat()).losses;
    for (ours, theirs) in thread.iter().zip(&plain) {
        assert!((ours - theirs).abs() < 1e-5 * theirs.abs(), "{ours} {theirs}");
    }
}

#[test]
fn stages_train_a_model_that_normalises_whole_projections_to_the_same_bits() {
    let mut runs = Runs::new("huggingface");
    let alone = runs.finish(&recipe(&folder("olmo2"), &[])).hashes();
    for layout in [
        &["run.workers=2", "parallel.pipeline=2", "parallel.recompute=full"][..],
        &["run.workers=2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
    ] {
        assert_eq!(runs.finish(&recipe(&folder("olmo2"), layout)).hashes(), alone, "{layout:?}");
    }
    let from = format!("model.from={}", folder("olmo2").display());
    let sets = vec![from, "run.workers=2".to_owned(), "parallel.tensor=2".to_owned()];
    let sources = Sources { sets, ..Sources::default() };
    let error = pretrained::resolve(&sources, &lockstep_platform::real()).expect_err("it differs");
    let error = error.to_string();
    assert!(error.contains("normalises all queries together, and 2 tensor-parallel"), "{error}");
}

#[test]
fn a_shorter_context_loads_the_first_positions() {
    let world = lockstep_platform::real();
    for name in FOLDERS {
        let logits = |sets: &[&str]| {
            let recipe = recipe(&folder(name), sets);
            let pretrained = Pretrained::open(&folder(name), &world).expect("a valid folder");
            let generator = Generator::load(&pretrained, &recipe, &world).expect("its tensors");
            generator.logits(&[7, 0, 259]).expect("the CPU runs every operation").concat()
        };
        // A device may choose other kernels for another window.
        let cpu = "run.device=cpu";
        let (short, whole) = (logits(&["model.context=4", cpu]), logits(&[cpu]));
        Tolerance::Exact.assert(name, &short, &whole);
    }
}

#[test]
fn import_and_export_keep_a_folder_byte_for_byte() {
    let runs = Runs::new("huggingface");
    let world = runs.world();
    let file = |folder: &Path, name: &str| world.files().read(&folder.join(name)).expect(name);
    for name in FOLDERS.into_iter().filter(|name| *name != "llama-sharded") {
        let (run, back) = (runs.path().join("run"), runs.path().join("back"));
        let format = match name {
            "llama-tied-bf16" => lockstep_checkpoint::ElementType::Bf16,
            _ => lockstep_checkpoint::ElementType::F32,
        };
        let no_progress = &mut |_, _| {};
        convert(&folder(name), &run, Target::Lockstep, world, no_progress).expect("it is valid");
        let target = Target::HuggingFace { format, shard_bytes: 1 << 30, max_positions: None };
        convert(&run, &back, target, world, no_progress).expect("it is valid");
        let data = |folder: &Path| {
            let bytes = file(folder, "model.safetensors");
            let (len, rest) = bytes.split_first_chunk().expect("the header's length");
            let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
            let mut header: Value = serde_json::from_slice(header).expect("the header is JSON");
            let tensors = header.as_object_mut().expect("a map");
            tensors.remove("__metadata__");
            let bytes_of = |info: &Value| {
                let at = |end: usize| info["data_offsets"][end].as_u64().expect("an offset");
                data[at(0) as usize..at(1) as usize].to_vec()
            };
            let held: Vec<_> = tensors
                .iter()
                .map(|(name, info)| {
                    (name.clone(), info["dtype"].clone(), info["shape"].clone(), bytes_of(info))
                })
                .collect();
            held
        };
        assert!(data(&folder(name)) == data(&back), "{name}: other tensors");
        let model_type = |folder: &Path| {
            let config: Value = serde_json::from_slice(&file(folder, "config.json")).expect("JSON");
            config["model_type"].clone()
        };
        assert_eq!(model_type(&back), model_type(&folder(name)), "{name}");
        let [original, exported] = [&folder(name), &back].map(|folder| {
            let folder = Pretrained::open(folder, world).expect("a valid folder");
            folder.hugging_face().expect("a Hugging Face folder").config.clone()
        });
        assert_eq!(exported.model, original.model, "{name}");
        for path in [run, back] {
            world.files().remove_dir_all(&path).expect("scratch");
        }
    }
}

#[test]
fn a_trained_model_is_exported_with_its_weights_and_its_tokens() {
    let mut runs = Runs::new("huggingface");
    let outcome = runs.finish(&recipe(&folder("llama-sharded"), &[]));
    let (world, out) = (runs.world(), runs.path().join("out"));
    let target = Target::HuggingFace {
        format: lockstep_checkpoint::ElementType::F32,
        shard_bytes: 12_000,
        max_positions: None,
    };
    let mut last = (0, 1);
    let converted =
        convert(&outcome.dir, &out, target, world, &mut |done, total| last = (done, total))
            .expect("a finished run");
    assert_eq!(last.0, last.1, "progress ends at the end");
    assert_eq!(converted.weights_hash, outcome.summary.weights_hash);
    assert!(converted.files.len() > 2, "{:?}", converted.files);
    let exported = Pretrained::open(&out, world).expect("a valid folder");
    exported.prove(&describe(exported.model())).expect("all tensors");
    let config = &exported.hugging_face().expect("a Hugging Face folder").config;
    assert_eq!(config.special_tokens["eos_token_id"], 2, "as in the original folder");
}

#[test]
fn workers_with_different_weights_report_the_tensor() {
    let runs = Runs::new("huggingface");
    let world = runs.world();
    let (one, other) = (runs.path().join("one"), runs.path().join("other"));
    for copy in [&one, &other] {
        world.files().create_dir_all(copy).expect("scratch");
        for name in ["config.json", "model.safetensors"] {
            let bytes = world.files().read(&folder("gpt2").join(name)).expect("it is committed");
            world.files().write_atomic(&copy.join(name), &bytes).expect("scratch");
        }
    }
    let path = other.join("model.safetensors");
    let mut bytes = world.files().read(&path).expect("just written");
    *bytes.last_chunk_mut().expect("weights") = 0.5_f32.to_le_bytes();
    world.files().write_atomic(&path, &bytes).expect("scratch");

    let ends = Comm::threads(world, 2, &lockstep_comm::Options::default()).expect("two workers");
    let load = |end: &Comm, folder: &Path| {
        let recipe = recipe(folder, &["run.workers=2"]);
        let cpu = device::open(&recipe, world, end)?;
        let groups = Groups::new(end, mesh_of(&recipe))?;
        let mut learner = materialize(&recipe, &cpu, &groups, world)?;
        pretrained::load(&recipe, world, &mut learner)
    };
    let errors = std::thread::scope(|scope| {
        let first = scope.spawn(|| load(&ends[0], &one));
        let second = scope.spawn(|| load(&ends[1], &other));
        [first.join().expect("no panic"), second.join().expect("no panic")]
    });
    for error in errors {
        match error {
            Err(TrainError::FoldersDiffer { worker: 1, tensor, .. }) => {
                assert_eq!(tensor, "transformer.wte.weight");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Exports a finished run as a Hugging Face folder.
fn export(run: &Path, out: &Path, max_positions: Option<usize>) -> Result<(), TrainError> {
    let format = lockstep_checkpoint::ElementType::F32;
    let target = Target::HuggingFace { format, shard_bytes: 1 << 30, max_positions };
    convert(run, out, target, &lockstep_platform::real(), &mut |_, _| {}).map(|_| ())
}

/// Maximum number of positions in the `config.json` of a folder.
fn declared_positions(folder: &Path) -> u64 {
    let world = lockstep_platform::real();
    let text = world.files().read(&folder.join("config.json")).expect("an exported folder");
    let config: Value = serde_json::from_slice(&text).expect("it is JSON");
    let keys = ["max_position_embeddings", "n_positions"];
    keys.iter().find_map(|key| config[key].as_u64()).expect("one of both")
}

#[test]
fn fine_tuning_with_the_default_learning_rate_keeps_what_the_model_knows() {
    let mut runs = Runs::new("fine-tuning");
    let small = ["train.batch=8", "train.microbatch=1", "train.eval_every=0", "run.workers=1"];
    let sets = |more: &[&str]| {
        let all = small.iter().chain(&["train.eval_batches=16", "run.threads=1"]).chain(more);
        all.map(|set| (*set).to_owned()).collect::<Vec<_>>()
    };
    let shape = ["model.layers=1", "model.width=32", "model.heads=2", "model.context=32"];
    let from_scratch = [&shape[..], &["optim.lr=1e-2", "train.steps=300"]].concat();
    let sources = Sources { sets: sets(&from_scratch), ..Sources::default() };
    let trained = runs.finish(&lockstep_config::resolve(&sources).expect("a valid recipe"));
    let out = runs.path().join("model");
    export(&trained.dir, &out, None).expect("a finished run");

    let from = format!("model.from={}", out.display());
    let mut fine_tune = |more: &[&str]| {
        let sets = sets(&[&[from.as_str(), "train.steps=40", "train.seed=2"], more].concat());
        let sources = Sources { sets, ..Sources::default() };
        let recipe = pretrained::resolve(&sources, runs.world()).expect("a valid recipe");
        let outcome = runs.finish(&recipe);
        (recipe, outcome.summary.validation_loss.expect("it is validated at the end"))
    };
    let before = trained.summary.validation_loss.expect("it is validated at the end");
    let (recipe, after) = fine_tune(&[]);
    assert!(recipe.fine_tuning_rule().is_some(), "learning rate {}", recipe.optim.lr);
    assert!(after <= before, "validation loss {before} before and {after} after");
    // The rate of training from scratch undoes what the decay of the learning rate had gained.
    let (recipe, coarse) = fine_tune(&["optim.lr=1e-2"]);
    assert_eq!(recipe.fine_tuning_rule(), None);
    assert!(coarse > after, "validation loss {after} with the rule and {coarse} without");
}

#[test]
fn rotary_positions_survive_training_with_a_shorter_context() {
    let mut runs = Runs::new("positions");
    let original = folder("llama-sharded");
    let whole = declared_positions(&original);
    let first = runs.finish(&recipe(&original, &["model.context=8"]));
    // The recipe of the run knows the number; the second run starts from the first.
    let second = runs.finish(&recipe(&first.dir, &["model.context=4"]));
    let out = |name: &str| runs.path().join(name);
    for (run, name) in [(&first, "first"), (&second, "second")] {
        export(&run.dir, &out(name), None).expect("a finished run");
        assert_eq!(declared_positions(&out(name)), whole, "{name}");
    }
    export(&second.dir, &out("longer"), Some(64)).expect("rotary positions have no tensor");
    assert_eq!(declared_positions(&out("longer")), 64);
    export(&out("longer"), &out("again"), None).expect("a folder");
    assert_eq!(declared_positions(&out("again")), 64);
}

#[test]
fn learned_positions_are_exported_as_far_as_they_were_trained() {
    let mut runs = Runs::new("positions");
    let run = runs.finish(&recipe(&folder("gpt2"), &["model.context=8"]));
    let out = |name: &str| runs.path().join(name);
    export(&run.dir, &out("trained"), None).expect("a finished run");
    assert_eq!(declared_positions(&out("trained")), 8);
    export(&run.dir, &out("fewer"), Some(4)).expect("the first rows");
    assert_eq!(declared_positions(&out("fewer")), 4);
    let fewer = Pretrained::open(&out("fewer"), runs.world()).expect("a valid folder");
    fewer.prove(&describe(fewer.model())).expect("all tensors");
    let error = export(&run.dir, &out("more"), Some(16)).expect_err("no such rows");
    assert!(error.to_string().contains("above the 8 learned positions"), "{error}");
}
