//! Worked numbers about clusters: checkpoint intervals (Young 1974), failures, memory of models,
//! money and FLOPs. Where a commonly printed number is wrong, the test has the right one and says
//! so. Collectives, speed-up, bubbles and convergence: tests of `planner` and `lab`.

use lockstep_config::interval::young;
use lockstep_planner::bill::effective_share;
use lockstep_planner::hardware::{Cluster, Device};
use lockstep_planner::model::{FlopsConvention, preset, step_flops};

/// Asserts that a computed number is within one percent of the expected one.
fn check(name: &str, computed: f64, expected: f64) {
    assert!((computed / expected - 1.0).abs() < 0.01, "{name}: {computed} instead of {expected}");
}

#[test]
fn checkpoints_and_failures() {
    let (hours, year) = (3600.0, 8766.0);
    check("checkpoint of 540B parameters at 6 bytes, TB", 540e9 * 6.0 / 1e12, 3.24);
    check("checkpoint per device of 3072, GB", 540.0 * 6.0 / 3072.0, 1.05);
    let mtbf = 8.0 * year / 3072.0;
    check("mean time between failures of 3072 devices, hours", mtbf, 22.8);
    check("Young's interval for 3072 devices, hours", young(600.0, mtbf * hours) / hours, 2.757);
    check(
        "Young's interval for 300 s and 21 h, minutes",
        young(300.0, 21.0 * hours) / 60.0,
        112.25,
    );
    check(
        "Young's interval for 2048 devices, hours",
        young(90.0, 43_800.0 / 2048.0 * hours) / hours,
        1.034,
    );
    check(
        "Young's interval for 1024 nodes, hours",
        young(1200.0, 4.0 * year / 1024.0 * hours) / hours,
        4.78,
    );
    check("Young's interval for 600 s and 18 h, seconds", young(600.0, 18.0 * hours), 8818.0);
    // Checkpoints and repeated work alone: Young's interval is the best.
    let lost = |interval: f64| 1.0 - effective_share(600.0, interval * hours, mtbf * hours, 0.0);
    assert!(lost(2.757) < lost(1.0) && lost(2.757) < lost(6.0), "Young's interval loses least");
    for (interval, first_order) in [(3.0, 0.121), (1.0, 0.189), (6.0, 0.159)] {
        // C/τ + τ/2M is the first order (Young 1974).
        let exact = lost(interval);
        assert!(exact < first_order && exact > first_order * 0.85, "{interval} h: {exact}");
    }
    // Printed as 8 h and 320 h: half an interval is lost, not two of them.
    check("lost work per failure, hours (printed as 8 h)", 4.0 / 2.0, 2.0);
    check("lost work of 40 failures, hours (printed as 320 h)", 40.0 * 4.0 / 2.0, 80.0);
    check(
        "write of weights and state at 1 GB/s, seconds (printed as 1400 s)",
        (700.0 + 1400.0) / 1.0,
        2100.0,
    );
    check("ten checkpoints, TB (printed as 14 TB)", 10.0 * (0.7 + 1.4), 21.0);
    check(
        "time between failures of 1000 nodes, seconds (printed as minutes)",
        12.0 * hours / 1000.0,
        43.2,
    );
    check("write of 1 TB at 5 GB/s, seconds", 1000.0 / 5.0, 200.0);
    // Printed as 47 device-days.
    check("device-days of 24,064 device-hours", 24_064.0 / 24.0, 1003.0);
}

#[test]
fn memory_of_models() {
    let device = Device::named("a100-40gb").expect("it is one");
    // Printed as 700 GB and 18 devices, which is FP32.
    check("GPT-3 weights in fp16, GB", 175.0 * 2.0, 350.0);
    check("devices of 40 GB for GPT-3's weights", (350.0 / device.memory_gb).ceil(), 9.0);
    check("350 GB over 3000 workers, MB", 350_000.0 / 3000.0, 116.7);
    check("tokens of a batch", 256.0 * 2048.0, 524_288.0);
    check("tokens per device", 524_288.0 / 256.0, 2048.0);
    // Printed as 9.6: beside ten checkpoints a segment of ten is alive.
    check("activation checkpointing, checkpoints alone", 96.0 / 10.0, 9.6);
    check("activation checkpointing with the live segment", 96.0 / (10.0 + 10.0), 4.8);
    check("parameters of three more replicas, billions (printed as 12)", 3.0 * 3.0, 9.0);
}

#[test]
fn money_and_operations() {
    let mut cluster = Cluster::of(Device::named("a100-80gb").expect("it is one"), 1024);
    cluster.dollars_per_device_hour = 3.0;
    let device_hours = 720.0 * cluster.devices as f64;
    // Printed as 4 to 5 million.
    check(
        "rent of 1024 devices for 720 h, dollars",
        device_hours * cluster.dollars_per_device_hour,
        2.21e6,
    );
    check("device-years of 1024 devices for 720 h", device_hours / 8766.0, 84.1);
    let gpt3 = preset("gpt3-175b").expect("it is one");
    let flops = 6.0 * gpt3.num_params() as f64 * 300e9;
    check("GPT-3's share of the peak", 3.14e23 / (device_hours * 3600.0 * 312e12), 0.379);
    assert!((flops / 3.14e23 - 1.0).abs() < 0.01, "{flops}");
    let counted = step_flops(&gpt3, 1, FlopsConvention::Causal) / 2048.0 * 300e9;
    assert!((counted / flops - 1.0).abs() < 0.03, "{counted}");
    let device = Device::named("a100-80gb").expect("it is one");
    check("GPT-3 on one A100 at its peak, seconds", flops / device.peak(), 1.006e9);
    check("transfer of 1 GB at 10 GB/s, ms", 1e3 * 1.0 / 10.0, 100.0);
    check("FLOP/s at an arithmetic intensity of 32", 6e11 * 32.0, 1.92e13);
}

#[test]
fn corrected_numbers() {
    // Printed as 37.5 minutes: a failure loses half of the best interval.
    check(
        "lost work per failure at Young's interval, minutes",
        young(300.0, 21.0 * 3600.0) / 2.0 / 60.0,
        56.1,
    );
    // Printed as 18 h and as 30 to 50 % slower: what counts is step time times iterations.
    check("step time times iterations, hours", 13.0 * 0.8 * 1.5, 15.6);
    check("smallest share of the time", 1.5 / 5.0, 0.3);
    check("largest share of the time", 2.0 / 5.0, 0.4);
    // Printed as 0.875 %: fifteen small checkpoints go with every large one.
    let (small, large, interval) = (9.0, 90.0, 4.0 * 3600.0);
    check("overhead of two-level checkpoints", (15.0 * small + large) / interval, 0.015_6);
    // Printed as 32 and 4 sequences a device.
    check("sequences per device of 64", 256.0 / 64.0, 4.0);
    check("sequences per device of 512", 256.0 / 512.0, 0.5);
    check(
        "optimum of a square-root rule (printed as 2098)",
        (6144.0_f64 * 3500.0 / 5.0).sqrt(),
        2074.0,
    );
    // Printed as 2 and 4 experts a device.
    check("experts per device of 1024", 512.0 / 1024.0, 0.5);
    check("experts per device of 2048", 512.0 / 2048.0, 0.25);
    check("transfer of 400 MB at 10 GB/s, seconds (printed as 40)", 400.0 / (10.0 * 1000.0), 0.04);
    check("sequences of a batch (printed as 2048)", 32.0 * 8.0, 256.0);
}
