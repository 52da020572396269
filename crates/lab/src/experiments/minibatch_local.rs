//! Mini-batch or local SGD: the same gradients, spent on long steps or on many.
//!
//! In each of K rounds every one of n workers computes tau gradients. Mini-batch SGD averages all
//! n tau of them into one step; local SGD takes tau steps alone and averages the workers.
//!
//! Rates of convergence are about the worst problem of a class, so both are run on a family of
//! problems at once, one a coordinate, with the step size that is best for the worst of them. The
//! quadratics have all curvatures from 1 down; among them is one that is hardest for this K. The
//! convex family adds valleys that are flatter on one side: noise pushes lonely workers to the flat
//! side, further the longer they are alone, and averaging does not undo it. There the loss of local
//! SGD falls like K^(-2/3) tau^(-1/3), which is the bound of the theory, against 1/K.

use super::prelude::*;
use crate::problem::{Stepper, mean};
use lockstep_tensor::math::scalar::{ln, powf, powi};

experiment!(MinibatchLocal);

const CARD: Card = Card {
    name: "minibatch-local",
    title: "Mini-batch against local SGD at the same gradients, by rounds",
    question: "Are tau steps alone worth more than one step with a batch tau times as large?",
    formula: "quadratic: 1/(K tau) + s/sqrt(n K tau) against 1/K + s/sqrt(n K tau); convex: \
              local SGD has s^(2/3)/(K^(2/3) tau^(1/3)) more, and both are equal at K = tau/s^2",
    look: "ratio over rounds: on the worst quadratic about tau while noise is small, and never \
           below 1; on the worst convex problem it falls like K^(-1/3) and passes 1 at about tau",
    surprise: "on quadratics averaging commutes with stepping, so local SGD is as good as K tau \
               steps of a batch of n; what makes it lose is curvature that changes, with noise",
    params: &[
        Param::count("rounds", 16.0, (1.0, 10_000.0), "rounds of communication (K)"),
        Param::count("local_steps", 8.0, (1.0, 1000.0), "gradients of a worker in a round (tau)"),
        Param::count("workers", 1024.0, (1.0, 4096.0), "workers (n)"),
        Param::number("noise", Unit::Number, 1.0, (0.0, 100.0), "noise of a gradient (s)"),
        Param::count("runs", 1.0, (1.0, 1000.0), "runs whose losses are averaged"),
    ],
    sweep: ("rounds", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
    columns: &[
        Column::new("problem", Unit::Word, "problem"),
        Column::new("minibatch_loss", Unit::Number, "mini-batch SGD, with its best step size"),
        Column::new("local_loss", Unit::Number, "local SGD, with its best step size"),
        Column::new("ratio", Unit::Times, "mini-batch's loss over local SGD's"),
        Column::new("minibatch_lr", Unit::Number, "best step size of the mini-batch"),
        Column::new("local_lr", Unit::Number, "best step size of local SGD"),
        Column::new("bound_ratio", Unit::Times, "the same of the bounds, with constants of 1"),
    ],
    picture: Picture::lines("rounds", &["ratio", "bound_ratio"])
        .by("problem")
        .log(true, true)
        .named("mini-batch's loss over local SGD's"),
};

/// The largest step size that is tried, as a multiple of the inverse of the largest curvature.
const LARGEST: f64 = 1.8;
/// Each that is tried is so much of the one before.
const FALL: f64 = 0.78;
/// How many are tried at most.
const NUM_RATES: i32 = 22;
/// Losses that grow for so many step sizes in a row do not fall again.
const PATIENCE: usize = 3;

/// Curvatures of the quadratics: 1 and its halves, down to what K tau steps do not feel.
const NUM_QUADRATICS: usize = 13;
/// What is left of a curvature of 1 on the flat side of each valley.
const FLAT: [f64; 3] = [0.3, 0.1, 0.04];

/// One problem a coordinate, each with its curvature above and below its optimum at 0.
struct Family {
    curvatures: Vec<(f64, f64)>,
    noise: f64,
}

impl Family {
    fn new(noise: f64) -> Self {
        let halves = std::iter::successors(Some(1.0), |curvature| Some(0.5 * curvature));
        let quadratics = halves.take(NUM_QUADRATICS).map(|curvature| (curvature, curvature));
        let valleys = FLAT.into_iter().map(|flat| (1.0, flat));
        Self { curvatures: quadratics.chain(valleys).collect(), noise }
    }

    /// Everything is one away from the optimum.
    fn start(&self) -> Vec<f32> {
        vec![1.0; self.curvatures.len()]
    }

    /// A gradient with as much noise up as down: what is known of it is its variance.
    fn gradient(&self, x: &[f32], batch: f64, random: &mut Random) -> Vec<f32> {
        let deviation = self.noise / batch.sqrt();
        let mut signs = random.bits();
        let slope = |(x, (above, below)): (&f32, &(f64, f64))| {
            let noise = if signs & 1 == 0 { deviation } else { -deviation };
            signs >>= 1;
            (f64::from(*x) * if *x > 0.0 { above } else { below } + noise) as f32
        };
        x.iter().zip(&self.curvatures).map(slope).collect()
    }

    /// The loss of every problem.
    fn losses(&self, x: &[f32]) -> Vec<f64> {
        let loss = |(x, (above, below)): (&f32, &(f64, f64))| {
            0.5 * f64::from(*x) * f64::from(*x) * if *x > 0.0 { above } else { below }
        };
        x.iter().zip(&self.curvatures).map(loss).collect()
    }
}

/// How the gradients of a round are spent.
#[derive(Clone, Copy)]
struct Spending {
    num_steps: usize,
    batch: f64,
    num_workers: usize,
    num_runs: usize,
}

/// A run of the mini-batch costs next to nothing, so there are so many for each of local SGD.
const CHEAP_RUNS: usize = 64;

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (k, tau, n) = (at.number("rounds"), at.number("local_steps"), at.number("workers"));
    let noise = at.number("noise");
    let family = Family::new(noise);
    let num_runs = at.count("runs");
    let minibatch =
        Spending { num_steps: 1, batch: n * tau, num_workers: 1, num_runs: CHEAP_RUNS * num_runs };
    let local = Spending {
        num_steps: at.count("local_steps"),
        batch: 1.0,
        num_workers: at.count("workers"),
        num_runs,
    };
    let averaged = noise / (n * k * tau).sqrt();
    let drift = powf(noise, 2.0 / 3.0) / (powf(k, 2.0 / 3.0) * powf(tau, 1.0 / 3.0));
    let (theirs, ours) = (least(at, &family, minibatch, random), least(at, &family, local, random));
    let mut rows = Vec::new();
    for (index, (name, drift)) in [("quadratic", 0.0), ("convex", drift)].into_iter().enumerate() {
        let (theirs, ours) = (theirs[index], ours[index]);
        let bound = (1.0 / k + averaged) / (1.0 / (k * tau) + drift + averaged);
        rows.push(row![
            name,
            theirs.loss,
            ours.loss,
            theirs.loss / ours.loss,
            theirs.lr,
            ours.lr,
            bound,
        ]);
    }
    Ok(rows)
}

