//! Mini-batch SGD against local SGD with the same number of gradients (Woodworth et al. 2020).
//!
//! In each of K rounds every one of n workers computes tau gradients. Mini-batch SGD averages all
//! n tau gradients into one step; local SGD takes tau local steps and averages the weights.
//!
//! Convergence rates are about the worst problem of a class, so both methods run on a family of
//! problems at once, one per coordinate, with the step size that is best for the worst problem. The
//! quadratics have curvatures from 1 downwards, one of them hardest for this K. The convex family
//! adds valleys that are flatter on one side: noise moves workers towards the flat side, further
//! with more local steps, and averaging does not undo it. There the loss of local SGD falls like
//! K^(-2/3) tau^(-1/3), as the theory bounds it, against 1/K.

use super::prelude::*;
use crate::problem::{Stepper, mean};
use lockstep_tensor::math::scalar::{ln, powf, powi};

experiment!(MinibatchLocal);

const DESCRIPTION: Description = Description {
    name: "minibatch-local",
    title: "Mini-batch SGD against local SGD with equal gradients, by rounds",
    question: "Are tau local steps better than one step with a batch tau times as large?",
    formula: "quadratic: 1/(K tau) + s/sqrt(n K tau) against 1/K + s/sqrt(n K tau); convex: \
              local SGD adds s^(2/3)/(K^(2/3) tau^(1/3)); both are equal at K = tau/s^2",
    look: "ratio over rounds: on the worst quadratic about tau while noise is small, and never \
           below 1; on the worst convex problem it falls like K^(-1/3) and passes 1 at about tau",
    surprise: "on quadratics averaging commutes with steps, so local SGD equals K tau steps with a \
               batch of n; non-constant curvature with noise makes it worse",
    params: &[
        Param::count("rounds", 16.0, (1.0, 10_000.0), "communication rounds (K)"),
        Param::count("local_steps", 8.0, (1.0, 1000.0), "gradients per worker and round (tau)"),
        Param::count("workers", 1024.0, (1.0, 4096.0), "workers (n)"),
        Param::number("noise", Unit::Number, 1.0, (0.0, 100.0), "gradient noise (s)"),
        Param::count("runs", 1.0, (1.0, 1000.0), "number of averaged runs"),
    ],
    sweep: ("rounds", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
    columns: &[
        Column::new("problem", Unit::Text, "class of problems"),
        Column::new(
            "minibatch_loss",
            Unit::Number,
            "loss of mini-batch SGD with its best step size",
        ),
        Column::new("local_loss", Unit::Number, "loss of local SGD with its best step size"),
        Column::new("ratio", Unit::Times, "mini-batch loss/local SGD loss"),
        Column::new("minibatch_lr", Unit::Number, "best step size of mini-batch SGD"),
        Column::new("local_lr", Unit::Number, "best step size of local SGD"),
        Column::new("bound_ratio", Unit::Times, "ratio of the bounds, with constants of 1"),
    ],
    chart: ChartSpec::lines("rounds", &["ratio", "bound_ratio"])
        .by("problem")
        .log(true, true)
        .named("mini-batch loss/local SGD loss"),
};

/// Largest candidate step size, relative to the inverse of the largest curvature.
const MAX_LR: f64 = 1.8;
/// Ratio of consecutive candidates.
const LR_RATIO: f64 = 0.78;
/// Maximum number of candidates.
const NUM_RATES: i32 = 22;
/// The search stops after this many worse step sizes in a row.
const MAX_WORSE: usize = 3;

/// Number of quadratics, with curvatures 1, 1/2, 1/4, …
const NUM_QUADRATICS: usize = 13;
/// Curvature on the flat side of each valley.
const FLAT: [f64; 3] = [0.3, 0.1, 0.04];

/// One problem per coordinate, with its curvatures above and below the optimum at 0.
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

    /// Starting point: every coordinate is 1.
    fn start(&self) -> Vec<f32> {
        vec![1.0; self.curvatures.len()]
    }

    /// Gradient with symmetric two-point noise.
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

    /// Loss of every problem.
    fn losses(&self, x: &[f32]) -> Vec<f64> {
        let loss = |(x, (above, below)): (&f32, &(f64, f64))| {
            0.5 * f64::from(*x) * f64::from(*x) * if *x > 0.0 { above } else { below }
        };
        x.iter().zip(&self.curvatures).map(loss).collect()
    }
}

/// Use of the gradients of a round.
#[derive(Clone, Copy)]
struct Method {
    num_steps: usize,
    batch: f64,
    num_workers: usize,
    num_runs: usize,
}

