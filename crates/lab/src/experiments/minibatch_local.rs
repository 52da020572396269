//! Mini-batch SGD against local SGD with the same number of gradients (Woodworth et al. 2020).
//!
//! In each of K rounds every one of n workers computes tau gradients. Mini-batch SGD averages all
//! n tau gradients into one step; local SGD takes tau local steps and averages the weights.
//!
//! Convergence rates are about the worst problem of a class, so both methods run on a family of
//! problems, with the step size that is best for the worst problem. The quadratics have curvatures
//! from 1 downwards, one of them hardest for this K. The convex family adds valleys that are
//! flatter on one side: noise moves workers towards the flat side, further with more local steps,
//! and averaging does not undo it. There the loss of local SGD falls like K^(-2/3) tau^(-1/3), as
//! the theory bounds it, against 1/K.
//!
//! Losses are expectations, computed without sampling: in closed form on quadratics, and on valleys
//! backwards from the last round over a grid of starting points. Gradient noise has three values
//! with the first five moments of a normal distribution, and so has the mean of the workers.

use super::prelude::*;
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
const LR_RATIO: f64 = 0.9;
/// Maximum number of candidates.
const NUM_RATES: i32 = 80;
/// The search stops after this many worse step sizes in a row.
const MAX_WORSE: usize = 5;

/// Ratio of the curvatures of consecutive quadratics.
const CURVATURE_RATIO: f64 = 0.8;
/// Curvature on the flat side of each valley.
const FLAT: [f64; 3] = [0.3, 0.1, 0.04];

/// Values and probabilities of the noise, with the moments of a standard normal distribution.
const NOISE: [(f64, f64); 3] =
    [(-1.732_050_807_568_877_2, 1.0 / 6.0), (0.0, 2.0 / 3.0), (1.732_050_807_568_877_2, 1.0 / 6.0)];

/// Use of the gradients of a round: local steps of `num_workers` workers, with `noise` each.
#[derive(Clone, Copy)]
struct Method {
    num_rounds: usize,
    num_steps: usize,
    num_workers: f64,
    noise: f64,
}

impl Method {
    /// Expected loss on a quadratic, started at 1: that of as many steps with the mean gradient.
    fn quadratic_loss(self, curvature: f64, lr: f64) -> f64 {
        let shrink = 1.0 - lr * curvature;
        let kept = powf(shrink * shrink, (self.num_rounds * self.num_steps) as f64);
        let variance = lr * lr * self.noise * self.noise / self.num_workers;
        0.5 * curvature * (kept + variance * (1.0 - kept) / (1.0 - shrink * shrink))
    }

    /// Expected loss in a valley of curvature 1 above 0 and `flat` below it, started at 1.
    fn valley_loss(self, flat: f64, lr: f64) -> f64 {
        let curvature = |x: f64| if x > 0.0 { 1.0 } else { flat };
        let deviation = lr * self.noise;
        let shrink = 1.0 - lr * flat;
        let num_independent = (1.0 / (1.0 - shrink * shrink)).min(self.num_steps as f64);
        let grid = Grid::new(1.2 + 6.0 * deviation * num_independent.sqrt());
        let step = grid.transition(|index| {
            let x = grid.node(index);
            (x - lr * curvature(x) * x, deviation)
        });
        // Mean and mean square of a worker after its local steps, by starting point.
        let mut means = grid.sample(|x| x);
        let mut squares = grid.sample(|x| x * x);
        for _ in 0..self.num_steps {
            (means, squares) = (step.expect(&means), step.expect(&squares));
        }
        let round = grid.transition(|index| {
            let variance = (squares[index] - means[index] * means[index]).max(0.0);
            (means[index], (variance / self.num_workers).sqrt())
        });
        let mut losses = grid.sample(|x| 0.5 * curvature(x) * x * x);
        for _ in 0..self.num_rounds {
            losses = round.expect(&losses);
        }
        Stencil::new(&grid, 1.0).value(&losses)
    }
}

