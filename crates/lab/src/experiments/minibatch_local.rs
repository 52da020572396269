//! Mini-batch or local SGD: the same gradients, spent on long steps or on many.
//!
//! In each of K rounds every one of n workers computes tau gradients. Mini-batch SGD averages all
//! n tau of them into one step; local SGD takes tau steps alone and averages the workers. On a
//! quadratic the second is never worse. On a convex function whose curvature changes, noise pushes
//! lonely workers to the flat side, and more so the longer they are alone.

use super::prelude::*;
use crate::problem::{Bowl, Stepper, mean};
use lockstep_tensor::math::scalar::powf;

experiment!(MinibatchLocal);

const CARD: Card = Card {
    name: "minibatch-local",
    title: "Mini-batch against local SGD at the same gradients, by rounds",
    question: "Are tau steps alone worth more than one step with a batch tau times as large?",
    formula: "quadratic: 1/(K tau) + s/sqrt(n K tau) against 1/K + s/sqrt(n K tau); convex: \
              local has at most s^(2/3)/(K^(2/3) tau^(1/3)) in place of 1/(K tau): better for K \
              up to about tau",
    look: "ratio over rounds: on the quadratic well above 1 while rounds are few and near 1 beyond \
           about tau; on the convex problem drift takes the gain away, the sooner the more noise",
    surprise: "local SGD wins by stepping more often, so it wins where rounds are few; with many \
               rounds its best step size is so small that it does what the mini-batch does",
    params: &[
        Param::count("rounds", 16.0, (1.0, 10_000.0), "rounds of communication (K)"),
        Param::count("local_steps", 8.0, (1.0, 1000.0), "gradients of a worker in a round (tau)"),
        Param::count("workers", 4.0, (1.0, 256.0), "workers (n)"),
        Param::number("noise", Unit::Number, 1.0, (0.0, 100.0), "noise of a gradient (s)"),
        Param::number("condition", Unit::Number, 30.0, (1.0, 1e5), "largest over least curvature"),
        Param::number("flat", Unit::Number, 0.05, (0.0, 1.0), "curvature below 0 over that above"),
        Param::count("dim", 2.0, (1.0, 100.0), "dimensions"),
        Param::count("runs", 60.0, (1.0, 1000.0), "runs whose losses are averaged"),
    ],
    sweep: ("rounds", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
    columns: &[
        Column::new("problem", Unit::Word, "problem"),
        Column::new("minibatch_loss", Unit::Number, "mini-batch SGD, with its best step size"),
        Column::new("local_loss", Unit::Number, "local SGD, with its best step size"),
        Column::new("ratio", Unit::Times, "mini-batch's loss over local SGD's"),
        Column::new("minibatch_lr", Unit::Number, "best step size of the mini-batch"),
        Column::new("local_lr", Unit::Number, "best step size of local SGD"),
        Column::new("minibatch_bound", Unit::Number, "1/K + s/sqrt(n K tau)"),
        Column::new("local_bound", Unit::Number, "the same for local SGD"),
    ],
    picture: Picture::lines("rounds", &["ratio"]).by("problem").log(true, true),
};

/// Step sizes that are tried, each 0.4 of the one before.
const NUM_RATES: i32 = 7;

/// A bowl that may be flatter on one side of its optimum.
struct Valley {
    bowl: Bowl,
    flat: f64,
}

impl Valley {
    fn bent(&self, x: &[f32], power: f64) -> Vec<f32> {
        let side = if power > 0.5 { self.flat } else { self.flat.sqrt() };
        x.iter().map(|x| if *x < 0.0 { (f64::from(*x) * side) as f32 } else { *x }).collect()
    }

    fn gradient(&self, x: &[f32], batch: f64, random: &mut Random) -> Vec<f32> {
        self.bowl.gradient(&self.bent(x, 1.0), batch, random)
    }

    fn loss(&self, x: &[f32]) -> f64 {
        self.bowl.loss(&self.bent(x, 0.5))
    }
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (k, tau, n) = (at.number("rounds"), at.number("local_steps"), at.number("workers"));
    let noise = at.number("noise");
    let averaged = noise / (n * k * tau).sqrt();
    let convex = powf(noise, 2.0 / 3.0) / (powf(k, 2.0 / 3.0) * powf(tau, 1.0 / 3.0));
    let mut rows = Vec::new();
    for (name, flat, bound) in [("quadratic", 1.0, 0.0), ("convex", at.number("flat"), convex)] {
        let bowl = Bowl::new(at.count("dim"), at.number("condition"), noise);
        let valley = Valley { bowl, flat };
        let minibatch = best(at, |lr| follow(at, &valley, lr, (1, n * tau, 1), random));
        let local = best(at, |lr| {
            follow(at, &valley, lr, (at.count("local_steps"), 1.0, at.count("workers")), random)
        });
        rows.push(row![
            name,
            minibatch.0,
            local.0,
            minibatch.0 / local.0,
            minibatch.1,
            local.1,
            1.0 / k + averaged,
            1.0 / (k * tau) + bound + averaged,
        ]);
    }
    Ok(rows)
}

/// The least mean loss over step sizes, with the step size.
fn best(at: &Settings, mut loss: impl FnMut(f64) -> f64) -> (f64, f64) {
    let num_runs = at.count("runs");
    let mut best = (f64::INFINITY, f64::NAN);
    for power in 0..NUM_RATES {
        let lr = 1.5 * powf(0.4, f64::from(power));
        let mean = (0..num_runs).map(|_| loss(lr)).sum::<f64>() / num_runs as f64;
        if mean < best.0 {
            best = (mean, lr);
        }
    }
    best
}

/// The loss after all rounds of so many steps with such batches on so many workers.
fn follow(
    at: &Settings,
    valley: &Valley,
    lr: f64,
    (num_steps, batch, num_workers): (usize, f64, usize),
    random: &mut Random,
) -> f64 {
    let mut shared = valley.bowl.start();
    let mut stepper = Stepper::sgd(shared.len());
    for _ in 0..at.count("rounds") {
        let ends: Vec<Vec<f32>> = (0..num_workers)
            .map(|_| {
                let mut x = shared.clone();
                for _ in 0..num_steps {
                    let gradient = valley.gradient(&x, batch, random);
                    stepper.step(&mut x, lr, &gradient);
                }
                x
            })
            .collect();
        shared = mean(&ends);
    }
    valley.loss(&shared)
}

fn findings(table: &Table) -> Vec<String> {
    let (problems, ratio, end) = (table.words("problem"), table.words("ratio"), last(table));
    let said = |name: &str| {
        let has = |row: &usize| problems[*row] == name;
        let first = (0..=end).find(has).unwrap_or(end);
        let late = (0..=end).rev().find(has).unwrap_or(end);
        let (from, to) = (place(table, first), place(table, late));
        format!("on the {name} problem {} at {from}, {} at {to}", ratio[first], ratio[late])
    };
    let (ours, theirs) = (table.numbers("local_bound"), table.numbers("minibatch_bound"));
    let mut found = vec![format!("Local SGD's loss is smaller {}", said("quadratic"))];
    found.push(said("convex"));
    let crossed = (0..=end).find(|row| problems[*row] == "convex" && theirs[*row] <= ours[*row]);
    if let Some(row) = crossed {
        found.push(format!("the bounds of the convex problem cross by {}", place(table, row)));
    }
    found
}
