//! The other rows that the reference marks as consistent, as derived, or for use as a test.
//!
//! What an experiment has a column for comes out of it; what is only a law or a unit comes from the
//! planner's closed forms, the lab's statistics or the units. Rows whose law is wrong are not here:
//! `lockstep lab claims` has those, and `last` the speed-up that grows like a root.

use super::{at, near, row};
use lockstep_config::units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};
use lockstep_lab::Random;
use lockstep_lab::math::{expected_maximum, log_normal_below, normal_below, powi};
use lockstep_planner::collective::ring;
use lockstep_planner::scaling::amortized;
use lockstep_tensor::math::scalar::{exp, ln};

const GB: u64 = 1_000_000_000;

/// Hours of so many steps of local SGD with K between averages.
fn hours(iterations: f64, compute: &str, communication: &str, k: u32) -> f64 {
    let params = [
        format!("compute={compute}"),
        format!("communication={communication}"),
        format!("local_steps={k}"),
    ];
    let all = [&*params[0], &*params[1], &*params[2], "target=0.9"];
    iterations * at("local-sgd", &all, "", "step_seconds") / 3600.0
}

#[test]
fn local_steps_by_rows() {
    let delay = |n: &str, k: &str| {
        let params = [format!("workers={n}"), format!("local_steps={k}")];
        at("local-sgd", &[&*params[0], &*params[1], "target=0.9"], "", "delay")
    };
    row("B O69", delay("8", "2"), "14");
    row("B O70", delay("128", "4"), "508");
    // Half of it, on average.
    row("A O175", delay("64", "4") / 2.0, "126");
    row("A O175", delay("128", "10") / 2.0, "635");
    let root = |compute: &str, communication: &str| {
        let params = [format!("compute={compute}"), format!("communication={communication}")];
        at("local-sgd", &[&*params[0], &*params[1], "target=0.9"], "", "root_rule")
    };
    for (ratio, value) in [("0.1", "0.316"), ("1", "1"), ("10", "3.16"), ("50", "7.07")] {
        row("B O71", root("1", ratio), value);
    }
    row("B O176", root("50ms", "12ms"), "0.49");
    row("A O121", root("50ms", "100ms"), "1.414");
    // The source prints 139, 35, 27.8, 21 and 18 h, and finds the same optimum.
    let table = [
        (1, 100e3, "152.8"),
        (5, 120e3, "50.0"),
        (10, 150e3, "41.7"),
        (20, 220e3, "45.8"),
        (50, 400e3, "66.7"),
    ];
    for (k, iterations, value) in table {
        row(&format!("B O172, B O173, {k}"), hours(iterations, "0.5", "5", k), value);
    }
    row("B O174", hours(100e3, "10", "20", 1), "833.3");
    row("B O174, more iterations", hours(140e3, "1", "20", 20), "77.8");
    row("B O175", hours(100e3, "50ms", "12ms", 1), "1.722");
    row("B O175, five", hours(100e3, "50ms", "12ms", 5), "1.456");
    row("B O178", hours(200e3, "5", "40", 1), "2500");
    row("B O178, ten", hours(200e3, "5", "40", 10), "500");
    // Synchronous, stale by the source's 1.5, and ten steps alone by its 1.25.
    row("B O34", 3600.0 * hours(1000.0, "50ms", "100ms", 1), "150");
    row("B O34, stale", 3600.0 * hours(1500.0, "50ms", "100ms", 1), "225");
    row("B O34, local", 3600.0 * hours(1250.0, "50ms", "100ms", 10), "75");
    row("A O157", 3.6 * hours(1e6, "12.5ms", "0", 1), "12.5");
    row("A O157, stale", 3.6 * hours(1.05e6, "10ms", "0", 1), "10.5");
    row("A O159", hours(500.0, "5min", "0", 1), "41.67");
    row("A O159, more rounds", hours(550.0, "3min", "0", 1), "27.5");
    row("A O225", amortized(Seconds(200.0), Seconds(10.0), 4).0 * 4.0, "810");
    row("B O196", 30.0 / 80.0, "0.375");
    row("B O196, a quarter", amortized(Seconds(0.0), Seconds(30.0), 4).0, "7.5");
}