/// The loss of the worst problem, with the step size at which it is least.
#[derive(Clone, Copy)]
struct Least {
    loss: f64,
    lr: f64,
    /// How many step sizes have been worse since.
    num_worse: usize,
}

/// Of the quadratics, and of all problems.
fn least(at: &Settings, family: &Family, how: Spending, random: &mut Random) -> [Least; 2] {
    let mut least = [Least { loss: f64::INFINITY, lr: f64::NAN, num_worse: 0 }; 2];
    for power in 0..NUM_RATES {
        let lr = LARGEST * powi(FALL, power);
        let losses = mean_losses(at, family, how, lr, random);
        let worst = |losses: &[f64]| losses.iter().copied().fold(0.0, f64::max);
        for (least, loss) in
            least.iter_mut().zip([worst(&losses[..NUM_QUADRATICS]), worst(&losses)])
        {
            if loss < least.loss {
                *least = Least { loss, lr, num_worse: 0 };
            } else if least.loss.is_finite() {
                least.num_worse += 1;
            }
        }
        if least.iter().all(|least| least.num_worse >= PATIENCE) {
            break;
        }
    }
    least
}

/// The loss of every problem after all rounds, averaged over runs.
fn mean_losses(
    at: &Settings,
    family: &Family,
    how: Spending,
    lr: f64,
    random: &mut Random,
) -> Vec<f64> {
    let mut sums = vec![0.0; family.curvatures.len()];
    for _ in 0..how.num_runs {
        let mut shared = family.start();
        let mut stepper = Stepper::sgd(shared.len());
        for _ in 0..at.count("rounds") {
            let alone = |_| {
                let mut x = shared.clone();
                for _ in 0..how.num_steps {
                    let gradient = family.gradient(&x, how.batch, random);
                    stepper.step(&mut x, lr, &gradient);
                }
                x
            };
            let ends: Vec<Vec<f32>> = (0..how.num_workers).map(alone).collect();
            shared = mean(&ends);
        }
        sums.iter_mut().zip(family.losses(&shared)).for_each(|(sum, loss)| *sum += loss);
    }
    sums.iter().map(|sum| sum / how.num_runs as f64).collect()
}

