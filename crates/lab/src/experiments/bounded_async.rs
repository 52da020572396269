//! Stale gradients: gradient descent that sees the past converges slower, and then not at all.

use super::prelude::*;
use crate::problem::{Bowl, OPTIMIZER, Stepper, norm};
use lockstep_tensor::math::scalar::sin;
use std::collections::VecDeque;

experiment!(BoundedAsync);

const CARD: Card = Card {
    name: "bounded-async",
    title: "Bounded staleness: iterations to a target, and the step size that is still stable",
    question: "How many more iterations do gradients take that are tau updates old?",
    formula: "x(t+1) = x(t) - a g(x(t - tau)); stable for a L < 2 sin(pi/(4 tau + 2)), which is \
              2, 1, 0.618 … pi/(2 tau); a tau L < 1 is enough, not necessary",
    look: "iterations with step=scaled (a = 1/(1+tau)): they grow like 1 + tau; with \
           step=constant: the same as without staleness, until they are infinite",
    surprise: "a little staleness can be FASTER than none at the same step size (it acts like \
               momentum); what it takes away is the largest stable step",
    params: &[
        Param::count("staleness", 0.0, (0.0, 1000.0), "updates between reading and applying (tau)"),
        Param::choice("step", &["scaled", "constant"], "whether the step size is a or a/(1+tau)"),
        Param::number("lr", Unit::Number, 1.0, (1e-6, 4.0), "step size (a) for curvature 1"),
        Param::choice("delay", &["constant", "uniform"], "always tau, or from 0 to tau at random"),
        Param::number("condition", Unit::Number, 100.0, (1.0, 1e6), "largest over least curvature"),
        OPTIMIZER,
        Param::count("dim", 2.0, (1.0, 1000.0), "dimensions"),
        Param::number(
            "target",
            Unit::Number,
            1e-4,
            (1e-12, 0.5),
            "distance over that at the start",
        ),
        Param::count("most", 200_000.0, (10.0, 1e7), "iterations after which it is given up"),
    ],
    sweep: ("staleness", &[0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]),
    columns: &[
        Column::new("iterations", Unit::Count, "iterations to the target"),
        Column::new("step_size", Unit::Number, "step size that was used"),
        Column::new("stable_limit", Unit::Number, "largest stable step size, exactly"),
        Column::new("sufficient", Unit::Number, "1/tau: what is enough"),
        Column::new("slowdown", Unit::Times, "iterations over 1 + tau times those without"),
    ],
    picture: Picture::lines("staleness", &["iterations"]).log(false, true),
};

/// The largest stable product of step size and curvature with a constant delay.
pub(crate) fn stable_limit(staleness: usize) -> f64 {
    2.0 * sin(std::f64::consts::PI / (4.0 * staleness as f64 + 2.0))
}

/// Iterations until all that can still be seen is within the target, so that passing through zero
/// does not count; infinite if there are more than `most`, or it diverges.
pub(crate) fn iterations(
    bowl: &Bowl,
    lr: f64,
    target: f64,
    most: usize,
    (oldest, mut delay): (usize, impl FnMut() -> usize),
    mut stepper: Stepper,
) -> f64 {
    let mut x = bowl.start();
    let first = norm(&x);
    let mut past: VecDeque<Vec<f32>> = VecDeque::new();
    let mut random = Random::named(0, "unused");
    let mut num_within = 0;
    for iteration in 1..=most {
        past.push_front(x.clone());
        let seen = &past[delay().min(past.len() - 1)];
        let gradient = bowl.gradient(seen, 1.0, &mut random);
        stepper.step(&mut x, lr, &gradient);
        past.truncate(oldest + 1);
        let distance = norm(&x);
        num_within = if distance <= target * first { num_within + 1 } else { 0 };
        if num_within > oldest {
            return iteration as f64;
        }
        if !distance.is_finite() || distance > 1e6 * first {
            break;
        }
    }
    f64::INFINITY
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let staleness = at.count("staleness");
    let bowl = Bowl::new(at.count("dim"), at.number("condition"), 0.0);
    let scale = if at.word("step") == "scaled" { 1.0 + staleness as f64 } else { 1.0 };
    let lr = at.number("lr") / scale;
    let is_uniform = at.word("delay") == "uniform";
    let delay = || if is_uniform { random.below(staleness + 1) } else { staleness };
    let (target, most) = (at.number("target"), at.count("most"));
    let dim = at.count("dim");
    let found = iterations(&bowl, lr, target, most, (staleness, delay), Stepper::of(at, dim));
    let full = at.number("lr");
    let fresh = iterations(&bowl, full, target, most, (0, || 0), Stepper::of(at, dim));
    Ok(vec![row![
        found,
        lr,
        stable_limit(staleness),
        if staleness > 0 { 1.0 / staleness as f64 } else { 2.0 },
        found / fresh / (1.0 + staleness as f64),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let (iterations, end) = (table.numbers("iterations"), last(table));
    let lost = (0..iterations.len()).find(|row| iterations[*row].is_infinite());
    let first = lost.map_or_else(
        || {
            format!(
                "From {} to {} the target takes {} instead of {} iterations",
                place(table, 0),
                place(table, end),
                cell(table, "iterations", end),
                cell(table, "iterations", 0)
            )
        },
        |row| format!("From {} on the target is never reached", place(table, row)),
    );
    let limit = format!(
        "the largest stable step at {} is {}",
        place(table, end),
        cell(table, "stable_limit", end)
    );
    vec![first, limit]
}
