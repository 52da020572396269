//! The noise of gradients: what a batch divides, what workers do not change, and how to measure it.
//!
//! The mean of a batch of B samples varies by S/B, however many workers share the batch. The ratio
//! tr(S)/|G|^2 is the noise scale: the batch at which noise and gradient are equally long. Squared
//! norms of a worker's own gradient and of the mean of all, two sizes of batch for free, give it
//! away without a single extra gradient.

use super::prelude::*;
use crate::problem::{Bowl, mean, norm};

experiment!(GradientNoise);

const CARD: Card = Card {
    name: "gradient-noise",
    title: "Gradient noise: its variance by batch and workers, and the noise scale measured",
    question: "Do more workers at the same global batch make gradients noisier?",
    formula: "Var(mean) = tr(S)/B whatever n; of a worker n tr(S)/B; noise scale tr(S)/|G|^2 from \
              |G|^2 = (B|g_B|^2 - b|g_b|^2)/(B - b), tr(S) = (|g_b|^2 - |g_B|^2)/(1/b - 1/B)",
    look: "mean_variance, the same in every row; worker_variance, which grows with workers; \
           noise_scale beside exact_noise_scale",
    surprise: "splitting a batch over more workers changes nothing that the optimizer sees, so \
               nothing needs tuning; only a larger batch does",
    params: &[
        Param::count("workers", 8.0, (1.0, 1024.0), "workers that share the batch (n)"),
        Param::count("batch", 256.0, (1.0, 1e6), "samples of a step, over all workers (B)"),
        Param::number("noise", Unit::Number, 10.0, (0.0, 1e4), "noise of one sample's gradient"),
        Param::count("dim", 10.0, (1.0, 1000.0), "dimensions"),
        Param::number("condition", Unit::Number, 5.0, (1.0, 1e4), "largest over least curvature"),
        Param::count("draws", 200.0, (2.0, 1e5), "steps that are drawn"),
    ],
    sweep: ("workers", &[1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0]),
    columns: &[
        Column::new("mean_variance", Unit::Number, "variance of the mean gradient"),
        Column::new("expected_variance", Unit::Number, "tr(S)/B"),
        Column::new("worker_variance", Unit::Number, "variance of a worker's gradient"),
        Column::new("expected_worker", Unit::Number, "n tr(S)/B"),
        Column::new("noise_scale", Unit::Number, "tr(S)/|G|^2 from norms of two batches"),
        Column::new("exact_noise_scale", Unit::Number, "the same from the problem"),
    ],
    picture: Picture::lines(
        "workers",
        &["mean_variance", "expected_variance", "worker_variance", "expected_worker"],
    )
    .log(true, true)
    .named("variance of a gradient"),
};

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, batch, dim) = (at.count("workers"), at.count("batch"), at.count("dim"));
    if n > batch {
        return Err(LabError::Together {
            key: "workers",
            value: n.to_string(),
            rule: format!("a batch of {batch} has a sample for {batch} workers at most"),
        });
    }
    let bowl = Bowl::new(dim, at.number("condition"), at.number("noise"));
    let quiet = Bowl { noise: 0.0, ..bowl.clone() };
    let x = bowl.start();
    let exact = quiet.gradient(&x, 1.0, random);
    let own = batch as f64 / n as f64;
    let off = |gradient: &[f32]| {
        let apart = |(a, b): (&f32, &f32)| f64::from(a - b) * f64::from(a - b);
        gradient.iter().zip(&exact).map(apart).sum::<f64>()
    };
    // Squared distances from the exact gradient, and squared lengths: of a worker, of the mean.
    let (mut of_worker, mut of_mean) = ([0.0; 2], [0.0; 2]);
    let draws = at.number("draws");
    for _ in 0..at.count("draws") {
        let gradients: Vec<Vec<f32>> = (0..n).map(|_| bowl.gradient(&x, own, random)).collect();
        let all = mean(&gradients);
        for gradient in &gradients {
            of_worker[0] += off(gradient) / (n as f64 * draws);
            of_worker[1] += norm(gradient) * norm(gradient) / (n as f64 * draws);
        }
        of_mean[0] += off(&all) / draws;
        of_mean[1] += norm(&all) * norm(&all) / draws;
    }
    let trace = dim as f64 * bowl.noise * bowl.noise;
    let big = batch as f64;
    // One worker has one size of batch, and that says nothing.
    let square = (big * of_mean[1] - own * of_worker[1]) / (big - own);
    let measured = (of_worker[1] - of_mean[1]) / (1.0 / own - 1.0 / big);
    Ok(vec![row![
        of_mean[0],
        trace / big,
        of_worker[0],
        trace / own,
        if n > 1 { measured / square } else { f64::NAN },
        trace / (norm(&exact) * norm(&exact)),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let end = last(table);
    vec![
        format!(
            "From {} to {} the mean's variance stays {}, a worker's grows to {}",
            place(table, 0),
            place(table, end),
            cell(table, "expected_variance", end),
            cell(table, "worker_variance", end)
        ),
        format!(
            "the noise scale is {}, measured {}",
            cell(table, "exact_noise_scale", end),
            cell(table, "noise_scale", end)
        ),
    ]
}
