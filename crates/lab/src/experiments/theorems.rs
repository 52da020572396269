//! Ten theorems on distributed SGD, evaluated: bounds, not predictions.
//!
//! Each theorem has the form that can be derived; common misprints (noise that grows with the
//! batch, a step size that divides by zero, a flipped sign) are corrected. Where the lab can run
//! the subject of a theorem, the table shows the measured value next to the bound. The slack
//! between the two shows the value of the bound as a prediction.

use super::bounded_async::stable_limit;
use super::prelude::*;
use crate::problem::{Quadratic, Stepper, norm};
use lockstep_config::units::Bytes;
use lockstep_planner::collective::ring;
use lockstep_planner::scaling::speed_up;
use lockstep_tensor::math::scalar::ln;
use std::collections::VecDeque;

experiment!(Theorems);

const DESCRIPTION: Description = Description {
    name: "theorems",
    title: "Ten theorems on distributed SGD: bounds against measured values",
    question: "What do the theorems bound for these parameters, and how tight are they?",
    formula: "1 sync: 2D/(aT) + aLS/B; 2 stale, convex: 2(L/m)(1+tau) ln(1/eps); 3 stale: 2D/(aT) \
              + aLG + (aL tau)^2 G; 4 bytes: d(n-1)/n for a mean, d log2(1/eps)/8 to eps; 5 \
              n(1+r)/(1+rn); 6 B* = S/(m eps ln(1/eps)); 7 theorem 1 with S/B + W/n; 8 (1+tau) 4LD/\
              eps; 9 aL < 2 sin(pi/(4 tau+2)); 10 step >= max(Tc/n, Tm)",
    look: "bound against measured; slack, their ratio; direction, an upper or a lower bound",
    surprise: "every bound holds and none predicts: measured values are several times better, so \
               do not size hardware by a theorem; the scaling of a bound is right",
    params: &[
        Param::count("staleness", 4.0, (0.0, 200.0), "age of gradients in updates (tau)"),
        Param::count("workers", 8.0, (1.0, 1e5), "workers (n)"),
        Param::count("batch", 8.0, (1.0, 1e6), "batch in samples (B)"),
        Param::count("iterations", 1000.0, (10.0, 1e6), "iterations (T)"),
        Param::number("lr", Unit::Number, 0.05, (1e-5, 1.0), "step size (a); curvature L is 1"),
        Param::number("condition", Unit::Number, 20.0, (1.0, 1e5), "condition number L/m"),
        Param::number("noise", Unit::Number, 0.3, (0.0, 100.0), "gradient noise of a sample"),
        Param::number("compression", Unit::Number, 0.2, (0.0, 100.0), "noise of compression"),
        Param::number("eps", Unit::Number, 1e-3, (1e-12, 0.5), "target accuracy"),
        Param::number("ratio", Unit::Number, 0.1, (1e-6, 1e3), "communication time/compute time"),
        Param::number("vector", Unit::Bytes, 400e6, (1.0, 1e13), "size of the vector (d)"),
    ],
    sweep: ("staleness", &[0.0, 1.0, 2.0, 4.0, 8.0, 16.0]),
    columns: &[
        Column::new("theorem", Unit::Text, "theorem"),
        Column::new("quantity", Unit::Text, "bounded quantity"),
        Column::new("direction", Unit::Text, "upper (at most) or lower (at least) bound"),
        Column::new("bound", Unit::Number, "the bound"),
        Column::new("measured", Unit::Number, "measured value of a run or schedule"),
        Column::new("slack", Unit::Times, "larger/smaller of bound and measured"),
    ],
    chart: ChartSpec::lines("staleness", &["slack"])
        .by("theorem")
        .log(false, true)
        .named("larger/smaller of bound and measured value"),
};

const DIM: usize = 8;

/// Result of SGD with stale gradients.
struct Run {
    /// Mean squared norm of the exact gradient.
    mean_square: f64,
    /// Largest mean square of an applied gradient.
    largest_square: f64,
}

