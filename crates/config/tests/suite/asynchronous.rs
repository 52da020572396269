//! Gossip, parameter servers and Hogwild: refused combinations and the identity.

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
fn every_step_of_gossip_and_servers_is_a_round() {
    for mode in ["gossip", "parameter-server"] {
        let recipe = recipe(&[&format!("sync.mode={mode}"), "train.steps=10"]);
        assert!((0..=10).all(|step| recipe.is_round_over(step)), "{mode}");
        assert!(recipe.layout_dependence().is_some_and(|why| why.contains(mode)), "{mode}");
        assert!(recipe.has_extra_state(), "{mode}: only checkpoints contain all of it");
    }
}

#[test]
fn graphs_that_do_not_exist_are_refused_with_a_degree_that_does() {
    let regular =
        |sets: &[&str]| refused("gossip", &[&["sync.graph=random-regular"], sets].concat());
    assert_eq!(
        regular(&["run.workers=5", "sync.degree=3"]),
        "sync.degree = 3 gives no connected random-regular graph of run.workers = 5; try 4"
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
fn incompatible_settings_are_refused() {
    for mode in ["gossip", "parameter-server"] {
        for (set, advice) in [
            ("parallel.zero=1", "try parallel.zero = 0"),
            ("parallel.pipeline=2", "try parallel.pipeline = 1"),
            ("precision.compute=fp16", "try precision.compute = \"bf16\""),
            ("compress.method=dgc", "try sync.mode = \"all-reduce\""),
            ("run.check_replicas_every=5", "try run.check_replicas_every = 0"),
            ("sync.local_steps=4", "sync.local_steps"),
        ] {
            let message = refused(mode, &[set]);
            assert!(message.contains(advice), "{mode}, {set}: {message}");
        }
    }
    for (set, advice) in [
        ("checkpoint.interval=60", "try checkpoint.interval = 0"),
        ("optim.name=lamb", "try optim.name = \"adamw\""),
        ("data.placement=local", "try data.placement = \"shared\""),
        ("sync.servers=63", "try 62"),
        ("sync.staleness=3", "sync.consistency"),
    ] {
        let message = refused("parameter-server", &[set]);
        assert!(message.contains(advice), "{set}: {message}");
    }
    let delayed = ["sync.consistency=bounded", "sync.staleness=2", "sync.read_delay=3"];
    assert!(refused("parameter-server", &delayed).ends_with("try 2"));
}

#[test]
fn servers_are_the_ranks_after_the_workers() {
    let recipe = recipe(&["sync.mode=parameter-server", "run.workers=3", "sync.servers=2"]);
    assert_eq!((recipe.num_servers(), recipe.num_ranks()), (2, 5));
    assert_eq!(recipe.sync.server.consistency, Consistency::Async);
    let usual = Recipe::default();
    assert_eq!((usual.num_servers(), usual.num_ranks()), (0, usual.run.workers));
    assert_eq!(usual.sync.mode, SyncMode::AllReduce);
    assert!(!usual.identity_text().contains("sync."), "older recipes keep their hash");
}

#[test]
fn one_worker_of_a_group_pushes_for_all() {
    let four = ["run.workers=4", "sync.group_workers=2"];
    let grouped = recipe(&[&["sync.mode=parameter-server"], &four[..]].concat());
    assert_eq!((grouped.num_pushers(), grouped.num_ranks()), (2, 5));
    assert!(grouped.identity_text().contains("group_workers"));
    let plain = recipe(&["sync.mode=parameter-server", "run.workers=4"]);
    assert_eq!(plain.num_pushers(), 4);
    assert!(!plain.identity_text().contains("group_workers"), "older recipes keep their hash");
    let refused = |sets: &[&str]| refused("parameter-server", &[&four[..], sets].concat());
    assert!(refused(&["sync.group_workers=3"]).ends_with("try 2, 4"));
    let elastic = ["sync.consistency=elastic", "sync.quorum=3"];
    assert!(refused(&elastic).ends_with("is more than run.workers = 4 in groups of 2; try 2"));
    let attacks = ["sync.consistency=sync", "sync.byzantine=1"];
    assert!(refused(&attacks).ends_with("try sync.group_workers = 0"));
}

#[test]
fn sparse_rows_need_an_untied_embedding() {
    let sparse =
        |sets: &[&str]| refused("parameter-server", &[&["sync.sparse_rows=true"], sets].concat());
    let message = sparse(&["model.tied=true"]);
    assert!(message.contains("try model.tied = false"), "{message}");
    let message = refused("parameter-server", &["sync.row_cache=10"]);
    assert!(message.ends_with("try sync.sparse_rows = true"), "{message}");
    assert!(sparse(&["sync.replicated_rows=10"]).ends_with("try sync.servers = 2"));
    let message = refused("parameter-server", &["sync.replicated_rows=10", "sync.servers=2"]);
    assert!(message.ends_with("try sync.sparse_rows = true"), "{message}");
    let message = sparse(&["model.family=logistic"]);
    assert!(message.contains("does not have"), "{message}");
    let served = ["sync.mode=parameter-server"];
    let plain = recipe(&served).identity_text();
    assert!(!plain.contains("rows"), "older recipes keep their hash: {plain}");
    let rows = recipe(&[&served[..], &["sync.sparse_rows=true"]].concat());
    assert!(rows.identity_text().contains("row_cache"));
    assert!(!rows.identity_text().contains("replicated"), "newer still");
}

#[test]
fn robust_aggregation_needs_several_vectors() {
    let message =
        refused("gossip", &["sync.graph=one-peer", "sync.aggregation=median", "run.workers=4"]);
    assert!(message.ends_with("try \"exponential\""), "{message}");
    let message = refused("parameter-server", &["sync.aggregation=krum", "run.workers=5"]);
    assert!(message.contains("try sync.consistency = \"sync\""), "{message}");
    let message = refused(
        "gossip",
        &["sync.aggregation=trimmed-mean", "sync.assumed_byzantine=2", "run.workers=4"],
    );
    assert!(message.ends_with("try 1"), "{message}");
    let message = refused("all-reduce", &["sync.aggregation=median"]);
    assert!(message.contains("sync.mode"), "{message}");
}

#[test]
fn hogwild_needs_one_worker_and_plain_sgd() {
    let usual = ["optim.name=sgd", "optim.weight_decay=0", "run.workers=1"];
    recipe(&[&["sync.mode=hogwild"], &usual[..]].concat());
    for (set, advice) in [
        ("run.workers=2", "try run.workers = 1"),
        ("optim.name=adamw", "try optim.name = \"sgd\""),
        ("optim.weight_decay=0.1", "try optim.weight_decay = 0.0"),
        ("train.batch=6", "try 8"),
    ] {
        let message = refused("hogwild", &[&usual[..], &[set, "sync.threads=4"]].concat());
        assert!(message.contains(advice), "{set}: {message}");
    }
}
