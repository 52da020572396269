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
        assert!(recipe.bits_depend_on().is_some_and(|why| why.contains(mode)), "{mode}");
        assert!(recipe.keeps_more(), "{mode}: only checkpoints hold all of it");
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
            ("compress.method=int8", "try sync.mode = \"all-reduce\""),
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