/// Runs of mini-batch SGD per run of local SGD; they are cheap.
const MINIBATCH_RUNS: usize = 64;

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (k, tau, n) = (at.number("rounds"), at.number("local_steps"), at.number("workers"));
    let noise = at.number("noise");
    let family = Family::new(noise);
    let num_runs = at.count("runs");
    let minibatch = Method {
        num_steps: 1,
        batch: n * tau,
        num_workers: 1,
        num_runs: MINIBATCH_RUNS * num_runs,
    };
    let local = Method {
        num_steps: at.count("local_steps"),
        batch: 1.0,
        num_workers: at.count("workers"),
        num_runs,
    };
    let averaged = noise / (n * k * tau).sqrt();
    let drift = powf(noise, 2.0 / 3.0) / (powf(k, 2.0 / 3.0) * powf(tau, 1.0 / 3.0));
    let (minibatch, local) =
        (tune(at, &family, minibatch, random), tune(at, &family, local, random));
    let mut rows = Vec::new();
    for (index, (name, drift)) in [("quadratic", 0.0), ("convex", drift)].into_iter().enumerate() {
        let (minibatch, local) = (minibatch[index], local[index]);
        let bound = (1.0 / k + averaged) / (1.0 / (k * tau) + drift + averaged);
        rows.push(row![
            name,
            minibatch.loss,
            local.loss,
            minibatch.loss / local.loss,
            minibatch.lr,
            local.lr,
            bound,
        ]);
    }
    Ok(rows)
}

/// Lowest loss of the worst problem, and its step size.
#[derive(Clone, Copy)]
struct Optimum {
    loss: f64,
    lr: f64,
    /// Number of worse step sizes since.
    num_worse: usize,
}

/// Tunes the step size for the quadratics, and for all problems.
fn tune(at: &Settings, family: &Family, method: Method, random: &mut Random) -> [Optimum; 2] {
    let mut optima = [Optimum { loss: f64::INFINITY, lr: f64::NAN, num_worse: 0 }; 2];
    for power in 0..NUM_RATES {
        let lr = MAX_LR * powi(LR_RATIO, power);
        let losses = mean_losses(at, family, method, lr, random);
        let worst = |losses: &[f64]| losses.iter().copied().fold(0.0, f64::max);
        for (best, loss) in
            optima.iter_mut().zip([worst(&losses[..NUM_QUADRATICS]), worst(&losses)])
        {
            if loss < best.loss {
                *best = Optimum { loss, lr, num_worse: 0 };
            } else if best.loss.is_finite() {
                best.num_worse += 1;
            }
        }
        if optima.iter().all(|best| best.num_worse >= MAX_WORSE) {
            break;
        }
    }
    optima
}

/// Loss of every problem after all rounds, averaged over runs.
fn mean_losses(
    at: &Settings,
    family: &Family,
    method: Method,
    lr: f64,
    random: &mut Random,
) -> Vec<f64> {
    let mut sums = vec![0.0; family.curvatures.len()];
    for _ in 0..method.num_runs {
        let mut shared = family.start();
        let mut stepper = Stepper::sgd(shared.len());
        for _ in 0..at.count("rounds") {
            let local_steps = |_| {
                let mut x = shared.clone();
                for _ in 0..method.num_steps {
                    let gradient = family.gradient(&x, method.batch, random);
                    stepper.step(&mut x, lr, &gradient);
                }
                x
            };
            let ends: Vec<Vec<f32>> = (0..method.num_workers).map(local_steps).collect();
            shared = mean(&ends);
        }
        sums.iter_mut().zip(family.losses(&shared)).for_each(|(sum, loss)| *sum += loss);
    }
    sums.iter().map(|sum| sum / method.num_runs as f64).collect()
}

/// Rounds at which a ratio falls to 1, interpolated on logarithmic scales.
fn crossing(table: &Table, rows: &[usize], column: &str) -> Option<f64> {
    let (rounds, ratio) = (table.numbers("rounds"), table.numbers(column));
    let pair = rows.windows(2).find(|pair| ratio[pair[0]] > 1.0 && ratio[pair[1]] <= 1.0)?;
    let (high, low) = (ln(ratio[pair[0]]), ln(ratio[pair[1]]));
    let along = high / (high - low);
    Some(rounds[pair[0]] * powf(rounds[pair[1]] / rounds[pair[0]], along))
}

fn findings(table: &Table) -> Vec<String> {
    let (problems, ratio) = (table.texts("problem"), table.texts("ratio"));
    let of = |name: &str| -> Vec<usize> {
        (0..problems.len()).filter(|row| problems[*row] == name).collect()
    };
    let (convex, quadratic) = (of("convex"), of("quadratic"));
    let Some((&first, &end)) = quadratic.first().zip(quadratic.last()) else {
        return Vec::new();
    };
    let over_rounds = table.columns[0].name == "rounds" && table.index("rounds") == Some(0);
    let crossed = over_rounds.then(|| crossing(table, &convex, "ratio")).flatten();
    let (from, to) = (place(table, first), place(table, end));
    let mut findings = vec![match crossed {
        Some(rounds) => {
            let losses = table.numbers("ratio");
            let never = quadratic.iter().all(|row| losses[*row] >= 1.0);
            let also = if never { ", on quadratics never" } else { "" };
            format!(
                "On convex problems local SGD is worse than mini-batch SGD beyond {rounds:.0} \
                 rounds{also}"
            )
        }
        None => format!(
            "On convex problems the loss of local SGD is {} smaller at {from}, {} at {to}",
            ratio[convex[0]],
            ratio[convex[convex.len() - 1]]
        ),
    }];
    findings.push(format!(
        "on the worst quadratic it is {} smaller at {from}, {} at {to}",
        ratio[first], ratio[end]
    ));
    if let Some(rounds) = over_rounds.then(|| crossing(table, &convex, "bound_ratio")).flatten() {
        findings.push(format!("the bounds, with constants of 1, cross at {rounds:.1} rounds"));
    }
    findings
}