#[test]
fn checkpoints_by_rows() {
    let loss = |interval: &str, write: &str, mtbf: &str, column| {
        let params =
            [format!("interval={interval}"), format!("write={write}"), format!("mtbf={mtbf}")];
        let all = [&*params[0], &*params[1], &*params[2], "failures=10"];
        at("checkpointing", &all, "", column)
    };
    for (interval, value) in [("240min", "8.80"), ("998min", "3.93"), ("1018min", "3.93")] {
        let found = 100.0 * loss(interval, "20min", "25920min", "first_order");
        row(&format!("A O99, {interval}"), found, value);
    }
    row("A O102", loss("30d", "0", "18d", "cut"), "0.811");
    row("A X3", 100.0 * loss("161min", "12min", "1080min", "first_order"), "14.9");
    // Five years and 2048 devices: 21.4 h.
    row("B O116, writing", 100.0 * loss("1h", "90s", "21.387h", "writing"), "2.5");
    // The source prints 9.7, 11.8 and 19.9 %, and that half an hour is best.
    for (interval, value) in [("0.5h", "6.17"), ("1h", "4.84"), ("2h", "5.93")] {
        let found = 100.0 * loss(interval, "90s", "21.387h", "first_order");
        row(&format!("B O117, B O118, {interval}"), found, value);
    }
    row("B O119", loss("1h", "10min", "22.8125h", "young_seconds") / 3600.0, "2.758");
    for (interval, value) in [("3h", "12.1"), ("1h", "18.9"), ("6h", "15.9"), ("2.757h", "12.09")] {
        let found = 100.0 * loss(interval, "10min", "22.8125h", "first_order");
        row(&format!("B O120, {interval}"), found, value);
    }
    row("B O121", loss("1h", "20min", "34.22h", "young_seconds") / 3600.0, "4.78");
    // The source prints 14.5 %.
    row("B O122", 100.0 * loss("6h", "20min", "34.22h", "first_order"), "14.3");
    let between = |devices: &str, mtbf: &str| {
        let params = [format!("devices={devices}"), format!("device_mtbf={mtbf}")];
        at("end-to-end", &[&*params[0], &*params[1]], "", "mtbf_seconds") / 3600.0
    };
    row("A O92", between("100", "1826.25d") / 24.0, "18.26");
    row("B O115", between("2048", "43800h"), "21.39");
    row("B O116, failures", 504.0 / between("2048", "43800h"), "23.57");
    row("B O119", between("3072", "70080h"), "22.8");
    row("B O121", between("1024", "35040h"), "34.2");
    // The source prints 18 h.
    row("B O128", between("1000", "43800h"), "43.8");
    let minutes =
        |bytes: u64, gigabytes: f64| (Bytes(bytes * GB) / BytesPerSecond(gigabytes * 1e9)).0 / 60.0;
    row("A O96", minutes(1400, 1.2), "19.4");
    row("A O96", minutes(1400, 1.0), "23.3");
    row("B O126", minutes(2100, 10.0) * 60.0, "210");
    row("B O126, compressed", minutes(1400, 10.0) * 60.0 + 60.0, "200");
    row("B O130", minutes(2100, 1.0), "35.0");
    row("B O131", minutes(1000, 5.0) * 60.0, "200");
}

#[test]
fn batches_and_rates_by_rows() {
    let rate = |base: &str, lr: &str, batch: &str, column| {
        let params =
            [format!("base_batch={base}"), format!("base_lr={lr}"), format!("batch={batch}")];
        let all = [&*params[0], &*params[1], &*params[2], "noise=0"];
        at("batch-size", &all, "", column)
    };
    row("A O128, B O143", rate("256", "0.1", "8192", "linear_lr"), "3.2");
    // The source prints 0.001.
    row("A O129, A O130", rate("32", "1e-4", "32768", "linear_lr"), "0.1024");
    row("A O153", rate("256", "1e-4", "32000", "linear_lr"), "0.0125");
    row("B O217", rate("1", "0.1", "8", "linear_lr"), "0.8");
    // How much noisier a step by the linear rule is: its rate over the rate that keeps the noise.
    let (linear, root) =
        (rate("256", "0.1", "8192", "linear_lr"), rate("256", "0.1", "8192", "root_lr"));
    row("A O152", linear / root, "5.657");
    row("A O131", rate("512", "1", "2048", "linear_lr"), "4");
    row("A O35", rate("32", "1", "1000", "linear_lr"), "31.25");
    row("B O199", 256.0 / rate("256", "1", "1", "linear_lr"), "65536");
    row("B O144", rate("1024", "1", "256", "linear_lr"), "0.25");
}

