//! Critical batch size and learning-rate scaling rules (McCandlish et al. 2018).

use super::prelude::*;
use crate::problem::{Quadratic, Stepper};

experiment!(BatchSize);

const DESCRIPTION: Description = Description {
    name: "batch-size",
    title: "Batch size and learning rate: critical batch size, linear and square-root scaling",
    question: "Up to which batch size does a larger batch save steps?",
    formula: "steps(B) = Smin (1 + Bn/B), samples = Smin (B + Bn), with the noise scale Bn = \
              tr(S)/|G|^2; best lr(B) = lr/(1 + Bn/B): linear below Bn, constant above it",
    look: "steps, which fall like 1/B below the critical batch size and not above it; samples, \
           the opposite; the learning rates of both rules",
    surprise: "linear scaling holds only below the critical batch size; at a fixed global batch \
               more workers change nothing, so no hyperparameter needs tuning",
    params: &[
        Param::number("batch", Unit::Number, 256.0, (1.0, 1e8), "global batch in samples (B)"),
        Param::number(
            "base_batch",
            Unit::Number,
            256.0,
            (1.0, 1e8),
            "batch of the base learning rate",
        ),
        Param::number("base_lr", Unit::Number, 0.1, (1e-9, 1e3), "base learning rate"),
        Param::number("noise", Unit::Number, 30.0, (0.0, 1e4), "gradient noise of a sample"),
        Param::number("condition", Unit::Number, 5.0, (1.0, 1e4), "condition number"),
        Param::number("target", Unit::Number, 0.05, (1e-6, 0.9), "target loss/initial loss"),
        Param::count("dim", 10.0, (1.0, 1000.0), "dimensions"),
    ],
    sweep: ("batch", &[16.0, 64.0, 256.0, 512.0, 2048.0, 8192.0, 32_768.0, 131_072.0]),
    columns: &[
        Column::new("steps", Unit::Count, "steps to the target, each with the best learning rate"),
        Column::new("samples", Unit::Number, "samples to the target"),
        Column::new("noise_scale", Unit::Number, "noise scale Bn at the start"),
        Column::new("best_lr", Unit::Number, "mean of the best learning rates"),
        Column::new("linear_lr", Unit::Number, "base_lr B/base_batch"),
        Column::new("sqrt_lr", Unit::Number, "base_lr sqrt(B/base_batch)"),
    ],
    chart: ChartSpec::lines("batch", &["steps"]).log(true, true),
};

const MAX_STEPS: usize = 50_000;

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (batch, dim) = (at.number("batch"), at.count("dim"));
    let quadratic = Quadratic::new(dim, at.number("condition"), at.number("noise"));
    let mut x = quadratic.start();
    let target = at.number("target") * quadratic.loss(&x);
    let first_scale = noise_scale(&quadratic, &x);
    let mut stepper = Stepper::sgd(dim);
    let (mut steps, mut rates) = (0, 0.0);
    while quadratic.loss(&x) > target && steps < MAX_STEPS {
        // Learning rate that minimizes the expected loss: |G|^2/(G'HG + tr(HS)/B).
        let exact: Vec<f64> =
            x.iter().zip(&quadratic.curvatures).map(|(x, c)| c * f64::from(*x)).collect();
        let square: f64 = exact.iter().map(|g| g * g).sum();
        let curvature: f64 = exact.iter().zip(&quadratic.curvatures).map(|(g, c)| c * g * g).sum();
        let noise: f64 =
            quadratic.curvatures.iter().sum::<f64>() * quadratic.noise * quadratic.noise / batch;
        let lr = square / (curvature + noise);
        let gradient = quadratic.gradient(&x, batch, random);
        stepper.step(&mut x, lr, &gradient);
        (steps, rates) = (steps + 1, rates + lr);
    }
    let has_ended = steps < MAX_STEPS;
    let count = if has_ended { steps as f64 } else { f64::INFINITY };
    let ratio = batch / at.number("base_batch");
    Ok(vec![row![
        count,
        count * batch,
        first_scale,
        rates / f64::from(u32::try_from(steps).unwrap_or(1).max(1)),
        at.number("base_lr") * ratio,
        at.number("base_lr") * ratio.sqrt(),
    ]])
}

/// Gradient noise scale tr(S)/|G|^2.
fn noise_scale(quadratic: &Quadratic, x: &[f32]) -> f64 {
    let along = |(x, c): (&f32, &f64)| (c * f64::from(*x)) * (c * f64::from(*x));
    let square: f64 = x.iter().zip(&quadratic.curvatures).map(along).sum();
    quadratic.curvatures.len() as f64 * quadratic.noise * quadratic.noise / square
}

fn findings(table: &Table) -> Vec<String> {
    let (steps, end) = (table.numbers("steps"), last(table));
    let mut findings = vec![format!(
        "Steps to the target: {}; samples: {}",
        across(table, "steps", 0, end),
        across(table, "samples", 0, end)
    )];
    // Larger batches save steps only along the axis of the batch.
    let fewest = steps.iter().copied().fold(f64::INFINITY, f64::min);
    let is_over_batches = table.num_swept == 1 && table.columns[0].name == "batch" && end > 0;
    let saturated = extent(table, &each_point(table), |row| steps[row] <= 2.0 * fewest);
    if let Some(saturated) = saturated.filter(|_| is_over_batches && fewest.is_finite()) {
        findings.insert(0, format!("A larger batch saves at most half of the steps{saturated}"));
    }
    findings
}
