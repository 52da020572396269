//! Checkpoint settings, restarts and elastic runs.

use lockstep_config::units::Seconds;
use lockstep_config::{Elastic, Interval, Recipe, Sources, resolve};

fn with(sets: &[&str]) -> Result<Recipe, String> {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    resolve(&Sources { sets, ..Sources::default() }).map_err(|errors| errors.to_string())
}

#[test]
fn an_interval_is_seconds_or_auto() {
    let interval = |set: &str| with(&[set]).expect("a valid recipe").checkpoint.interval;
    assert_eq!(interval("checkpoint.interval=0"), Interval::Never);
    assert_eq!(interval("checkpoint.interval=90"), Interval::Every(Seconds(90.0)));
    assert_eq!(interval("checkpoint.interval=auto"), Interval::Auto);
    assert_eq!(interval("checkpoint.interval=bounded"), Interval::Bounded);
    let error = with(&["checkpoint.interval=often"]).expect_err("no such word");
    let rule = "is text where a number or \"auto\" or \"bounded\" is needed; try \"bounded\"";
    assert_eq!(error, format!("checkpoint.interval = \"often\" {rule}"));
    let error = with(&["checkpoint.interval=true"]).expect_err("no number");
    assert!(error.contains("a number or \"auto\""), "{error}");
}

#[test]
fn checkpoint_settings_leave_the_hash_and_survive_printing() {
    let sets = ["checkpoint.every=7", "checkpoint.interval=auto", "run.restarts=3"];
    let recipe = with(&sets).expect("a valid recipe");
    assert_eq!(recipe.hash(), Recipe::default().hash());
    let file = Some(("r.toml".to_owned(), recipe.to_toml()));
    assert_eq!(resolve(&Sources { file, ..Sources::default() }), Ok(recipe.clone()));
    let off = with(&["checkpoint.interval=0"]).expect("a valid recipe");
    assert!(recipe.checkpoint.is_on() && !off.checkpoint.is_on());
    let every = recipe.checkpoint.every;
    assert!(recipe.is_due_every(every, 14) && !recipe.is_due_every(every, 15));
}

#[test]
fn only_processes_can_be_restarted() {
    let error = with(&["run.restarts=2", "run.isolation=threads"]).expect_err("threads");
    assert_eq!(
        error,
        "run.restarts = 2 cannot restart threads; try 0 or run.isolation = \"processes\""
    );
}

#[test]
fn restarts_default_to_checkpoints() {
    let interval = |sets: &[&str]| with(sets).expect("a valid recipe").checkpoint.interval;
    assert_eq!(interval(&["run.restarts=1"]), Interval::Auto);
    assert_eq!(interval(&["run.workers={min=1,max=2}"]), Interval::Auto);
    assert_eq!(interval(&["run.restarts=1", "checkpoint.every=5"]), Interval::Never);
    assert_eq!(interval(&["run.restarts=1", "checkpoint.interval=0"]), Interval::Never);
    assert_eq!(interval(&["checkpoint.every=5"]), Interval::Never);
}

#[test]
fn a_run_saves_by_default_where_its_strategy_can_save_after_any_step() {
    let interval = |sets: &[&str]| with(sets).expect("a valid recipe").checkpoint.interval;
    assert_eq!(interval(&[]), Interval::Bounded);
    assert_eq!(interval(&["sync.mode=local-sgd", "run.workers=2"]), Interval::Bounded);
    assert_eq!(interval(&["sync.mode=parameter-server"]), Interval::Never);
    let hogwild = ["sync.mode=hogwild", "optim.name=sgd", "optim.weight_decay=0", "run.workers=1"];
    assert_eq!(interval(&hogwild), Interval::Never);
}

const RANGE: &str = "run.workers={min = 2, max = 4}";

#[test]
fn an_elastic_run_starts_with_its_maximum_and_survives_printing() {
    let recipe = with(&[RANGE, "parallel.zero=3"]).expect("a valid recipe");
    assert_eq!((recipe.run.workers, recipe.parallel.data), (4, 4));
    assert_eq!(recipe.run.elastic, Some(Elastic { min: 2, max: 4 }));
    let text = recipe.to_toml();
    assert!(text.contains("\nworkers = { min = 2, max = 4 }\n"), "{text}");
    let file = Some(("r.toml".to_owned(), text));
    assert_eq!(resolve(&Sources { file, ..Sources::default() }), Ok(recipe.clone()));
    // An attempt has a recipe of its own, with the same hash.
    let three = recipe.with_workers(3);
    assert_eq!((three.run.workers, three.parallel.data, three.run.elastic), (3, 3, None));
    assert_eq!(three.hash(), recipe.hash());
    let file = Some(("r.toml".to_owned(), three.to_toml()));
    assert_eq!(resolve(&Sources { file, ..Sources::default() }), Ok(three));
}

#[test]
fn elastic_runs_change_by_whole_replicas() {
    let sizes = |sets: &[&str]| with(sets).expect("a valid recipe").worker_counts();
    assert_eq!(sizes(&[RANGE]), [2, 3, 4]);
    assert_eq!(sizes(&["run.workers={min=2,max=8}", "parallel.pipeline=2"]), [2, 4, 6, 8]);
    assert_eq!(sizes(&["run.workers=3"]), [3]);
}

#[test]
fn settings_for_a_fixed_number_of_workers_refuse_a_range() {
    let cases: [(&[&str], &str); 7] = [
        (
            &["run.workers={min = 5, max = 4}"],
            "run.workers = { min = 5, max = 4 } has a min above its max; \
             try { min = 4, max = 4 }",
        ),
        (
            &["run.workers={min = 1, max = 4}", "parallel.pipeline=2"],
            "run.workers = { min = 1, max = 4 } may leave 1 workers, and a replica takes 2; \
             try { min = 2, max = 4 }",
        ),
        (
            &[RANGE, "run.isolation=threads"],
            "run.workers = { min = 2, max = 4 } cannot be a range with run.isolation = \
             \"threads\"; try 4 or run.isolation = \"processes\"",
        ),
        (
            &[RANGE, "parallel.leaf_shares=2,2,2,2"],
            "run.workers = { min = 2, max = 4 } cannot be a range with parallel.leaf_shares = \
             \"2,2,2,2\"; try 4 or parallel.leaf_shares = \"\"",
        ),
        (
            &[RANGE, "data.placement=local", "data.source={rank}.txt"],
            "run.workers = { min = 2, max = 4 } cannot be a range with data.placement = \"local\"; \
             try 4 or data.placement = \"shared\"",
        ),
        (
            &[RANGE, "checkpoint.interval=0"],
            "run.workers = { min = 2, max = 4 } cannot be a range with checkpoint.interval = 0.0; \
             try 4 or checkpoint.interval = \"auto\"",
        ),
        (&["run.workers={min = 1}"], "run.workers = {min = 1} has no max; try 2"),
    ];
    for (sets, expected) in cases {
        assert_eq!(with(sets).expect_err("refused"), expected);
    }
}
