//! Byzantine workers under gossip and parameter servers: the mean diverges, robust aggregation
//! reaches the optimum.

use lockstep_config::{Recipe, Sources, resolve};
use lockstep_harness::Runs;
use lockstep_harness::runs::soak;
use lockstep_trainer::Options;

/// A quadratic without noise, whose minimum is the same for all workers.
fn bowl(sets: &[&str]) -> Recipe {
    let usual = [
        "problem.condition=4",
        "optim.name=sgd",
        "optim.lr=0.2",
        "optim.schedule=constant",
        "optim.warmup_steps=0",
        "train.steps=80",
        "train.eval_every=0",
    ];
    let sets = usual.iter().chain(sets).map(|set| (*set).to_owned()).collect();
    let preset = Some("quadratic".to_owned());
    resolve(&Sources { preset, sets, ..Sources::default() })
        .unwrap_or_else(|errors| panic!("{errors}"))
}

/// Suboptimality relative to the start, or `None` for a run that became non-finite.
fn surplus(runs: &mut Runs, sets: &[&str]) -> Option<f64> {
    let outcome = runs.run(&bowl(sets), Options::default()).ok()?;
    let verdict = outcome.summary.solution;
    let start = outcome.summary.first_loss - verdict.optimum_loss.expect("known");
    Some(verdict.suboptimality? / start)
}

const ATTACKS: [&str; 3] = ["sync.attack=sign-flip", "sync.attack=noise", "sync.attack=stale"];
const FIVE: [&str; 3] = ["run.workers=5", "train.batch=16", "sync.byzantine=1"];
const EIGHT: [&str; 3] = ["run.workers=8", "train.batch=16", "sync.byzantine=1"];

#[test]
fn byzantine_neighbours_break_the_mean_but_not_robust_aggregation() {
    let mut runs = Runs::new("byzantine");
    let complete = [&["sync.mode=gossip", "sync.graph=complete"][..], &FIVE].concat();
    let exponential = [&["sync.mode=gossip", "sync.graph=exponential"][..], &EIGHT].concat();
    for (index, graph) in [complete, exponential].into_iter().enumerate() {
        for attack in &ATTACKS[..if soak() { 3 } else { 1 }] {
            let sets = [&graph[..], &[*attack]].concat();
            if attack.ends_with("flip") {
                let mean = surplus(&mut runs, &sets);
                assert!(mean.is_none_or(|left| left > 1.0), "{sets:?}: the mean leaves {mean:?}");
            }
            let rules = ["trimmed-mean", "median", "krum"];
            for rule in &rules[..if soak() || index == 0 { 3 } else { 1 }] {
                let rule = format!("sync.aggregation={rule}");
                let left = surplus(&mut runs, &[&sets[..], &[rule.as_str()]].concat());
                assert!(left.is_some_and(|left| left < 1e-3), "{sets:?}, {rule} leaves {left:?}");
            }
            let left = surplus(&mut runs, &[&sets[..], &["sync.gradient_clip=0.05"]].concat());
            assert!(left.is_some_and(|left| left < 0.05), "{sets:?}, clipped leaves {left:?}");
        }
    }
}

#[test]
fn servers_with_robust_aggregation_withstand_byzantine_workers() {
    let mut runs = Runs::new("byzantine");
    let served = ["sync.mode=parameter-server", "sync.consistency=sync", "sync.servers=2"];
    for attack in ATTACKS {
        let sets = [&served[..], &FIVE, &[attack]].concat();
        if attack.ends_with("flip") {
            let mean = surplus(&mut runs, &sets);
            assert!(mean.is_none_or(|left| left > 1.0), "the mean leaves {mean:?}");
        }
        for rule in ["median", "trimmed-mean", "krum"] {
            let rule = format!("sync.aggregation={rule}");
            let left = surplus(&mut runs, &[&sets[..], &[rule.as_str()]].concat());
            assert!(left.is_some_and(|left| left < 1e-3), "{attack}, {rule} leaves {left:?}");
        }
    }
}

#[test]
fn robust_aggregation_reaches_the_optimum_without_attacks() {
    let mut runs = Runs::new("byzantine");
    for rule in ["sync.aggregation=median", "sync.aggregation=krum", "sync.gradient_clip=1"] {
        let sets = ["sync.mode=gossip", "sync.graph=complete", "run.workers=5", "train.batch=16"];
        let left = surplus(&mut runs, &[&sets[..], &[rule]].concat());
        assert!(left.is_some_and(|left| left < 1e-4), "{rule} leaves {left:?}");
    }
}
