//! Rounds: how a run is cut into them, and what they cannot be combined with.

use lockstep_config::{Recipe, Sources, resolve};

fn recipe(sets: &[&str]) -> Recipe {
    try_recipe(sets).unwrap_or_else(|errors| panic!("{errors}"))
}

fn try_recipe(sets: &[&str]) -> Result<Recipe, String> {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    resolve(&Sources { sets, ..Sources::default() }).map_err(|errors| errors.to_string())
}

/// The ends of all rounds.
fn ends(recipe: &Recipe) -> Vec<u64> {
    (1..=recipe.train.steps).filter(|step| recipe.is_round_over(*step)).collect()
}

#[test]
fn rounds_have_as_many_steps_as_asked_and_the_last_ends_with_the_run() {
    let sets = ["sync.mode=local-sgd", "sync.local_steps=4", "train.steps=10"];
    assert_eq!(ends(&recipe(&sets)), [4, 8, 10]);
    let later = recipe(&[&sets[..], &["sync.synchronous=0.3"]].concat());
    assert_eq!(ends(&later), [1, 2, 3, 7, 10]);
    let shorter = recipe(&[&sets[..], &["sync.final_local_steps=1"]].concat());
    assert_eq!(ends(&shorter), [4, 7, 9, 10], "4, then 2.8, 1.9 and 1.3, rounded");
    assert_eq!(ends(&recipe(&["train.steps=3"])), [1, 2, 3]);
}

#[test]
fn what_is_due_inside_a_round_waits_for_its_end() {
    let recipe = recipe(&["sync.mode=local-sgd", "sync.local_steps=4", "train.steps=20"]);
    let due = |every| (0..=20).filter(|n| recipe.is_due_every(every, *n)).collect::<Vec<u64>>();
    assert_eq!(due(5), [8, 12, 16, 20]);
    assert_eq!(due(3), [4, 8, 12, 16, 20]);
    assert_eq!(due(12), [12]);
    assert_eq!(due(0), [0; 0]);
}

#[test]
fn recipes_from_before_there_were_rounds_keep_their_identity() {
    assert!(!Recipe::default().identity_text().contains("sync."));
    let lazy = recipe(&["sync.mode=local-sgd"]);
    assert!(lazy.identity_text().contains("sync.local_steps = 8"));
    assert!(lazy.bits_depend_on().is_some_and(|reason| reason.contains("local-sgd")));
}

#[test]
fn what_needs_workers_with_the_whole_model_says_so() {
    let refused = |sets: &[&str]| {
        let sets = [&["sync.mode=local-sgd"], sets].concat();
        try_recipe(&sets).expect_err("it cannot work")
    };
    assert_eq!(
        refused(&["parallel.zero=1"]),
        "sync.mode = \"local-sgd\" takes steps on workers that hold the \
         whole model, and parallel.zero = 1; try parallel.zero = 0 or sync.mode = \"all-reduce\""
    );
    assert!(refused(&["parallel.pipeline=2"]).contains("try parallel.pipeline = 1"));
    assert!(refused(&["train.reduction=sum"]).contains("try train.reduction = \"mean\""));
    assert!(refused(&["precision.compute=fp16"]).contains("try precision.compute = \"bf16\""));
    assert!(refused(&["precision.wire=bf16"]).contains("try precision.wire = \"f32\""));
    let elastic = refused(&["run.workers={min=1,max=2}"]);
    assert!(elastic.contains("try run.workers = 2"), "{elastic}");
    let idle = try_recipe(&["sync.local_steps=4"]).expect_err("nothing would come of it");
    assert!(idle.contains("sync.local_steps"), "{idle}");
}

#[test]
fn late_workers_and_late_gradients_say_what_they_need() {
    let refused = |sets: &[&str]| try_recipe(sets).expect_err("it cannot work");
    assert_eq!(
        refused(&["sync.stragglers=backup", "parallel.zero=1"]),
        "sync.stragglers = \"backup\" is about workers that each hold the whole model and send its \
         gradients as they are, and parallel.zero = 1; try parallel.zero = 0 or sync.stragglers = \
         \"wait\""
    );
    assert!(refused(&["sync.stragglers=timeout", "compress.method=int8"]).contains("\"none\""));
    assert!(refused(&["sync.stragglers=exclude", "train.reduction=sum"]).contains("\"mean\""));
    let nobody = refused(&["sync.stragglers=backup", "sync.backups=2", "run.workers=2"]);
    assert!(nobody.contains("leaves nobody of 2 workers; try 1"), "{nobody}");
    let own = ["data.placement=local", "data.source=part-{rank}.txt", "sync.stragglers=shares"];
    assert!(refused(&own).contains("try data.placement = \"shared\""));
    assert_eq!(
        refused(&["sync.delay=1", "parallel.zero=1"]),
        "sync.delay = 1 keeps the whole gradient of the step before, and parallel.zero = 1; try \
         parallel.zero = 0 or sync.delay = 0"
    );
    assert!(refused(&["sync.delay=1", "sync.mode=local-sgd"]).contains("sync.delay"));
    assert!(refused(&["sync.slack=2"]).contains("sync.slack"), "it means nothing by itself");
}

#[test]
fn what_depends_on_time_is_part_of_the_identity_and_says_so() {
    let usual = Recipe::default().hash();
    for policy in ["backup", "timeout", "drop-slowest", "exclude"] {
        let set = format!("sync.stragglers={policy}");
        let recipe = recipe(&[&set, "run.workers=2"]);
        assert_ne!(recipe.hash(), usual, "{policy}");
        assert!(recipe.bits_depend_on().is_some_and(|why| why.contains("in time")), "{policy}");
    }
    let shares = recipe(&["sync.stragglers=shares"]);
    assert_eq!((shares.hash(), shares.bits_depend_on()), (usual.clone(), None));
    let delayed = recipe(&["sync.delay=1"]);
    assert_ne!(delayed.hash(), usual);
    assert_eq!((delayed.bits_depend_on(), delayed.keeps_more()), (None, true));
    assert_eq!(recipe(&["emulate.lane_ms=3"]).hash(), usual, "slower, and the same bits");
}
