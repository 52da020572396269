//! Gossip and servers in a recipe: what is refused, what it says instead, and what counts.

use lockstep_config::{Consistency, GraphName, Recipe, Sources, SyncMode, resolve};

fn try_recipe(sets: &[&str]) -> Result<Recipe, String> {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    resolve(&Sources { sets, ..Sources::default() }).map_err(|errors| errors.to_string())
}

fn recipe(sets: &[&str]) -> Recipe {
    try_recipe(sets).unwrap_or_else(|errors| panic!("{errors}"))
}

fn refused(mode: &str, sets: &[&str]) -> String {
    let mode = format!("sync.mode={mode}");
    try_recipe(&[&[mode.as_str()], sets].concat()).expect_err("it cannot work")
}

#[test]
fn every_step_of_gossip_and_of_servers_is_a_round_of_its_own() {
    for mode in ["gossip", "parameter-server"] {
        let recipe = recipe(&[&format!("sync.mode={mode}"), "train.steps=10"]);
        assert!((0..=10).all(|step| recipe.is_round_over(step)), "{mode}");
        assert!(recipe.layout_dependence().is_some_and(|why| why.contains(mode)), "{mode}");
        assert!(recipe.has_extra_state(), "{mode}: only checkpoints hold all of it");
    }
}

#[test]
fn graphs_that_cannot_be_drawn_are_refused_with_a_degree_that_can() {
    let regular =
        |sets: &[&str]| refused("gossip", &[&["sync.graph=random-regular"], sets].concat());
    assert_eq!(
        regular(&["run.workers=5", "sync.degree=3"]),
        "sync.degree = 3 makes no connected random-regular graph of run.workers = 5; try 4"
    );
    assert!(regular(&["run.workers=4", "sync.degree=4"]).ends_with("try 3"));
    assert!(regular(&["run.workers=4", "sync.degree=1"]).ends_with("try 2"));
    for workers in 1..=8 {
        for graph in GraphName::NAMES {
            let workers = format!("run.workers={workers}");
            recipe(&["sync.mode=gossip", &format!("sync.graph={graph}"), &workers]);
        }
    }
    assert!(refused("gossip", &["sync.degree=3"]).contains("sync.graph"));
}

#[test]
fn what_does_not_go_with_them_says_so() {
    for mode in ["gossip", "parameter-server"] {
        for (set, advice) in [
            ("parallel.zero=1", "try parallel.zero = 0"),
            ("parallel.pipeline=2", "try parallel.pipeline = 1"),
            ("precision.compute=fp16", "try precision.compute = \"bf16\""),
            ("compress.method=dgc", "try sync.mode = \"all-reduce\""),
            ("run.check_replicas_every=5", "try run.check_replicas_every = 0"),
            ("sync.local_steps=4", "sync.local_steps"),
        ] {
            let said = refused(mode, &[set]);
            assert!(said.contains(advice), "{mode}, {set}: {said}");
        }
    }
    for (set, advice) in [
        ("checkpoint.interval=60", "try checkpoint.interval = 0"),
        ("optim.name=lamb", "try optim.name = \"adamw\""),
        ("data.placement=local", "try data.placement = \"shared\""),
        ("sync.servers=63", "try 62"),
        ("sync.staleness=3", "sync.consistency"),
    ] {
        let said = refused("parameter-server", &[set]);
        assert!(said.contains(advice), "{set}: {said}");
    }
    let late = ["sync.consistency=bounded", "sync.staleness=2", "sync.read_delay=3"];
    assert!(refused("parameter-server", &late).ends_with("try 2"));
}

#[test]
fn servers_are_ranks_behind_the_workers() {
    let recipe = recipe(&["sync.mode=parameter-server", "run.workers=3", "sync.servers=2"]);
    assert_eq!((recipe.num_servers(), recipe.num_ranks()), (2, 5));
    assert_eq!(recipe.sync.server.consistency, Consistency::Async);
    let usual = Recipe::default();
    assert_eq!((usual.num_servers(), usual.num_ranks()), (0, usual.run.workers));
    assert_eq!(usual.sync.mode, SyncMode::AllReduce);
    assert!(!usual.identity_text().contains("sync."), "older recipes keep their identity");
}

