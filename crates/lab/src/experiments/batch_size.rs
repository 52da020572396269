//! Larger batches: fewer steps until the noise is gone, and then none the fewer.

use super::prelude::*;
use crate::problem::{Bowl, Stepper};

experiment!(BatchSize);

const CARD: Card = Card {
    name: "batch-size",
    title: "Batch size and learning rate: the critical batch, linear and square-root rules",
    question: "Up to which batch does a larger one save steps?",
    formula: "steps(B) = least (1 + Bn/B), samples = least (B + Bn), with the noise scale Bn = \
              tr(S)/|G|^2; best lr(B) = lr/(1 + Bn/B): linear below Bn, constant above it",
    look: "steps, which fall like 1/B below the critical batch and not at all above it; samples, \
           the other way round; the learning rates of both rules",
    surprise: "the linear rule is right only below the critical batch; at a fixed \
               global batch more workers change nothing at all, so nothing needs tuning",
    params: &[
        Param::number("batch", Unit::Number, 256.0, (1.0, 1e8), "samples of a step (B)"),
        Param::number("base_batch", Unit::Number, 256.0, (1.0, 1e8), "batch of the base rate"),
        Param::number("base_lr", Unit::Number, 0.1, (1e-9, 1e3), "learning rate there"),
        Param::number("noise", Unit::Number, 30.0, (0.0, 1e4), "noise of one sample's gradient"),
        Param::number("condition", Unit::Number, 5.0, (1.0, 1e4), "largest over least curvature"),
        Param::number("target", Unit::Number, 0.05, (1e-6, 0.9), "loss over that at the start"),
        Param::count("dim", 10.0, (1.0, 1000.0), "dimensions"),
    ],
    sweep: ("batch", &[16.0, 64.0, 256.0, 512.0, 2048.0, 8192.0, 32_768.0, 131_072.0]),
    columns: &[
        Column::new("steps", Unit::Count, "steps to the target, each with its best rate"),
        Column::new("samples", Unit::Number, "samples to the target"),
        Column::new("noise_scale", Unit::Number, "Bn at the start"),
        Column::new("best_lr", Unit::Number, "mean of the best rates"),
        Column::new("linear_lr", Unit::Number, "base rate times B over its batch"),
        Column::new("root_lr", Unit::Number, "base rate times the root of that"),
    ],
    picture: Picture::lines("batch", &["steps"]).log(true, true),
};

const MOST: usize = 50_000;

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (batch, dim) = (at.number("batch"), at.count("dim"));
    let bowl = Bowl::new(dim, at.number("condition"), at.number("noise"));
    let mut x = bowl.start();
    let target = at.number("target") * bowl.loss(&x);
    let first_scale = noise_scale(&bowl, &x);
    let mut stepper = Stepper::sgd(dim);
    let (mut steps, mut rates) = (0, 0.0);
    while bowl.loss(&x) > target && steps < MOST {
        // The step that lowers the expected loss most: |G|^2/(G'HG + tr(HS)/B).
        let exact: Vec<f64> =
            x.iter().zip(&bowl.curvatures).map(|(x, c)| c * f64::from(*x)).collect();
        let square: f64 = exact.iter().map(|g| g * g).sum();
        let bent: f64 = exact.iter().zip(&bowl.curvatures).map(|(g, c)| c * g * g).sum();
        let noise: f64 = bowl.curvatures.iter().sum::<f64>() * bowl.noise * bowl.noise / batch;
        let lr = square / (bent + noise);
        let gradient = bowl.gradient(&x, batch, random);
        stepper.step(&mut x, lr, &gradient);
        (steps, rates) = (steps + 1, rates + lr);
    }
    let has_ended = steps < MOST;
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

/// tr(S)/|G|^2.
fn noise_scale(bowl: &Bowl, x: &[f32]) -> f64 {
    let along = |(x, c): (&f32, &f64)| (c * f64::from(*x)) * (c * f64::from(*x));
    let square: f64 = x.iter().zip(&bowl.curvatures).map(along).sum();
    bowl.curvatures.len() as f64 * bowl.noise * bowl.noise / square
}

fn findings(table: &Table) -> Vec<String> {
    let (steps, end) = (table.numbers("steps"), last(table));
    let knee = (0..steps.len()).find(|row| steps[*row] <= 2.0 * steps[end]).unwrap_or(end);
    vec![
        format!("Beyond {} a larger batch saves less than half of the steps", place(table, knee)),
        format!(
            "{} takes {} steps and {} samples, {} takes {} and {}",
            place(table, 0),
            cell(table, "steps", 0),
            cell(table, "samples", 0),
            place(table, end),
            cell(table, "steps", end),
            cell(table, "samples", end)
        ),
    ]
}
