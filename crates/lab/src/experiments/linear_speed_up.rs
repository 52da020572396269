//! Linear speed-up: n workers average the noise of n gradients, so n times fewer iterations do.
//!
//! The error that noise leaves is lr L s^2/(2n). Whoever has n workers can therefore afford a step
//! n times longer and arrives n times sooner, until the step is as long as curvature allows: from
//! there on more workers save nothing. And each of them must be waited for and heard.

use super::common::{bandwidth, latency, link};
use super::prelude::*;
use crate::problem::{Bowl, Stepper};
use lockstep_planner::collective::ring;

experiment!(LinearSpeedUp);

const CARD: Card = Card {
    name: "linear-speed-up",
    title: "Linear speed-up: iterations to a loss by workers, then seconds with communication",
    question: "Do n workers need n times fewer iterations, and n times less time?",
    formula: "rate 1/T + s/sqrt(nT): iterations s^2/(n eps^2) while noise decides; here \
              E x^2 <- (1 - a h)^2 E x^2 + a^2 s^2/n exactly, with a = min(1, share eps n/s^2)",
    look: "speed_up, a straight line that bends where steps cannot grow; wall_speed_up, which \
           bends earlier; iterations beside expected_iterations",
    surprise: "linear speed-up is about iterations; with communication the wall clock turns long \
               before the bound does, and beyond the critical batch both stop",
    params: &[
        Param::count("workers", 8.0, (1.0, 1024.0), "workers, a gradient each (n)"),
        Param::number("noise", Unit::Number, 1.0, (1e-3, 1e3), "noise of a gradient (s)"),
        Param::number("target", Unit::Number, 0.02, (1e-6, 0.5), "loss over that at the start"),
        Param::count("dim", 8.0, (1.0, 1000.0), "dimensions"),
        Param::number("condition", Unit::Number, 4.0, (1.0, 1e4), "largest over least curvature"),
        Param::number("compute", Unit::Seconds, 0.05, (0.0, 1e4), "a gradient"),
        Param::number("gradient", Unit::Bytes, 400e6, (0.0, 1e13), "bytes that are summed"),
        latency(50e-6),
        bandwidth(12.5e9),
        Param::count("runs", 16.0, (1.0, 1e4), "runs whose losses are averaged"),
    ],
    sweep: ("workers", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0]),
    columns: &[
        Column::new("lr", Unit::Number, "step size that noise allows"),
        Column::new("iterations", Unit::Count, "to the target, simulated"),
        Column::new("expected_iterations", Unit::Count, "by the exact recursion"),
        Column::new("speed_up", Unit::Times, "iterations of one worker over these"),
        Column::new("seconds", Unit::Seconds, "to the target, without communication"),
        Column::new("wall_seconds", Unit::Seconds, "to the target, with a ring a step"),
        Column::new("wall_speed_up", Unit::Times, "over one worker"),
        Column::new("linear", Unit::Times, "as many times as workers"),
    ],
    picture: Picture::lines("workers", &["linear", "speed_up", "wall_speed_up"])
        .log(true, true)
        .named("over one worker"),
};

const MOST: usize = 100_000;

/// The largest step whose noise leaves half of the target: lr s^2 d/(4n) is what settles.
fn step_size(at: &Settings, bowl: &Bowl, n: f64) -> f64 {
    let goal = at.number("target") * bowl.loss(&bowl.start());
    let noise = bowl.noise * bowl.noise * bowl.curvatures.len() as f64;
    (2.0 * goal * n / noise).min(1.0)
}

/// Iterations until the expected loss is at the target, exactly.
fn expected(at: &Settings, bowl: &Bowl, n: f64) -> f64 {
    let lr = step_size(at, bowl, n);
    let goal = at.number("target") * bowl.loss(&bowl.start());
    let mut squares = vec![1.0; bowl.curvatures.len()];
    for iteration in 0..MOST {
        let loss: f64 = squares.iter().zip(&bowl.curvatures).map(|(x, h)| 0.5 * x * h).sum();
        if loss <= goal {
            return iteration as f64;
        }
        for (x, h) in squares.iter_mut().zip(&bowl.curvatures) {
            *x = (1.0 - lr * h) * (1.0 - lr * h) * *x + lr * lr * bowl.noise * bowl.noise / n;
        }
    }
    f64::INFINITY
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, dim) = (at.count("workers"), at.count("dim"));
    let bowl = Bowl::new(dim, at.number("condition"), at.number("noise"));
    let lr = step_size(at, &bowl, n as f64);
    let goal = at.number("target") * bowl.loss(&bowl.start());
    let mut runs: Vec<(Vec<f32>, Stepper)> =
        (0..at.count("runs")).map(|_| (bowl.start(), Stepper::sgd(dim))).collect();
    let mut iterations = 0;
    let loss = |runs: &[(Vec<f32>, Stepper)]| {
        runs.iter().map(|(x, _)| bowl.loss(x)).sum::<f64>() / runs.len() as f64
    };
    while loss(&runs) > goal && iterations < MOST {
        for (x, stepper) in &mut runs {
            // The mean of n gradients is one of a batch of n.
            let gradient = bowl.gradient(x, n as f64, random);
            stepper.step(x, lr, &gradient);
        }
        iterations += 1;
    }
    let count = if iterations < MOST { f64::from(iterations as u32) } else { f64::INFINITY };
    let (alone, together) = (expected(at, &bowl, 1.0), expected(at, &bowl, n as f64));
    let compute = at.number("compute");
    let sum = ring::all_reduce(n).seconds(at.bytes("gradient"), link(at)).0;
    Ok(vec![row![
        lr,
        count,
        together,
        alone / together,
        together * compute,
        together * (compute + sum),
        alone * compute / (together * (compute + sum)),
        n as f64,
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    let mut found = vec![format!(
        "At {} iterations are {} fewer and the wall clock {} shorter",
        place(table, end),
        cell(table, "speed_up", end),
        cell(table, "wall_speed_up", end)
    )];
    let (speed, linear) = (table.numbers("speed_up"), table.numbers("linear"));
    if let Some(bend) = (0..=end).find(|row| speed[*row] < 0.5 * linear[*row]) {
        found.push(format!("from {} on iterations fall behind by half", place(table, bend)));
    }
    if let Some(best) = table.best("wall_seconds", 1.0) {
        let seconds = cell(table, "wall_seconds", best);
        found.push(format!("soonest by the clock: {}, {seconds}", place(table, best)));
    }
    found
}