#[test]
fn delays_by_rows() {
    let limit = |momentum: &str, staleness: &str, column| {
        let params = [format!("momentum={momentum}"), format!("staleness={staleness}")];
        at("momentum-delay", &[&*params[0], &*params[1]], "", column)
    };
    row("A O188, fresh", limit("0.9", "0", "exact_limit"), "3.80");
    row("A O188", limit("0.9", "10", "rule"), "0.0100");
    row("A O188, ratio", limit("0.9", "0", "exact_limit") / limit("0.9", "10", "rule"), "380");
    // The rule says 5.26 updates at most.
    assert!(limit("0.9", "11", "exact_limit") > 0.01, "row B O158");
    assert!(limit("0.9", "12", "exact_limit") < 0.01, "row B O158");
    row("B O156, its bound at one update", limit("0.9", "1", "half_rule") / 0.1, "0.526");
    assert!(limit("0.9", "0", "exact_limit") > 0.1, "row B O156: fresh gradients are stable");
    for (staleness, value) in [("1", 0.4998), ("2", 0.2806), ("5", 0.1285), ("15", 0.0479)] {
        near("B O157, half", limit("0.5", staleness, "exact_limit"), value, 0.004);
    }
    let stale = |staleness: &str, lr: &str, condition: &str, column| {
        let params = [
            format!("staleness={staleness}"),
            format!("lr={lr}"),
            format!("condition={condition}"),
        ];
        let all = [&*params[0], &*params[1], &*params[2], "step=constant"];
        at("bounded-async", &all, "", column)
    };
    // Twenty updates at a step of 0.05 for the largest curvature: the source calls 1.0 unstable.
    for (lr, product) in [("0.05", "1.00"), ("0.025", "0.50"), ("0.0125", "0.25")] {
        let sufficient = stale("20", lr, "2", "sufficient");
        row("B O110", lr.parse::<f64>().expect("a number") / sufficient, product);
        assert!(stale("20", lr, "2", "iterations").is_finite(), "row B O110, {lr}");
    }
    for (staleness, value) in [("1", "1.0"), ("20", "0.05")] {
        row("A O217", stale(staleness, "0.01", "1", "sufficient"), value);
    }
    // The source prints 100 iterations; this is the distance, and the loss takes half of them.
    row("B O12e", stale("0", "1.9801980198", "100", "iterations"), "461");
    row("B O12e, closed", ln(1e-4) / ln(99.0 / 101.0), "460.5");
    row("B O12e, loss", 0.5 * ln(1e-4) / ln(99.0 / 101.0), "230.3");
    row("A O189", ln(0.5) / ln(0.9), "6.58");
    // By hand: two steps on a square, the second with the gradient of the first.
    let stale_step = |x: f64, seen: f64| x - 0.1 * 2.0 * seen;
    row("A O59", stale_step(10.0, 10.0), "8");
    row("A O59, stale", stale_step(8.0, 10.0), "6");
    let towards = |x: f64, seen: f64| x - 0.1 * (seen - 5.0);
    row("A O73", towards(0.0, 0.0), "0.50");
    row("A O73, second", towards(0.5, 0.5), "0.95");
    // The source prints 1.00.
    row("A O74", towards(0.95, 0.0), "1.45");
}

#[test]
fn a_falling_step_takes_as_long_as_its_sum() {
    // x shrinks by 1 - 0.01/sqrt(t), so its logarithm falls like 0.02 sqrt(T).
    let (mut x, mut steps) = (1.0_f64, 0_u32);
    while x > 1e-4 {
        steps += 1;
        x -= 0.01 / f64::from(steps).sqrt() * x;
    }
    near("A X6", f64::from(steps), 2.1e5, 0.02);
}

#[test]
fn rounding_right_on_average_leaves_a_third_of_its_square() {
    // x <- x - 0.5 (x ± e): the variance settles at e^2/3, the loss at e^2/6; printed: a twelfth.
    let mut random = Random::named(0, "unbiased");
    let (mut x, mut sum, num) = (0.0_f64, 0.0, 200_000);
    for _ in 0..num {
        let noise = if random.uniform() < 0.5 { 1.0 } else { -1.0 };
        x -= 0.5 * (x + noise);
        sum += x * x;
    }
    near("A X5, A O160", sum / f64::from(num), 1.0 / 3.0, 0.02);
    near("A X5, the loss", 0.5 * sum / f64::from(num), 1.0 / 6.0, 0.02);
}

#[test]
fn stragglers_by_rows() {
    let below = log_normal_below(100.0, 50.0, 0.2);
    near("A O117", 1.0 - below, 1.597e-4, 0.001);
    row("A O117, any of 256", 100.0 * (1.0 - powi(below, 256)), "4.01");
    // A worker of 1000 with a deviation of a tenth: the slowest takes 1.324, workers wait 24.5 %.
    let slowest = expected_maximum(1000, 1.0, |x| normal_below((x - 1.0) / 0.1));
    near("A O14", slowest, 1.324, 0.002);
    near("A O14, waiting", 1.0 - 1.0 / slowest, 0.245, 0.01);
    // The source prints 100.
    let eight = expected_maximum(8, 50.0, |x| normal_below((x - 50.0) / 20.0));
    near("B O74", eight, 78.5, 0.002);
    row("B O23", 70.00 / 42.86, "1.633");
    row("B O197", 5.0 / 50.0, "0.1");
}

