//! Properties of all experiments: they match their descriptions, depend on the seed only, render,
//! and agree with their closed forms.

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

/// Means over seeds are within twice their confidence interval of the closed form.
#[test]
fn simulated_means_agree_with_closed_forms() {
    let cases = [
        ("stragglers", &["steps=200"][..], "workers=4,64,256", "efficiency", "expected_efficiency"),
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
fn pareto_and_traces_match_their_expected_maxima() {
    for distribution in ["pareto", "trace"] {
        let param = format!("distribution={distribution}");
        let params = [&*param, "shape=4", "steps=300"];
        let report = run("stragglers", &params, &["workers=2,16,64"], 20);
        let (found, right) =
            (report.rows.numbers("efficiency"), report.rows.numbers("expected_efficiency"));
        for (found, right) in found.iter().zip(right) {
            assert!((found / right - 1.0).abs() < 0.02, "{distribution}: {found}, {right}");
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

/// Checks that two columns agree within a relative error.
fn agree(report: &Report, found: &str, right: &str, error: f64) {
    let pairs = report.rows.numbers(found).into_iter().zip(report.rows.numbers(right));
    for (row, (found, right)) in pairs.enumerate() {
        let tolerance = error * right.abs() + 1e-6;
        assert!((found - right).abs() <= tolerance, "{}, row {row}: {found}, {right}", report.name);
    }
}

#[test]
fn heterogeneity_bias_grows_with_the_square_of_local_steps() {
    let report = run("heterogeneity-bias", &[], &[], 1);
    agree(&report, "bias", "expected_bias", 0.02);
    let (square, linear) =
        (report.rows.numbers("loss_over_square"), report.rows.numbers("loss_over_linear"));
    // s^2/8 for small steps; relative to the first power it has no limit.
    assert!((square[1] - 0.03125).abs() < 1e-3, "{square:?}");
    assert!(linear[6] > 10.0 * linear[2], "{linear:?}");
    let homogeneous = run("heterogeneity-bias", &["spread=0"], &[], 1);
    assert!(homogeneous.rows.numbers("bias").iter().all(|bias| *bias < 1e-5));
    // It also grows with the square of Gamma.
    let gamma = run("heterogeneity-bias", &[], &["gamma=1,2,4"], 1).rows.numbers("expected_loss");
    assert!((gamma[1] / gamma[0] - 4.0).abs() < 1e-9 && (gamma[2] / gamma[0] - 16.0).abs() < 1e-9);
}

#[test]
fn fedavg_converges_to_its_closed_form_and_scaffold_to_the_optimum() {
    let report = run("federated-drift", &["rounds=300"], &["local_steps=2,10"], 1);
    let (methods, distance) = (report.rows.texts("method"), report.rows.numbers("distance"));
    let expected = report.rows.numbers("expected_distance");
    for (row, method) in methods.iter().enumerate() {
        match method.as_str() {
            "fedavg" => {
                assert!((distance[row] - expected[row]).abs() < 0.02, "{row}: {distance:?}");
            }
            "scaffold" => assert!(distance[row] < 0.02, "{row}: {distance:?}"),
            _ => {}
        }
    }
}

#[test]
fn speed_up_is_linear_while_noise_dominates() {
    let report = run("linear-speed-up", &["runs=40", "noise=1"], &["workers=1,2,4"], 1);
    agree(&report, "iterations", "expected_iterations", 0.2);
    let speed = report.rows.numbers("speed_up");
    assert!((speed[2] / 4.0 - 1.0).abs() < 0.15, "{speed:?}");
    let noiseless = run("linear-speed-up", &["noise=0.01"], &["workers=1,64"], 1);
    assert!((noiseless.rows.numbers("speed_up")[1] - 1.0).abs() < 1e-9, "no noise, no speed-up");
}

#[test]
fn best_local_steps_grow_like_a_square_root_or_a_cube_root() {
    let report = run("best-local-steps", &[], &["ratio=4,256"], 1);
    let best = report.rows.numbers("best_tau");
    // 64 times the ratio: about 8 times the steps with noise, 4 with heterogeneous data.
    assert!((4.0..=14.0).contains(&(best[2] / best[0])), "{best:?}");
    assert!((2.5..=6.0).contains(&(best[3] / best[1])), "{best:?}");
}

/// Values of a column for one class of problems.
fn ratios(report: &Report, problem: &str, column: &str) -> Vec<f64> {
    let (problems, ratio) = (report.rows.texts("problem"), report.rows.numbers(column));
    ratio.into_iter().zip(problems).filter(|(_, name)| name == problem).map(|(x, _)| x).collect()
}

#[test]
fn local_sgd_beats_mini_batch_sgd_on_quadratics_and_for_few_rounds_on_convex_problems() {
    // Rounds from tau/2 to 4 tau: the crossing scales with tau.
    for (tau, rounds) in [(4, "2,16"), (16, "8,64")] {
        let params = [&*format!("local_steps={tau}"), "workers=512"];
        let report = run("minibatch-local", &params, &[&format!("rounds={rounds}")], 1);
        let convex = ratios(&report, "convex", "ratio");
        assert!(convex[0] > 1.1 && convex[1] < 0.9, "{tau}, {convex:?}");
        let quadratic = ratios(&report, "quadratic", "ratio");
        assert!(quadratic.iter().all(|ratio| *ratio > 1.0), "{tau}, {quadratic:?}");
        let bounds = ratios(&report, "convex", "bound_ratio");
        assert!(bounds[0] > 0.9 && bounds[1] < 0.7, "{tau}, {bounds:?}");
    }
}

#[test]
fn worst_convex_problem_has_the_rate_of_the_bound() {
    let report = run("minibatch-local", &["workers=1024", "runs=1"], &["rounds=4,32"], 1);
    let local = ratios(&report, "convex", "local_loss");
    // 8 times the rounds: a factor of 8^(2/3) = 4 for local SGD, 8 for mini-batch SGD.
    assert!((local[0] / local[1] / 4.0 - 1.0).abs() < 0.25, "{local:?}");
    let minibatch = ratios(&report, "convex", "minibatch_loss");
    assert!((minibatch[0] / minibatch[1] / 8.0 - 1.0).abs() < 0.25, "{minibatch:?}");
}

#[test]
fn all_measured_bounds_hold() {
    let report = run("theorems", &[], &["staleness=0,4"], 1);
    assert_eq!(report.rows.rows.len(), 20);
    assert!(report.findings[0].starts_with("All "), "{:?}", report.findings);
}

#[test]
fn torus_has_the_spectral_gap_of_the_engine() {
    for (workers, degree, gap) in [(4, 2.0, 2.0 / 3.0), (16, 4.0, 0.4), (64, 4.0, 0.117_157)] {
        let report = run("gossip", &[&format!("workers={workers}")], &[], 1);
        let torus = report.rows.texts("graph").iter().position(|graph| graph == "torus");
        let torus = torus.expect("it is one of the graphs");
        assert!((report.rows.numbers("degree")[torus] - degree).abs() < 1e-9, "{workers}");
        assert!((report.rows.numbers("spectral_gap")[torus] - gap).abs() < 1e-4, "{workers}");
    }
}