/// Follows the engine's SGD through a quadratic.
fn descend(at: &Settings, random: &mut Random, staleness: usize, extra: f64) -> Run {
    let batch = at.number("batch");
    // Sampling noise and compression noise, combined.
    let noise = at.number("noise");
    let variance = noise * noise / batch + extra;
    let quadratic = Quadratic::new(DIM, at.number("condition"), variance.sqrt());
    let noiseless = Quadratic { noise: 0.0, ..quadratic.clone() };
    let (mut x, mut stepper) = (quadratic.start(), Stepper::sgd(DIM));
    let mut past: VecDeque<Vec<f32>> = VecDeque::new();
    let (mut sum, mut largest) = (0.0, 0.0_f64);
    let num = at.count("iterations").min(5000);
    for _ in 0..num {
        past.push_front(x.clone());
        past.truncate(staleness + 1);
        let exact = norm(&noiseless.gradient(&x, 1.0, random));
        sum += exact * exact;
        let stale = &past[staleness.min(past.len() - 1)];
        let gradient = quadratic.gradient(stale, 1.0, random);
        let old = norm(&noiseless.gradient(stale, 1.0, random));
        largest = largest.max(old * old + DIM as f64 * variance);
        stepper.step(&mut x, at.number("lr"), &gradient);
    }
    Run { mean_square: sum / num as f64, largest_square: largest }
}

/// A theorem with its bound and the measured value.
struct Line {
    theorem: &'static str,
    quantity: &'static str,
    direction: &'static str,
    bound: f64,
    measured: f64,
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let lines = rates(at, random).into_iter().chain(costs(at));
    let row = |line: Line| {
        let slack = (line.bound / line.measured).max(line.measured / line.bound);
        row![line.theorem, line.quantity, line.direction, line.bound, line.measured, slack]
    };
    Ok(lines.map(row).collect())
}

/// Theorems about iterations: 1, 2, 3, 7, 8.
fn rates(at: &Settings, random: &mut Random) -> Vec<Line> {
    let (lr, tau, eps) = (at.number("lr"), at.count("staleness"), at.number("eps"));
    let (n, batch) = (at.number("workers"), at.number("batch"));
    let num = at.number("iterations").min(5000.0);
    let quadratic = Quadratic::new(DIM, at.number("condition"), 0.0);
    let drop = quadratic.loss(&quadratic.start());
    let sample = DIM as f64 * at.number("noise") * at.number("noise");
    let lossy = at.number("compression") * at.number("compression") / n;
    let age = 1.0 + tau as f64;
    let fresh = descend(at, &mut random.stream(0), 0, 0.0);
    let stale = descend(at, &mut random.stream(0), tau, 0.0);
    let compressed = descend(at, &mut random.stream(0), 0, lossy);
    let far = 2.0 * drop / (lr * num);
    let old = lr * tau as f64;
    let at_most = |theorem, quantity, bound, measured| Line {
        theorem,
        quantity,
        direction: "at most",
        bound,
        measured,
    };
    vec![
        at_most(
            "1 synchronous",
            "mean squared gradient",
            far + lr * sample / batch,
            fresh.mean_square,
        ),
        at_most(
            "2 bounded staleness",
            "iterations to eps, convex",
            2.0 * at.number("condition") * age * ln(1.0 / eps),
            iterations(at, tau, eps),
        ),
        at_most(
            "3 asynchronous",
            "mean squared gradient",
            far + (lr + old * old) * stale.largest_square,
            // The theorem does not cover unstable step sizes.
            if lr < stable_limit(tau) { stale.mean_square } else { f64::NAN },
        ),
        at_most(
            "7 aggregation error",
            "mean squared gradient",
            far + lr * (sample / batch + DIM as f64 * lossy),
            compressed.mean_square,
        ),
        at_most(
            "8 consistency",
            "iterations to a squared gradient of eps",
            age * 2.0 * drop * 2.0 / eps,
            iterations_to_gradient(at, tau, eps),
        ),
    ]
}

/// Iterations to a distance of eps with the step size that theorem 2 allows.
fn iterations(at: &Settings, tau: usize, eps: f64) -> f64 {
    let quadratic = Quadratic::new(DIM, at.number("condition"), 0.0);
    let lr = 1.0 / (2.0 * (1.0 + tau as f64));
    let stepper = Stepper::sgd(DIM);
    super::bounded_async::iterations(&quadratic, lr, eps, 1_000_000, (tau, || tau), stepper)
}

