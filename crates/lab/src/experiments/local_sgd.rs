//! Local SGD: workers step alone and average now and then; fewer messages, more drift.

use super::prelude::*;
use crate::problem::{Bowl, OPTIMIZER, Stepper, mean, spread};
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
        OPTIMIZER,
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
        Column::new("delay", Unit::Count, "K(n-1): steps of others that a worker has not seen"),
    ],
    picture: Picture::lines("local_steps", &["seconds"]).log(true, false),
};

const MOST: usize = 20_000;

/// Time to a target.
pub(crate) fn wall_seconds(iterations: f64, compute: f64, communication: f64, k: usize) -> f64 {
    iterations * amortized(Seconds(compute), Seconds(communication), k).0
}

/// A worker of local SGD with data of its own, stepped by the engine's optimizer.
///
/// Workers see tilted bowls whose tilts cancel out; curvatures differ too, so that drifting apart
/// is not undone by averaging.
pub struct LocalWorker {
    bowl: Bowl,
    tilt: f64,
    bend: f64,
    lr: f64,
    stepper: Stepper,
    random: Random,
    /// Its weights.
    pub x: Vec<f32>,
}

impl LocalWorker {
    /// All workers of an experiment, each with random numbers of its own.
    pub fn all(at: &Settings, random: &mut Random) -> Vec<Self> {
        let (dim, side) = (at.count("dim"), at.number("heterogeneity"));
        let bowl = Bowl::new(dim, at.number("condition"), at.number("noise"));
        (0..at.count("workers"))
            .map(|worker| {
                let is_even = worker.is_multiple_of(2);
                Self {
                    tilt: if is_even { side } else { -side },
                    bend: if is_even { 1.5 } else { 0.5 },
                    lr: at.number("lr"),
                    stepper: Stepper::of(at, dim),
                    random: Random::named(random.uniform().to_bits(), "worker"),
                    x: bowl.start(),
                    bowl: bowl.clone(),
                }
            })
            .collect()
    }

    /// The loss of the common problem at some weights, over that at the start.
    pub fn loss(&self, x: &[f32]) -> f64 {
        self.bowl.loss(x) / self.bowl.loss(&self.bowl.start())
    }

    /// One step alone.
    pub fn step(&mut self) {
        let mut gradient = self.bowl.gradient(&self.x, 1.0, &mut self.random);
        for (i, gradient) in gradient.iter_mut().enumerate() {
            let own = (self.bend - 1.0) * f64::from(self.x[i]) - self.tilt;
            *gradient += (self.bowl.curvatures[i] * own) as f32;
        }
        self.stepper.step(&mut self.x, self.lr, &gradient);
    }
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let (n, k) = (at.count("workers"), at.count("local_steps"));
    let mut workers = LocalWorker::all(at, random);
    let mut shared = workers[0].x.clone();
    let (mut iterations, mut drift, mut rounds) = (0, 0.0, 0.0);
    while workers[0].loss(&shared) > at.number("target") && iterations < MOST {
        for worker in &mut workers {
            worker.x.clone_from(&shared);
            (0..k).for_each(|_| worker.step());
        }
        let ends: Vec<Vec<f32>> = workers.iter().map(|worker| worker.x.clone()).collect();
        shared = mean(&ends);
        drift += spread(&ends, &shared);
        (rounds, iterations) = (rounds + 1.0, iterations + k);
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
        (k * (n - 1)) as f64,
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
