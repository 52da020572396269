//! Further published values: from a column of an experiment where one has it, else from the
//! planner's closed forms, the lab's statistics or unit conversion.

use super::{assert_close, assert_digits, value_at};
use lockstep_config::units::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, Seconds};
use lockstep_lab::Random;
use lockstep_lab::math::{expected_maximum, log_normal_below, normal_below, powi};
use lockstep_planner::collective::ring;
use lockstep_planner::scaling::amortized;
use lockstep_tensor::math::scalar::{exp, ln};

const GB: u64 = 1_000_000_000;

/// Hours of local SGD with an average every `k` steps.
fn hours(iterations: f64, compute: &str, communication: &str, k: u32) -> f64 {
    let params = [
        format!("compute={compute}"),
        format!("communication={communication}"),
        format!("local_steps={k}"),
    ];
    let all = [&*params[0], &*params[1], &*params[2], "target=0.9"];
    iterations * value_at("local-sgd", &all, "", "step_seconds") / 3600.0
}

#[test]
fn local_sgd_times() {
    let delay = |n: &str, k: &str| {
        let params = [format!("workers={n}"), format!("local_steps={k}")];
        value_at("local-sgd", &[&*params[0], &*params[1], "target=0.9"], "", "unseen_steps")
    };
    assert_digits("delay", delay("8", "2"), "14");
    assert_digits("delay", delay("128", "4"), "508");
    // The mean is half of it.
    assert_digits("delay", delay("64", "4") / 2.0, "126");
    assert_digits("delay", delay("128", "10") / 2.0, "635");
    let root = |compute: &str, communication: &str| {
        let params = [format!("compute={compute}"), format!("communication={communication}")];
        value_at("local-sgd", &[&*params[0], &*params[1], "target=0.9"], "", "sqrt_rule")
    };
    for (ratio, value) in [("0.1", "0.316"), ("1", "1"), ("10", "3.16"), ("50", "7.07")] {
        assert_digits("root", root("1", ratio), value);
    }
    assert_digits("root", root("50ms", "12ms"), "0.49");
    assert_digits("root", root("50ms", "100ms"), "1.414");
    // Lecture notes print 139, 35, 27.8, 21 and 18 h, with the same optimum.
    let table = [
        (1, 100e3, "152.8"),
        (5, 120e3, "50.0"),
        (10, 150e3, "41.7"),
        (20, 220e3, "45.8"),
        (50, 400e3, "66.7"),
    ];
    for (k, iterations, value) in table {
        assert_digits(&format!("at {k}"), hours(iterations, "0.5", "5", k), value);
    }
    assert_digits("hours", hours(100e3, "10", "20", 1), "833.3");
    assert_digits("more iterations", hours(140e3, "1", "20", 20), "77.8");
    assert_digits("hours", hours(100e3, "50ms", "12ms", 1), "1.722");
    assert_digits("five", hours(100e3, "50ms", "12ms", 5), "1.456");
    assert_digits("hours", hours(200e3, "5", "40", 1), "2500");
    assert_digits("ten", hours(200e3, "5", "40", 10), "500");
    // Synchronous; stale with 1.5 times the iterations; ten local steps with 1.25 times.
    assert_digits("hours", 3600.0 * hours(1000.0, "50ms", "100ms", 1), "150");
    assert_digits("stale", 3600.0 * hours(1500.0, "50ms", "100ms", 1), "225");
    assert_digits("local", 3600.0 * hours(1250.0, "50ms", "100ms", 10), "75");
    assert_digits("hours", 3.6 * hours(1e6, "12.5ms", "0", 1), "12.5");
    assert_digits("stale", 3.6 * hours(1.05e6, "10ms", "0", 1), "10.5");
    assert_digits("hours", hours(500.0, "5min", "0", 1), "41.67");
    assert_digits("more rounds", hours(550.0, "3min", "0", 1), "27.5");
    assert_digits("amortized", amortized(Seconds(200.0), Seconds(10.0), 4).0 * 4.0, "810");
    assert_digits("arithmetic", 30.0 / 80.0, "0.375");
    assert_digits("a quarter", amortized(Seconds(0.0), Seconds(30.0), 4).0, "7.5");
}

