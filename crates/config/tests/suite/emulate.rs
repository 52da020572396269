//! Emulated hardware: every key sets its field, and invalid values are refused.

use lockstep_config::units::{BytesPerSecond, Seconds};
use lockstep_config::{Distribution, LinkConditions, Recipe, SlowWorker, Sources, resolve};

fn sources(sets: &[&str]) -> Sources {
    Sources { sets: sets.iter().map(|set| (*set).to_owned()).collect(), ..Sources::default() }
}

fn recipe(sets: &[&str]) -> Recipe {
    resolve(&sources(sets)).expect("a valid recipe")
}

fn refusal(sets: &[&str]) -> String {
    resolve(&sources(sets)).expect_err("a wrong recipe").to_string()
}

#[test]
fn every_key_sets_its_field_and_survives_printing() {
    let sets = [
        "run.workers=3",
        "run.transport=tcp",
        "emulate.bandwidth=100MB",
        "emulate.latency_ms=0.3",
        "emulate.jitter_ms=0.1",
        "emulate.loss=0.001",
        "emulate.links=[{ranks = [2, 0], latency_ms = 5.0, bandwidth = \"10MB\"}]",
        "emulate.slow=[{rank = 1, factor = 2.5, distribution = \"pareto\"}, {rank = 0, factor=1}]",
        "emulate.data_ms=20",
        "emulate.disk_bandwidth=5MB",
        "emulate.seed=9",
    ];
    let recipe = recipe(&sets);
    let usual = LinkConditions {
        bandwidth: BytesPerSecond(1e8),
        latency: Seconds(0.3e-3),
        jitter: Seconds(0.1e-3),
        loss: 0.001,
    };
    let emulate = &recipe.emulate;
    assert_eq!((emulate.default_link, emulate.seed), (usual, 9));
    let bad = LinkConditions { bandwidth: BytesPerSecond(1e7), latency: Seconds(5e-3), ..usual };
    assert_eq!((emulate.between(0, 2), emulate.between(1, 2)), (bad, usual));
    let slow = SlowWorker { rank: 1, factor: 2.5, distribution: Distribution::Pareto };
    assert_eq!(emulate.slowness(1), Some(&slow));
    assert_eq!((emulate.slowness(0), emulate.slowness(2)), (None, None));
    let text = recipe.to_toml();
    let file = Some(("printed.toml".to_owned(), text.clone()));
    assert_eq!(resolve(&Sources { file, ..Sources::default() }).as_ref(), Ok(&recipe), "{text}");
    assert_eq!(
        emulate.description().as_deref(),
        Some(
            "links latency 0.3 ms, jitter 0.1 ms, 100 MB/s, 0.1 % lost; link 2-0 latency 5 ms, \
             jitter 0.1 ms, 10 MB/s, 0.1 % lost; a batch is ready after 20 ms; disk 5 MB/s; \
             worker 1 2.5 times slower (pareto); worker 0 1 times slower (constant)"
        )
    );
}

#[test]
fn emulation_is_off_by_default_and_leaves_the_hash() {
    let plain = recipe(&[]);
    assert_eq!(plain.emulate.description(), None);
    let bad = recipe(&["run.transport=tcp", "emulate.latency_ms=1", "emulate.seed=3"]);
    assert_eq!(bad.hash(), plain.hash());
}

#[test]
fn invalid_settings_are_refused_in_one_line_with_a_fix() {
    let tcp = "run.transport=tcp";
    let cases: [(&[&str], &str); 7] = [
        (&["emulate.latency_ms=1"], "emulate.latency_ms = 1.0 is not a setting of run.transport"),
        (&[tcp, "emulate.latency_ms=-1"], "emulate.latency_ms = -1 must be"),
        (&[tcp, "emulate.loss=0.9"], "emulate.loss = 0.9 must be"),
        (
            &[tcp, "emulate.links=[{ranks = [0, 5]}]"],
            "needs two different ranks below run.workers = 2 for every link; try ranks = [0, 1]",
        ),
        (&[tcp, "emulate.links=[{ranks = [0]}]"], "needs two different ranks"),
        (&["emulate.slow=[{rank = 7, factor = 2}]"], "slows rank 7 where run.workers = 2"),
        (
            &["emulate.slow=[{rank = 1, factor = 2, distribution = \"normal\"}]"],
            "emulate.slow[0].distribution",
        ),
    ];
    for (sets, expected) in cases {
        let text = refusal(sets);
        assert!(text.contains(expected) && text.lines().count() == 1, "{text}");
    }
}
