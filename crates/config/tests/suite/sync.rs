//! Rounds of local SGD, straggler policies and delayed gradients.

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
fn rounds_have_the_set_length_and_the_last_ends_with_the_run() {
    let sets = ["sync.mode=local-sgd", "sync.local_steps=4", "train.steps=10"];
    assert_eq!(ends(&recipe(&sets)), [4, 8, 10]);
    let later = recipe(&[&sets[..], &["sync.synchronous_fraction=0.3"]].concat());
    assert_eq!(ends(&later), [1, 2, 3, 7, 10]);
    let shorter = recipe(&[&sets[..], &["sync.final_local_steps=1"]].concat());
    assert_eq!(ends(&shorter), [4, 7, 9, 10], "4, then 2.8, 1.9 and 1.3, rounded");
    assert_eq!(ends(&recipe(&["train.steps=3"])), [1, 2, 3]);
}

#[test]
fn changing_rounds_agree_with_a_walk_over_all_steps() {
    for (steps, from, to) in [(1000, 64, 3), (997, 2, 41), (50, 7, 7), (5, 9, 2), (800, 1, 2)] {
        let sets = [
            "sync.mode=local-sgd".to_owned(),
            "sync.synchronous_fraction=0.1".to_owned(),
            format!("train.steps={steps}"),
            format!("sync.local_steps={from}"),
            format!("sync.final_local_steps={to}"),
        ];
        let recipe = recipe(&sets.each_ref().map(String::as_str));
        let first = recipe.first_round();
        let (mut start, mut rounds) = (first, Vec::new());
        while start < steps {
            let done = (start - first) as f64 / (steps - first) as f64;
            let len = (f64::from(from) + (f64::from(to) - f64::from(from)) * done).round() as u64;
            let end = (start + len.max(1)).min(steps);
            for step in start..end {
                assert_eq!(recipe.round_at(step), start..end, "step {step} of {sets:?}");
            }
            rounds.push(start..end);
            start = end;
        }
        assert_eq!(recipe.rounds().collect::<Vec<_>>(), rounds, "{sets:?}");
    }
}

#[test]
fn events_inside_a_round_wait_for_its_end() {
    let recipe = recipe(&["sync.mode=local-sgd", "sync.local_steps=4", "train.steps=20"]);
    let due = |every| (0..=20).filter(|n| recipe.is_due_every(every, *n)).collect::<Vec<u64>>();
    assert_eq!(due(5), [8, 12, 16, 20]);
    assert_eq!(due(3), [4, 8, 12, 16, 20]);
    assert_eq!(due(12), [12]);
    assert_eq!(due(0), [0; 0]);
}

#[test]
fn all_reduce_recipes_have_no_sync_keys_in_their_identity() {
    assert!(!Recipe::default().identity_text().contains("sync."));
    let local_sgd = recipe(&["sync.mode=local-sgd"]);
    assert!(local_sgd.identity_text().contains("sync.local_steps = 8"));
    assert!(local_sgd.layout_dependence().is_some_and(|reason| reason.contains("local-sgd")));
}

#[test]
fn local_steps_need_whole_replicas() {
    let refused = |sets: &[&str]| {
        let sets = [&["sync.mode=local-sgd"], sets].concat();
        try_recipe(&sets).expect_err("it cannot work")
    };
    assert_eq!(
        refused(&["parallel.zero=1"]),
        "sync.mode = \"local-sgd\" takes local steps, which need the whole model on every worker, \
         and parallel.zero = 1; try parallel.zero = 0 or sync.mode = \"all-reduce\""
    );
    assert!(refused(&["parallel.pipeline=2"]).contains("try parallel.pipeline = 1"));
    assert!(refused(&["train.reduction=sum"]).contains("try train.reduction = \"mean\""));
    assert!(refused(&["precision.compute=fp16"]).contains("try precision.compute = \"bf16\""));
    assert!(refused(&["precision.wire=bf16"]).contains("try precision.wire = \"f32\""));
    let elastic = refused(&["run.workers={min=1,max=2}"]);
    assert!(elastic.contains("try run.workers = 2"), "{elastic}");
    let unused = try_recipe(&["sync.local_steps=4"]).expect_err("no effect");
    assert!(unused.contains("sync.local_steps"), "{unused}");
}

#[test]
fn groups_average_inside_of_rounds() {
    let sets = ["sync.mode=local-sgd", "sync.local_steps=3", "train.steps=20", "run.workers=4"];
    let close = ["sync.group_workers=2", "sync.inner_rounds=2"];
    let two_levels = recipe(&[&sets[..], &close].concat());
    assert_eq!(ends(&two_levels), [6, 12, 18, 20]);
    let averages: Vec<u64> = (1..=20).filter(|n| two_levels.is_group_sync_due(*n)).collect();
    assert_eq!(averages, [3, 9, 15]);
    assert!(!(1..=20).any(|n| recipe(&sets).is_group_sync_due(n)));
    assert!(!recipe(&sets).identity_text().contains("group"), "no groups");
    let unequal = try_recipe(&[&sets[..], &["sync.group_workers=3"]].concat());
    assert!(unequal.expect_err("three of four").contains("try 2, 4"));
    let none_left = try_recipe(&[&sets[..], &["sync.inner_rounds=2"]].concat());
    assert!(none_left.expect_err("no groups").contains("try 1, or sync.group_workers = 2"));
}

