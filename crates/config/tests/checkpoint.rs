//! When a run is saved, as a recipe says it.

use lockstep_config::units::Seconds;
use lockstep_config::{Interval, Recipe, Sources, resolve};

fn with(sets: &[&str]) -> Result<Recipe, String> {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    resolve(&Sources { sets, ..Sources::default() }).map_err(|errors| errors.to_string())
}

#[test]
fn an_interval_is_seconds_or_a_word() {
    let interval = |set: &str| with(&[set]).expect("a sound recipe").checkpoint.interval;
    assert_eq!(interval("checkpoint.interval=0"), Interval::Never);
    assert_eq!(interval("checkpoint.interval=90"), Interval::Every(Seconds(90.0)));
    assert_eq!(interval("checkpoint.interval=auto"), Interval::Auto);
    let error = with(&["checkpoint.interval=often"]).expect_err("no such word");
    let rule = "is text where a number or \"auto\" is needed; try 0.0";
    assert_eq!(error, format!("checkpoint.interval = \"often\" {rule}"));
    let error = with(&["checkpoint.interval=true"]).expect_err("no number");
    assert!(error.contains("a number or \"auto\" is needed"), "{error}");
}

#[test]
fn saving_is_no_part_of_what_is_trained_and_survives_being_written() {
    let sets = ["checkpoint.every=7", "checkpoint.interval=auto", "run.restarts=3"];
    let recipe = with(&sets).expect("a sound recipe");
    assert_eq!(recipe.hash(), Recipe::default().hash());
    let file = Some(("r.toml".to_owned(), recipe.to_toml()));
    assert_eq!(resolve(&Sources { file, ..Sources::default() }), Ok(recipe.clone()));
    assert!(recipe.checkpoint.is_on() && !Recipe::default().checkpoint.is_on());
    assert!(recipe.checkpoint.is_due_after(14) && !recipe.checkpoint.is_due_after(15));
}

#[test]
fn only_processes_are_started_again() {
    let error = with(&["run.restarts=2", "run.isolation=threads"]).expect_err("threads");
    assert_eq!(
        error,
        "run.restarts = 2 cannot start threads again; try 0 or run.isolation = \"processes\""
    );
}
