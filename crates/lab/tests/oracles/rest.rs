//! Rows that are true as printed and belong to no table: stale gradients, effective delays, steps
//! and transfers of the case studies.

use super::{at, near, row};
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_planner::scaling::{step_efficiency, step_seconds, strong_efficiency};

#[test]
fn delays_and_what_they_stand_for() {
    // A gradient takes 100 ms and an update comes every 10 ms: ten have come meanwhile.
    let all = ["workers=11", "compute=100ms", "push=10ms", "variation=0", "noise=0", "target=1e-6"];
    let age = at("consistency", &all, "asynchronous", "staleness");
    near("A O60", age, 10.0, 0.05);
    // Staleness is a condition number that is 1 + tau times as large.
    let iterations = |condition: &str, staleness: &str| {
        let params = [format!("condition={condition}"), format!("staleness={staleness}")];
        at("bounded-async", &[&params[0], &params[1]], "", "iterations")
    };
    near("B O59", iterations("100", "5"), iterations("600", "0"), 0.02);
    let rule = |momentum: &str, staleness: &str, column| {
        let params = [format!("momentum={momentum}"), format!("staleness={staleness}")];
        at("momentum-delay", &[&params[0], &params[1]], "", column)
    };
    row("B O61, delay", 1.0 / rule("0.9", "1", "rule"), "10");
    let step = |staleness: &str, lr: &str| {
        let params = [format!("staleness={staleness}"), format!("lr={lr}")];
        at("bounded-async", &[&params[0], &params[1], "most=10"], "", "step_size")
    };
    row("B O61, step", step("10", "1"), "0.0909");
    // The source prints 0.067, which is 1/15.
    row("B O62", step("15", "1"), "0.0625");
    row("B O62, step", step("15", "0.01"), "0.000625");
}

/// Step size x effective delay x curvature, with the verdict of the exact roots: whatever delay and
/// momentum the product is made of.
#[test]
fn products_far_from_one_are_judged_as_the_roots_do() {
    let rows = [
        ("B O159", 7.5, false),
        ("B O159", 0.75, true),
        ("B O159", 2.5, false),
        ("B O159", 0.25, true),
        ("B O159", 0.36, true),
        ("B O159", 5.0, false),
        ("B O112", 0.5, true),
        ("B O112", 0.04, true),
        ("B O112", 0.008, true),
        ("B O112", 0.025, true),
        ("B O112", 0.012, true),
    ];
    for momentum in [0.0, 0.5, 0.9] {
        for staleness in [1.0, 5.0, 20.0] {
            let params = [format!("momentum={momentum}"), format!("staleness={staleness}")];
            let limit = at("momentum-delay", &[&params[0], &params[1]], "", "exact_limit");
            for (name, product, is_stable) in rows {
                let step = product * (1.0 - momentum) / staleness;
                assert_eq!(step < limit, is_stable, "row {name}, {product}: {params:?}, {limit}");
            }
        }
    }
}

#[test]
fn steps_and_efficiencies_of_case_studies() {
    let s = Seconds;
    row("A O72", 100.0 * strong_efficiency(s(12.0), 16_000, s(1.0)), "0.075");
    row("A O133", s(4.2) / s(4.0), "1.05");
    row("A O133", s(4.8) / s(4.0), "1.20");
    row("A O215", s(45.0) / s(28.0), "1.607");
    row("A O223", s(24.0 * 3600.0) / s(20.0 * 60.0), "72");
    row("B O77", step_seconds(s(50.0), 1, s(150.0)).0, "200");
    row("B O101", s(12.0) / s(4.5), "2.67");
    let hours = |iterations: f64, step: &str| {
        let param = format!("compute={step}");
        let all = [&*param, "communication=0", "local_steps=1", "target=0.9"];
        iterations * at("local-sgd", &all, "", "step_seconds") / 3600.0
    };
    row("B O111", hours(80e3, "0.5"), "11.1");
    row("B O111, fresh", hours(40e3, "1.2"), "13.3");
    row("B O161", 1.0 - step_efficiency(s(112.0), s(8.0)), "0.067");
    row("B O161", 1.0 - step_efficiency(s(96.0), s(24.0)), "0.200");
}

#[test]
fn bytes_and_products_of_case_studies() {
    let megabyte = 1_000_000;
    let ms = |bytes: u64, gigabytes: f64| 1e3 * (Bytes(bytes) / BytesPerSecond(gigabytes * 1e9)).0;
    row("A O196", ms(273 * megabyte, 40.0), "6.8");
    row("B O55, us", 1e3 * ms(2 * 40_000, 12.5), "6.4");
    row("B O94, time", Seconds(100.0) / Seconds(45.0), "2.22");
    row("B O155, ms", ms(122_880_000, 600.0), "0.205");
    row("B O165", ms(31_200_000, 12.5), "2.5");
    row("B O169", ms(2_150 * megabyte, 50.0), "43");
}
