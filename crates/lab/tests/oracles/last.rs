//! Rows that are little more than one product, each by whatever the lab or the planner says about
//! it, and the rows of a law that is wrong: that n workers are at most sqrt(n T/C) times as fast.

use super::{at, near, row};
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
fn late_gradients_shrink_steps() {
    let step = |staleness: &str| {
        let param = format!("staleness={staleness}");
        at("bounded-async", &[&*param, "lr=0.1", "most=10"], "", "step_size")
    };
    // Twenty updates that count for a twentieth each are one; counted in full they leave a 21st.
    row("A O191", step("1"), "0.05");
    row("A O191, counted in full", step("20"), "0.0048");
}

#[test]
fn a_curvature_that_doubles_halves_the_age_that_gradients_may_have() {
    let descent = Descent { lr: 0.0075, momentum: 0.0, delay: 25 };
    row("A O219", descent.lr_limit(8.0) / descent.lr_limit(18.0), "2.25");
    // The rule cuts the age from 25 to 10 then: 25 would diverge, and 11 is the most.
    assert_eq!(descent.delay_limit(8.0), Some(25), "row A O219, before");
    assert_eq!(descent.delay_limit(18.0), Some(11), "row A O219, after");
    assert!(!descent.is_stable(18.0), "row A O219, not cut");
    assert!(Descent { delay: 10, ..descent }.is_stable(18.0), "row A O219, cut");
}

#[test]
fn squares_of_ages_are_no_iterations() {
    let stale = |staleness: &str, column| {
        at("bounded-async", &[&format!("staleness={staleness}")], "", column)
    };
    let age = stale("0", "step_size") / stale("50", "step_size");
    row("B O78", age * age, "2601");
    row("B O78, of 200", age * age / 200.0, "13.0");
    // The square is of a bound. Runs take 1 + tau times the iterations: two hundred times as many
    // updates are not 13 times slower but four times faster.
    let more = stale("50", "iterations") / stale("0", "iterations");
    near("B O78, iterations", more, 51.0, 0.01);
    near("B O78, measured", 200.0 / more, 3.94, 0.01);
}

#[test]
fn fewer_wide_layers_wait_as_long_as_many_narrow_ones() {
    // A layer has four all-reduces; of two devices each is two messages, here all latency.
    let micros = |layers: &str, latency: &str| {
        let params = [format!("layers={layers}"), format!("latency={latency}")];
        let short = ["degree=2", "width=64", "tokens=1", "element_bytes=1", "bandwidth=1e15"];
        let all = [&short[..], &[&*params[0], &*params[1]]].concat();
        let of = |column| at("tensor-parallel", &all, "", column);
        1e6 * of("communication_seconds") * of("step_bytes") / of("layer_bytes")
    };
    row("A O200, a layer", micros("1", "0.4us"), "3.2");
    row("A O200", micros("32", "0.4us"), "102.4");
    row("A O200, wide", micros("24", "0.5375us"), "103.2");
}

#[test]
fn samples_between_averages() {
    for (k, workers, batch, value) in [("4", "128", 32.0, "16384"), ("2", "256", 8000.0, "4096000")]
    {
        let params = [format!("local_steps={k}"), format!("workers={workers}")];
        let all = [&*params[0], &*params[1], "target=0.9"];
        let own: f64 = k.parse().expect("a number");
        row("A O226", (at("local-sgd", &all, "", "delay") + own) * batch, value);
    }
    row("A O226, ms", 1e3 * (Seconds(0.1e-3) * 256.0).0, "25.6");
}

#[test]
fn costs_of_equal_bits_add_up() {
    let s = Seconds;
    let extra: Seconds = [10.0, 0.0, 3.0].map(Seconds).into_iter().sum();
    row("B O40", step_seconds(s(100.0), 1, extra).0 - 100.0, "13");
    // Of the time of a step; of what is done in an hour it is less.
    row("B O40, fewer steps", 100.0 * (1.0 - step_efficiency(s(100.0), extra)), "11.5");
}

#[test]
fn sampled_clients_take_turns() {
    // A hundred of a thousand clients a round, for ten thousand rounds.
    row("B O79", amortized(Seconds(0.0), Seconds(10e3), 1000 / 100).0, "1000");
    let mut random = Random::named(0, "clients");
    let asked = (0..10_000).filter(|_| random.below(1000) < 100).count();
    near("B O79, drawn", asked as f64, 1000.0, 0.15);
}

#[test]
fn hours_that_smaller_checkpoints_save() {
    let hours = |interval: &str, write: &str| {
        let params = [format!("interval={interval}"), format!("write={write}")];
        let all = [&*params[0], &*params[1], "mtbf=21.387h", "failures=10"];
        504.0 * at("checkpointing", &all, "", "writing")
    };
    // 1.6 % of an hour is 57.6 s.
    row("B O125", hours("1h", "57.6s"), "8.06");
    // The 1.6 % are 2.5 less 0.9, which leaves out most of the deltas between two full checkpoints:
    // fifteen of 9 s and one of 90 s every four hours.
    row("B O125, with all deltas", hours("1h", "90s") - hours("4h", "225s"), "4.7");
}

#[test]
fn fewer_iterations_can_send_more() {
    // Of two ranks, each sends a vector's worth.
    let sent = |bytes: u64, iterations: f64| {
        iterations * ring::all_reduce(2).bytes(Bytes(bytes)) / GB as f64
    };
    row("B O204, a hundred short ones", sent(100 * MB, 100.0), "10");
    row("B O204, ten long ones", sent(10 * GB, 10.0), "100");
}

