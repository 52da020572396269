//! Runs that continue checkpoints of PyTorch programs: their losses go on as PyTorch's own.
//!
//! scripts/interop/pytorch_checkpoints.py makes the folders and the losses of ten more steps.

use lockstep_config::{Blame, DeviceChoice, Dtype, Recipe, Sources};
use lockstep_harness::{Runs, Tolerance, golden};
use lockstep_trainer::generate::Generator;
use lockstep_trainer::pretrained::Pretrained;
use lockstep_trainer::{Options, pretrained};
use std::path::PathBuf;

/// Text of a window; all windows of the corpus are equal, so any order of them will do.
const PATTERN: &str = "Speak, friend, a";

fn folder(name: &str) -> PathBuf {
    golden::folder().join("pytorch").join(name)
}

/// Recipe of the program that wrote a folder, with these settings.
fn recipe(runs: &Runs, name: &str, sets: &[&str]) -> Recipe {
    let corpus = runs.path().join("corpus.txt");
    runs.world().files().write_atomic(&corpus, PATTERN.repeat(400).as_bytes()).expect("a corpus");
    let mut all = vec![
        format!("model.from={}", folder(name).display()),
        format!("data.source={}", corpus.display()),
    ];
    let plain = [
        "data.validation=0.05",
        "data.order=sequential",
        "train.batch=8",
        "train.microbatch=1",
        "train.steps=20",
        "train.eval_every=0",
        "optim.lr=1e-3",
        "optim.beta1=0.9",
        "optim.beta2=0.95",
        "optim.eps=1e-8",
        "optim.weight_decay=0.1",
        "optim.clip=0",
        "optim.schedule=constant",
        "optim.warmup_steps=0",
        "run.workers=1",
        "run.threads=1",
    ];
    all.extend(plain.iter().chain(sets).map(|set| (*set).to_owned()));
    let sources = Sources { sets: all, ..Sources::default() };
    pretrained::resolve(&sources, &lockstep_platform::real()).expect("a valid recipe")
}

#[test]
fn losses_go_on_as_those_of_pytorch_under_any_layout() {
    let text = lockstep_platform::real().files().read_to_string(&folder("losses.json")).unwrap();
    let expected: Vec<f64> = serde_json::from_str(&text).expect("a list of losses");
    for name in ["dcp", "deepspeed-zero-2", "deepspeed-zero-3"] {
        let mut runs = Runs::new("pytorch");
        let mut first = None;
        let layouts: [&[&str]; 4] = [
            &[],
            &["run.workers=2", "parallel.zero=1"],
            &["run.workers=4", "parallel.zero=3"],
            &["run.workers=2", "parallel.zero=2", "parallel.recompute=full"],
        ];
        for layout in layouts {
            let recipe = recipe(&runs, name, layout);
            let options = Options { resume: Some(folder(name)), ..Options::default() };
            let outcome = runs.run(&recipe, options).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(outcome.summary.steps, 20);
            Tolerance::Close(Dtype::F32, recipe.model.vocab).assert(
                "losses",
                &outcome.losses,
                &expected,
            );
            let hashes = outcome.hashes();
            assert_eq!(*first.get_or_insert_with(|| hashes.clone()), hashes, "{layout:?}");
        }
    }
}

#[test]
fn a_folder_without_fitting_state_is_refused_with_advice() {
    let mut runs = Runs::new("pytorch");
    let recipe = recipe(&runs, "dcp", &["optim.name=lamb"]);
    let options = Options { resume: Some(folder("dcp")), ..Options::default() };
    let error = runs.run(&recipe, options).map(drop).expect_err("lamb has another state");
    assert_eq!(error.blame(), Blame::User);
    assert!(error.to_string().contains("train from the folder instead of resuming"), "{error}");
}

/// Logits of a few tokens of a folder of scripts/golden/make_megatron.py.
fn logits(name: &str, ids: &[u32]) -> Vec<f32> {
    let world = lockstep_platform::real();
    let folder = golden::folder().join("megatron").join(name);
    let pretrained = Pretrained::open(&folder, &world).expect(name);
    let mut recipe = pretrained.recipe(&world).expect("its recipe");
    recipe.run.device = DeviceChoice::Cpu;
    let generator = Generator::load(&pretrained, &recipe, &world).expect("all its tensors");
    generator.logits(ids).expect("the CPU runs every operation").concat()
}

#[test]
fn megatron_folders_have_the_logits_of_their_weights_and_of_megatron() {
    let path = golden::folder().join("megatron").join("logits.json");
    let text = lockstep_platform::real().files().read_to_string(&path).expect("committed");
    let recorded: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let ids: Vec<u32> = serde_json::from_value(recorded["ids"].clone()).expect("ids");
    let theirs: Vec<Vec<f32>> = serde_json::from_value(recorded["logits"].clone()).expect("rows");
    let [hf, stacked, by_layer] = ["hf", "stacked", "by-layer"].map(|name| logits(name, &ids));
    assert_eq!(stacked, hf);
    assert_eq!(by_layer, hf);
    Tolerance::Close(Dtype::F32, 260).assert("logits", &hf, &theirs.concat());
}
