//! Staleness-aware SGD (Zhang et al. 2016): apply late gradients, scale them by age, or drop them.

use super::prelude::*;
use crate::problem::{OPTIMIZER, Quadratic, Stepper, norm};
use lockstep_tensor::math::scalar::exp;
use std::collections::VecDeque;

experiment!(StalenessAware);

const DESCRIPTION: Description = Description {
    name: "staleness-aware",
    title: "Staleness-aware SGD: apply, scale by age, decay or drop late gradients",
    question: "Which policy for late gradients reaches the target first?",
    formula: "weight 1, 1/(1+tau), e^(-tau/scale), or 0 beyond a bound, for age tau in updates",
    look: "iterations by policy as the step size grows; mean_weight of gradients",
    surprise: "scaling costs iterations where the plain step size is stable and prevents \
               divergence where it is not; at tau = 20 the weight 1/(1+tau) is 4.8 %",
    params: &[
        Param::number("lr", Unit::Number, 0.1, (1e-5, 2.0), "step size for curvature 1"),
        OPTIMIZER,
        Param::count("staleness", 20.0, (0.0, 500.0), "maximum age of gradients in updates"),
        Param::choice(
            "age_distribution",
            &["uniform", "pareto", "constant"],
            "distribution of ages",
        ),
        Param::number("tail", Unit::Number, 2.0, (1.05, 20.0), "exponent of the tail (pareto)"),
        Param::number(
            "scale",
            Unit::Number,
            5.0,
            (0.1, 1e3),
            "age at which the weight is 1/e (decay)",
        ),
        Param::count("bound", 5.0, (0.0, 500.0), "maximum age (drop)"),
        Param::number("condition", Unit::Number, 50.0, (1.0, 1e5), "condition number"),
        Param::number("noise", Unit::Number, 0.0, (0.0, 10.0), "gradient noise"),
        Param::number(
            "target",
            Unit::Number,
            1e-2,
            (1e-9, 0.5),
            "target distance/initial distance",
        ),
    ],
    sweep: ("lr", &[0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5]),
    columns: &[
        Column::new("policy", Unit::Text, "policy for late gradients"),
        Column::new("iterations", Unit::Count, "computed gradients to the target"),
        Column::new("mean_weight", Unit::Share, "mean weight of gradients"),
    ],
    chart: ChartSpec::lines("lr", &["iterations"]).by("policy").log(true, true),
};

const MAX_ITERATIONS: usize = 30_000;

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
        let (iterations, mean_weight) = descend(at, &mut random.stream(0), weight);
        rows.push(row![name, iterations, mean_weight]);
    }
    Ok(rows)
}

/// Weight 1/(1+tau) of a gradient with age tau.
pub(crate) fn weight_by_age(age: usize) -> f64 {
    1.0 / (1.0 + age as f64)
}

fn descend(at: &Settings, random: &mut Random, weight: &dyn Fn(usize) -> f64) -> (f64, f64) {
    let quadratic = Quadratic::new(8, at.number("condition"), at.number("noise"));
    let oldest = at.count("staleness");
    let mut x = quadratic.start();
    let first = norm(&x);
    let mut past: VecDeque<Vec<f32>> = VecDeque::new();
    let mut stepper = Stepper::of(at, x.len());
    let mut sum_of_weights = 0.0;
    for iteration in 1..=MAX_ITERATIONS {
        past.push_front(x.clone());
        past.truncate(oldest + 1);
        let age = match at.choice("age_distribution") {
            "pareto" => random.pareto(1.0, at.number("tail")) as usize - 1,
            "constant" => oldest,
            _ => random.below(oldest + 1),
        };
        let age = age.min(past.len() - 1);
        let gradient = quadratic.gradient(&past[age], 1.0, random);
        let weight = weight(age);
        sum_of_weights += weight;
        // A dropped gradient does not change the optimizer state.
        if weight > 0.0 {
            stepper.step(&mut x, at.number("lr") * weight, &gradient);
        }
        let distance = norm(&x);
        if distance <= at.number("target") * first {
            return (iteration as f64, sum_of_weights / iteration as f64);
        }
        if !distance.is_finite() || distance > 1e6 * first {
            break;
        }
    }
    (f64::INFINITY, f64::NAN)
}

fn findings(table: &Table) -> Vec<String> {
    let (policies, iterations) = (table.texts("policy"), table.numbers("iterations"));
    let reached = |name: &str| match extent(table, &rows_with(table, "policy", name), |row| {
        iterations[row].is_finite()
    }) {
        Some(extent) => format!("reaches the target{extent}"),
        None => "never reaches the target".to_owned(),
    };
    let mut findings = vec![format!(
        "The plain policy {}, scaling by age {}",
        reached("plain"),
        reached("by age")
    )];
    findings.extend(table.best("iterations", 1.0).map(|row| {
        let count = cell(table, "iterations", row);
        format!("{}{} is fastest: {count} gradients", at(table, row), policies[row])
    }));
    findings
}
