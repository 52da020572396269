//! Bias of local SGD on heterogeneous data, by local steps and heterogeneity.
//!
//! Two groups of workers have quadratics of curvature 1 + s and 1 - s with gradients +G and -G at
//! the common optimum. In the same number of local steps the steeper group gets closer to its own
//! optimum, so the average converges to a biased point. Lecture notes state a loss of order
//! lr^2 tau G^2, papers one of lr^2 tau^2 G^2; the experiment shows which exponent holds.

use super::prelude::*;
use crate::math::powi;
use crate::problem::{Stepper, mean};

experiment!(HeterogeneityBias);

const DESCRIPTION: Description = Description {
    name: "heterogeneity-bias",
    title: "Heterogeneity bias: limit of local SGD on heterogeneous data, by tau and Gamma",
    question: "Does the error of local SGD on heterogeneous data grow with tau or with tau^2?",
    formula: "limit = sum(w b)/sum(w), w = 1 - (1 - lr h)^tau; for small lr tau the loss is \
              lr^2 (tau - 1)^2 s^2 G^2/8",
    look: "loss_over_square, constant while lr tau is small; loss_over_linear, which grows; loss \
           against expected_loss",
    surprise: "tau^2 is right: loss_over_linear has no limit; one local step has no bias, and \
               equal curvatures (spread=0) have none either",
    params: &[
        Param::count("local_steps", 8.0, (1.0, 10_000.0), "local steps between averages (tau)"),
        Param::number(
            "gamma",
            Unit::Number,
            1.0,
            (0.0, 100.0),
            "local gradient at the optimum (G)",
        ),
        Param::number("lr", Unit::Number, 0.005, (1e-5, 0.9), "step size for curvature 1"),
        Param::number("spread", Unit::Number, 0.5, (0.0, 0.99), "curvatures are 1 ± this (s)"),
    ],
    sweep: ("local_steps", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]),
    columns: &[
        Column::new("bias", Unit::Number, "distance of the average from the optimum, simulated"),
        Column::new("expected_bias", Unit::Number, "bias in closed form"),
        Column::new("loss", Unit::Number, "loss at the limit, simulated"),
        Column::new("expected_loss", Unit::Number, "loss in closed form"),
        Column::new("small_step_loss", Unit::Number, "lr^2 (tau - 1)^2 s^2 G^2/8"),
        Column::new("loss_over_square", Unit::Number, "loss/(lr^2 (tau - 1)^2 G^2)"),
        Column::new("loss_over_linear", Unit::Number, "loss/(lr^2 tau G^2)"),
    ],
    chart: ChartSpec::lines("local_steps", &["loss", "expected_loss", "small_step_loss"])
        .log(true, true)
        .named("asymptotic loss"),
};

/// Maximum number of steps, unless the average stops moving earlier.
const MAX_STEPS: usize = 60_000;

/// Curvature and optimum of both groups of workers; the common optimum is 0.
fn workers(at: &Settings) -> [(f64, f64); 2] {
    let (spread, gamma) = (at.number("spread"), at.number("gamma"));
    [(1.0 + spread, -gamma / (1.0 + spread)), (1.0 - spread, gamma / (1.0 - spread))]
}

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (tau, lr) = (at.count("local_steps"), at.number("lr"));
    let workers = workers(at);
    let weight = |h: f64| 1.0 - powi(1.0 - lr * h, tau);
    let sum: f64 = workers.iter().map(|(h, optimum)| weight(*h) * optimum).sum();
    let limit = sum / workers.iter().map(|(h, _)| weight(*h)).sum::<f64>();
    // With one step the gradients cancel except for rounding.
    let limit = if limit.abs() < 1e-12 { 0.0 } else { limit };

    let mut shared = vec![0.0_f32];
    let mut stepper = Stepper::sgd(1);
    for _ in 0..MAX_STEPS.div_ceil(tau).min(4000) {
        let ends = workers.map(|(h, optimum)| {
            let mut x = shared.clone();
            for _ in 0..tau {
                let gradient = [(h * (f64::from(x[0]) - optimum)) as f32];
                stepper.step(&mut x, lr, &gradient);
            }
            x
        });
        let next = mean(&ends);
        let has_converged = next[0].to_bits() == shared[0].to_bits();
        shared = next;
        if has_converged {
            break;
        }
    }
    let bias = f64::from(shared[0]).abs();
    let (loss, expected) = (0.5 * bias * bias, 0.5 * limit * limit);
    let unit = lr * lr * at.number("gamma") * at.number("gamma");
    let extra_steps = tau as f64 - 1.0;
    let spread = at.number("spread");
    Ok(vec![row![
        bias,
        limit.abs(),
        loss,
        expected,
        unit * extra_steps * extra_steps * spread * spread / 8.0,
        if tau > 1 { expected / (unit * extra_steps * extra_steps) } else { f64::NAN },
        expected / (unit * tau as f64),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let (end, loss) = (last(table), table.numbers("expected_loss"));
    let mut findings =
        vec![format!("The asymptotic loss is {}", across(table, "expected_loss", 0, end))];
    if table.num_swept == 1 && table.columns[0].name == "local_steps" {
        // The first two different points with a bias: for small steps it is a power of tau - 1.
        let tau = table.numbers("local_steps");
        let mut rows = (0..=end).filter(|row| tau[*row] > 1.0 && loss[*row] > 0.0);
        if let (Some(a), Some(b)) = (rows.next(), rows.next()) {
            let power = (loss[b] / loss[a]).log2() / ((tau[b] - 1.0) / (tau[a] - 1.0)).log2();
            if power.is_finite() {
                findings.push(format!("for small steps it grows like (tau - 1)^{power:.1}"));
            }
        }
    }
    findings
}