#[test]
fn layers_by_rows() {
    let tensor = |width: &str, degree: &str, tokens: &str, element: &str, column| {
        let params = [
            format!("width={width}"),
            format!("degree={degree}"),
            format!("tokens={tokens}"),
            format!("element_bytes={element}"),
        ];
        let all: Vec<&str> = params.iter().map(String::as_str).collect();
        at("tensor-parallel", &all, "", column)
    };
    let slice = |width, degree| tensor(width, degree, "1", "2", "width_per_device");
    row("B O82", slice("8192", "4"), "2048");
    row("B O83", slice("16384", "16"), "1024");
    row("B O84", slice("768", "16"), "48");
    row("A O48", slice("3072", "4"), "768");
    row("A O194", tensor("18432", "8", "1", "1", "layer_bytes"), "73728");
    // A token of 96 layers, both ways, of 12288 numbers of 4 bytes; printed: 9.2 GB.
    let token = tensor("12288", "8", "1", "1", "step_bytes") * 2.0;
    row("B O35, MB", token / 1e6, "9.44");
    // At the same number of weights, the wide layer sends more: (1000, 1000) and (100, 10000).
    row("A O192", (100.0 + 10_000.0) / (1000.0 + 1000.0), "5.05");
    let meshes = [("A O13", 8 * 8 * 16, 1024), ("A O110, B O108", 8 * 12 * 32, 3072)];
    for (name, product, value) in meshes {
        assert_eq!(product, value, "row {name}");
    }
    row("A O126", 1e3 * at("overlap", &OVERLAP, "", "step_seconds"), "250");
    // The source takes one latency a bucket: 280 us.
    let latencies = 28.0 * ring::all_reduce(256).rounds as f64 * 10e-6;
    row("B O26", 1e3 * latencies, "142.8");
    let buckets = ["gradient=700MB", "layers=28", "bucket_layers=1"];
    row("B O26, B O222", at("overlap", &buckets, "", "buckets"), "28");
    row("B O26, bytes", at("overlap", &buckets, "", "bucket_bytes") / 1e6, "25");
    row("A O113", 1e3 * at("data-parallel", &["workers=1"], "", "step_seconds"), "125");
}

/// Fifty layers of 5 ms whose gradients are nothing and whose links are quick.
const OVERLAP: [&str; 5] = ["layers=50", "layer=5ms", "gradient=1", "latency=0", "bandwidth=1e12"];

#[test]
fn experts_servers_and_wires_by_rows() {
    let room = |tokens: &str, experts: &str, top: &str| {
        let params =
            [format!("tokens={tokens}"), format!("experts={experts}"), format!("top={top}")];
        let all = [&*params[0], &*params[1], &*params[2], "capacity=1", "ranks=2", "width=1"];
        at("moe-routing", &all, "", "capacity_tokens")
    };
    row("B O160", room("131072", "2048", "1"), "64");
    row("B O163", room("524288", "256", "1"), "2048");
    row("B O167", room("524288", "512", "2"), "2048");
    let ms = |bytes: f64, gigabytes: f64| bytes / (gigabytes * 1e9) * 1e3;
    row("B O163, 96 layers", 96.0 * ms(8e6, 100.0), "7.68");
    row("B O164", ms(0.3 * 1e6 * 4e3, 12.5), "96");
    row("B O167, 64 layers", 64.0 * ms(8e6, 25.0), "20.48");
    row("B O168", 64.0 * ms(4e6, 25.0), "10.24");
    row("B O216", ms(4e9, 12.5), "320");

    let touched = ["workers=100", "servers=1", "bytes=8GB", "density=1", "latency=0"];
    row("A O185", at("parameter-server", &touched, "", "hottest_bytes") / 2e9, "800");
    let wire = |method: &str, ratio: &str, column| {
        let params = [format!("method={method}"), format!("ratio={ratio}")];
        at("compression", &[&*params[0], &*params[1], "target=0.9"], "", column)
    };
    row("A O164", wire("quantised", "0.03125", "wire_bytes") / 4e8 * 100.0, "3.125");
    // The source forgets the indices: 100 times.
    row("B O215", 1.0 / (1.0 - wire("top-k", "0.01", "saved")), "50");
    let billion = ["parameters=1e9", "ratio=0.1", "target=0.9"];
    // The source prints 3 times.
    row("B O51", 4e9 / at("compression", &billion, "", "packed_bytes"), "5.16");
    // The source prints 1 MB and 40 times for a thousandth of 1e9.
    let thousandth = ["parameters=1e9", "ratio=0.001", "target=0.9"];
    row("A O166", at("compression", &thousandth, "", "wire_bytes") / 1e6, "8");
}