#[test]
fn groups_meet_servers_as_one() {
    let four = ["run.workers=4", "sync.group_workers=2"];
    let grouped = recipe(&[&["sync.mode=parameter-server"], &four[..]].concat());
    assert_eq!((grouped.num_pushers(), grouped.num_ranks()), (2, 5));
    assert!(grouped.identity_text().contains("group_workers"));
    let plain = recipe(&["sync.mode=parameter-server", "run.workers=4"]);
    assert_eq!(plain.num_pushers(), 4);
    assert!(!plain.identity_text().contains("group_workers"), "older recipes keep their identity");
    let refused = |sets: &[&str]| refused("parameter-server", &[&four[..], sets].concat());
    assert!(refused(&["sync.group_workers=3"]).ends_with("try 2, 4"));
    let elastic = ["sync.consistency=elastic", "sync.quorum=3"];
    assert!(refused(&elastic).ends_with("is more than run.workers = 4 in groups of 2; try 2"));
    let liars = ["sync.consistency=sync", "sync.byzantine=1"];
    assert!(refused(&liars).ends_with("try sync.group_workers = 0"));
}

#[test]
fn rows_travel_one_by_one_where_there_is_a_table_of_its_own() {
    let sparse =
        |sets: &[&str]| refused("parameter-server", &[&["sync.sparse_rows=true"], sets].concat());
    let said = sparse(&["model.tied=true"]);
    assert!(said.contains("try model.tied = false"), "{said}");
    let said = refused("parameter-server", &["sync.row_cache=10"]);
    assert!(said.ends_with("try sync.sparse_rows = true"), "{said}");
    assert!(sparse(&["sync.replicated_rows=10"]).ends_with("try sync.servers = 2"));
    let said = refused("parameter-server", &["sync.replicated_rows=10", "sync.servers=2"]);
    assert!(said.ends_with("try sync.sparse_rows = true"), "{said}");
    let said = sparse(&["model.family=logistic"]);
    assert!(said.contains("has not"), "{said}");
    let served = ["sync.mode=parameter-server"];
    let plain = recipe(&served).identity_text();
    assert!(!plain.contains("rows"), "recipes from before there was a choice: {plain}");
    let rows = recipe(&[&served[..], &["sync.sparse_rows=true"]].concat());
    assert!(rows.identity_text().contains("hot_rows"));
    assert!(!rows.identity_text().contains("spread"), "that is newer still");
}

#[test]
fn rules_that_bear_liars_need_something_to_compare() {
    let said =
        refused("gossip", &["sync.graph=one-peer", "sync.aggregation=median", "run.workers=4"]);
    assert!(said.ends_with("try \"exponential\""), "{said}");
    let said = refused("parameter-server", &["sync.aggregation=krum", "run.workers=5"]);
    assert!(said.contains("try sync.consistency = \"sync\""), "{said}");
    let said = refused(
        "gossip",
        &["sync.aggregation=trimmed-mean", "sync.assumed_byzantine=2", "run.workers=4"],
    );
    assert!(said.ends_with("try 1"), "{said}");
    let said = refused("all-reduce", &["sync.aggregation=median"]);
    assert!(said.contains("sync.mode"), "{said}");
}

#[test]
fn threads_without_a_lock_are_those_of_one_worker_and_add() {
    let usual = ["optim.name=sgd", "optim.weight_decay=0", "run.workers=1"];
    recipe(&[&["sync.mode=hogwild"], &usual[..]].concat());
    for (set, advice) in [
        ("run.workers=2", "try run.workers = 1"),
        ("optim.name=adamw", "try optim.name = \"sgd\""),
        ("optim.weight_decay=0.1", "try optim.weight_decay = 0.0"),
        ("train.batch=6", "try 8"),
    ] {
        let said = refused("hogwild", &[&usual[..], &[set, "sync.threads=4"]].concat());
        assert!(said.contains(advice), "{set}: {said}");
    }
}
