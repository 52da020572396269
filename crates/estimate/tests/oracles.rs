//! Worked numbers of a textbook chapter that concern clusters, each named by its row. Where the
//! printed number is wrong, the right one stands here, and the row says so. Rows on collectives,
//! speed-up, bubbles and convergence: tests of `planner` and `lab`.

use lockstep_config::interval::young;
use lockstep_estimate::bill::effective_share;
use lockstep_estimate::hardware::{Cluster, Device};
use lockstep_estimate::model::{Counted, preset, step_flops};

/// The number that was computed, beside the row's.
fn row(name: &str, computed: f64, expected: f64) {
    assert!((computed / expected - 1.0).abs() < 0.01, "{name}: {computed} instead of {expected}");
}

#[test]
fn checkpoints_and_failures() {
    let (hours, year) = (3600.0, 8766.0);
    row("b O119, bytes", 540e9 * 6.0 / 1e12, 3.24);
    row("b O119, GB a device", 540.0 * 6.0 / 3072.0, 1.05);
    let mtbf = 8.0 * year / 3072.0;
    row("b O119, hours between failures", mtbf, 22.8);
    row("b O119, interval", young(600.0, mtbf * hours) / hours, 2.757);
    row("b O30, printed as 112.3 minutes", young(300.0, 21.0 * hours) / 60.0, 112.25);
    row("b O115, interval", young(90.0, 43_800.0 / 2048.0 * hours) / hours, 1.034);
    row("b O121, interval", young(1200.0, 4.0 * year / 1024.0 * hours) / hours, 4.78);
    row("b O127, seconds", young(600.0, 18.0 * hours), 8818.0);
    // What checkpoints and repeated work take, with nothing else lost: the best is Young's.
    let lost = |interval: f64| 1.0 - effective_share(600.0, interval * hours, mtbf * hours, 0.0);
    assert!(lost(2.757) < lost(1.0) && lost(2.757) < lost(6.0), "b O120");
    for (interval, first_order) in [(3.0, 0.121), (1.0, 0.189), (6.0, 0.159)] {
        // The row's C/τ + τ/2M is its first order.
        let exact = lost(interval);
        assert!(exact < first_order && exact > first_order * 0.85, "b O120: {interval}, {exact}");
    }
    // Printed as 8 h and 320 h: half an interval is lost, not two of them.
    row("b O129, printed as 8 h", 4.0 / 2.0, 2.0);
    row("b O129, printed as 320 h", 40.0 * 4.0 / 2.0, 80.0);
    row("b O130, printed as 1400 s", (700.0 + 1400.0) / 1.0, 2100.0);
    row("b O130, printed as 14 TB", 10.0 * (0.7 + 1.4), 21.0);
    row("b O131, printed as minutes", 12.0 * hours / 1000.0, 43.2);
    row("b O131, seconds of a write", 1000.0 / 5.0, 200.0);
    // Printed as 47 device-days.
    row("b O117, device-days", 24_064.0 / 24.0, 1003.0);
}

#[test]
fn memory_of_models() {
    let device = Device::named("a100-40gb").expect("it is one");
    // Printed as 700 GB and 18 devices, which is FP32.
    row("b O192, GB", 175.0 * 2.0, 350.0);
    row("b O192, devices", (350.0 / device.memory_gb).ceil(), 9.0);
    row("b O53, MB", 350_000.0 / 3000.0, 116.7);
    row("b O163, tokens", 256.0 * 2048.0, 524_288.0);
    row("b O163, a device's", 524_288.0 / 256.0, 2048.0);
    // Printed as 9.6: beside ten checkpoints a segment of ten is alive.
    row("b O220, checkpoints alone", 96.0 / 10.0, 9.6);
    row("b O220, with the live segment", 96.0 / (10.0 + 10.0), 4.8);
    row("b O164, parameters of three more replicas, printed as 12 B", 3.0 * 3.0, 9.0);
}

#[test]
fn money_and_operations() {
    let mut cluster = Cluster::of(Device::named("a100-80gb").expect("it is one"), 1024);
    cluster.dollars_per_device_hour = 3.0;
    let device_hours = 720.0 * cluster.devices as f64;
    // Printed as 4 to 5 million.
    row("b O212, dollars", device_hours * cluster.dollars_per_device_hour, 2.21e6);
    row("b O212, device-years", device_hours / 8766.0, 84.1);
    let gpt3 = preset("gpt3-175b").expect("it is one");
    let flops = 6.0 * gpt3.num_params() as f64 * 300e9;
    row("b O212, share of the peak", 3.14e23 / (device_hours * 3600.0 * 312e12), 0.379);
    assert!((flops / 3.14e23 - 1.0).abs() < 0.01, "{flops}");
    let counted = step_flops(&gpt3, 1, Counted::Causal) / 2048.0 * 300e9;
    assert!((counted / flops - 1.0).abs() < 0.03, "{counted}");
    let device = Device::named("a100-80gb").expect("it is one");
    row("b O201, seconds on one device", flops / device.peak(), 1.006e9);
    row("b O202, ms", 1e3 * 1.0 / 10.0, 100.0);
    row("b O202, operations of an arithmetic intensity", 6e11 * 32.0, 1.92e13);
}

#[test]
fn numbers_that_are_printed_wrong() {
    // Printed as 37.5 minutes: a failure loses half of the best interval.
    row("b O31, minutes", young(300.0, 21.0 * 3600.0) / 2.0 / 60.0, 56.1);
    // Printed as 18 h and as 30 to 50 % slower: what counts is step time times iterations.
    row("b O50, hours", 13.0 * 0.8 * 1.5, 15.6);
    row("b O60, least share of the time", 1.5 / 5.0, 0.3);
    row("b O60, largest share of the time", 2.0 / 5.0, 0.4);
    // Printed as 0.875 %: fifteen small checkpoints go with every large one.
    let (small, large, interval) = (9.0, 90.0, 4.0 * 3600.0);
    row("b O124, share", (15.0 * small + large) / interval, 0.015_6);
    // Printed as 32 and 4 sequences a device.
    row("b O142, few devices", 256.0 / 64.0, 4.0);
    row("b O142, many devices", 256.0 / 512.0, 0.5);
    row("b O150, printed as 2098", (6144.0_f64 * 3500.0 / 5.0).sqrt(), 2074.0);
    // Printed as 2 and 4 experts a device.
    row("b O166, experts", 512.0 / 1024.0, 0.5);
    row("b O166, more devices", 512.0 / 2048.0, 0.25);
    row("b O177, seconds, printed as 40", 400.0 / (10.0 * 1000.0), 0.04);
    row("b O193, sequences, printed as 2048", 32.0 * 8.0, 256.0);
}
