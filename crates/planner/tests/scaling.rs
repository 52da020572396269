//! Step efficiency, speed-up and overlap: rows of the references.

mod common;

use common::row;
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_planner::collective::ring;
use lockstep_planner::overlap::{self, Bucket};
use lockstep_planner::scaling::{
    amortized, break_even_workers, exposed, speed_up, speed_up_of_growth, step_efficiency,
    step_seconds, strong_efficiency,
};
use lockstep_schedule::Link;

const fn s(seconds: f64) -> Seconds {
    Seconds(seconds)
}

#[test]
fn step_efficiencies() {
    row("a O1", step_efficiency(s(180.0), s(70.0)), "0.7200");
    row("a O2", step_efficiency(s(180.0), s(40.0)), "0.81818");
    // Printed: 12 %, a quarter of 50.
    row("a O26", 1.0 - step_efficiency(s(400.0), s(100.0)), "0.20");
    row("a O31", step_efficiency(s(2.0), s(7.0)), "0.2222");
    row("a O39", 1.0 - step_efficiency(s(200.0), s(15.0)), "0.0698");
    row("a O41", 1.0 - step_efficiency(s(200.0), s(150.0)), "0.4286");
    // Printed: 7.3.
    row("a O40", 8.0 * step_efficiency(s(200.0), s(15.0)), "7.44");
    // Printed: 25 %, which is of the computation.
    row("a O79", 1.0 - step_efficiency(s(500.0), s(125.0)), "0.2");
    row("a O82", 1.0 - step_efficiency(s(2000.0), s(125.0)), "0.059");
    // Printed: 365 times on 64 workers.
    row("a O88", 64.0 * step_efficiency(s(0.16), s(0.05)), "48.8");
    row("a O89", 64.0 * step_efficiency(s(0.16), s(0.05 / 8.0)), "61.6");
    row("a O90", 64.0 * step_efficiency(s(0.16), s(0.012)), "59.5");
    row("a O90", 64.0 * step_efficiency(s(0.16), s(0.0012)), "63.5");
    row("a O145", 1.0 - step_efficiency(s(25.0), s(8.0)), "0.242");
    row("a O145", 1.0 - step_efficiency(s(50.0), s(8.0)), "0.138");
    // Printed: 45.2 % and 115 times.
    row("b O2", step_efficiency(s(125.0), s(28.4)), "0.815");
    row("b O2", 256.0 * step_efficiency(s(125.0), s(28.4)), "208.6");
    row("b O3", 1.0 - step_efficiency(s(125.0), s(28.4)), "0.185");
    // The model as printed, and the ring that it is about.
    row("b O206", step_efficiency(s(60.0), s(8.0)), "0.88");
    let link = Link { latency: s(0.0), bandwidth: BytesPerSecond(100e9) };
    let communication = ring::all_reduce(8).seconds(Bytes(100_000_000), link);
    row("b O206, ring", step_efficiency(s(0.06), communication), "0.972");
}

#[test]
fn speed_ups_end() {
    for (ratio, expected) in [(0.02, "7.034"), (0.1, "4.889"), (1.0, "1.778")] {
        // Printed: 6 to 7 for ratios of 0.1 to 1.
        row("a O33, a O34", speed_up(8, ratio), expected);
    }
    // One over the ratio, and one: printed without it.
    row("a E16", speed_up(1_000_000_000, 0.1), "11.000");
    row("b O205", 100.0 / (1.0 + 0.01 * 99.0), "50.25");
    // Printed as a square root: 10.
    let ratio = 1.0 / 100.0;
    row("b O145", speed_up(100, ratio), "50.5");
    let scaled = step_seconds(s(800.0), 8, s(8.0));
    row("a O168", scaled.0, "108");
    row("a O168", step_seconds(s(800.0), 32, s(8.0)).0, "33");
    row("a O168", scaled / step_seconds(s(800.0), 32, s(8.0)), "3.27");
    row("a O137", scaled / step_seconds(s(800.0), 128, s(8.0)), "7.58");
    // Printed: 95 %.
    row("a O138", (scaled / step_seconds(s(800.0), 128, s(8.0))) / 16.0, "0.474");
    // Printed: 3.9.
    row("a O141", step_seconds(s(80.0), 1, s(2.0)) / step_seconds(s(80.0), 4, s(2.0)), "3.73");
    for (ratio, expected) in [(1.0, "1.60"), (3.0, "2.29"), (7.0, "2.91"), (2.0, "2.00")] {
        row("a O167", speed_up_of_growth(4.0, ratio), expected);
    }
    // Printed: T1 = 6400 ms, for the same ratio.
    row("a O169", step_seconds(s(64.0), 8, s(8.0)) / step_seconds(s(64.0), 32, s(8.0)), "1.6");
    row("a O220", step_seconds(s(800.0), 128, s(15.0)).0, "21.25");
    row("a O220", strong_efficiency(s(800.0), 128, s(21.25)), "0.294");
    row("a O221", strong_efficiency(s(800.0), 128, amortized(s(6.25), s(15.0), 4)), "0.625");
    for (k, expected) in
        [(1, "150"), (2, "100"), (4, "75"), (8, "62.5"), (16, "56.25"), (32, "53.125")]
    {
        row("a O121", amortized(s(50.0), s(100.0), k).0, expected);
    }
    row("a O83", amortized(s(0.0), s(125.0), 10).0, "12.5");
    let workers = break_even_workers(s(64.0), Bytes(100), BytesPerSecond(25.0));
    row("a 73", workers, "8");
}

#[test]
fn communication_hides_behind_computation_and_no_further() {
    row("b O221", exposed(s(3.0), s(2.0)).0, "0");
    row("b O221", exposed(s(2.0), s(3.0)).0, "1");
    // 96 layers of 5 ms and 700 MB; buckets of so many layers leave when they are full.
    let step = |layers: usize, latency: f64, gigabytes: f64| {
        let link = Link { latency: s(latency), bandwidth: BytesPerSecond(gigabytes * 1e9) };
        let bytes = 700e6 / 96.0 * layers as f64;
        let transfer = ring::all_reduce(256).seconds(Bytes(bytes as u64), link);
        let bucket =
            |index: usize| Bucket { ready: s(0.005) * ((index + 1) * layers) as f64, transfer };
        let buckets: Vec<Bucket> = (0..96 / layers).map(bucket).collect();
        1e3 * overlap::finish(&buckets).0
    };
    let layers = [1, 2, 4, 8, 12, 16, 24, 48, 96];
    // Printed: 270 to 1100 ms, some of it less than the 480 ms of computation.
    let slow =
        ["550.38", "486.26", "487.42", "489.75", "492.07", "494.40", "499.05", "512.99", "540.88"];
    for (layers, expected) in layers.into_iter().zip(slow) {
        row("b O25b", step(layers, 10e-6, 25.0), expected);
    }
    let fast =
        ["480.80", "481.09", "481.67", "482.83", "484.00", "485.16", "487.48", "494.46", "508.40"];
    for (layers, expected) in layers.into_iter().zip(fast) {
        row("b O25c", step(layers, 1e-6, 50.0), expected);
    }
    let buckets = [Bucket { ready: s(1.0), transfer: s(2.0) }];
    assert_eq!(overlap::exposed(&buckets, s(2.0)), s(1.0));
    assert_eq!(overlap::exposed(&buckets, s(5.0)), s(0.0));
}