#[test]
fn checkpoint_intervals_and_failures() {
    let loss = |interval: &str, write: &str, mtbf: &str, column| {
        let params =
            [format!("interval={interval}"), format!("write={write}"), format!("mtbf={mtbf}")];
        let all = [&*params[0], &*params[1], &*params[2], "failures=10"];
        value_at("checkpointing", &all, "", column)
    };
    for (interval, value) in [("240min", "8.80"), ("998min", "3.93"), ("1018min", "3.93")] {
        let found = 100.0 * loss(interval, "20min", "25920min", "first_order_overhead");
        assert_digits(&format!("at {interval}"), found, value);
    }
    assert_digits(
        "failed interval share",
        loss("30d", "0", "18d", "failed_interval_share"),
        "0.811",
    );
    assert_digits(
        "first order overhead",
        100.0 * loss("161min", "12min", "1080min", "first_order_overhead"),
        "14.9",
    );
    // Five years per device, 2048 devices: 21.4 h.
    assert_digits("writing", 100.0 * loss("1h", "90s", "21.387h", "write_share"), "2.5");
    // Lecture notes print 9.7, 11.8 and 19.9 % and claim that half an hour is best.
    for (interval, value) in [("0.5h", "6.17"), ("1h", "4.84"), ("2h", "5.93")] {
        let found = 100.0 * loss(interval, "90s", "21.387h", "first_order_overhead");
        assert_digits(&format!("at {interval}"), found, value);
    }
    assert_digits(
        "young seconds",
        loss("1h", "10min", "22.8125h", "young_seconds") / 3600.0,
        "2.758",
    );
    for (interval, value) in [("3h", "12.1"), ("1h", "18.9"), ("6h", "15.9"), ("2.757h", "12.09")] {
        let found = 100.0 * loss(interval, "10min", "22.8125h", "first_order_overhead");
        assert_digits(&format!("at {interval}"), found, value);
    }
    assert_digits("young seconds", loss("1h", "20min", "34.22h", "young_seconds") / 3600.0, "4.78");
    // Lecture notes print 14.5 %.
    assert_digits(
        "first order overhead",
        100.0 * loss("6h", "20min", "34.22h", "first_order_overhead"),
        "14.3",
    );
    let mtbf_hours = |devices: &str, mtbf: &str| {
        let params = [format!("devices={devices}"), format!("device_mtbf={mtbf}")];
        value_at("end-to-end", &[&*params[0], &*params[1]], "", "mtbf_seconds") / 3600.0
    };
    assert_digits("mtbf hours", mtbf_hours("100", "1826.25d") / 24.0, "18.26");
    assert_digits("mtbf hours", mtbf_hours("2048", "43800h"), "21.39");
    assert_digits("failures", 504.0 / mtbf_hours("2048", "43800h"), "23.57");
    assert_digits("mtbf hours", mtbf_hours("3072", "70080h"), "22.8");
    assert_digits("mtbf hours", mtbf_hours("1024", "35040h"), "34.2");
    // Lecture notes print 18 h.
    assert_digits("mtbf hours", mtbf_hours("1000", "43800h"), "43.8");
    let minutes =
        |bytes: u64, gigabytes: f64| (Bytes(bytes * GB) / BytesPerSecond(gigabytes * 1e9)).0 / 60.0;
    assert_digits("minutes", minutes(1400, 1.2), "19.4");
    assert_digits("minutes", minutes(1400, 1.0), "23.3");
    assert_digits("minutes", minutes(2100, 10.0) * 60.0, "210");
    assert_digits("compressed", minutes(1400, 10.0) * 60.0 + 60.0, "200");
    assert_digits("minutes", minutes(2100, 1.0), "35.0");
    assert_digits("minutes", minutes(1000, 5.0) * 60.0, "200");
}

