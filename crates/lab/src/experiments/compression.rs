//! Gradient compression with error feedback: bytes on the wire, iterations, time to target
//! (Stich et al. 2018; Alistarh et al. 2017).

use super::common::{bandwidth, latency, link};
use super::prelude::*;
use crate::problem::{Quadratic, Stepper, norm};
use lockstep_config::units::Bytes;
use lockstep_parallel::compress::{qsgd, random_k, sign, top_k};
use lockstep_planner::collective::ring;
use lockstep_tensor::Isa;
use lockstep_tensor::random::Key;

experiment!(Compression);

const DESCRIPTION: Description = Description {
    name: "compression",
    title: "Gradient compression: bytes, iterations and time to a target, with error feedback",
    question: "Does gradient compression shorten the run, or only the messages?",
    formula: "top-k sends k(4 + 4) bytes of 4d: 1 - 2r saved, not 1 - r; error feedback sends \
              C(g + e) and carries e = g + e - C(g + e) over",
    look: "iterations with feedback=on and feedback=off; seconds over bandwidth; saved, which is \
           negative above a ratio of one half",
    surprise: "indices double the bytes of top-k: half of the gradient costs as much as all of it; \
               error feedback delays entries like stale gradients, so strong compression needs a \
               smaller step size; on a fast network compression is slower",
    params: &[
        Param::number(
            "ratio",
            Unit::Share,
            0.01,
            (1e-4, 1.0),
            "share of the gradient that is sent",
        ),
        Param::choice("method", &["top-k", "random-k", "quantised"], "compression method"),
        Param::choice("feedback", &["on", "off"], "error feedback"),
        Param::number("parameters", Unit::Number, 1e8, (1e3, 1e13), "elements of the gradient"),
        Param::number("compute", Unit::Seconds, 0.1, (0.0, 1e4), "compute time of a step"),
        Param::number(
            "compress",
            Unit::Seconds,
            0.01,
            (0.0, 1e4),
            "time to compress and decompress",
        ),
        Param::count("workers", 16.0, (2.0, 1e5), "workers"),
        Param::count("dim", 200.0, (2.0, 5000.0), "dimensions of the quadratic"),
        Param::number("condition", Unit::Number, 20.0, (1.0, 1e5), "condition number"),
        Param::number("lr", Unit::Number, 0.1, (1e-4, 1.9), "step size for curvature 1"),
        Param::number(
            "target",
            Unit::Number,
            1e-2,
            (1e-9, 0.9),
            "target distance/initial distance",
        ),
        latency(50e-6),
        bandwidth(1.25e9),
    ],
    sweep: ("ratio", &[0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0]),
    columns: &[
        Column::new("iterations", Unit::Count, "steps to the target"),
        Column::new("wire_bytes", Unit::Bytes, "bytes per worker and step, with 32-bit indices"),
        Column::new("packed_bytes", Unit::Bytes, "bytes per worker and step, with packed indices"),
        Column::new("saved", Unit::Share, "bytes saved relative to a dense gradient"),
        Column::new("step_seconds", Unit::Seconds, "time of a step"),
        Column::new("seconds", Unit::Seconds, "time to the target"),
        Column::new("dense_seconds", Unit::Seconds, "time to the target without compression"),
        Column::new("dense_iterations", Unit::Count, "steps to the target without compression"),
    ],
    chart: ChartSpec::lines("ratio", &["seconds", "dense_seconds"])
        .log(true, true)
        .named("time to the target"),
};

const MAX_ITERATIONS: usize = 5000;

/// Bits of a message with `sent` of `all` elements and packed indices.
fn packed_bits(all: f64, sent: f64) -> f64 {
    sent * (32.0 + all.log2().ceil())
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (method, ratio) = (at.choice("method"), at.number("ratio"));
    let all = at.number("parameters");
    let dense = 4.0 * all;
    let wire = match method {
        // Each 32-bit element shrinks by the ratio, to one bit at the least; no indices are needed.
        "quantised" => dense * ratio.max(1.0 / 32.0),
        _ => ratio * all * 8.0,
    };
    let packed = if method == "quantised" { wire } else { packed_bits(all, ratio * all) / 8.0 };
    let iterations = descend(at, random, method, ratio);
    let dense_iterations = descend(at, random, "top-k", 1.0);
    let sum =
        |bytes: f64| ring::all_reduce(at.count("workers")).seconds(Bytes(bytes as u64), link(at)).0;
    let compute = at.number("compute");
    let step = compute + at.number("compress") + sum(wire);
    Ok(vec![row![
        iterations,
        wire,
        packed,
        1.0 - wire / dense,
        step,
        iterations * step,
        dense_iterations * (compute + sum(dense)),
        dense_iterations,
    ]])
}

