//! Best number of local steps for a time budget: a root of communication over compute time.
//!
//! In a fixed time and with a fixed step size, tau local steps allow time/(Tc + Tm/tau) steps, so
//! the optimization error falls like A (1 + r/tau) with r = Tm/Tc. The error of client drift grows
//! with tau: linearly where gradient noise causes it on a non-quadratic loss, quadratically where
//! heterogeneous data cause it. The sum is minimal at a square root of r in the first case and at a
//! cube root in the second.

use super::prelude::*;
use crate::problem::Stepper;
use lockstep_tensor::math::scalar::powf;

experiment!(BestLocalSteps);

const DESCRIPTION: Description = Description {
    name: "best-local-steps",
    title: "Best local steps for a time budget, by the cost of averaging",
    question: "How many local steps are best for a ratio of communication to compute time?",
    formula: "loss = A (1 + r/tau)/time + B tau^p, r = Tm/Tc: tau* = (A r/(p B time))^(1/(p+1)); \
              noise: p = 1, a square root; heterogeneous data: p = 2, a cube root",
    look: "best_tau over ratio for both causes of drift; gain over averaging every step",
    surprise: "the rule tau ~ sqrt(Tm/Tc) describes growth, and only for noise: the factor depends \
               on the problem, and for heterogeneous data the root is a cube root",
    params: &[
        Param::number("ratio", Unit::Times, 16.0, (1e-3, 1e6), "averaging time/step time (Tm/Tc)"),
        Param::number(
            "time",
            Unit::Number,
            6000.0,
            (10.0, 1e5),
            "time budget in steps without averaging",
        ),
        Param::number("lr", Unit::Number, 0.03, (1e-3, 0.9), "step size for curvature 1"),
        Param::number("noise", Unit::Number, 8.0, (0.0, 1e3), "gradient noise (drift: noise)"),
        Param::number(
            "flat_curvature",
            Unit::Number,
            0.3,
            (0.0, 1.0),
            "curvature below 0/curvature above 0",
        ),
        Param::number(
            "gamma",
            Unit::Number,
            3.0,
            (0.0, 1e3),
            "local gradient at the optimum (drift: data)",
        ),
        Param::count("workers", 16.0, (2.0, 1024.0), "workers"),
    ],
    sweep: ("ratio", &[1.0, 4.0, 16.0, 64.0, 256.0]),
    columns: &[
        Column::new("drift", Unit::Text, "cause of client drift"),
        Column::new("best_tau", Unit::Count, "local steps with the lowest loss in the time"),
        Column::new("sqrt_ratio", Unit::Number, "sqrt(Tm/Tc)"),
        Column::new("cbrt_ratio", Unit::Number, "cube root of Tm/Tc"),
        Column::new("loss", Unit::Number, "loss with the best tau"),
        Column::new("gain", Unit::Times, "loss with tau = 1/loss with the best tau"),
    ],
    chart: ChartSpec::lines("ratio", &["best_tau"]).by("drift").log(true, true),
};

/// Candidate numbers of local steps, about a fifth apart.
const TAUS: [usize; 21] =
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 29, 35, 42, 50, 64, 96, 128];

/// Slow directions, each with half the curvature of the previous one: their total loss falls like
/// one over the number of steps.
const NUM_SLOW: usize = 12;

/// Coordinates of all workers in the drifting direction, then one per slow direction.
struct Run<'a> {
    at: &'a Settings,
    is_noise: bool,
    x: Vec<f32>,
    slow: Vec<f64>,
}

impl<'a> Run<'a> {
    fn new(at: &'a Settings, is_noise: bool) -> Self {
        let mut x = vec![0.0; at.count("workers")];
        x.extend([1.0; NUM_SLOW]);
        let slow = (2..).map(|power| powf(0.5, f64::from(power))).take(NUM_SLOW).collect();
        Self { at, is_noise, x, slow }
    }