#[test]
fn learning_rate_scaling() {
    let rate = |base: &str, lr: &str, batch: &str, column| {
        let params =
            [format!("base_batch={base}"), format!("base_lr={lr}"), format!("batch={batch}")];
        let all = [&*params[0], &*params[1], &*params[2], "noise=0"];
        value_at("batch-size", &all, "", column)
    };
    assert_digits("linear lr", rate("256", "0.1", "8192", "linear_lr"), "3.2");
    // Lecture notes print 0.001.
    assert_digits("linear lr", rate("32", "1e-4", "32768", "linear_lr"), "0.1024");
    assert_digits("linear lr", rate("256", "1e-4", "32000", "linear_lr"), "0.0125");
    assert_digits("linear lr", rate("1", "0.1", "8", "linear_lr"), "0.8");
    // Noise of the linear rule relative to the square-root rule, which keeps the noise constant.
    let (linear, root) =
        (rate("256", "0.1", "8192", "linear_lr"), rate("256", "0.1", "8192", "sqrt_lr"));
    assert_digits("linear", linear / root, "5.657");
    assert_digits("linear lr", rate("512", "1", "2048", "linear_lr"), "4");
    assert_digits("linear lr", rate("32", "1", "1000", "linear_lr"), "31.25");
    assert_digits("linear lr", 256.0 / rate("256", "1", "1", "linear_lr"), "65536");
    assert_digits("linear lr", rate("1024", "1", "256", "linear_lr"), "0.25");
}

#[test]
fn stable_step_sizes_with_delay() {
    let limit = |momentum: &str, staleness: &str, column| {
        let params = [format!("momentum={momentum}"), format!("staleness={staleness}")];
        value_at("momentum-delay", &[&*params[0], &*params[1]], "", column)
    };
    assert_digits("fresh", limit("0.9", "0", "exact_limit"), "3.80");
    assert_digits("rule of thumb", limit("0.9", "10", "rule_of_thumb"), "0.0100");
    assert_digits(
        "ratio",
        limit("0.9", "0", "exact_limit") / limit("0.9", "10", "rule_of_thumb"),
        "380",
    );
    // The rule of thumb allows 5.26 updates.
    assert!(limit("0.9", "11", "exact_limit") > 0.01, "largest delay");
    assert!(limit("0.9", "12", "exact_limit") < 0.01, "largest delay");
    assert_digits("its bound at one update", limit("0.9", "1", "conservative_rule") / 0.1, "0.526");
    assert!(limit("0.9", "0", "exact_limit") > 0.1, "fresh gradients are stable");
    for (staleness, value) in [("1", 0.4998), ("2", 0.2806), ("5", 0.1285), ("15", 0.0479)] {
        assert_close("half", limit("0.5", staleness, "exact_limit"), value, 0.004);
    }
    let stale = |staleness: &str, lr: &str, condition: &str, column| {
        let params = [
            format!("staleness={staleness}"),
            format!("lr={lr}"),
            format!("condition={condition}"),
        ];
        let all = [&*params[0], &*params[1], &*params[2], "step=constant"];
        value_at("bounded-async", &all, "", column)
    };
    // Staleness 20 and step size 0.05 at the largest curvature: lecture notes call 1.0 unstable.
    for (lr, product) in [("0.05", "1.00"), ("0.025", "0.50"), ("0.0125", "0.25")] {
        let sufficient = stale("20", lr, "2", "sufficient_step");
        assert_digits("lr", lr.parse::<f64>().expect("a number") / sufficient, product);
        assert!(stale("20", lr, "2", "iterations").is_finite(), "{lr}");
    }
    for (staleness, value) in [("1", "1.0"), ("20", "0.05")] {
        assert_digits("sufficient step", stale(staleness, "0.01", "1", "sufficient_step"), value);
    }
    // Lecture notes print 100 iterations. This is for the distance; the loss takes half of them.
    assert_digits("stale", stale("0", "1.9801980198", "100", "iterations"), "461");
    assert_digits("closed", ln(1e-4) / ln(99.0 / 101.0), "460.5");
    assert_digits("loss", 0.5 * ln(1e-4) / ln(99.0 / 101.0), "230.3");
    assert_digits("ln", ln(0.5) / ln(0.9), "6.58");
    // Two steps on a square by hand, the second with a stale gradient.
    let stale_step = |x: f64, stale: f64| x - 0.1 * 2.0 * stale;
    assert_digits("stale step", stale_step(10.0, 10.0), "8");
    assert_digits("stale", stale_step(8.0, 10.0), "6");
    let towards = |x: f64, stale: f64| x - 0.1 * (stale - 5.0);
    assert_digits("towards", towards(0.0, 0.0), "0.50");
    assert_digits("second", towards(0.5, 0.5), "0.95");
    // Lecture notes print 1.00.
    assert_digits("towards", towards(0.95, 0.0), "1.45");
}

