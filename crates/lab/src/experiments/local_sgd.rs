//! Local SGD (Stich 2019): local steps between averages trade communication for drift.

use super::prelude::*;
use crate::problem::{OPTIMIZER, Quadratic, Stepper, mean, spread};
use lockstep_config::units::Seconds;
use lockstep_planner::scaling::amortized;

experiment!(LocalSgd);

const DESCRIPTION: Description = Description {
    name: "local-sgd",
    title: "Local SGD: time to a target by the number of local steps, and the best number",
    question: "How many local steps should workers take between averages?",
    formula: "time = iterations(K) x (Tc + Tm/K); without drift K* grows with sqrt(Tm/Tc)",
    look: "iterations, which grow with K only for heterogeneous data; seconds, with its minimum; \
           drift, the distance of workers from their mean",
    surprise: "with homogeneous data K hardly costs iterations on a quadratic; with heterogeneous \
               data workers drift to their own optima and a large K never reaches the target at \
               this step size; when communication is cheap, K = 1 is best",
    params: &[
        Param::count("local_steps", 1.0, (1.0, 10_000.0), "local steps between averages (K)"),
        Param::count("workers", 8.0, (1.0, 256.0), "workers"),
        Param::number("compute", Unit::Seconds, 0.05, (0.0, 1e4), "compute time of a step (Tc)"),
        Param::number("communication", Unit::Seconds, 0.1, (0.0, 1e4), "time of an average (Tm)"),
        Param::number("lr", Unit::Number, 0.1, (1e-5, 1.9), "step size for curvature 1"),
        OPTIMIZER,
        Param::number(
            "heterogeneity",
            Unit::Number,
            0.5,
            (0.0, 100.0),
            "distance between local optima",
        ),
        Param::number("noise", Unit::Number, 0.2, (0.0, 100.0), "gradient noise"),
        Param::count("dim", 10.0, (1.0, 1000.0), "dimensions"),
        Param::number("condition", Unit::Number, 20.0, (1.0, 1e5), "condition number"),
        Param::number("target", Unit::Number, 0.02, (1e-9, 0.9), "target loss/initial loss"),
    ],
    sweep: ("local_steps", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
    columns: &[
        Column::new("iterations", Unit::Count, "steps to the target"),
        Column::new("seconds", Unit::Seconds, "time to the target"),
        Column::new("step_seconds", Unit::Seconds, "time of a step with its share of an average"),
        Column::new("drift", Unit::Number, "distance of workers from their mean, at averages"),
        Column::new("sqrt_rule", Unit::Number, "sqrt(Tm/Tc)"),
        Column::new(
            "unseen_steps",
            Unit::Count,
            "K(n-1): steps of other workers since the last average",
        ),
    ],
    chart: ChartSpec::lines("local_steps", &["seconds"]).log(true, false),
};

const MAX_STEPS: usize = 20_000;

/// Time to a target with an average every `k` steps.
pub(crate) fn wall_seconds(iterations: f64, compute: f64, communication: f64, k: usize) -> f64 {
    iterations * amortized(Seconds(compute), Seconds(communication), k).0
}

/// A worker of local SGD with its own data and the engine's optimizer.
///
/// The shifts of the local optima cancel out over all workers; curvatures differ too, so averaging
/// does not undo the drift.
pub struct LocalWorker {
    quadratic: Quadratic,
    shift: f64,
    curvature: f64,
    lr: f64,
    stepper: Stepper,
    random: Random,
    /// Weights.
    pub x: Vec<f32>,
}

impl LocalWorker {
    /// All workers of an experiment, each with its own random stream.
    pub fn all(at: &Settings, random: &mut Random) -> Vec<Self> {
        let (dim, side) = (at.count("dim"), at.number("heterogeneity"));
        let quadratic = Quadratic::new(dim, at.number("condition"), at.number("noise"));
        (0..at.count("workers"))
            .map(|worker| {
                let is_even = worker.is_multiple_of(2);
                Self {
                    shift: if is_even { side } else { -side },
                    curvature: if is_even { 1.5 } else { 0.5 },
                    lr: at.number("lr"),
                    stepper: Stepper::of(at, dim),
                    random: Random::named(random.uniform().to_bits(), "worker"),
                    x: quadratic.start(),
                    quadratic: quadratic.clone(),
                }
            })
            .collect()
    }

    /// Loss of the common problem relative to the initial loss.
    pub fn loss(&self, x: &[f32]) -> f64 {
        self.quadratic.loss(x) / self.quadratic.loss(&self.quadratic.start())
    }

    /// Takes one local step.
    pub fn step(&mut self) {
        let mut gradient = self.quadratic.gradient(&self.x, 1.0, &mut self.random);
        for (i, gradient) in gradient.iter_mut().enumerate() {
            let own = (self.curvature - 1.0) * f64::from(self.x[i]) - self.shift;
            *gradient += (self.quadratic.curvatures[i] * own) as f32;
        }
        self.stepper.step(&mut self.x, self.lr, &gradient);
    }
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, k) = (at.count("workers"), at.count("local_steps"));
    let mut workers = LocalWorker::all(at, random);
    let mut shared = workers[0].x.clone();
    let (mut iterations, mut drift, mut rounds) = (0, 0.0, 0.0);
    while workers[0].loss(&shared) > at.number("target") && iterations < MAX_STEPS {
        for worker in &mut workers {
            worker.x.clone_from(&shared);
            (0..k).for_each(|_| worker.step());
        }
        let ends: Vec<Vec<f32>> = workers.iter().map(|worker| worker.x.clone()).collect();
        shared = mean(&ends);
        drift += spread(&ends, &shared);
        (rounds, iterations) = (rounds + 1.0, iterations + k);
    }
    let has_ended = iterations < MAX_STEPS;
    let count = if has_ended { iterations as f64 } else { f64::INFINITY };
    let (compute, communication) = (at.number("compute"), at.number("communication"));
    Ok(vec![row![
        count,
        wall_seconds(count, compute, communication, k),
        wall_seconds(1.0, compute, communication, k),
        drift / rounds,
        (communication / compute).sqrt(),
        (k * (n - 1)) as f64,
    ]])
}

fn findings(table: &Table) -> Vec<String> {
    let Some(best) = table.best("seconds", 1.0) else {
        return vec!["The target is never reached".to_owned()];
    };
    vec![
        format!(
            "{}the target takes {}",
            best_is(table, best, "fastest"),
            cell(table, "seconds", best)
        ),
        format!("iterations to the target: {}", across(table, "iterations", 0, last(table))),
    ]
}