/// Even grid around 0, where the gradients of valleys have a kink.
struct Grid {
    spacing: f64,
}

impl Grid {
    /// Nodes on each side of 0.
    const HALF: usize = 300;

    fn new(end: f64) -> Self {
        Self { spacing: end / Self::HALF as f64 }
    }

    fn node(&self, index: usize) -> f64 {
        (index as f64 - Self::HALF as f64) * self.spacing
    }

    fn sample(&self, function: impl Fn(f64) -> f64) -> Vec<f64> {
        (0..=2 * Self::HALF).map(|index| function(self.node(index))).collect()
    }

    /// Random moves from every node to a mean with a standard deviation.
    fn transition(&self, to: impl Fn(usize) -> (f64, f64)) -> Transition {
        let moves = |index: usize| {
            let (mean, deviation) = to(index);
            NOISE.map(|(noise, _)| Stencil::new(self, mean + deviation * noise))
        };
        Transition { moves: (0..=2 * Self::HALF).map(moves).collect() }
    }
}

/// Cubic interpolation through four nodes.
struct Stencil {
    first: usize,
    weights: [f64; 4],
}

impl Stencil {
    fn new(grid: &Grid, x: f64) -> Self {
        let end = 2 * Grid::HALF;
        // Beyond the grid lies next to no probability: the value of its end serves.
        let place = (x / grid.spacing + Grid::HALF as f64).clamp(0.0, end as f64);
        let first = (place as usize).saturating_sub(1).min(end - 3);
        let t = place - first as f64;
        let weights = [
            (1.0 - t) * (2.0 - t) * (3.0 - t) / 6.0,
            t * (2.0 - t) * (3.0 - t) / 2.0,
            t * (t - 1.0) * (3.0 - t) / 2.0,
            t * (t - 1.0) * (t - 2.0) / 6.0,
        ];
        Self { first, weights }
    }

    fn value(&self, values: &[f64]) -> f64 {
        self.weights.iter().zip(&values[self.first..]).map(|(weight, value)| weight * value).sum()
    }
}

/// Random moves from every node.
struct Transition {
    moves: Vec<[Stencil; 3]>,
}

impl Transition {
    /// Expected value of a function after a move, by starting point.
    fn expect(&self, values: &[f64]) -> Vec<f64> {
        let expected = |stencils: &[Stencil; 3]| {
            let terms = NOISE.iter().zip(stencils);
            terms.map(|((_, probability), stencil)| probability * stencil.value(values)).sum()
        };
        self.moves.iter().map(expected).collect()
    }
}