#[test]
fn workers_with_fewer_steps_idle_at_the_end_of_a_round() {
    let sets = ["sync.mode=local-sgd", "sync.local_steps=4", "train.steps=18", "run.workers=2"];
    let later = ["sync.worker_steps=[4,3]", "sync.synchronous_fraction=0.12"];
    let recipe = recipe(&[&sets[..], &later].concat());
    let idle: Vec<u64> = (0..18).filter(|step| !recipe.takes_step(1, *step)).collect();
    assert_eq!(idle, [5, 9, 13, 17], "two steps are taken by all before the first round");
    for worker in 0..2 {
        for step in 0..=18 {
            let counted = (0..step).filter(|step| recipe.takes_step(worker, *step)).count();
            assert_eq!(recipe.steps_taken(worker, step), counted as u64, "{worker} {step}");
        }
    }
    let refused = |more: &[&str]| try_recipe(&[&sets[..], more].concat()).expect_err("refused");
    assert!(refused(&["sync.worker_steps=[4]"]).contains("try [4, 4]"));
    assert!(refused(&["sync.worker_steps=[4,6]"]).contains("try sync.local_steps = 6"));
    let more = ["sync.worker_steps=[4,3]", "sync.group_workers=2"];
    assert!(refused(&more).contains("sync.group_workers = 0"));
    let more = ["sync.worker_steps=[4,3]", "sync.final_local_steps=2"];
    assert!(refused(&more).contains("try sync.local_steps = 4"));
}

#[test]
fn automatic_local_steps_are_chosen_once() {
    let auto = ["sync.mode=local-sgd", "sync.local_steps=auto"];
    let automatic = recipe(&auto);
    assert!(
        automatic.sync.local_steps_is_auto
            && automatic.to_toml().contains("local_steps = \"auto\"")
    );
    let chosen = automatic.with_local_steps(12);
    let written = recipe(&["sync.mode=local-sgd", "sync.local_steps=12"]);
    assert_eq!(chosen, written, "equal to an explicit number");
    let error = try_recipe(&[&auto[..], &["sync.final_local_steps=4"]].concat());
    assert!(error.expect_err("two numbers").contains("remove it"));
}

#[test]
fn fragments_are_averaged_in_turn_once_per_round() {
    let sets = ["sync.mode=local-sgd", "sync.local_steps=4", "train.steps=12", "run.workers=2"];
    let streaming = recipe(&[&sets[..], &["sync.fragments=3", "sync.inner_rounds=2"]].concat());
    assert_eq!(ends(&streaming), [8, 12]);
    let averaged = |step| streaming.fragments_due(step).collect::<Vec<_>>();
    let all: Vec<_> = (1..=12).map(averaged).collect();
    let none: &[usize] = &[];
    let expected: [&[usize]; 12] =
        [&[0], &[1], none, &[2], &[0], &[1], none, none, &[0], &[1], none, none];
    assert_eq!(all, expected, "the end of a round averages the whole model");
    let refused = |more: &[&str]| try_recipe(&[&sets[..], more].concat()).expect_err("no");
    assert!(refused(&["sync.fragments=5"]).contains("try 4, or sync.local_steps = 5"));
    let both = refused(&["sync.fragments=2", "sync.group_workers=2"]);
    assert!(both.contains("sync.group_workers = 0"), "{both}");
}

#[test]
fn straggler_policies_refuse_incompatible_settings() {
    let refused = |sets: &[&str]| try_recipe(sets).expect_err("it cannot work");
    assert_eq!(
        refused(&["sync.stragglers=backup", "parallel.zero=1"]),
        "sync.stragglers = \"backup\" needs whole, uncompressed replicas on every worker, and \
         parallel.zero = 1; try parallel.zero = 0 or sync.stragglers = \"wait\""
    );
    assert!(refused(&["sync.stragglers=timeout", "compress.method=int8"]).contains("\"none\""));
    assert!(refused(&["sync.stragglers=exclude", "train.reduction=sum"]).contains("\"mean\""));
    let none_left = refused(&["sync.stragglers=backup", "sync.backups=2", "run.workers=2"]);
    assert!(none_left.contains("leaves none of 2 workers; try 1"), "{none_left}");
    let own = ["data.placement=local", "data.source=part-{rank}.txt", "sync.stragglers=shares"];
    assert!(refused(&own).contains("try data.placement = \"shared\""));
    assert_eq!(
        refused(&["sync.gradient_delay=1", "parallel.zero=1"]),
        "sync.gradient_delay = 1 keeps the whole gradient of the previous step, and parallel.zero \
         = 1; try parallel.zero = 0 or sync.gradient_delay = 0"
    );
    assert!(
        refused(&["sync.gradient_delay=1", "sync.mode=local-sgd"]).contains("sync.gradient_delay")
    );
    assert!(
        refused(&["sync.straggler_factor=2"]).contains("sync.straggler_factor"),
        "no effect by itself"
    );
}

#[test]
fn policies_that_depend_on_timing_are_in_the_identity() {
    let usual = Recipe::default().hash();
    for policy in ["backup", "timeout", "drop-slowest", "exclude"] {
        let set = format!("sync.stragglers={policy}");
        let recipe = recipe(&[&set, "run.workers=2"]);
        assert_ne!(recipe.hash(), usual, "{policy}");
        assert!(recipe.layout_dependence().is_some_and(|why| why.contains("in time")), "{policy}");
    }
    let shares = recipe(&["sync.stragglers=shares"]);
    assert_eq!((shares.hash(), shares.layout_dependence()), (usual.clone(), None));
    let delayed = recipe(&["sync.gradient_delay=1"]);
    assert_ne!(delayed.hash(), usual);
    assert_eq!((delayed.layout_dependence(), delayed.has_extra_state()), (None, true));
    assert_eq!(recipe(&["emulate.microbatch_ms=3"]).hash(), usual, "slower, with the same bits");
}