/// Steps to the target; all methods and ratios of a seed start at the same point.
fn descend(at: &Settings, random: &Random, method: &str, ratio: f64) -> f64 {
    let rounding = Key::new(random.stream(1).bits(), "rounding");
    let mut random = random.stream(0);
    let dim = at.count("dim");
    let quadratic = Quadratic::new(dim, at.number("condition"), 0.0);
    let mut x: Vec<f32> = (0..dim).map(|_| random.normal() as f32).collect();
    let mut stepper = Stepper::sgd(dim);
    let first = norm(&x);
    let mut error = vec![0.0_f32; dim];
    let has_feedback = at.choice("feedback") == "on";
    for iteration in 1..=MAX_ITERATIONS {
        let key = rounding.with(iteration as u64);
        let mut target = quadratic.gradient(&x, 1.0, &mut random);
        if has_feedback {
            target.iter_mut().zip(&error).for_each(|(target, error)| *target += error);
        }
        let sent = match method {
            "quantised" => quantize(&target, ratio, key),
            "random-k" => draw(&target, ratio, has_feedback, key),
            _ => keep_largest(&target, ratio),
        };
        error = target.iter().zip(&sent).map(|(target, sent)| target - sent).collect();
        stepper.step(&mut x, at.number("lr"), &sent);
        let distance = norm(&x);
        if distance <= at.number("target") * first {
            return iteration as f64;
        }
        if !distance.is_finite() || distance > 1e6 * first {
            break;
        }
    }
    f64::INFINITY
}

/// The largest elements and zeros for the others: top-k of the engine.
fn keep_largest(numbers: &[f32], ratio: f64) -> Vec<f32> {
    let (mut message, mut arrived) = (Vec::new(), vec![0.0; numbers.len()]);
    top_k::encode(numbers, ratio, &mut message);
    top_k::decode(&message, ratio, &mut arrived);
    arrived
}

/// The elements that the engine's random-k draws and zeros for the others; without error feedback
/// each stands for its span.
fn draw(numbers: &[f32], ratio: f64, has_feedback: bool, key: Key) -> Vec<f32> {
    let mut arrived = vec![0.0; numbers.len()];
    for (place, len) in random_k::places(numbers.len(), ratio, key) {
        arrived[place] = numbers[place] * if has_feedback { 1.0 } else { len as f32 };
    }
    arrived
}

/// Elements of 32 times the ratio bits: signs with one, QSGD of the engine with two to eight; more
/// bits are exact here.
fn quantize(numbers: &[f32], ratio: f64, key: Key) -> Vec<f32> {
    let (mut message, mut arrived) = (Vec::new(), vec![0.0; numbers.len()]);
    match (32.0 * ratio).round() as u32 {
        0..=1 => {
            sign::encode(numbers, numbers.len(), &mut message);
            sign::decode(&message, numbers.len(), &mut arrived);
        }
        bits @ 2..=8 => {
            qsgd::encode(Isa::detect(), numbers, bits, key, &mut message);
            qsgd::decode(&message, bits, &mut arrived);
        }
        _ => arrived.copy_from_slice(numbers),
    }
    arrived
}

fn findings(table: &Table) -> Vec<String> {
    let Some(best) = table.best("seconds", 1.0) else {
        return vec!["The target is never reached".to_owned()];
    };
    let gain = table.numbers("dense_seconds")[best] / table.numbers("seconds")[best];
    vec![
        format!("{}{gain:.1}x as fast as dense gradients", best_is(table, best, "fastest")),
        format!(
            "it saves {} of the bytes and takes {} iterations, dense gradients {}",
            cell(table, "saved", best),
            cell(table, "iterations", best),
            cell(table, "dense_iterations", best)
        ),
    ]
}
