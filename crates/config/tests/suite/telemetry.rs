//! Telemetry: every key sets its field and leaves the hash, and invalid addresses are refused.

use lockstep_config::{Recipe, Sources, resolve};

fn sources(sets: &[&str]) -> Sources {
    Sources { sets: sets.iter().map(|set| (*set).to_owned()).collect(), ..Sources::default() }
}

fn recipe(sets: &[&str]) -> Recipe {
    resolve(&sources(sets)).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn every_key_sets_its_field_and_leaves_the_hash() {
    let plain = recipe(&[]);
    assert!(!plain.telemetry.exports_metrics() && !plain.telemetry.is_traced(64));
    let full = recipe(&[
        "telemetry.tensorboard=true",
        "telemetry.trace=true",
        "telemetry.trace_every=10",
        "telemetry.csv=true",
        "telemetry.prometheus=[::1]:9400",
        "telemetry.otlp=http://collector:4318/base/",
        "telemetry.noise_scale=7",
        "telemetry.histograms_every=3",
    ]);
    let telemetry = &full.telemetry;
    assert!(telemetry.tensorboard && telemetry.trace && telemetry.csv);
    assert_eq!(telemetry.prometheus, "[::1]:9400");
    assert_eq!(telemetry.otlp, "http://collector:4318/base/");
    assert!(telemetry.is_traced(10) && !telemetry.is_traced(64));
    assert_eq!((telemetry.histograms_every, plain.telemetry.histograms_every), (3, 0));
    assert!(full.is_noise_measured(14) && !full.is_noise_measured(15));
    assert_eq!(full.hash(), plain.hash());
    assert_eq!(full.identity_text(), plain.identity_text());
    for one in ["tensorboard=true", "csv=true", "prometheus=a:1", "otlp=http://a:1"] {
        assert!(recipe(&[&format!("telemetry.{one}")]).telemetry.exports_metrics(), "{one}");
    }
}

#[test]
fn noise_is_measured_where_the_gradients_of_leaves_are_reduced() {
    let is_measured = |sets: &[&str]| recipe(sets).measures_gradient_noise();
    assert!(is_measured(&[]) && is_measured(&["sync.stragglers=shares", "run.workers=2"]));
    let without: [&[&str]; 6] = [
        &["telemetry.noise_scale=0"],
        &["numerics.invariant_up_to=1", "run.workers=1"],
        &["sync.mode=local-sgd"],
        &["compress.method=top-k"],
        &["sync.gradient_delay=1"],
        &["sync.stragglers=exclude", "run.workers=2"],
    ];
    for sets in without {
        assert!(!is_measured(sets), "{sets:?}");
    }
}

#[test]
fn invalid_addresses_are_refused_in_one_line_with_a_fix() {
    let prometheus = "; try \"127.0.0.1:9400\"";
    let otlp = "; try \"http://127.0.0.1:4318\"";
    for (set, rule, fix) in [
        ("prometheus=9400", "is not host:port", prometheus),
        ("prometheus=:9400", "is not host:port", prometheus),
        ("prometheus=localhost", "is not host:port", prometheus),
        ("prometheus=a:70000", "is not host:port", prometheus),
        ("otlp=localhost:4318", "is not http://host:port", otlp),
        ("otlp=http://localhost", "is not http://host:port", otlp),
        ("otlp=http://localhost:0", "is not http://host:port", otlp),
        ("otlp=http://a:1/b c", "is not http://host:port", otlp),
        ("otlp=https://localhost:4318", "needs TLS", otlp),
    ] {
        let text = resolve(&sources(&[&format!("telemetry.{set}")])).expect_err(set).to_string();
        let key = set.split('=').next().expect("a key");
        assert!(text.starts_with(&format!("telemetry.{key} = ")), "{text}");
        assert!(text.contains(rule) && text.contains(fix), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}