#[test]
fn decaying_step_size_takes_the_iterations_of_its_sum() {
    // x shrinks by 1 - 0.01/sqrt(t), so its logarithm falls like 0.02 sqrt(T).
    let (mut x, mut steps) = (1.0_f64, 0_u32);
    while x > 1e-4 {
        steps += 1;
        x -= 0.01 / f64::from(steps).sqrt() * x;
    }
    assert_close("small term lost", f64::from(steps), 2.1e5, 0.02);
}

#[test]
fn unbiased_rounding_leaves_a_third_of_its_square() {
    // x <- x - 0.5 (x ± e): the variance converges to e^2/3, the loss to e^2/6; lecture notes print
    // e^2/12.
    let mut random = Random::named(0, "unbiased");
    let (mut x, mut sum, num) = (0.0_f64, 0.0, 200_000);
    for _ in 0..num {
        let noise = if random.uniform() < 0.5 { 1.0 } else { -1.0 };
        x -= 0.5 * (x + noise);
        sum += x * x;
    }
    assert_close("sum", sum / f64::from(num), 1.0 / 3.0, 0.02);
    assert_close("the loss", 0.5 * sum / f64::from(num), 1.0 / 6.0, 0.02);
}

#[test]
fn slowest_of_many_workers() {
    let below = log_normal_below(100.0, 50.0, 0.2);
    assert_close("tail probability", 1.0 - below, 1.597e-4, 0.001);
    assert_digits("any of 256", 100.0 * (1.0 - powi(below, 256)), "4.01");
    // 1000 workers with a standard deviation of 10 %: the slowest takes 1.324, workers wait 24.5 %.
    let slowest = expected_maximum(1000, 1.0, |x| normal_below((x - 1.0) / 0.1));
    assert_close("slowest", slowest, 1.324, 0.002);
    assert_close("waiting", 1.0 - 1.0 / slowest, 0.245, 0.01);
    // Lecture notes print 100.
    let eight = expected_maximum(8, 50.0, |x| normal_below((x - 50.0) / 20.0));
    assert_close("eight", eight, 78.5, 0.002);
    assert_digits("arithmetic", 70.00 / 42.86, "1.633");
    assert_digits("arithmetic", 5.0 / 50.0, "0.1");
}

#[test]
fn tensor_parallel_shards_and_buckets() {
    let tensor = |width: &str, degree: &str, tokens: &str, element: &str, column| {
        let params = [
            format!("width={width}"),
            format!("degree={degree}"),
            format!("tokens={tokens}"),
            format!("element_bytes={element}"),
        ];
        let all: Vec<&str> = params.iter().map(String::as_str).collect();
        value_at("tensor-parallel", &all, "", column)
    };
    let shard_width = |width, degree| tensor(width, degree, "1", "2", "width_per_device");
    assert_digits("shard width", shard_width("8192", "4"), "2048");
    assert_digits("shard width", shard_width("16384", "16"), "1024");
    assert_digits("shard width", shard_width("768", "16"), "48");
    assert_digits("shard width", shard_width("3072", "4"), "768");
    assert_digits("layer bytes", tensor("18432", "8", "1", "1", "layer_bytes"), "73728");
    // One token, 96 layers, hidden size 12288, 4 bytes: lecture notes print 9.2 GB.
    let token = tensor("12288", "8", "1", "1", "step_bytes") * 2.0;
    assert_digits("MB", token / 1e6, "9.44");
    // With equal weights a wide layer sends more: (1000, 1000) and (100, 10000).
    assert_digits("bytes of a wide layer", (100.0 + 10_000.0) / (1000.0 + 1000.0), "5.05");
    for (num_ranks, expected) in [(8 * 8 * 16, 1024), (8 * 12 * 32, 3072)] {
        assert_eq!(num_ranks, expected, "size of the mesh");
    }
    assert_digits("step seconds", 1e3 * value_at("overlap", &OVERLAP, "", "step_seconds"), "250");
    // Lecture notes count one latency per bucket: 280 us.
    let latencies = 28.0 * ring::all_reduce(256).rounds as f64 * 10e-6;
    assert_digits("latencies", 1e3 * latencies, "142.8");
    let buckets = ["gradient=700MB", "layers=28", "bucket_layers=1"];
    assert_digits("buckets", value_at("overlap", &buckets, "", "buckets"), "28");
    assert_digits("bytes", value_at("overlap", &buckets, "", "bucket_bytes") / 1e6, "25");
    assert_digits(
        "step seconds",
        1e3 * value_at("data-parallel", &["workers=1"], "", "step_seconds"),
        "125",
    );
}

