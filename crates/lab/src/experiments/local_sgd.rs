//! Local SGD: workers step alone and average now and then; fewer messages, more drift.

use super::prelude::*;
use super::problem::{Bowl, step};
use lockstep_config::units::Seconds;
use lockstep_planner::scaling::amortized;

experiment!(LocalSgd);

const CARD: Card = Card {
    name: "local-sgd",
    title: "Local SGD: time to a target by the number of local steps, and the best number",
    question: "How many steps should workers take between averages?",
    formula: "time = iterations(K) x (Tc + Tm/K); without drift K* grows with sqrt(Tm/Tc)",
    look: "iterations, which K raises only with heterogeneity; seconds, with its minimum; drift, \
           the distance of workers from their mean",
    surprise: "with equal data K hardly costs iterations on a bowl; with unequal data workers pull \
               to their own optima and a large K never reaches the target at this step size; \
               when communication is cheap, K = 1 is best",
    params: &[
        Param::count("local_steps", 1.0, (1.0, 10_000.0), "steps between averages (K)"),
        Param::count("workers", 8.0, (1.0, 256.0), "workers"),
        Param::number("compute", Unit::Seconds, 0.05, (0.0, 1e4), "a step (Tc)"),
        Param::number("communication", Unit::Seconds, 0.1, (0.0, 1e4), "an average (Tm)"),
        Param::number("lr", Unit::Number, 0.1, (1e-5, 1.9), "step size for curvature 1"),
        Param::number("heterogeneity", Unit::Number, 0.5, (0.0, 100.0), "distance of optima"),
        Param::number("noise", Unit::Number, 0.2, (0.0, 100.0), "noise of gradients"),
        Param::count("dim", 10.0, (1.0, 1000.0), "dimensions"),
        Param::number("condition", Unit::Number, 20.0, (1.0, 1e5), "largest over least curvature"),
        Param::number("target", Unit::Number, 0.02, (1e-9, 0.9), "loss over that at the start"),
    ],
    sweep: ("local_steps", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
    columns: &[
        Column::new("iterations", Unit::Count, "steps to the target"),
        Column::new("seconds", Unit::Seconds, "time to the target"),
        Column::new("step_seconds", Unit::Seconds, "a step with its share of an average"),
        Column::new("drift", Unit::Number, "distance of workers from their mean, at averages"),
        Column::new("root_rule", Unit::Number, "sqrt(Tm/Tc)"),
    ],
    picture: Picture::lines("local_steps", &["seconds"]).log(true, false),
};

const MOST: usize = 20_000;

/// Time to a target.
pub(crate) fn wall_seconds(iterations: f64, compute: f64, communication: f64, k: usize) -> f64 {
    iterations * amortized(Seconds(compute), Seconds(communication), k).0
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, k) = (at.count("workers"), at.count("local_steps"));
    let (dim, lr) = (at.count("dim"), at.number("lr"));
    let bowl = Bowl::new(dim, at.number("condition"), at.number("noise"));
    // Workers see tilted bowls whose tilts cancel out; curvatures differ too, so that drifting
    // apart is not undone by averaging.
    let tilts: Vec<Vec<f64>> = (0..n)
        .map(|worker| {
            let side = if worker.is_multiple_of(2) { 1.0 } else { -1.0 };
            vec![side * at.number("heterogeneity"); dim]
        })
        .collect();
    let bend = |worker: usize| if worker.is_multiple_of(2) { 1.5 } else { 0.5 };
    let start = bowl.start();
    let target = at.number("target") * bowl.loss(&start);
    let mut mean = start;
    let (mut iterations, mut drift, mut rounds) = (0, 0.0, 0.0);
    while bowl.loss(&mean) > target && iterations < MOST {
        let mut sum = vec![0.0; dim];
        let mut ends = Vec::with_capacity(n);
        for (worker, tilt) in tilts.iter().enumerate() {
            let mut x = mean.clone();
            for _ in 0..k {
                let mut gradient = bowl.gradient(&x, 1.0, random);
                for (i, gradient) in gradient.iter_mut().enumerate() {
                    let curve = bowl.curvatures[i];
                    *gradient += curve * ((bend(worker) - 1.0) * x[i] - tilt[i]);
                }
                step(&mut x, lr, &gradient);
            }
            step(&mut sum, -1.0 / n as f64, &x);
            ends.push(x);
        }
        let apart = |x: &Vec<f64>| x.iter().zip(&sum).map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
        drift += (ends.iter().map(apart).sum::<f64>() / n as f64).sqrt();
        (mean, rounds, iterations) = (sum, rounds + 1.0, iterations + k);
    }
    let has_ended = iterations < MOST;
    let count = if has_ended { iterations as f64 } else { f64::INFINITY };
    let (compute, communication) = (at.number("compute"), at.number("communication"));
    Ok(vec![row![
        count,
        wall_seconds(count, compute, communication, k),
        wall_seconds(1.0, compute, communication, k),
        drift / rounds,
        (communication / compute).sqrt(),
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let Some(best) = table.best("seconds", 1.0) else {
        return vec!["The target is never reached".to_owned()];
    };
    let (iterations, end) = (table.numbers("iterations"), last(table));
    let reached = if iterations[end].is_infinite() {
        "drifts too far to reach the target".to_owned()
    } else {
        format!("takes {} iterations", cell(table, "iterations", end))
    };
    vec![
        format!("{} is soonest: {}", place(table, best), cell(table, "seconds", best)),
        format!(
            "{} takes {} iterations, {} {reached}",
            place(table, 0),
            cell(table, "iterations", 0),
            place(table, end)
        ),
    ]
}
