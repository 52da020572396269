//! Gradient descent with bounded staleness: slower convergence, then divergence.

use super::prelude::*;
use crate::problem::{OPTIMIZER, Quadratic, Stepper, norm};
use lockstep_tensor::math::scalar::sin;
use std::collections::VecDeque;

experiment!(BoundedAsync);

const DESCRIPTION: Description = Description {
    name: "bounded-async",
    title: "Bounded staleness: iterations to a target, and the largest stable step size",
    question: "How many more iterations does gradient descent take with gradients tau updates old?",
    formula: "x(t+1) = x(t) - a g(x(t - tau)); stable for a L < 2 sin(pi/(4 tau + 2)), which is \
              2, 1, 0.618 … pi/(2 tau); a tau L < 1 is sufficient, not necessary",
    look: "iterations with step=scaled (a = 1/(1+tau)) grow like 1 + tau; with step=constant \
           they are those without staleness, until the run diverges",
    surprise: "a little staleness can be FASTER than none at the same step size (it acts like \
               momentum); it reduces the largest stable step size",
    params: &[
        Param::count("staleness", 0.0, (0.0, 1000.0), "age of gradients in updates (tau)"),
        Param::choice("step", &["scaled", "constant"], "step size a/(1+tau) or a"),
        Param::number("lr", Unit::Number, 1.0, (1e-6, 4.0), "step size (a) for curvature 1"),
        Param::choice(
            "delay",
            &["constant", "uniform"],
            "staleness: tau, or uniform from 0 to tau",
        ),
        Param::number("condition", Unit::Number, 100.0, (1.0, 1e6), "condition number"),
        OPTIMIZER,
        Param::count("dim", 2.0, (1.0, 1000.0), "dimensions"),
        Param::number(
            "target",
            Unit::Number,
            1e-4,
            (1e-12, 0.5),
            "target distance/initial distance",
        ),
        Param::count("max_iterations", 200_000.0, (10.0, 1e7), "maximum number of iterations"),
    ],
    sweep: ("staleness", &[0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]),
    columns: &[
        Column::new("iterations", Unit::Count, "iterations to the target"),
        Column::new("step_size", Unit::Number, "step size"),
        Column::new("stable_limit", Unit::Number, "largest stable step size, exact"),
        Column::new("sufficient_step", Unit::Number, "sufficient step size 1/tau"),
        Column::new("slowdown", Unit::Times, "iterations/((1 + tau) iterations without staleness)"),
    ],
    chart: ChartSpec::lines("staleness", &["iterations"]).log(false, true),
};

/// Largest stable product of step size and curvature with a constant delay.
pub(crate) fn stable_limit(staleness: usize) -> f64 {
    2.0 * sin(std::f64::consts::PI / (4.0 * staleness as f64 + 2.0))
}

/// Iterations until `oldest + 1` consecutive iterates are within the target, so that crossing zero
/// does not count; infinite beyond `max_iterations` or on divergence.
pub(crate) fn iterations(
    quadratic: &Quadratic,
    lr: f64,
    target: f64,
    max_iterations: usize,
    (oldest, mut delay): (usize, impl FnMut() -> usize),
    mut stepper: Stepper,
) -> f64 {
    let mut x = quadratic.start();
    let first = norm(&x);
    let mut past: VecDeque<Vec<f32>> = VecDeque::new();
    let mut random = Random::named(0, "unused");
    let mut num_within = 0;
    for iteration in 1..=max_iterations {
        past.push_front(x.clone());
        let stale = &past[delay().min(past.len() - 1)];
        let gradient = quadratic.gradient(stale, 1.0, &mut random);
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
    let quadratic = Quadratic::new(at.count("dim"), at.number("condition"), 0.0);
    let scale = if at.choice("step") == "scaled" { 1.0 + staleness as f64 } else { 1.0 };
    let lr = at.number("lr") / scale;
    let is_uniform = at.choice("delay") == "uniform";
    let delay = || if is_uniform { random.below(staleness + 1) } else { staleness };
    let (target, max_iterations) = (at.number("target"), at.count("max_iterations"));
    let dim = at.count("dim");
    let found = iterations(
        &quadratic,
        lr,
        target,
        max_iterations,
        (staleness, delay),
        Stepper::of(at, dim),
    );
    let full = at.number("lr");
    let fresh =
        iterations(&quadratic, full, target, max_iterations, (0, || 0), Stepper::of(at, dim));
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
    let first = match extent(table, &each_point(table), |row| iterations[row].is_infinite()) {
        Some(extent) => format!("The target is never reached{extent}"),
        None => format!("Iterations to the target: {}", across(table, "iterations", 0, end)),
    };
    let limit = cell(table, "stable_limit", end);
    vec![first, format!("{}the largest stable step size is {limit}", at(table, end))]
}