/// Fifty layers of 5 ms with negligible communication.
const OVERLAP: [&str; 5] = ["layers=50", "layer=5ms", "gradient=1", "latency=0", "bandwidth=1e12"];

#[test]
fn expert_capacity_servers_and_compression() {
    let capacity = |tokens: &str, experts: &str, top: &str| {
        let params =
            [format!("tokens={tokens}"), format!("experts={experts}"), format!("top_k={top}")];
        let all = [&*params[0], &*params[1], &*params[2], "capacity=1", "ranks=2", "width=1"];
        value_at("moe-routing", &all, "", "capacity_tokens")
    };
    assert_digits("capacity", capacity("131072", "2048", "1"), "64");
    assert_digits("capacity", capacity("524288", "256", "1"), "2048");
    assert_digits("capacity", capacity("524288", "512", "2"), "2048");
    let ms = |bytes: f64, gigabytes: f64| bytes / (gigabytes * 1e9) * 1e3;
    assert_digits("96 layers", 96.0 * ms(8e6, 100.0), "7.68");
    assert_digits("transfer time", ms(0.3 * 1e6 * 4e3, 12.5), "96");
    assert_digits("64 layers", 64.0 * ms(8e6, 25.0), "20.48");
    assert_digits("transfer time", 64.0 * ms(4e6, 25.0), "10.24");
    assert_digits("transfer time", ms(4e9, 12.5), "320");

    let dense = ["workers=100", "servers=1", "bytes=8GB", "density=1", "latency=0"];
    assert_digits(
        "busiest link bytes",
        value_at("parameter-server", &dense, "", "busiest_link_bytes") / 2e9,
        "800",
    );
    let wire = |method: &str, ratio: &str, column| {
        let params = [format!("method={method}"), format!("ratio={ratio}")];
        value_at("compression", &[&*params[0], &*params[1], "target=0.9"], "", column)
    };
    assert_digits("wire bytes", wire("quantised", "0.03125", "wire_bytes") / 4e8 * 100.0, "3.125");
    // Lecture notes omit the indices: 100.
    assert_digits("compression factor", 1.0 / (1.0 - wire("top-k", "0.01", "saved")), "50");
    let billion = ["parameters=1e9", "ratio=0.1", "target=0.9"];
    // Lecture notes print 3.
    assert_digits(
        "packed bytes",
        4e9 / value_at("compression", &billion, "", "packed_bytes"),
        "5.16",
    );
    // Lecture notes print 1 MB and a factor of 40 for 0.1 % of 1e9 elements.
    let thousandth = ["parameters=1e9", "ratio=0.001", "target=0.9"];
    assert_digits("wire bytes", value_at("compression", &thousandth, "", "wire_bytes") / 1e6, "8");
}