#[test]
fn runs_by_rows() {
    // 3.14e23 operations: 6 x 175e9 parameters x 299e9 tokens.
    let gpt3 = ["parameters=175e9", "tokens=2.990476e11", "batch_tokens=2.990476e8", "mfu=1"];
    let one = [&gpt3[..], &["devices=1", "overlap=1"]].concat();
    let seconds = 1e3 * at("end-to-end", &one, "", "step_seconds");
    near("B O201", seconds, 1.006e9, 0.001);
    near("B O201, years", seconds / 3.156e7, 31.9, 0.002);
    let month = [&gpt3[..], &["devices=1024", "overlap=1"]].concat();
    let share = 1e3 * at("end-to-end", &month, "", "step_seconds") / (30.0 * 86_400.0);
    // The source prints 4 to 5 million dollars for 2.21.
    row("B O212, of the peak", 100.0 * share, "37.9");
    row("B O212, dollars", 1024.0 * 720.0 * 3.0 / 1e6, "2.21");
    row("B O202", 312e12 * 0.1 / 1e13, "3.12");
    let (flops, peak) = (Flops(96.0 * 1.3e9), FlopsPerSecond(312e12));
    row("B O36", flops.0 / 1e9, "124.8");
    row("B O36, ms", 1e3 * (flops / peak).0, "0.4");
    // f32: what is far smaller is gone, in either order but one.
    let (large, one) = (std::hint::black_box(1e30_f32), std::hint::black_box(1.0_f32));
    row("B O39", f64::from((large + one) - large), "0");
    row("B O39, the other order", f64::from((large - large) + one), "1");
    row("B O54", 26e3 * 1000.0 / 1e6, "26");
    row("A O91", 7.0 / 4.5, "1.556");
    row("B O194", 0.70 * 0.95 * 0.98, "0.652");
    // Gradients as wide as a border of fp16: beyond one deviation lie 31.7 %.
    let wide = |sigma: &str, column| {
        let param = format!("sigma={sigma}");
        at("loss-scaling", &[&*param, "exponent=0", "draws=100"], "", column)
    };
    row("A O127, largest", wide("65504", "expected_overflow"), "0.3173");
    row("A O127, least normal", wide("6.103515625e-5", "expected_subnormal"), "0.6827");
    row("A O127, half of the least", wide("2.98023224e-8", "expected_zero"), "0.6827");
    row("A O135", (1.0_f64 / 0.001).sqrt(), "31.6");
    near("B O58", 1.0 - 0.1 / 11.0, 0.9909, 1e-4);
    near("A O102, by hand", 1.0 - exp(-30.0 / 18.0), 0.811, 1e-3);
}

#[test]
fn gradients_and_activations_by_rows() {
    let noise = |workers: &str, column| {
        let param = format!("workers={workers}");
        at("gradient-noise", &[&*param, "batch=256", "noise=1", "dim=1", "draws=2000"], "", column)
    };
    for workers in ["1", "8", "256"] {
        let expected = noise(workers, "expected_variance");
        near("A O179, B O140", expected, 1.0 / 256.0, 1e-12);
        near("A O179, A O222, simulated", noise(workers, "mean_variance"), expected, 0.12);
        let count: f64 = workers.parse().expect("a number");
        near("B O140, of a worker", noise(workers, "expected_worker"), count / 256.0, 1e-12);
    }
    let kept = |sequence: &str, what, column| {
        at("activation-memory", &[&format!("sequence={sequence}")], what, column)
    };
    let (s, h, a) = (2048.0, 12_288.0, 96.0);
    let whole = 5.0 * a * s * s + 34.0 * s * h;
    near("lecture: 5abs^2 + 34sbh", kept("2048", "all", "layer_bytes"), whole, 1e-12);
    // Known of GPT-3: scores are 70 % of what a layer keeps and under 3 % of what it computes.
    row("selective", 100.0 * kept("2048", "all but scores", "saved"), "70");
    row("selective, again", 100.0 * kept("2048", "all but scores", "extra_compute"), "0.9");
}
