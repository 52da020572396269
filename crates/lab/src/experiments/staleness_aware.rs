//! What to do with a gradient that is late: apply it, shrink it by its age, or drop it.

use super::prelude::*;
use crate::problem::{Bowl, OPTIMIZER, Stepper, norm};
use lockstep_tensor::math::scalar::exp;
use std::collections::VecDeque;

experiment!(StalenessAware);

const CARD: Card = Card {
    name: "staleness-aware",
    title: "Staleness-aware steps: apply, scale by age, decay or drop late gradients",
    question: "Which treatment of late gradients reaches the target soonest?",
    formula: "weight 1, 1/(1+tau), e^(-tau/scale), or 0 beyond a bound, of a gradient tau old",
    look: "iterations by policy as the step size grows; applied: how much of the work was used",
    surprise: "scaling costs iterations where the plain step is stable and saves the run where it \
               is not; at tau = 20 a weight of 1/(1+tau) leaves 4.8 % of a step",
    params: &[
        Param::number("lr", Unit::Number, 0.1, (1e-5, 2.0), "step size for curvature 1"),
        OPTIMIZER,
        Param::count("staleness", 20.0, (0.0, 500.0), "the oldest a gradient can be"),
        Param::choice("ages", &["uniform", "pareto", "constant"], "how ages are distributed"),
        Param::number("tail", Unit::Number, 2.0, (1.05, 20.0), "exponent of their tail (pareto)"),
        Param::number("scale", Unit::Number, 5.0, (0.1, 1e3), "age at which decay is 1/e"),
        Param::count("bound", 5.0, (0.0, 500.0), "age beyond which gradients are dropped"),
        Param::number("condition", Unit::Number, 50.0, (1.0, 1e5), "largest over least curvature"),
        Param::number("noise", Unit::Number, 0.0, (0.0, 10.0), "noise of gradients"),
        Param::number("target", Unit::Number, 1e-2, (1e-9, 0.5), "distance over that at the start"),
    ],
    sweep: ("lr", &[0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5]),
    columns: &[
        Column::new("policy", Unit::Word, "policy"),
        Column::new("iterations", Unit::Count, "gradients computed to the target"),
        Column::new("applied", Unit::Share, "mean weight of gradients"),
    ],
    picture: Picture::lines("lr", &["iterations"]).by("policy").log(true, true),
};

const MOST: usize = 30_000;

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (scale, bound) = (at.number("scale"), at.count("bound"));
    let policies: [(&str, &dyn Fn(usize) -> f64); 4] = [
        ("plain", &|_| 1.0),
        ("by age", &|age| weight_by_age(age)),
        ("decay", &|age| exp(-(age as f64) / scale)),
        ("drop", &|age| f64::from(u8::from(age <= bound))),
    ];
    let mut rows = Vec::new();
    for (name, weight) in policies {
        let (iterations, applied) = follow(at, random, weight);
        rows.push(row![name, iterations, applied]);
    }
    Ok(rows)
}

/// 1/(1+tau).
pub(crate) fn weight_by_age(age: usize) -> f64 {
    1.0 / (1.0 + age as f64)
}

fn follow(at: &Settings, random: &mut Random, weight: &dyn Fn(usize) -> f64) -> (f64, f64) {
    let bowl = Bowl::new(8, at.number("condition"), at.number("noise"));
    let oldest = at.count("staleness");
    let mut x = bowl.start();
    let first = norm(&x);
    let mut past: VecDeque<Vec<f32>> = VecDeque::new();
    let mut stepper = Stepper::of(at, x.len());
    let mut applied = 0.0;
    for iteration in 1..=MOST {
        past.push_front(x.clone());
        past.truncate(oldest + 1);
        let age = match at.word("ages") {
            "pareto" => random.pareto(1.0, at.number("tail")) as usize - 1,
            "constant" => oldest,
            _ => random.below(oldest + 1),
        };
        let age = age.min(past.len() - 1);
        let gradient = bowl.gradient(&past[age], 1.0, random);
        let weight = weight(age);
        applied += weight;
        // What is dropped is no step, and leaves no trace in an optimizer's state.
        if weight > 0.0 {
            stepper.step(&mut x, at.number("lr") * weight, &gradient);
        }
        let distance = norm(&x);
        if distance <= at.number("target") * first {
            return (iteration as f64, applied / iteration as f64);
        }
        if !distance.is_finite() || distance > 1e6 * first {
            break;
        }
    }
    (f64::INFINITY, f64::NAN)
}

fn findings(table: &Table) -> Vec<String> {
    let (policies, iterations) = (table.words("policy"), table.numbers("iterations"));
    let reached = |name: &str| {
        let ends = policies.iter().zip(&iterations);
        ends.filter(|(policy, count)| *policy == name && count.is_finite()).count()
    };
    let num_points = policies.len() / 4;
    let best = table.best("iterations", 1.0).map_or_else(String::new, |row| {
        format!(
            "soonest: {} at {}, {} gradients",
            policies[row],
            place(table, row),
            iterations[row]
        )
    });
    vec![
        format!(
            "Plain steps reach the target at {} of {num_points} step sizes, scaled by age at {}",
            reached("plain"),
            reached("by age")
        ),
        best,
    ]
}
