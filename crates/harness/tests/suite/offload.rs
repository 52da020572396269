//! Optimizer state offloaded to a file gives the bits of state in memory: on every layout, with
//! every optimizer, across restarts and checkpoints. Unusable folders are refused in one line.

use lockstep_config::{Blame, Recipe};
use lockstep_harness::recipes::{DROPOUT, GPT2, LLAMA, Small};
use lockstep_harness::runs::soak;
use lockstep_harness::{Outcome, Runs};
use lockstep_trainer::{Options, TrainError};
use std::path::Path;

const FILE: &str = "offload.state=file";
const SHORT: [&str; 3] = ["train.steps=3", "train.eval_batches=1", "run.isolation=threads"];

fn recipe(small: &Small, own: &[&str]) -> Recipe {
    small.with(&[&SHORT[..], own].concat())
}

fn assert_equal(one: &Outcome, other: &Outcome, what: &str) {
    assert_eq!(one.hashes(), other.hashes(), "{what}");
    let world = lockstep_platform::real();
    let files = world.files();
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let [one, other] = [one, other].map(|run| files.read(&run.dir.join(file)).expect("saved"));
        assert!(one == other, "{what}: {file}");
    }
}

#[test]
fn every_layout_gives_the_same_bits() {
    let layouts: [&[&str]; 7] = [
        &["run.workers=1"],
        &["run.workers=2", "parallel.zero=0"],
        &["run.workers=3", "parallel.zero=1", "parallel.bucket_bytes=1"],
        &["run.workers=2", "parallel.zero=2", "run.threads=2"],
        &["run.workers=4", "parallel.zero=3", "parallel.bucket_bytes=1"],
        &["run.workers=2", "parallel.pipeline=2"],
        &["run.workers=5", "parallel.zero=3", "parallel.recompute=full"],
    ];
    let smalls: &[Small] = if soak() { &[LLAMA, GPT2, DROPOUT] } else { &[GPT2] };
    for small in smalls {
        for compute in ["precision.compute=f32", "precision.compute=bf16"] {
            let mut runs = Runs::new("offload");
            let alone = runs.finish(&recipe(small, &["run.workers=1", compute]));
            for layout in layouts {
                let offloaded = runs.finish(&recipe(small, &[layout, &[FILE, compute]].concat()));
                assert_equal(&offloaded, &alone, &format!("{} {compute} {layout:?}", small.name));
            }
        }
    }
}

#[test]
fn every_optimizer_gives_the_same_bits_with_and_without_frozen_parameters() {
    let mut runs = Runs::new("offload");
    let progressive = "optim.groups=[{match=\"model.layers.0.*\", freeze_after=1},\
                       {match=\"lm_head.*\", unfreeze_at=2}]";
    let whole = [
        "sgd",
        "momentum",
        "nesterov",
        "adam",
        "adamw",
        "lars",
        "lamb",
        "lion",
        "schedule-free-adamw",
        "muon",
    ];
    let rules = whole.map(|rule| (rule, "optim.groups=[]"));
    for (rule, groups) in rules.into_iter().chain([("lamb", progressive)]) {
        let rule = format!("optim.name={rule}");
        let layout = ["run.workers=2", "parallel.zero=3", &rule, groups];
        let in_memory = runs.finish(&recipe(&LLAMA, &layout));
        let offloaded = runs.finish(&recipe(&LLAMA, &[&layout[..], &[FILE]].concat()));
        assert_equal(&offloaded, &in_memory, &rule);
    }
}

#[test]
fn a_run_resumes_from_memory_to_a_file_and_back() {
    let mut runs = Runs::new("offload");
    let sets = |own: &[&'static str]| recipe(&GPT2, &[&["train.steps=6"], own].concat());
    let whole = runs.finish(&sets(&["run.workers=1"]));
    let part = |runs: &mut Runs, own: &[&'static str], from: Option<&Path>, stop| {
        let (resume, stop_after) = (from.map(Path::to_owned), Some(stop));
        let options = Options { resume, stop_after, ..Options::default() };
        runs.run(&sets(own), options).expect("a part").dir
    };
    // From the end of a run, and from checkpoints.
    let offloaded = ["run.workers=2", "parallel.zero=3", FILE, "checkpoint.every=2"];
    let one = part(&mut runs, &["run.workers=3"], None, 1);
    let two = part(&mut runs, &offloaded, Some(&one), 3);
    let three = part(&mut runs, &["run.workers=1", FILE], Some(&two.join("checkpoints")), 4);
    let options = Options { resume: Some(three), ..Options::default() };
    let rest = runs.run(&sets(&["run.workers=2", "parallel.zero=1"]), options).expect("the rest");
    assert_eq!(rest.hashes(), whole.hashes());
}

#[test]
fn an_unusable_folder_is_reported_and_nothing_is_left_behind() {
    let mut runs = Runs::new("offload");
    let file = runs.path().join("a file");
    runs.world().files().write_atomic(&file, b"in the way").expect("a file can be written");
    for (folder, reason) in [(runs.path().join("missing"), "folder"), (file, "not a directory")] {
        let folder = format!("offload.folder={}", folder.display());
        let own = ["run.workers=2", "parallel.zero=1", FILE, &folder];
        let error = runs.run(&recipe(&LLAMA, &own), Options::default()).expect_err(&folder);
        assert!(matches!(error, TrainError::NoRoom { .. }), "{error}");
        assert_eq!(error.blame(), Blame::User, "{error}");
        assert!(error.to_string().contains("offload.folder"), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    assert_eq!(runs.world().files().list(runs.path()).expect("a folder").len(), 1);
    // State files have no directory entry, also in a folder of their own.
    let own = runs.path().join("own");
    runs.world().files().create_dir_all(&own).expect("a folder");
    let folder = format!("offload.folder={}", own.display());
    runs.finish(&recipe(&LLAMA, &["run.workers=1", FILE, &folder]));
    assert!(runs.world().files().list(&own).expect("a folder").is_empty());
}
