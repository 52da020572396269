//! Values derived from one or two numbers of the lab or the planner, and values of a false law:
//! that the speed-up of n workers is at most sqrt(n T/C).

use super::{assert_close, assert_digits, value_at};
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_lab::Random;
use lockstep_lab::math::powi;
use lockstep_planner::collective::ring;
use lockstep_planner::scaling::{amortized, step_efficiency, step_seconds, strong_efficiency};
use lockstep_planner::stability::Descent;
use lockstep_schedule::Link;

const MB: u64 = 1_000_000;
const GB: u64 = 1_000_000_000;

#[test]
fn staleness_scales_the_step_size() {
    let step = |staleness: &str| {
        let param = format!("staleness={staleness}");
        value_at("bounded-async", &[&*param, "lr=0.1", "max_iterations=10"], "", "step_size")
    };
    // Twenty updates weighted by 1/20 count as one; with full weight the step size is 1/21.
    assert_digits("step", step("1"), "0.05");
    assert_digits("counted in full", step("20"), "0.0048");
}

#[test]
fn largest_delay_falls_with_curvature() {
    let descent = Descent { lr: 0.0075, momentum: 0.0, delay: 25 };
    assert_digits("descent", descent.lr_limit(8.0) / descent.lr_limit(18.0), "2.25");
    // The rule of thumb reduces the delay from 25 to 10; 25 diverges, and the limit is 11.
    assert_eq!(descent.delay_limit(8.0), Some(25), "before");
    assert_eq!(descent.delay_limit(18.0), Some(11), "after");
    assert!(!descent.is_stable(18.0), "not cut");
    assert!(Descent { delay: 10, ..descent }.is_stable(18.0), "cut");
}

#[test]
fn iterations_grow_linearly_with_staleness() {
    let stale = |staleness: &str, column| {
        value_at("bounded-async", &[&format!("staleness={staleness}")], "", column)
    };
    let age = stale("0", "step_size") / stale("50", "step_size");
    assert_digits("age", age * age, "2601");
    assert_digits("of 200", age * age / 200.0, "13.0");
    // The bound grows with (1 + tau)^2, the iterations of a run with 1 + tau: 200 times the update
    // rate is four times faster, not 13 times slower.
    let more = stale("50", "iterations") / stale("0", "iterations");
    assert_close("iterations", more, 51.0, 0.01);
    assert_close("measured", 200.0 / more, 3.94, 0.01);
}

#[test]
fn few_wide_layers_have_the_latency_of_many_narrow_ones() {
    // A layer has four all-reduces of two messages each on two devices; latency dominates.
    let micros = |layers: &str, latency: &str| {
        let params = [format!("layers={layers}"), format!("latency={latency}")];
        let short = ["degree=2", "width=64", "tokens=1", "element_bytes=1", "bandwidth=1e15"];
        let all = [&short[..], &[&*params[0], &*params[1]]].concat();
        let of = |column| value_at("tensor-parallel", &all, "", column);
        1e6 * of("communication_seconds") * of("step_bytes") / of("layer_bytes")
    };
    assert_digits("a layer", micros("1", "0.4us"), "3.2");
    assert_digits("micros", micros("32", "0.4us"), "102.4");
    assert_digits("wide", micros("24", "0.5375us"), "103.2");
}

#[test]
fn samples_between_averages() {
    for (k, workers, batch, value) in [("4", "128", 32.0, "16384"), ("2", "256", 8000.0, "4096000")]
    {
        let params = [format!("local_steps={k}"), format!("workers={workers}")];
        let all = [&*params[0], &*params[1], "target=0.9"];
        let own: f64 = k.parse().expect("a number");
        assert_digits(
            "unseen steps",
            (value_at("local-sgd", &all, "", "unseen_steps") + own) * batch,
            value,
        );
    }
    assert_digits("ms", 1e3 * (Seconds(0.1e-3) * 256.0).0, "25.6");
}

#[test]
fn costs_of_reproducibility_add_up() {
    let s = Seconds;
    let extra: Seconds = [10.0, 0.0, 3.0].map(Seconds).into_iter().sum();
    assert_digits("step seconds", step_seconds(s(100.0), 1, extra).0 - 100.0, "13");
    // 13 % longer steps reduce the throughput by 11.5 %.
    assert_digits("fewer steps", 100.0 * (1.0 - step_efficiency(s(100.0), extra)), "11.5");
}

#[test]
fn clients_are_sampled_uniformly() {
    // 100 of 1000 clients per round, for 10 000 rounds.
    assert_digits("amortized", amortized(Seconds(0.0), Seconds(10e3), 1000 / 100).0, "1000");
    let mut random = Random::named(0, "clients");
    let num_selected = (0..10_000).filter(|_| random.below(1000) < 100).count();
    assert_close("drawn", num_selected as f64, 1000.0, 0.15);
}

#[test]
fn smaller_checkpoints_save_hours() {
    let hours = |interval: &str, write: &str| {
        let params = [format!("interval={interval}"), format!("write={write}")];
        let all = [&*params[0], &*params[1], "mtbf=21.387h", "failures=10"];
        504.0 * value_at("checkpointing", &all, "", "write_share")
    };
    // 1.6 % of an hour is 57.6 s.
    assert_digits("hours", hours("1h", "57.6s"), "8.06");
    // The 1.6 % are 2.5 % - 0.9 %, which omits most delta checkpoints: fifteen of 9 s and one full
    // checkpoint of 90 s every four hours.
    assert_digits("with all deltas", hours("1h", "90s") - hours("4h", "225s"), "4.7");
}