#[test]
fn whole_runs_and_number_formats() {
    // 3.14e23 FLOP: 6 x 175e9 parameters x 299e9 tokens.
    let gpt3 = ["parameters=175e9", "tokens=2.990476e11", "batch_tokens=2.990476e8", "mfu=1"];
    let one = [&gpt3[..], &["devices=1", "overlap=1"]].concat();
    let seconds = 1e3 * value_at("end-to-end", &one, "", "step_seconds");
    assert_close("seconds", seconds, 1.006e9, 0.001);
    assert_close("years", seconds / 3.156e7, 31.9, 0.002);
    let month = [&gpt3[..], &["devices=1024", "overlap=1"]].concat();
    let share = 1e3 * value_at("end-to-end", &month, "", "step_seconds") / (30.0 * 86_400.0);
    // Lecture notes print 4 to 5 million dollars for 2.21.
    assert_digits("of the peak", 100.0 * share, "37.9");
    assert_digits("dollars", 1024.0 * 720.0 * 3.0 / 1e6, "2.21");
    assert_digits("arithmetic", 312e12 * 0.1 / 1e13, "3.12");
    let (flops, peak) = (Flops(96.0 * 1.3e9), FlopsPerSecond(312e12));
    assert_digits("flops", flops.0 / 1e9, "124.8");
    assert_digits("ms", 1e3 * (flops / peak).0, "0.4");
    // f32 addition loses small terms, depending on the order.
    let (large, one) = (std::hint::black_box(1e30_f32), std::hint::black_box(1.0_f32));
    assert_digits("small term lost", f64::from((large + one) - large), "0");
    assert_digits("the other order", f64::from((large - large) + one), "1");
    assert_digits("arithmetic", 26e3 * 1000.0 / 1e6, "26");
    assert_digits("arithmetic", 7.0 / 4.5, "1.556");
    assert_digits("arithmetic", 0.70 * 0.95 * 0.98, "0.652");
    // Gradients with a standard deviation at a limit of fp16: 31.7 % are beyond it.
    let wide = |sigma: &str, column| {
        let param = format!("sigma={sigma}");
        value_at("loss-scaling", &[&*param, "exponent=0", "draws=100"], "", column)
    };
    assert_digits("largest", wide("65504", "expected_overflow"), "0.3173");
    assert_digits("smallest normal", wide("6.103515625e-5", "expected_subnormal"), "0.6827");
    assert_digits(
        "half of the smallest subnormal",
        wide("2.98023224e-8", "expected_zero"),
        "0.6827",
    );
    assert_digits("arithmetic", (1.0_f64 / 0.001).sqrt(), "31.6");
    assert_close("arithmetic", 1.0 - 0.1 / 11.0, 0.9909, 1e-4);
    assert_close("by hand", 1.0 - exp(-30.0 / 18.0), 0.811, 1e-3);
}

#[test]
fn gradient_noise_and_activation_memory() {
    let noise = |workers: &str, column| {
        let param = format!("workers={workers}");
        value_at(
            "gradient-noise",
            &[&*param, "batch=256", "noise=1", "dim=1", "draws=2000"],
            "",
            column,
        )
    };
    for workers in ["1", "8", "256"] {
        let expected = noise(workers, "expected_variance");
        assert_close("expected", expected, 1.0 / 256.0, 1e-12);
        assert_close("simulated", noise(workers, "mean_variance"), expected, 0.12);
        let count: f64 = workers.parse().expect("a number");
        assert_close(
            "of a worker",
            noise(workers, "expected_worker_variance"),
            count / 256.0,
            1e-12,
        );
    }
    let activations = |sequence: &str, policy, column| {
        value_at("activation-memory", &[&format!("sequence={sequence}")], policy, column)
    };
    let (s, h, a) = (2048.0, 12_288.0, 96.0);
    let expected = 5.0 * a * s * s + 34.0 * s * h;
    assert_close(
        "5abs^2 + 34sbh",
        activations("2048", "no recompute", "layer_bytes"),
        expected,
        1e-12,
    );
    // Korthikanti et al. 2022 for GPT-3: selective recomputation saves 70 % of the activations and
    // adds less than 3 % compute.
    assert_digits("selective", 100.0 * activations("2048", "selective", "saved"), "70");
    assert_digits(
        "selective, extra compute",
        100.0 * activations("2048", "selective", "extra_compute"),
        "0.9",
    );
}
