//! Values of case studies: stale gradients, effective delays, step times and transfers.

use super::{assert_close, assert_digits, value_at};
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_planner::scaling::{step_efficiency, step_seconds, strong_efficiency};

#[test]
fn staleness_acts_like_delay_and_condition_number() {
    // A gradient takes 100 ms and the server updates every 10 ms: ten updates in between.
    let all = ["workers=11", "compute=100ms", "push=10ms", "variation=0", "noise=0", "target=1e-6"];
    let age = value_at("consistency", &all, "asynchronous", "staleness");
    assert_close("age", age, 10.0, 0.05);
    // Staleness tau acts like a condition number 1 + tau times as large.
    let iterations = |condition: &str, staleness: &str| {
        let params = [format!("condition={condition}"), format!("staleness={staleness}")];
        value_at("bounded-async", &[&params[0], &params[1]], "", "iterations")
    };
    assert_close("iterations", iterations("100", "5"), iterations("600", "0"), 0.02);
    let rule = |momentum: &str, staleness: &str, column| {
        let params = [format!("momentum={momentum}"), format!("staleness={staleness}")];
        value_at("momentum-delay", &[&params[0], &params[1]], "", column)
    };
    assert_digits("delay", 1.0 / rule("0.9", "1", "rule_of_thumb"), "10");
    let step = |staleness: &str, lr: &str| {
        let params = [format!("staleness={staleness}"), format!("lr={lr}")];
        value_at("bounded-async", &[&params[0], &params[1], "max_iterations=10"], "", "step_size")
    };
    assert_digits("step", step("10", "1"), "0.0909");
    // Lecture notes print 0.067, which is 1/15.
    assert_digits("step", step("15", "1"), "0.0625");
    assert_digits("step", step("15", "0.01"), "0.000625");
}

/// The product step size x effective delay x curvature, far from 1, predicts stability for any
/// delay and momentum.
#[test]
fn products_far_from_one_predict_stability() {
    let products = [
        (7.5, false),
        (0.75, true),
        (2.5, false),
        (0.25, true),
        (0.36, true),
        (5.0, false),
        (0.5, true),
        (0.04, true),
        (0.008, true),
        (0.025, true),
        (0.012, true),
    ];
    for momentum in [0.0, 0.5, 0.9] {
        for staleness in [1.0, 5.0, 20.0] {
            let params = [format!("momentum={momentum}"), format!("staleness={staleness}")];
            let limit = value_at("momentum-delay", &[&params[0], &params[1]], "", "exact_limit");
            for (product, is_stable) in products {
                let step = product * (1.0 - momentum) / staleness;
                assert_eq!(step < limit, is_stable, "{product}: {params:?}, {limit}");
            }
        }
    }
}

#[test]
fn steps_and_efficiencies_of_case_studies() {
    let s = Seconds;
    assert_digits("strong efficiency", 100.0 * strong_efficiency(s(12.0), 16_000, s(1.0)), "0.075");
    assert_digits("steps and efficiencies of case studies", s(4.2) / s(4.0), "1.05");
    assert_digits("steps and efficiencies of case studies", s(4.8) / s(4.0), "1.20");
    assert_digits("steps and efficiencies of case studies", s(45.0) / s(28.0), "1.607");
    assert_digits(
        "steps and efficiencies of case studies",
        s(24.0 * 3600.0) / s(20.0 * 60.0),
        "72",
    );
    assert_digits("step seconds", step_seconds(s(50.0), 1, s(150.0)).0, "200");
    assert_digits("steps and efficiencies of case studies", s(12.0) / s(4.5), "2.67");
    let hours = |iterations: f64, step: &str| {
        let param = format!("compute={step}");
        let all = [&*param, "communication=0", "local_steps=1", "target=0.9"];
        iterations * value_at("local-sgd", &all, "", "step_seconds") / 3600.0
    };
    assert_digits("hours", hours(80e3, "0.5"), "11.1");
    assert_digits("fresh", hours(40e3, "1.2"), "13.3");
    assert_digits(
        "steps and efficiencies of case studies",
        1.0 - step_efficiency(s(112.0), s(8.0)),
        "0.067",
    );
    assert_digits(
        "steps and efficiencies of case studies",
        1.0 - step_efficiency(s(96.0), s(24.0)),
        "0.200",
    );
}

#[test]
fn bytes_and_products_of_case_studies() {
    let megabyte = 1_000_000;
    let ms = |bytes: u64, gigabytes: f64| 1e3 * (Bytes(bytes) / BytesPerSecond(gigabytes * 1e9)).0;
    assert_digits("megabyte", ms(273 * megabyte, 40.0), "6.8");
    assert_digits("us", 1e3 * ms(2 * 40_000, 12.5), "6.4");
    assert_digits("time", Seconds(100.0) / Seconds(45.0), "2.22");
    assert_digits("ms", ms(122_880_000, 600.0), "0.205");
    assert_digits("bytes and products of case studies", ms(31_200_000, 12.5), "2.5");
    assert_digits("megabyte", ms(2_150 * megabyte, 50.0), "43");
}