/// By hand: the lab's quantiser rounds at random, not to the nearest level.
#[test]
fn rounding_is_off_by_half_a_step() {
    let (least, range) = (-10.0_f64, 20.0);
    row("B O214, as printed", range / powi(2.0, 8), "0.078");
    // 256 levels are 255 steps apart. Ten places on either side of each level, the tenth halfway.
    let step = range / (powi(2.0, 8) - 1.0);
    row("B O214, a step", step, "0.078");
    let off = |place: u32| {
        let number = least + range * f64::from(place) / 5100.0;
        let rounded = least + ((number - least) / step).round() * step;
        (number - rounded).abs()
    };
    // What is printed as the error is a step; the error is at most half of it.
    row("B O214, the error", (0..=5100).map(off).fold(0.0, f64::max), "0.0392");
}

/// The law as printed, which is false: see [`times_as_fast`] for what is true.
fn root_law(num_workers: f64, alone: f64, communication: f64) -> f64 {
    (num_workers * alone / communication).sqrt()
}

/// How many times as fast n workers are by T/n + C, or the most that any number of them can be.
fn times_as_fast(num_workers: u32, alone: f64, communication: f64, column: &str) -> f64 {
    let params = [
        format!("workers={num_workers}"),
        format!("alone={alone}"),
        format!("communication={communication}"),
    ];
    let all: Vec<&str> = params.iter().map(String::as_str).collect();
    at("scaling", &all, "", column)
}

#[test]
fn speed_ups_end_at_a_ratio_and_not_at_a_root() {
    // The source prints 638 and 808, from 1.2 s of work and 12 and 15 ms of communication. The
    // arithmetic is near; the speed-up that it is meant to be is below T/C = 100 and 80.
    row("B O147, as printed", root_law(4096.0, 1.2, 12e-3), "640.0");
    row("B O147", times_as_fast(4096, 1.2, 12e-3, "speed_up"), "97.6");
    row("B O147, at most", times_as_fast(4096, 1.2, 12e-3, "limit"), "100.0");
    row("B O147, as printed", root_law(8192.0, 1.2, 15e-3), "809.5");
    row("B O147", times_as_fast(8192, 1.2, 15e-3, "speed_up"), "79.2");
    row("B O147, at most", times_as_fast(8192, 1.2, 15e-3, "limit"), "80.0");
}

#[test]
fn a_root_that_was_surpassed_is_no_limit() {
    // The source divides a ring's bytes by the ranks, prints 82 ms and, for 0.8 s of work, a limit
    // of 141 times.
    let (vector, speed) = (1060 * GB, BytesPerSecond(12.5e9));
    let divided = Bytes(2 * vector / 2048) / speed;
    row("B O152, as printed, ms", 1e3 * divided.0, "82.8");
    let limit = root_law(2048.0, 0.8, divided.0);
    near("B O152, as printed", limit, 140.6, 1e-3);
    // A ring's bytes do not shrink.
    let link = Link { latency: Seconds(0.0), bandwidth: speed };
    row("B O152, s", ring::all_reduce(2048).seconds(Bytes(vector), link).0, "169.5");
    // The same 2048 workers were measured at 720 times, which is possible, and above the limit.
    let measured = 720.0;
    row("B O152, measured", strong_efficiency(Seconds(measured), 2048, Seconds(1.0)), "0.352");
    assert!(measured > 5.0 * limit, "row B O152: {limit}");
}

#[test]
fn less_communication_brings_more_than_its_root() {
    // 10.9 ms for 1.2 s of work. The source prints 948, 1340 and 1500 for a quarter and a tenth.
    row("B O153, as printed, a quarter", root_law(2048.0, 1.2, 2.7e-3), "954");
    row("B O153, as printed, twice the workers", root_law(4096.0, 1.2, 2.7e-3), "1349");
    row("B O153, as printed, a tenth", root_law(2048.0, 1.2, 1.09e-3), "1502");
    // A tenth more iterations.
    row("B O153, net", Seconds(1500.0) / Seconds(1.1), "1364");
    let fast = |communication: f64| times_as_fast(2048, 1.2, communication, "speed_up");
    row("B O153, all", fast(10.9e-3), "104.5");
    row("B O153, a quarter", fast(2.7e-3), "365.2");
    row("B O153, a tenth", fast(1.09e-3), "716.0");
    // A quarter of it is not twice as fast, and twice the workers are not the root of two.
    row("B O153, gain", fast(2.7e-3) / fast(10.9e-3), "3.50");
    let doubled = times_as_fast(4096, 1.2, 2.7e-3, "speed_up") / fast(2.7e-3);
    row("B O153, gain of workers", doubled, "1.10");
}

#[test]
fn a_fortieth_of_the_bytes_is_worth_up_to_forty() {
    // The source prints the root of 40; the limit of the speed-up grows as communication falls.
    row("B O154, as printed", root_law(40.0, 1.0, 1.0), "6.32");
    let most = |communication: f64| times_as_fast(2048, 100.0, communication, "limit");
    row("B O154", most(1.0 / 40.0) / most(1.0), "40.0");
    row("B O154, of 5000", strong_efficiency(Seconds(3200.0), 5000, Seconds(1.0)), "0.64");
    // 890 times as fast a step, 1.15 times the steps; it was 280.
    let net = Seconds(1.0) / (Seconds(1.0 / 890.0) * 1.15);
    row("B O154, net", net, "774");
    row("B O154, gain", net / 280.0, "2.76");
}
