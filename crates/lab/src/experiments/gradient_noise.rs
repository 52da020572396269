//! Gradient noise by batch and workers, and the gradient noise scale (McCandlish et al. 2018).
//!
//! The mean gradient of B samples has covariance S/B, independent of the number of workers. The
//! noise scale tr(S)/|G|^2 is the batch size at which noise and gradient have equal norms. Its
//! unbiased estimate needs squared gradient norms of two batch sizes: that of one worker and that
//! of the mean, so it costs no extra gradient.

use super::prelude::*;
use crate::problem::{Quadratic, mean, norm};

experiment!(GradientNoise);

const DESCRIPTION: Description = Description {
    name: "gradient-noise",
    title: "Gradient noise: variance by batch and workers, and the measured noise scale",
    question: "Do more workers at the same global batch make gradients noisier?",
    formula: "Var(mean) = tr(S)/B for any n; of a worker n tr(S)/B; noise scale tr(S)/|G|^2 from \
              |G|^2 = (B|g_B|^2 - b|g_b|^2)/(B - b), tr(S) = (|g_b|^2 - |g_B|^2)/(1/b - 1/B)",
    look: "mean_variance, equal in all rows; worker_variance, which grows with workers; \
           noise_scale against exact_noise_scale",
    surprise: "splitting a batch over more workers does not change the mean gradient, so no \
               hyperparameter needs tuning; only a larger batch changes it",
    params: &[
        Param::count("workers", 8.0, (1.0, 1024.0), "workers that share the batch (n)"),
        Param::count("batch", 256.0, (1.0, 1e6), "global batch in samples (B)"),
        Param::number("noise", Unit::Number, 10.0, (0.0, 1e4), "gradient noise of a sample"),
        Param::count("dim", 10.0, (1.0, 1000.0), "dimensions"),
        Param::number("condition", Unit::Number, 5.0, (1.0, 1e4), "condition number"),
        Param::count("draws", 200.0, (2.0, 1e5), "number of drawn steps"),
    ],
    sweep: ("workers", &[1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0]),
    columns: &[
        Column::new("mean_variance", Unit::Number, "variance of the mean gradient"),
        Column::new("expected_variance", Unit::Number, "tr(S)/B"),
        Column::new("worker_variance", Unit::Number, "variance of a worker's gradient"),
        Column::new("expected_worker_variance", Unit::Number, "n tr(S)/B"),
        Column::new(
            "noise_scale",
            Unit::Number,
            "tr(S)/|G|^2 estimated from norms of two batch sizes",
        ),
        Column::new("exact_noise_scale", Unit::Number, "tr(S)/|G|^2 of the problem"),
    ],
    chart: ChartSpec::lines(
        "workers",
        &["mean_variance", "expected_variance", "worker_variance", "expected_worker_variance"],
    )
    .log(true, true)
    .named("variance of a gradient"),
};

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, batch, dim) = (at.count("workers"), at.count("batch"), at.count("dim"));
    if n > batch {
        return Err(LabError::Conflict {
            key: "workers",
            value: n.to_string(),
            rule: format!("a batch of {batch} has samples for at most {batch} workers"),
        });
    }
    let quadratic = Quadratic::new(dim, at.number("condition"), at.number("noise"));
    let quiet = Quadratic { noise: 0.0, ..quadratic.clone() };
    let x = quadratic.start();
    let exact = quiet.gradient(&x, 1.0, random);
    let own = batch as f64 / n as f64;
    let squared_error = |gradient: &[f32]| {
        let square = |(a, b): (&f32, &f32)| f64::from(a - b) * f64::from(a - b);
        gradient.iter().zip(&exact).map(square).sum::<f64>()
    };
    // Squared distance from the exact gradient and squared norm, of a worker and of the mean.
    let (mut of_worker, mut of_mean) = ([0.0; 2], [0.0; 2]);
    let draws = at.number("draws");
    for _ in 0..at.count("draws") {
        let gradients: Vec<Vec<f32>> =
            (0..n).map(|_| quadratic.gradient(&x, own, random)).collect();
        let all = mean(&gradients);
        for gradient in &gradients {
            of_worker[0] += squared_error(gradient) / (n as f64 * draws);
            of_worker[1] += norm(gradient) * norm(gradient) / (n as f64 * draws);
        }
        of_mean[0] += squared_error(&all) / draws;
        of_mean[1] += norm(&all) * norm(&all) / draws;
    }
    let trace = dim as f64 * quadratic.noise * quadratic.noise;
    let big = batch as f64;
    // One worker has only one batch size: no estimate.
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
            "The variance of the mean gradient is {}; that of a worker's gradient {}",
            across(table, "mean_variance", 0, end),
            across(table, "worker_variance", 0, end)
        ),
        format!(
            "{}the noise scale is {}, the estimate {}",
            at(table, end),
            cell(table, "exact_noise_scale", end),
            cell(table, "noise_scale", end)
        ),
    ]
}