    fn gradient(&self, random: &mut Random) -> Vec<f32> {
        let n = self.x.len() - NUM_SLOW;
        let (noise, flat) = (self.at.number("noise"), self.at.number("flat_curvature"));
        // The mean of the noise costs the same at any tau; it is removed, as averaging over very
        // many workers would.
        let draws: Vec<f64> =
            (0..n).map(|_| if self.is_noise { random.normal() } else { 0.0 }).collect();
        let common = draws.iter().sum::<f64>() / n as f64;
        let drifting = self.x[..n].iter().zip(&draws).enumerate().map(|(worker, (x, draw))| {
            let x = f64::from(*x);
            if self.is_noise {
                return x * if x > 0.0 { 1.0 } else { flat } + noise * (draw - common);
            }
            // Two data distributions with curvatures 1.5 and 0.5; the common optimum is 0.
            let side = if worker.is_multiple_of(2) { 1.0 } else { -1.0 };
            (1.0 + 0.5 * side) * x + side * self.at.number("gamma")
        });
        let slow = self.x[n..].iter().zip(&self.slow).map(|(x, h)| h * f64::from(*x));
        drifting.chain(slow).map(|g| g as f32).collect()
    }

    fn average(&mut self) {
        let n = self.x.len() - NUM_SLOW;
        let mean = self.mean() as f32;
        self.x[..n].fill(mean);
    }

    fn mean(&self) -> f64 {
        let n = self.x.len() - NUM_SLOW;
        self.x[..n].iter().map(|x| f64::from(*x)).sum::<f64>() / n as f64
    }

    fn loss(&self) -> f64 {
        let n = self.x.len() - NUM_SLOW;
        let mean = self.mean();
        let flat = if self.is_noise && mean < 0.0 { self.at.number("flat_curvature") } else { 1.0 };
        let remaining = |(x, h): (&f32, &f64)| 0.5 * h * f64::from(*x) * f64::from(*x);
        let left: f64 = self.x[n..].iter().zip(&self.slow).map(remaining).sum();
        left + 0.5 * flat * mean * mean
    }
}

/// Loss after the time budget with `tau` local steps, averaged over the last fifth of the rounds.
fn final_loss(at: &Settings, random: &mut Random, is_noise: bool, tau: usize) -> f64 {
    let mut run = Run::new(at, is_noise);
    let mut stepper = Stepper::sgd(run.x.len());
    let round = tau as f64 + at.number("ratio");
    let num_rounds = ((at.number("time") / round).round() as usize).max(1);
    let averaged_from = (num_rounds - num_rounds / 5).min(num_rounds - 1);
    let mut sum = 0.0;
    for number in 0..num_rounds {
        for _ in 0..tau {
            let gradient = run.gradient(random);
            stepper.step(&mut run.x, at.number("lr"), &gradient);
        }
        run.average();
        if number >= averaged_from {
            sum += run.loss();
        }
    }
    sum / (num_rounds - averaged_from) as f64
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let ratio = at.number("ratio");
    let mut rows = Vec::new();
    for (name, is_noise) in [("noise", true), ("data", false)] {
        let losses: Vec<f64> =
            TAUS.iter().map(|tau| final_loss(at, &mut random.stream(0), is_noise, *tau)).collect();
        let best = (0..TAUS.len()).min_by(|a, b| losses[*a].total_cmp(&losses[*b])).unwrap_or(0);
        rows.push(row![
            name,
            TAUS[best],
            ratio.sqrt(),
            powf(ratio, 1.0 / 3.0),
            losses[best],
            losses[0] / losses[best],
        ]);
    }
    Ok(rows)
}

fn findings(table: &Table) -> Vec<String> {
    let [noise, data] = ["noise", "data"].map(|name| rows_with(table, "drift", name));
    let best = table.numbers("best_tau");
    let mut findings = Vec::new();
    if table.num_swept == 1 && table.columns[0].name == "ratio" {
        let x = table.numbers("ratio");
        let power = |rows: &[usize]| {
            let (&first, &end) = rows.first().zip(rows.last())?;
            let power = (best[end] / best[first]).log2() / (x[end] / x[first]).log2();
            power.is_finite().then_some(power)
        };
        if let (Some(noise), Some(data)) = (power(&noise), power(&data)) {
            findings.push(format!(
                "The best tau grows with the ratio to the power {noise:.2} (noise) or {data:.2} \
                 (heterogeneous data)"
            ));
        }
    }
    let value = |rows: &[usize]| rows.last().map_or(String::new(), |row| best[*row].to_string());
    findings.push(format!(
        "{}the best tau is {} with noise and {} with heterogeneous data",
        at(table, last(table)),
        value(&noise),
        value(&data)
    ));
    findings
}
