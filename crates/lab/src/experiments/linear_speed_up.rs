//! Linear speed-up of data-parallel SGD: averaging n gradients divides the noise variance by n.
//!
//! The asymptotic error of noise is lr L s^2/(2n). n workers therefore allow a step size n times
//! larger and n times fewer iterations, until curvature limits the step size; beyond that, more
//! workers save nothing. Communication reduces the speed-up in wall-clock time.

use super::common::{bandwidth, latency, link};
use super::prelude::*;
use crate::problem::{Quadratic, Stepper};
use lockstep_planner::collective::ring;

experiment!(LinearSpeedUp);

const DESCRIPTION: Description = Description {
    name: "linear-speed-up",
    title: "Linear speed-up: iterations to a loss by workers, then seconds with communication",
    question: "Do n workers need n times fewer iterations, and n times less time?",
    formula: "rate 1/T + s/sqrt(nT): iterations s^2/(n eps^2) while noise dominates; here \
              E x^2 <- (1 - a h)^2 E x^2 + a^2 s^2/n exactly, with a = min(1, share eps n/s^2)",
    look: "speed_up, linear until the step size reaches its limit; wall_speed_up, which \
           saturates earlier; iterations against expected_iterations",
    surprise: "linear speed-up is about iterations; with communication the wall-clock speed-up \
               saturates long before, and beyond the critical batch size both stop",
    params: &[
        Param::count("workers", 8.0, (1.0, 1024.0), "workers (n)"),
        Param::number("noise", Unit::Number, 1.0, (1e-3, 1e3), "gradient noise (s)"),
        Param::number("target", Unit::Number, 0.02, (1e-6, 0.5), "target loss/initial loss"),
        Param::count("dim", 8.0, (1.0, 1000.0), "dimensions"),
        Param::number("condition", Unit::Number, 4.0, (1.0, 1e4), "condition number"),
        Param::number("compute", Unit::Seconds, 0.05, (0.0, 1e4), "compute time of a gradient"),
        Param::number("gradient", Unit::Bytes, 400e6, (0.0, 1e13), "bytes of the gradient"),
        latency(50e-6),
        bandwidth(12.5e9),
        Param::count("runs", 16.0, (1.0, 1e4), "number of averaged runs"),
    ],
    sweep: ("workers", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]),
    columns: &[
        Column::new("lr", Unit::Number, "step size"),
        Column::new("iterations", Unit::Count, "iterations to the target, simulated"),
        Column::new(
            "expected_iterations",
            Unit::Count,
            "iterations to the target, exact recursion",
        ),
        Column::new("speed_up", Unit::Times, "iterations of one worker/iterations"),
        Column::new("seconds", Unit::Seconds, "time to the target without communication"),
        Column::new("wall_seconds", Unit::Seconds, "time to the target with ring all-reduces"),
        Column::new("wall_speed_up", Unit::Times, "time of one worker/wall_seconds"),
        Column::new("linear_speed_up", Unit::Times, "linear speed-up: number of workers"),
    ],
    chart: ChartSpec::lines("workers", &["linear_speed_up", "speed_up", "wall_speed_up"])
        .log(true, true)
        .named("speed-up over one worker"),
};

const MAX_ITERATIONS: usize = 100_000;

/// Largest step size whose asymptotic loss lr s^2 d/(4n) is half of the target.
fn step_size(at: &Settings, quadratic: &Quadratic, n: f64) -> f64 {
    let goal = at.number("target") * quadratic.loss(&quadratic.start());
    let noise = quadratic.noise * quadratic.noise * quadratic.curvatures.len() as f64;
    (2.0 * goal * n / noise).min(1.0)
}

/// Iterations until the exact expected loss reaches the target.
fn expected(at: &Settings, quadratic: &Quadratic, n: f64) -> f64 {
    let lr = step_size(at, quadratic, n);
    let goal = at.number("target") * quadratic.loss(&quadratic.start());
    let mut squares = vec![1.0; quadratic.curvatures.len()];
    for iteration in 0..MAX_ITERATIONS {
        let loss: f64 = squares.iter().zip(&quadratic.curvatures).map(|(x, h)| 0.5 * x * h).sum();
        if loss <= goal {
            return iteration as f64;
        }
        for (x, h) in squares.iter_mut().zip(&quadratic.curvatures) {
            *x = (1.0 - lr * h) * (1.0 - lr * h) * *x
                + lr * lr * quadratic.noise * quadratic.noise / n;
        }
    }
    f64::INFINITY
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, dim) = (at.count("workers"), at.count("dim"));
    let quadratic = Quadratic::new(dim, at.number("condition"), at.number("noise"));
    let lr = step_size(at, &quadratic, n as f64);
    let goal = at.number("target") * quadratic.loss(&quadratic.start());
    let mut runs: Vec<(Vec<f32>, Stepper)> =
        (0..at.count("runs")).map(|_| (quadratic.start(), Stepper::sgd(dim))).collect();
    let mut iterations = 0;
    let loss = |runs: &[(Vec<f32>, Stepper)]| {
        runs.iter().map(|(x, _)| quadratic.loss(x)).sum::<f64>() / runs.len() as f64
    };
    while loss(&runs) > goal && iterations < MAX_ITERATIONS {
        for (x, stepper) in &mut runs {
            // The mean of n gradients is a gradient of a batch of n.
            let gradient = quadratic.gradient(x, n as f64, random);
            stepper.step(x, lr, &gradient);
        }
        iterations += 1;
    }
    let count =
        if iterations < MAX_ITERATIONS { f64::from(iterations as u32) } else { f64::INFINITY };
    let (one_worker, all_workers) =
        (expected(at, &quadratic, 1.0), expected(at, &quadratic, n as f64));
    let compute = at.number("compute");
    let sum = ring::all_reduce(n).seconds(at.bytes("gradient"), link(at)).0;
    Ok(vec![row![
        lr,
        count,
        all_workers,
        one_worker / all_workers,
        all_workers * compute,
        all_workers * (compute + sum),
        one_worker * compute / (all_workers * (compute + sum)),
        n as f64,
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    let mut findings = vec![format!(
        "{}the speed-up is {} in iterations and {} in wall-clock time",
        at(table, end),
        cell(table, "speed_up", end),
        cell(table, "wall_speed_up", end)
    )];
    let (speed, linear) = (table.numbers("speed_up"), table.numbers("linear_speed_up"));
    if let Some(extent) = extent(table, &each_point(table), |row| speed[row] < 0.5 * linear[row]) {
        findings.push(format!("the speed-up in iterations is below half of linear{extent}"));
    }
    if let Some(best) = table.best("wall_seconds", 1.0) {
        let seconds = cell(table, "wall_seconds", best);
        let fastest = best_is(table, best, "fastest");
        findings.push(format!("{fastest}the target takes {seconds} of wall-clock time"));
    }
    findings
}
