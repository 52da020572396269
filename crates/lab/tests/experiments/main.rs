//! Properties of all experiments: they match their descriptions, depend on the seed only, render,
//! and agree with their closed forms.

mod findings;
mod theory;

use lockstep_config::units::Bytes;
use lockstep_lab::claims::{Verdict, check};
use lockstep_lab::experiments::{ALL, find};
use lockstep_lab::{LabError, Report, Study, chart, walk};

fn run(name: &str, params: &[&str], sweeps: &[&str], num_seeds: usize) -> Report {
    let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    let experiment = find(name).expect("a name of the list");
    let mut study =
        Study::with(experiment.description(), &owned(params), &owned(sweeps)).expect("fits");
    study.num_seeds = num_seeds;
    study.run(experiment).expect("it runs")
}

#[test]
fn every_experiment_matches_its_description_and_renders() {
    for experiment in ALL {
        let description = experiment.description();
        let report = run(description.name, &[], &[], 1);
        assert!(report.rows.rows.len() > 1, "{}", description.name);
        assert!(!report.findings.is_empty(), "{}", description.name);
        for row in &report.rows.rows {
            assert_eq!(row.len(), 1 + description.columns.len(), "{}", description.name);
        }
        for name in description.chart.y {
            assert!(report.rows.index(name).is_some(), "{} draws {name}", description.name);
        }
        assert!(report.rows.index(description.chart.x).is_some(), "{}", description.name);
        // A swept parameter is a column too.
        let is_column = |key: &str| description.columns.iter().any(|column| column.name == key);
        assert!(!description.params.iter().any(|param| is_column(param.key)), "{}", report.name);
        for drawn in [chart::svg(description, &report), chart::html(description, &report)] {
            assert_eq!(drawn.matches("<svg").count(), 1, "{}", description.name);
            assert!(!drawn.contains("NaN") && !drawn.contains("\"inf"), "{}", description.name);
        }
        let help = description.help();
        assert!(
            description.params.iter().all(|param| help.contains(param.key)),
            "{}",
            description.name
        );
    }
}

#[test]
fn tables_are_functions_of_their_seeds() {
    for name in ["stragglers", "moe-routing", "local-sgd"] {
        let once = run(name, &[], &[], 1);
        assert_eq!(once.rows, run(name, &[], &[], 1).rows, "{name}");
        let experiment = find(name).expect("a name of the list");
        let mut other = Study::new(experiment.description());
        other.seed = 1;
        assert_ne!(once.rows, other.run(experiment).expect("it runs").rows, "{name}");
    }
}

#[test]
fn computed_tables_do_not_depend_on_the_seed() {
    let experiment = find("minibatch-local").expect("a name of the list");
    let of = |seed: u64| {
        let sweep = ["rounds=1,4".to_owned()];
        let mut study = Study::with(experiment.description(), &[], &sweep).expect("fits");
        (study.seed, study.num_seeds) = (seed, 1);
        study.run(experiment).expect("it runs").rows
    };
    assert_eq!(of(0), of(1), "losses are computed, and not means of a sample");
}

/// Means over seeds are within twice their confidence interval of the closed form.
#[test]
fn simulated_means_agree_with_closed_forms() {
    let cases = [
        ("stragglers", &["steps=200"][..], "workers=4,64,256", "efficiency", "expected_efficiency"),
        // A tail exponent above 2: the maximum has a variance, so its mean has an interval.
        (
            "stragglers",
            &["steps=300", "distribution=pareto", "shape=4"],
            "workers=2,16,64",
            "efficiency",
            "expected_efficiency",
        ),
        (
            "stragglers",
            &["steps=300", "distribution=trace"],
            "workers=2,16,64",
            "efficiency",
            "expected_efficiency",
        ),
        ("checkpointing", &[], "interval=30min,2h,6h", "overhead", "exact_overhead"),
        ("loss-scaling", &["draws=5000"], "exponent=0,29,30", "overflow", "expected_overflow"),
        ("loss-scaling", &["draws=5000"], "exponent=-5,0,2", "subnormal", "expected_subnormal"),
        ("gradient-noise", &["draws=50"], "workers=1,4,16", "mean_variance", "expected_variance"),
        (
            "gradient-noise",
            &["draws=50"],
            "workers=1,4,16",
            "worker_variance",
            "expected_worker_variance",
        ),
    ];
    for (name, params, sweep, simulated, expected) in cases {
        let report = run(name, params, &[sweep], 20);
        let column = report.rows.index(simulated).expect("a column");
        let (found, right) = (report.rows.numbers(simulated), report.rows.numbers(expected));
        for (row, (found, right)) in found.iter().zip(right).enumerate() {
            let half = report.rows.spread[row][column];
            // Deterministic values have no interval and are equal.
            let tolerance = 2.0 * half + 1e-9;
            assert!(
                (found - right).abs() <= tolerance,
                "{name}, row {row}: {found} ± {half}, {right}"
            );
        }
    }
}