#[test]
fn fewer_iterations_can_send_more_bytes() {
    // In a ring of two, each rank sends the size of the vector.
    let sent = |bytes: u64, iterations: f64| {
        iterations * ring::all_reduce(2).bytes(Bytes(bytes)) / GB as f64
    };
    assert_digits("a hundred short ones", sent(100 * MB, 100.0), "10");
    assert_digits("ten long ones", sent(10 * GB, 10.0), "100");
}

/// Rounding to the nearest level; the lab's quantizer rounds stochastically instead.
#[test]
fn rounding_error_is_half_a_step() {
    let (least, range) = (-10.0_f64, 20.0);
    assert_digits("as printed", range / powi(2.0, 8), "0.078");
    // 256 levels have 255 steps between them. Ten points on either side of each level, the tenth
    // halfway.
    let step = range / (powi(2.0, 8) - 1.0);
    assert_digits("a step", step, "0.078");
    let off = |place: u32| {
        let number = least + range * f64::from(place) / 5100.0;
        let rounded = least + ((number - least) / step).round() * step;
        (number - rounded).abs()
    };
    // Lecture notes give the step as the error; the error is at most half of it.
    assert_digits("the error", (0..=5100).map(off).fold(0.0, f64::max), "0.0392");
}

/// The false law; [`speed_up`] has the correct value.
fn root_law(num_workers: f64, compute: f64, communication: f64) -> f64 {
    (num_workers * compute / communication).sqrt()
}

/// Speed-up of n workers with step time T/n + C, or its limit.
fn speed_up(num_workers: u32, compute: f64, communication: f64, column: &str) -> f64 {
    let params = [
        format!("workers={num_workers}"),
        format!("compute={compute}"),
        format!("communication={communication}"),
    ];
    let all: Vec<&str> = params.iter().map(String::as_str).collect();
    value_at("scaling", &all, "", column)
}

#[test]
fn speed_up_is_limited_by_a_ratio_not_a_root() {
    // Lecture notes print 638 and 808, for 1.2 s of compute and 12 or 15 ms of communication. The
    // actual speed-up is below T/C = 100 and 80.
    assert_digits("as printed", root_law(4096.0, 1.2, 12e-3), "640.0");
    assert_digits("speed up", speed_up(4096, 1.2, 12e-3, "speed_up"), "97.6");
    assert_digits("at most", speed_up(4096, 1.2, 12e-3, "speed_up_limit"), "100.0");
    assert_digits("as printed", root_law(8192.0, 1.2, 15e-3), "809.5");
    assert_digits("speed up", speed_up(8192, 1.2, 15e-3, "speed_up"), "79.2");
    assert_digits("at most", speed_up(8192, 1.2, 15e-3, "speed_up_limit"), "80.0");
}

#[test]
fn measured_speed_up_exceeds_the_root_law() {
    // Lecture notes divide the bytes of a ring by the ranks: 82 ms and, for 0.8 s of compute, a
    // limit of 141.
    let (vector, speed) = (1060 * GB, BytesPerSecond(12.5e9));
    let divided = Bytes(2 * vector / 2048) / speed;
    assert_digits("as printed, ms", 1e3 * divided.0, "82.8");
    let limit = root_law(2048.0, 0.8, divided.0);
    assert_close("as printed", limit, 140.6, 1e-3);
    // The bytes per rank of a ring do not shrink with the ranks.
    let link = Link { latency: Seconds(0.0), bandwidth: speed };
    assert_digits("s", ring::all_reduce(2048).seconds(Bytes(vector), link).0, "169.5");
    // The measured speed-up of 2048 workers was 720, above that limit.
    let measured = 720.0;
    assert_digits("measured", strong_efficiency(Seconds(measured), 2048, Seconds(1.0)), "0.352");
    assert!(measured > 5.0 * limit, "{limit}");
}

#[test]
fn less_communication_gains_more_than_its_root() {
    // 10.9 ms for 1.2 s of compute. Lecture notes print 948, 1340 and 1500 for a quarter and a
    // tenth of it.
    assert_digits("as printed, a quarter", root_law(2048.0, 1.2, 2.7e-3), "954");
    assert_digits("as printed, twice the workers", root_law(4096.0, 1.2, 2.7e-3), "1349");
    assert_digits("as printed, a tenth", root_law(2048.0, 1.2, 1.09e-3), "1502");
    // With 10 % more iterations.
    assert_digits("net", Seconds(1500.0) / Seconds(1.1), "1364");
    let fast = |communication: f64| speed_up(2048, 1.2, communication, "speed_up");
    assert_digits("all", fast(10.9e-3), "104.5");
    assert_digits("a quarter", fast(2.7e-3), "365.2");
    assert_digits("a tenth", fast(1.09e-3), "716.0");
    // A quarter of the communication gains more than 2x, twice the workers less than sqrt(2).
    assert_digits("gain", fast(2.7e-3) / fast(10.9e-3), "3.50");
    let doubled = speed_up(4096, 1.2, 2.7e-3, "speed_up") / fast(2.7e-3);
    assert_digits("gain of workers", doubled, "1.10");
}

#[test]
fn a_fortieth_of_the_bytes_gains_up_to_forty() {
    // Lecture notes print sqrt(40); the limit of the speed-up is inverse to communication.
    assert_digits("as printed", root_law(40.0, 1.0, 1.0), "6.32");
    let most = |communication: f64| speed_up(2048, 100.0, communication, "speed_up_limit");
    assert_digits("most", most(1.0 / 40.0) / most(1.0), "40.0");
    assert_digits("of 5000", strong_efficiency(Seconds(3200.0), 5000, Seconds(1.0)), "0.64");
    // A step 890 times as fast, 1.15 times the steps; before: 280.
    let net = Seconds(1.0) / (Seconds(1.0 / 890.0) * 1.15);
    assert_digits("net", net, "774");
    assert_digits("gain", net / 280.0, "2.76");
}