/// Where a ratio falls to 1, between two points of the sweep by powers; never if it does not.
fn crossing(table: &Table, rows: &[usize], column: &str) -> Option<f64> {
    let (rounds, ratio) = (table.numbers("rounds"), table.numbers(column));
    let pair = rows.windows(2).find(|pair| ratio[pair[0]] > 1.0 && ratio[pair[1]] <= 1.0)?;
    let (high, low) = (ln(ratio[pair[0]]), ln(ratio[pair[1]]));
    let along = high / (high - low);
    Some(rounds[pair[0]] * powf(rounds[pair[1]] / rounds[pair[0]], along))
}

fn findings(table: &Table) -> Vec<String> {
    let (problems, ratio) = (table.words("problem"), table.words("ratio"));
    let of = |name: &str| -> Vec<usize> {
        (0..problems.len()).filter(|row| problems[*row] == name).collect()
    };
    let (convex, quadratic) = (of("convex"), of("quadratic"));
    let Some((&first, &late)) = quadratic.first().zip(quadratic.last()) else {
        return Vec::new();
    };
    let over_rounds = table.columns[0].name == "rounds" && table.index("rounds") == Some(0);
    let crossed = over_rounds.then(|| crossing(table, &convex, "ratio")).flatten();
    let (from, to) = (place(table, first), place(table, late));
    let mut found = vec![match crossed {
        Some(rounds) => {
            let losses = table.numbers("ratio");
            let never = quadratic.iter().all(|row| losses[*row] >= 1.0);
            let also = if never { ", on quadratics never" } else { "" };
            format!(
                "On convex problems local SGD loses to the mini-batch beyond {rounds:.0} rounds\
                 {also}"
            )
        }
        None => format!(
            "On convex problems local SGD's loss is smaller {} at {from}, {} at {to}",
            ratio[convex[0]],
            ratio[convex[convex.len() - 1]]
        ),
    }];
    found.push(format!(
        "on the worst quadratic it is smaller {} at {from}, {} at {to}",
        ratio[first], ratio[late]
    ));
    if let Some(rounds) = over_rounds.then(|| crossing(table, &convex, "bound_ratio")).flatten() {
        found.push(format!("the bounds, with constants of 1, cross at {rounds:.1} rounds"));
    }
    found
}
