//! Step efficiency, speed-up and overlap: worked numbers.
//!
//! `Misprint:` gives a wrong value in circulation for the same inputs.

use crate::common::check;
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
    check!(step_efficiency(s(180.0), s(70.0)), "0.7200");
    check!(step_efficiency(s(180.0), s(40.0)), "0.81818");
    // Misprint: 12 %, a quarter of 50.
    check!(1.0 - step_efficiency(s(400.0), s(100.0)), "0.20");
    check!(step_efficiency(s(2.0), s(7.0)), "0.2222");
    check!(1.0 - step_efficiency(s(200.0), s(15.0)), "0.0698");
    check!(1.0 - step_efficiency(s(200.0), s(150.0)), "0.4286");
    // Misprint: 7.3.
    check!(8.0 * step_efficiency(s(200.0), s(15.0)), "7.44");
    // Misprint: 25 %, which is of the computation.
    check!(1.0 - step_efficiency(s(500.0), s(125.0)), "0.2");
    check!(1.0 - step_efficiency(s(2000.0), s(125.0)), "0.059");
    // Misprint: 365 times on 64 workers.
    check!(64.0 * step_efficiency(s(0.16), s(0.05)), "48.8");
    check!(64.0 * step_efficiency(s(0.16), s(0.05 / 8.0)), "61.6");
    check!(64.0 * step_efficiency(s(0.16), s(0.012)), "59.5");
    check!(64.0 * step_efficiency(s(0.16), s(0.0012)), "63.5");
    check!(1.0 - step_efficiency(s(25.0), s(8.0)), "0.242");
    check!(1.0 - step_efficiency(s(50.0), s(8.0)), "0.138");
    // Misprint: 45.2 % and 115 times.
    check!(step_efficiency(s(125.0), s(28.4)), "0.815");
    check!(256.0 * step_efficiency(s(125.0), s(28.4)), "208.6");
    check!(1.0 - step_efficiency(s(125.0), s(28.4)), "0.185");
    // The model as printed, and the ring that it is about.
    check!(step_efficiency(s(60.0), s(8.0)), "0.88");
    let link = Link { latency: s(0.0), bandwidth: BytesPerSecond(100e9) };
    let communication = ring::all_reduce(8).seconds(Bytes(100_000_000), link);
    check!("ring", step_efficiency(s(0.06), communication), "0.972");
}

#[test]
fn speed_ups_end() {
    for (ratio, expected) in [(0.02, "7.034"), (0.1, "4.889"), (1.0, "1.778")] {
        // Misprint: 6 to 7 for ratios of 0.1 to 1.
        check!(speed_up(8, ratio), expected);
    }
    // The limit is one over the ratio, plus one. Misprint: without the one.
    check!(speed_up(1_000_000_000, 0.1), "11.000");
    check!(100.0 / (1.0 + 0.01 * 99.0), "50.25");
    // Misprint: a square root, 10.
    let ratio = 1.0 / 100.0;
    check!(speed_up(100, ratio), "50.5");
    let scaled = step_seconds(s(800.0), 8, s(8.0));
    check!(scaled.0, "108");
    check!(step_seconds(s(800.0), 32, s(8.0)).0, "33");
    check!(scaled / step_seconds(s(800.0), 32, s(8.0)), "3.27");
    check!(scaled / step_seconds(s(800.0), 128, s(8.0)), "7.58");
    // Misprint: 95 %.
    check!((scaled / step_seconds(s(800.0), 128, s(8.0))) / 16.0, "0.474");
    // Misprint: 3.9.
    check!(step_seconds(s(80.0), 1, s(2.0)) / step_seconds(s(80.0), 4, s(2.0)), "3.73");
    for (ratio, expected) in [(1.0, "1.60"), (3.0, "2.29"), (7.0, "2.91"), (2.0, "2.00")] {
        check!(speed_up_of_growth(4.0, ratio), expected);
    }
    // Misprint: T1 = 6400 ms, for the same ratio.
    check!(step_seconds(s(64.0), 8, s(8.0)) / step_seconds(s(64.0), 32, s(8.0)), "1.6");
    check!(step_seconds(s(800.0), 128, s(15.0)).0, "21.25");
    check!(strong_efficiency(s(800.0), 128, s(21.25)), "0.294");
    check!(strong_efficiency(s(800.0), 128, amortized(s(6.25), s(15.0), 4)), "0.625");
    for (k, expected) in
        [(1, "150"), (2, "100"), (4, "75"), (8, "62.5"), (16, "56.25"), (32, "53.125")]
    {
        check!(amortized(s(50.0), s(100.0), k).0, expected);
    }
    check!(amortized(s(0.0), s(125.0), 10).0, "12.5");
    let workers = break_even_workers(s(64.0), Bytes(100), BytesPerSecond(25.0));
    check!(workers, "8");
}

#[test]
fn communication_hides_behind_computation_up_to_its_length() {
    check!(exposed(s(3.0), s(2.0)).0, "0");
    check!(exposed(s(2.0), s(3.0)).0, "1");
    // 96 layers of 5 ms and 700 MB; buckets of a number of layers are sent when full.
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
    // Misprint: 270 to 1100 ms, some of it less than the 480 ms of computation.
    let slow =
        ["550.38", "486.26", "487.42", "489.75", "492.07", "494.40", "499.05", "512.99", "540.88"];
    for (layers, expected) in layers.into_iter().zip(slow) {
        check!(step(layers, 10e-6, 25.0), expected);
    }
    let fast =
        ["480.80", "481.09", "481.67", "482.83", "484.00", "485.16", "487.48", "494.46", "508.40"];
    for (layers, expected) in layers.into_iter().zip(fast) {
        check!(step(layers, 1e-6, 50.0), expected);
    }
    let buckets = [Bucket { ready: s(1.0), transfer: s(2.0) }];
    assert_eq!(overlap::exposed(&buckets, s(2.0)), s(1.0));
    assert_eq!(overlap::exposed(&buckets, s(5.0)), s(0.0));
}