/// Iterations to a squared gradient of eps with the step size of theorem 2.
fn iterations_to_gradient(at: &Settings, tau: usize, eps: f64) -> f64 {
    let quadratic = Quadratic::new(DIM, at.number("condition"), 0.0);
    let lr = 1.0 / (2.0 * (1.0 + tau as f64));
    let (mut x, mut stepper) = (quadratic.start(), Stepper::sgd(DIM));
    let mut past: VecDeque<Vec<f32>> = VecDeque::new();
    let mut random = Random::named(0, "unused");
    for iteration in 0..1_000_000 {
        past.push_front(x.clone());
        past.truncate(tau + 1);
        let exact = norm(&quadratic.gradient(&x, 1.0, &mut random));
        if exact * exact <= eps {
            return f64::from(iteration);
        }
        let gradient = quadratic.gradient(&past[tau.min(past.len() - 1)], 1.0, &mut random);
        stepper.step(&mut x, lr, &gradient);
    }
    f64::INFINITY
}

/// Theorems about bytes, workers and time: 4, 5, 6, 9, 10.
fn costs(at: &Settings) -> Vec<Line> {
    let (n, ratio, eps) = (at.count("workers"), at.number("ratio"), at.number("eps"));
    let vector = at.number("vector");
    let sample = DIM as f64 * at.number("noise") * at.number("noise");
    let least = 1.0 / at.number("condition");
    let tau = at.count("staleness");
    let line = |theorem, quantity, direction, bound, measured| Line {
        theorem,
        quantity,
        direction,
        bound,
        measured,
    };
    let num_workers = n as f64;
    // Bisection of the largest step size that converges.
    let limit = stable_limit(tau);
    let quadratic = Quadratic::new(1, 1.0, 0.0);
    let converges = |lr: f64| {
        let stepper = Stepper::sgd(1);
        let past = (tau, || tau);
        super::bounded_async::iterations(&quadratic, lr, 0.1, 20_000, past, stepper).is_finite()
    };
    let (mut low, mut high) = (0.0, 2.5);
    for _ in 0..12 {
        let middle = f64::midpoint(low, high);
        if converges(middle) { low = middle } else { high = middle }
    }
    vec![
        line(
            "4 communication",
            "bytes sent by a worker for a mean",
            "at least",
            vector * (n - 1) as f64 / n as f64,
            ring::all_reduce(n).bytes(Bytes(vector as u64)),
        ),
        line(
            "5 speed-up",
            "speed-up over one worker",
            "at most",
            1.0 + 1.0 / ratio,
            speed_up(n, ratio),
        ),
        line(
            "6 scalability",
            "critical batch size",
            "at most",
            sample / (least * eps * ln(1.0 / eps)),
            f64::NAN,
        ),
        line("9 delayed gradients", "stable step size", "at most", limit, low),
        line(
            "10 step time",
            "step time relative to one worker's compute",
            "at least",
            (1.0 / num_workers).max(ratio),
            1.0 / num_workers + ratio,
        ),
    ]
}

fn findings(table: &Table) -> Vec<String> {
    let (directions, names) = (table.texts("direction"), table.texts("theorem"));
    let (bounds, measured) = (table.numbers("bound"), table.numbers("measured"));
    let holds = |row: usize| {
        measured[row].is_nan()
            || if directions[row] == "at most" {
                measured[row] <= bounds[row] * (1.0 + 1e-3)
            } else {
                measured[row] >= bounds[row] * (1.0 - 1e-3)
            }
    };
    let rows = 0..measured.len();
    let num_measured = rows.clone().filter(|row| measured[*row].is_finite()).count();
    let first = match rows.clone().find(|row| !holds(*row)) {
        None => format!("All {num_measured} measured bounds hold, and none is a prediction"),
        Some(row) => format!("{}theorem {} does not hold", at(table, row), names[row]),
    };
    let loosest = table.best("slack", -1.0).map_or_else(String::new, |row| {
        format!("the loosest bound is {}: a factor of {}", names[row], cell(table, "slack", row))
    });
    vec![first, loosest]
}