fn run(at: &Settings, _: &mut Random) -> Result<Vec<Row>, LabError> {
    let (k, tau, n) = (at.number("rounds"), at.number("local_steps"), at.number("workers"));
    let noise = at.number("noise");
    let num_rounds = at.count("rounds");
    let minibatch =
        Method { num_rounds, num_steps: 1, num_workers: 1.0, noise: noise / (n * tau).sqrt() };
    let local = Method { num_rounds, num_steps: at.count("local_steps"), num_workers: n, noise };
    let averaged = noise / (n * k * tau).sqrt();
    let drift = powf(noise, 2.0 / 3.0) / (powf(k, 2.0 / 3.0) * powf(tau, 1.0 / 3.0));
    // The hardest quadratic is about as flat as all steps together can descend.
    let curvatures = std::iter::successors(Some(1.0), |h| Some(CURVATURE_RATIO * h));
    let curvatures: Vec<f64> = curvatures.take_while(|h| h * 8.0 * k * tau >= 1.0).collect();
    let (minibatch, local) = (tune(minibatch, &curvatures), tune(local, &curvatures));
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
fn tune(method: Method, curvatures: &[f64]) -> [Optimum; 2] {
    let mut optima = [Optimum { loss: f64::INFINITY, lr: f64::NAN, num_worse: 0 }; 2];
    for power in 0..NUM_RATES {
        let lr = MAX_LR * powi(LR_RATIO, power);
        let quadratics = curvatures.iter().map(|h| method.quadratic_loss(*h, lr));
        let quadratic = quadratics.fold(0.0, f64::max);
        // Valleys do not matter any more once their best step size has passed.
        let is_open = optima[1].num_worse < MAX_WORSE;
        let valleys = FLAT.iter().filter(|_| is_open).map(|flat| method.valley_loss(*flat, lr));
        let convex = valleys.fold(quadratic, f64::max);
        for (best, loss) in optima.iter_mut().zip([quadratic, convex]) {
            if best.num_worse >= MAX_WORSE {
                continue;
            }
            *best = if loss < best.loss {
                Optimum { loss, lr, num_worse: 0 }
            } else {
                Optimum { num_worse: best.num_worse + 1, ..*best }
            };
        }
        if optima.iter().all(|best| best.num_worse >= MAX_WORSE) {
            break;
        }
    }
    optima
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
    let [convex, quadratic] = ["convex", "quadratic"].map(|name| rows_with(table, "problem", name));
    if convex.is_empty() || quadratic.is_empty() {
        return Vec::new();
    }
    let over_rounds = table.num_swept == 1 && table.columns[0].name == "rounds";
    let crossed = over_rounds.then(|| crossing(table, &convex, "ratio")).flatten();
    let ends = |rows: &[usize]| across(table, "ratio", rows[0], rows[rows.len() - 1]);
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
        None => format!("Mini-batch loss/local SGD loss on convex problems: {}", ends(&convex)),
    }];
    findings.push(format!("on the worst quadratic: {}", ends(&quadratic)));
    if let Some(rounds) = over_rounds.then(|| crossing(table, &convex, "bound_ratio")).flatten() {
        findings.push(format!("the bounds, with constants of 1, cross at {rounds:.1} rounds"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Stepper, mean};

    /// The engine's SGD has the computed mean loss, within five standard errors.
    #[test]
    fn computed_losses_are_means_of_simulated_runs() {
        let (num_workers, lr, num_runs) = (32, 0.4, 400);
        let method = Method { num_rounds: 3, num_steps: 4, num_workers: 32.0, noise: 0.5 };
        let mut random = Random::named(3, "runs");
        let (mut stepper, above) = (Stepper::sgd(1), 1.0);
        for below in [1.0, 0.3, 0.04] {
            let curvature = |x: f32| if x > 0.0 { above } else { below };
            let mut losses = Vec::with_capacity(num_runs);
            for _ in 0..num_runs {
                let mut shared = vec![1.0_f32];
                for _ in 0..method.num_rounds {
                    let local_steps = |_| {
                        let mut x = shared.clone();
                        for _ in 0..method.num_steps {
                            let draw = random.uniform();
                            let noise = NOISE[usize::from(draw >= NOISE[0].1)
                                + usize::from(draw >= NOISE[0].1 + NOISE[1].1)];
                            let slope = curvature(x[0]) * f64::from(x[0]) + method.noise * noise.0;
                            stepper.step(&mut x, lr, &[slope as f32]);
                        }
                        x
                    };
                    let ends: Vec<Vec<f32>> = (0..num_workers).map(local_steps).collect();
                    shared = mean(&ends);
                }
                losses.push(0.5 * curvature(shared[0]) * f64::from(shared[0] * shared[0]));
            }
            let found = losses.iter().sum::<f64>() / num_runs as f64;
            let square = losses.iter().map(|loss| (loss - found) * (loss - found)).sum::<f64>();
            let error = (square / (num_runs * num_runs) as f64).sqrt();
            let computed = method.valley_loss(below, lr);
            assert!(
                (found - computed).abs() < 5.0 * error,
                "{below}: {found} ± {error}, {computed}"
            );
        }
        // A valley with equal sides is a quadratic.
        let (grid, closed) = (method.valley_loss(1.0, lr), method.quadratic_loss(1.0, lr));
        assert!((grid / closed - 1.0).abs() < 1e-6, "{grid}, {closed}");
    }
}