#[test]
fn simulated_step_matches_the_planner_bit_for_bit() {
    for algorithm in ["ring", "tree", "butterfly", "rabenseifner", "hierarchical"] {
        let param = format!("algorithm={algorithm}");
        let params = [&*param, "buckets=4", "gradient=64MB"];
        let report = run("data-parallel", &params, &["workers=2,8,16"], 1);
        let (found, planned) =
            (report.rows.numbers("step_seconds"), report.rows.numbers("planned_seconds"));
        for (found, planned) in found.iter().zip(planned) {
            assert_eq!(found.to_bits(), planned.to_bits(), "{algorithm}: {found}, {planned}");
        }
    }
}

#[test]
fn sweeps_make_a_grid_and_seeds_make_confidence_intervals() {
    let report = run("stragglers", &["steps=50"], &["workers=8,16", "variation=0.1,0.3"], 3);
    assert_eq!(report.rows.rows.len(), 4);
    assert_eq!(report.rows.texts("variation"), ["0.1", "0.3", "0.1", "0.3"]);
    let csv = report.rows.csv();
    assert!(csv.starts_with("workers,variation,step_seconds,"), "{csv}");
    assert!(csv.lines().next().is_some_and(|line| line.contains("step_seconds_ci95")), "{csv}");
    let text = report.rows.text();
    assert!(text.contains('±'), "{text}");
    // Two swept parameters: a heat map with the number in every cell.
    let description = find("stragglers").expect("it exists").description();
    let drawn = chart::svg(description, &report);
    let numbers = report.rows.texts("efficiency");
    assert!(numbers.iter().all(|number| drawn.contains(&format!(">{number}</text>"))), "{drawn}");
}

#[test]
fn invalid_input_is_reported_with_valid_values() {
    let error = |name: &str, params: &[&str]| -> LabError {
        let owned: Vec<String> = params.iter().map(|&text| text.to_owned()).collect();
        match find(name) {
            Err(unknown) => unknown,
            Ok(experiment) => {
                Study::with(experiment.description(), &owned, &[]).expect_err("invalid")
            }
        }
    };
    let cases = [
        (error("straglers", &[]), "`straglers` is no experiment; did you mean stragglers?"),
        (
            error("stragglers", &["worker=3"]),
            "`worker` is no parameter of this experiment; did you mean workers?",
        ),
        (error("stragglers", &["workers=0"]), "workers = 0 is not allowed: 1 to 4096; try 256"),
        (error("stragglers", &["workers=2.5"]), "workers = 2.5 is not allowed: 1 to 4096; try 256"),
        (
            error("stragglers", &["distribution=normal"]),
            "distribution = normal is not allowed: try log-normal, pareto, trace",
        ),
        (error("stragglers", &["workers"]), "`workers` is not key=value; try workers=1"),
    ];
    for (error, text) in cases {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn claims_have_the_expected_verdicts() {
    let claims = check().expect("claims run");
    assert!(claims.len() >= 15, "{}", claims.len());
    let verdict = |part: &str| {
        let claim = claims.iter().find(|claim| claim.claim.contains(part)).expect("it exists");
        (claim.verdict, claim.evidence.clone())
    };
    for part in [
        "under 5 %",
        "tree beats",
        "NaN",
        "square root",
        "average out",
        "same seed",
        "ZeRO-3 might",
        "always faster",
    ] {
        let (verdict, evidence) = verdict(part);
        assert_eq!(verdict, Verdict::False, "{part}: {evidence}");
    }
    for part in ["halves the time", "local SGD saves", "beats a mini-batch", "common optimum"] {
        let (verdict, evidence) = verdict(part);
        assert_eq!(verdict, Verdict::ItDepends, "{part}: {evidence}");
    }
}

#[test]
fn walks_end_with_complete_sums() {
    for name in ["ring", "tree", "butterfly", "rabenseifner", "hierarchical"] {
        for num_ranks in [2, 4, 6, 8] {
            let walked = walk::walk(name, num_ranks, Bytes(1_000_000)).expect("a known walk");
            let last = walked.frames.last().expect("at least one frame");
            for rank in &last.held {
                assert!(rank.iter().all(|held| held.text == "sum"), "{name}, {num_ranks}");
            }
        }
    }
    let ring = walk::walk("ring", 4, Bytes(1_000_000)).expect("a ring");
    assert_eq!(ring.frames.len(), 1 + 6);
    assert_eq!(ring.frames[6].sent, [Bytes(1_500_000); 4]);
    for name in walk::NAMES {
        let walked = walk::walk(name, 4, Bytes(1_000_000)).expect("a known walk");
        let page = walk::html(&walked);
        assert_eq!(page.matches("<section").count(), walked.frames.len(), "{name}");
        assert_eq!(walk::svg(&walked).matches("<svg").count(), 1 + walked.frames.len(), "{name}");
        assert!(walk::text(&walked).contains(&walked.title), "{name}");
    }
    let wrong = walk::walk("rign", 4, Bytes(4)).expect_err("no such walk");
    assert_eq!(wrong.to_string(), "`rign` is no walk; did you mean ring?");
}
