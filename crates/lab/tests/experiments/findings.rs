//! Findings, seeds and timelines under other sweeps than the default one.

use crate::run;
use lockstep_lab::experiments::{ALL, find};
use lockstep_lab::{Domain, LabError, Param, Settings, Study, Unit, Value, chart};

/// A value of a parameter other than its default, as text.
fn other_value(param: &Param) -> String {
    match param.domain {
        Domain::Choice(of) => of[of.len() - 1].to_owned(),
        // Half of it where that is allowed, since it is quicker.
        Domain::Range { min, default, .. } => {
            let half = default / 2.0;
            let half = if param.unit == Unit::Count { half.floor() } else { half };
            let twice = if default > 0.0 { 2.0 * default } else { 1.0 };
            if half >= min && half > 0.0 { half } else { twice }.to_string()
        }
    }
}

/// Findings with nothing swept, and with another parameter swept than by default.
#[test]
fn findings_name_swept_parameters_only() {
    for experiment in ALL {
        let description = experiment.description();
        let default = description.param(description.sweep.0).expect("it is a parameter");
        let other = description.params.iter().find(|param| param.key != default.key);
        let fixed = vec![format!("{}={}", default.key, other_value(default))];
        let swept = other.into_iter().map(|param| {
            let standard = match Settings::defaults(description).value(param.key) {
                Value::Number(number) => number.to_string(),
                Value::Text(text) => text.clone(),
            };
            format!("{}={standard},{}", param.key, other_value(param))
        });
        for (params, sweeps) in [(fixed, vec![]), (vec![], swept.collect())] {
            let study = Study::with(description, &params, &sweeps).expect("they fit");
            let report = match study.run(*experiment) {
                Err(LabError::Conflict { .. }) => continue,
                report => report.expect("it runs"),
            };
            assert!(!report.findings.is_empty(), "{}", description.name);
            for finding in &report.findings {
                let context = format!("{} {params:?} {sweeps:?}: {finding}", description.name);
                // Whatever stands before an equals sign is swept, and the value is in the table.
                for (at, _) in finding.match_indices(" = ") {
                    let key = finding[..at].rsplit(' ').next().expect("a word");
                    assert!(report.sweep.contains_key(key), "{context}");
                    let texts = report.rows.texts(key);
                    let rest = &finding[at + 3..];
                    assert!(texts.iter().any(|text| rest.starts_with(text)), "{context}");
                }
                assert!(!finding.contains("NaN") && !finding.contains("  "), "{context}");
                // Nothing is compared with itself.
                let compares = report.rows.num_swept > 0;
                assert!(compares || !finding.contains(" to the power "), "{context}");
            }
        }
    }
}

#[test]
fn findings_follow_the_points_and_not_their_order() {
    let first = |name: &str, params: &[&str], sweeps: &[&str]| {
        run(name, params, sweeps, 1).findings.swap_remove(0)
    };
    let step = ["step=constant"];
    let diverges = "The target is never reached at staleness = 50";
    assert_eq!(first("bounded-async", &step, &["staleness=50,0"]), diverges);
    assert_eq!(first("bounded-async", &step, &["staleness=0,50"]), diverges);
    let both = first("bounded-async", &["staleness=50"], &["step=scaled,constant"]);
    assert_eq!(both, "The target is never reached at step = constant");
    // Without the dense gradient among the points, it is still what compression is compared with.
    let report = run("compression", &["ratio=0.05"], &[], 1);
    let (sparse, dense) = (report.rows.texts("iterations"), report.rows.texts("dense_iterations"));
    let iterations = format!("takes {} iterations, dense gradients {}", sparse[0], dense[0]);
    assert!(report.findings[1].ends_with(&iterations), "{:?}", report.findings);
    assert_ne!(sparse, dense);
}

/// Runs that are compared, and points of a sweep, draw the same random numbers.
#[test]
fn compared_runs_share_their_seeds() {
    for method in ["random-k", "quantised"] {
        let params = [&*format!("method={method}"), "dim=50"];
        let report = run("compression", &params, &["ratio=0.1,0.5,1"], 1);
        for column in ["dense_iterations", "dense_seconds"] {
            let baseline = report.rows.numbers(column);
            assert!(baseline.iter().all(|x| x.to_bits() == baseline[0].to_bits()), "{baseline:?}");
        }
    }
    let rows = |name: &str, params: &[&str], sweep: &str, column: &str, texts: [&str; 2]| {
        let report = run(name, params, &[sweep], 1);
        let numbers = report.rows.numbers(column);
        let names = report.rows.texts(report.columns[1].name);
        let row = |text: &str| names.iter().position(|name| name == text).expect("a row");
        let pair = texts.map(|text| numbers[row(text)].to_bits());
        assert_eq!(pair[0], pair[1], "{name}, {texts:?}: {numbers:?}");
    };
    // One round on the complete graph is an exact average.
    let both = ["all to all", "all-reduce"];
    rows("consensus", &["noise=0.5"], "workers=4", "consensus_distance", both);
    let federated = ["rounds=20", "noise=0.5", "sampled=3", "proximal_mu=0"];
    rows("federated-drift", &federated, "local_steps=4", "distance", ["fedavg", "fedprox"]);
    // Without staleness all policies are plain.
    let fresh = ["staleness=0", "noise=0.02"];
    rows("staleness-aware", &fresh, "lr=0.05", "iterations", ["plain", "by age"]);
    let exact = ["1 synchronous", "7 aggregation error"];
    rows("theorems", &["compression=0"], "staleness=0", "measured", exact);
}

#[test]
fn timelines_draw_the_workers_of_their_title() {
    for (name, params) in [
        ("data-parallel", &["variation=0.2", "workers=64"][..]),
        ("stragglers", &["workers=256"]),
        ("pipeline", &["devices=16"]),
    ] {
        let experiment = find(name).expect("a name of the list");
        let owned: Vec<String> = params.iter().map(|&text| text.to_owned()).collect();
        let study = Study::with(experiment.description(), &owned, &[]).expect("they fit");
        let timeline = study.timeline(experiment).expect("it runs").expect("it has one");
        assert!(timeline.tracks.len() > 48 && !timeline.named.is_empty(), "{name}");
        let svg = chart::timeline_svg(experiment.description(), &timeline);
        assert!(svg.contains(&format!("48 of {} tracks drawn", timeline.tracks.len())), "{name}");
        for &track in &timeline.named {
            let label = format!(">{}<", timeline.tracks[track].name);
            assert!(svg.contains(&label), "{name}: {label}");
        }
        if let Some((_, worker)) = timeline.title.split_once("the slowest is ") {
            assert!(svg.contains(&format!(">{worker}<")), "{}", timeline.title);
        }
    }
}
