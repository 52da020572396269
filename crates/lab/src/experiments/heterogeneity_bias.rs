//! The bias of local steps on unlike data: how it grows with local steps and with unlikeness.
//!
//! Two kinds of workers have bowls of curvature 1 + s and 1 - s whose gradients at the common
//! optimum are +G and -G. Alone, the steeper ones get nearer to their own optimum in the same
//! number of steps, so the average settles beside the common one. Lecture notes print a loss of
//! order lr^2 tau G^2, papers one of lr^2 tau^2 G^2: this settles the exponent.

use super::prelude::*;
use crate::math::powi;
use crate::problem::{Stepper, mean};

experiment!(HeterogeneityBias);

const CARD: Card = Card {
    name: "heterogeneity-bias",
    title: "Heterogeneity bias: where local steps settle on unlike data, by tau and Gamma",
    question: "Does the error of local SGD on unlike data grow with tau or with its square?",
    formula: "settled = sum(w b)/sum(w), w = 1 - (1 - lr h)^tau; for small lr tau the loss is \
              lr^2 (tau - 1)^2 s^2 G^2/8",
    look: "over_square, constant while lr tau is small; over_linear, which grows; loss beside \
           expected_loss",
    surprise: "the square is right: over_linear has no limit; with one local step there is no bias \
               at all, and where curvatures are alike (spread=0) there is none either",
    params: &[
        Param::count("local_steps", 8.0, (1.0, 10_000.0), "steps between averages (tau)"),
        Param::number("gamma", Unit::Number, 1.0, (0.0, 100.0), "gradients at the optimum (G)"),
        Param::number("lr", Unit::Number, 0.005, (1e-5, 0.9), "step size for curvature 1"),
        Param::number("spread", Unit::Number, 0.5, (0.0, 0.99), "curvatures are 1 ± this (s)"),
    ],
    sweep: ("local_steps", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]),
    columns: &[
        Column::new("bias", Unit::Number, "distance of the average from the optimum, run"),
        Column::new("expected_bias", Unit::Number, "the same in closed form"),
        Column::new("loss", Unit::Number, "what that costs, run"),
        Column::new("expected_loss", Unit::Number, "the same in closed form"),
        Column::new("small_step", Unit::Number, "lr^2 (tau - 1)^2 s^2 G^2/8"),
        Column::new("over_square", Unit::Number, "loss over lr^2 (tau - 1)^2 G^2"),
        Column::new("over_linear", Unit::Number, "loss over lr^2 tau G^2"),
    ],
    picture: Picture::lines("local_steps", &["loss", "expected_loss", "small_step"])
        .log(true, true)
        .named("loss that stays"),
};

/// Rounds are over when the average no longer moves, or after these steps.
const MOST: usize = 60_000;

/// Curvature and place of the optimum of both kinds of workers; the common optimum is 0.
fn workers(at: &Settings) -> [(f64, f64); 2] {
    let (spread, gamma) = (at.number("spread"), at.number("gamma"));
    [(1.0 + spread, -gamma / (1.0 + spread)), (1.0 - spread, gamma / (1.0 - spread))]
}

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (tau, lr) = (at.count("local_steps"), at.number("lr"));
    let workers = workers(at);
    let weight = |h: f64| 1.0 - powi(1.0 - lr * h, tau);
    let pull: f64 = workers.iter().map(|(h, place)| weight(*h) * place).sum();
    let settled = pull / workers.iter().map(|(h, _)| weight(*h)).sum::<f64>();
    // With one step the pulls cancel out but for rounding.
    let settled = if settled.abs() < 1e-12 { 0.0 } else { settled };

    let mut shared = vec![0.0_f32];
    let mut stepper = Stepper::sgd(1);
    for _ in 0..MOST.div_ceil(tau).min(4000) {
        let ends = workers.map(|(h, place)| {
            let mut x = shared.clone();
            for _ in 0..tau {
                let gradient = [(h * (f64::from(x[0]) - place)) as f32];
                stepper.step(&mut x, lr, &gradient);
            }
            x
        });
        let next = mean(&ends);
        let has_settled = next[0].to_bits() == shared[0].to_bits();
        shared = next;
        if has_settled {
            break;
        }
    }
    let bias = f64::from(shared[0]).abs();
    let (loss, expected) = (0.5 * bias * bias, 0.5 * settled * settled);
    let unit = lr * lr * at.number("gamma") * at.number("gamma");
    let beyond = tau as f64 - 1.0;
    let spread = at.number("spread");
    Ok(vec![row![
        bias,
        settled.abs(),
        loss,
        expected,
        unit * beyond * beyond * spread * spread / 8.0,
        if tau > 1 { expected / (unit * beyond * beyond) } else { f64::NAN },
        expected / (unit * tau as f64),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let (end, loss) = (last(table), table.numbers("expected_loss"));
    let tau = table.numbers(table.columns[0].name);
    let first = (0..=end).find(|row| loss[*row] > 0.0).unwrap_or(0);
    let second = (first + 1).min(end);
    let growth = (loss[second] / loss[first]).log2() / (tau[second] - 1.0).log2();
    let mut found = vec![format!(
        "From {} to {} the loss that stays grows from {} to {}",
        place(table, first),
        place(table, end),
        cell(table, "expected_loss", first),
        cell(table, "expected_loss", end)
    )];
    if growth.is_finite() && table.columns[0].name == "local_steps" {
        found.push(format!("for small steps it grows like tau - 1 to the power {growth:.1}"));
    }
    found
}
