//! Knowledge distillation: a student learns from its teacher, to the bits of one worker under every
//! layout and with exact forecasts, and resumes exactly.

use lockstep_config::{Dtype, Recipe, Sources};
use lockstep_harness::runs::Outcome;
use lockstep_harness::tolerance::Tolerance;
use lockstep_harness::traffic::assert_traffic_and_memory_as_predicted;
use lockstep_harness::{Runs, devices};
use lockstep_trainer::{Options, TrainError, pretrained};

const OWN: [&str; 8] = [
    "model.heads=4",
    "train.batch=16",
    "train.microbatch=2",
    "train.steps=3",
    "train.eval_batches=1",
    "optim.lr=0.01",
    "run.isolation=threads",
    "run.threads=1",
];

fn resolve(runs: &Runs, sets: &[&str]) -> Result<Recipe, TrainError> {
    let device = devices::default_device();
    let sets = [&[&*device], &OWN[..], sets].concat();
    let sets = sets.into_iter().map(str::to_owned).collect();
    let sources = Sources { preset: Some("tiny".to_owned()), sets, ..Sources::default() };
    pretrained::resolve(&sources, runs.world())
}

/// A finished run, and the setting that makes it the teacher.
fn teacher(runs: &mut Runs, sets: &[&str]) -> (Outcome, String) {
    let recipe = resolve(runs, sets).expect("a recipe");
    let outcome = runs.finish(&recipe);
    let set = format!("finetune.teacher={}", outcome.dir.display());
    (outcome, set)
}

fn student(runs: &Runs, teacher: &str, sets: &[&str]) -> Recipe {
    let own = ["finetune.method=distill", teacher];
    resolve(runs, &[&own[..], sets].concat()).expect("a recipe")
}

#[test]
fn every_layout_learns_from_the_teacher_to_the_bits_of_one_worker() {
    let mut runs = Runs::new("distillation");
    let wider = ["model.family=gpt2", "model.width=48", "model.layers=3", "train.steps=3"];
    let (_, teacher) = teacher(&mut runs, &wider);
    let adapters: (&[&str], [&[&str]; 2]) = (
        &["finetune.lora_rank=2", "data.documents=masked"],
        [&["run.workers=4", "parallel.zero=1"], &["run.workers=2", "parallel.pipeline=2"]],
    );
    let weights: (&[&str], [&[&str]; 2]) = (
        &[],
        [
            &["run.workers=3", "parallel.zero=2", "parallel.recompute=selective"],
            &["run.workers=2", "parallel.zero=3", "parallel.recompute=full"],
        ],
    );
    for (sets, layouts) in [adapters, weights] {
        let alone = runs.finish(&student(&runs, &teacher, &[sets, &["run.workers=1"]].concat()));
        for layout in layouts {
            let recipe = student(&runs, &teacher, &[sets, layout].concat());
            let outcome = runs.finish(&recipe);
            assert_eq!(outcome.hashes(), alone.hashes(), "{sets:?} {layout:?}");
            let validation = |o: &Outcome| o.summary.validation_loss.map(f64::to_bits);
            assert_eq!(validation(&outcome), validation(&alone), "{sets:?} {layout:?}");
            assert_traffic_and_memory_as_predicted(&recipe, &outcome);
        }
    }
}

#[test]
fn the_loss_has_its_two_parts_and_resumes_exactly() {
    let mut runs = Runs::new("distillation");
    let (_, teacher) = teacher(&mut runs, &["train.steps=10"]);
    let first_loss = |runs: &mut Runs, sets: &[&str]| {
        let own = ["run.workers=1", "train.steps=1"];
        let recipe = student(runs, &teacher, &[sets, &own].concat());
        runs.finish(&recipe).summary.first_loss
    };
    let plain = resolve(&runs, &["run.workers=1", "train.steps=1"]).expect("a recipe");
    let plain = runs.finish(&plain).summary.first_loss;
    let hard = first_loss(&mut runs, &["finetune.hard_weight=1"]);
    let soft = first_loss(&mut runs, &["finetune.hard_weight=0"]);
    let both = first_loss(&mut runs, &["finetune.hard_weight=0.25"]);
    let close = Tolerance::Close(Dtype::F32, 16);
    close.compare("cross-entropy", &[hard], &[plain]).expect("the targets alone");
    close.compare("both", &[both], &[0.25 * hard + 0.75 * soft]).expect("the sum");
    // A student that is its teacher has nothing to learn.
    let from = teacher.replace("finetune.teacher", "model.from");
    let same = first_loss(&mut runs, &[&from, "finetune.hard_weight=0"]);
    assert!(soft > 0.01 && same.abs() < 1e-5, "{soft} {same}");

    let recipe = |workers: &str| student(&runs, &teacher, &[workers]);
    let (one, two) = (recipe("run.workers=1"), recipe("run.workers=2"));
    let whole = runs.finish(&one);
    let part = Options { stop_after: Some(1), ..Options::default() };
    let part = runs.run(&two, part).expect("the first part");
    let rest = Options { resume: Some(part.dir), ..Options::default() };
    let rest = runs.run(&one, rest).expect("the second part");
    assert_eq!(rest.hashes(), whole.hashes());
}

#[test]
fn unsuitable_teachers_and_settings_are_refused() {
    let mut runs = Runs::new("distillation");
    let (_, teacher) = teacher(&mut runs, &["train.steps=1"]);
    let refused = |sets: &[&str]| {
        let own = ["finetune.method=distill", &*teacher];
        resolve(&runs, &[&own[..], sets].concat()).expect_err("it is refused").to_string()
    };
    for (set, why) in [
        ("model.vocab=300", "has a vocabulary of 256, and model.vocab = 300"),
        ("model.context=4000", "and model.context = 4000"),
        ("numerics.invariant_tensor_up_to=2", "needs the whole vocabulary on a rank"),
        ("parallel.partition=measured", "has no teacher while"),
        ("sync.mode=gossip", "where all workers hold one model"),
    ] {
        let text = refused(&[set]);
        assert!(text.contains(why), "{set}: {text}");
    }
    let alone = |sets: &[&str]| resolve(&runs, sets).expect_err("it is refused").to_string();
    assert!(alone(&["finetune.method=distill"]).contains("names no model to learn from"));
    assert!(alone(&[&teacher]).contains("has no effect without distillation"));
    assert!(alone(&["finetune.temperature=3"]).contains("has no effect without a teacher"));
}
