//! Waiting for all, for nobody, or now and then: time to the same loss, worker by worker.

use super::prelude::*;
use crate::problem::{Bowl, OPTIMIZER, Stepper, mean};
use crate::random::Jitter;

experiment!(Consistency);

const CARD: Card = Card {
    name: "consistency",
    title: "Synchronous, asynchronous and local SGD: time to the same loss",
    question: "Which kind of consistency reaches a loss soonest when workers vary?",
    formula: "synchronous: max of n + Tm a step; asynchronous: an update every max(push, mean/n), \
              n - 1 updates old, its step n times smaller; local: K steps alone, then an average",
    look: "seconds as variation grows: asynchrony pays only when workers differ a lot; updates, \
           staleness",
    surprise: "one server for n workers is busy n times a step, and even ones queue for it; what \
               asynchrony saves is waiting for the slowest, so it pays when workers differ a lot; \
               local steps save both, as long as data are alike",
    params: &[
        Param::number("variation", Unit::Number, 0.2, (0.0, 3.0), "log-normal jitter of workers"),
        Param::count("workers", 8.0, (1.0, 128.0), "workers"),
        Param::number("compute", Unit::Seconds, 0.05, (1e-6, 1e4), "a gradient"),
        Param::number("communication", Unit::Seconds, 0.02, (0.0, 1e4), "a sum over all workers"),
        Param::number("push", Unit::Seconds, 0.015, (0.0, 1e4), "the server's time for a gradient"),
        Param::count("local_steps", 10.0, (1.0, 1000.0), "steps between averages (local)"),
        Param::number("lr", Unit::Number, 1.0, (1e-5, 1.9), "step size for curvature 1"),
        OPTIMIZER,
        Param::number("noise", Unit::Number, 0.1, (0.0, 100.0), "noise of a gradient"),
        Param::number("condition", Unit::Number, 20.0, (1.0, 1e5), "largest over least curvature"),
        Param::number("target", Unit::Number, 0.02, (1e-9, 0.9), "loss over that at the start"),
    ],
    sweep: ("variation", &[0.0, 0.1, 0.2, 0.5, 1.0, 2.0]),
    columns: &[
        Column::new("model", Unit::Word, "model of consistency"),
        Column::new("seconds", Unit::Seconds, "time to the target"),
        Column::new("updates", Unit::Count, "updates of the shared weights"),
        Column::new("staleness", Unit::Count, "mean age of a gradient, in updates"),
    ],
    picture: Picture::lines("variation", &["seconds"]).by("model").log(false, true),
};

const MOST: usize = 20_000;

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let jitter = Jitter::LogNormal { variation: at.number("variation") };
    let bowl = Bowl::new(8, at.number("condition"), at.number("noise"));
    let synchronous = together(at, random, &bowl, &jitter, 1);
    let local = together(at, random, &bowl, &jitter, at.count("local_steps"));
    let (seconds, updates, age) = apart(at, random, &bowl, &jitter);
    Ok(vec![
        row!["synchronous", synchronous.0, synchronous.1, 0.0],
        row!["asynchronous", seconds, updates, age],
        row!["local", local.0, local.1, at.number("local_steps") - 1.0],
    ])
}

/// Everybody takes `k` steps, then all average.
fn together(
    at: &Settings,
    random: &mut Random,
    bowl: &Bowl,
    jitter: &Jitter,
    k: usize,
) -> (f64, f64) {
    let (n, lr) = (at.count("workers"), at.number("lr"));
    let mut shared = bowl.start();
    let target = at.number("target") * bowl.loss(&shared);
    let (mut seconds, mut updates) = (0.0, 0);
    let mut steppers: Vec<Stepper> = (0..n).map(|_| Stepper::of(at, shared.len())).collect();
    while bowl.loss(&shared) > target {
        if updates * k > MOST {
            return (f64::INFINITY, f64::INFINITY);
        }
        let mut ends = Vec::with_capacity(n);
        let mut slowest = 0.0_f64;
        for stepper in &mut steppers {
            let (mut x, mut time) = (shared.clone(), 0.0);
            for _ in 0..k {
                let gradient = bowl.gradient(&x, 1.0, random);
                stepper.step(&mut x, lr, &gradient);
                time += at.number("compute") * jitter.factor(random);
            }
            ends.push(x);
            slowest = slowest.max(time);
        }
        shared = mean(&ends);
        seconds += slowest + at.number("communication");
        updates += 1;
    }
    (seconds, updates as f64)
}

/// Everybody for himself: a gradient is applied when it comes, to weights that have moved on.
fn apart(at: &Settings, random: &mut Random, bowl: &Bowl, jitter: &Jitter) -> (f64, f64, f64) {
    let n = at.count("workers");
    // A gradient is n - 1 updates old, so the step must shrink like that.
    let lr = at.number("lr") / n as f64;
    let mut x = bowl.start();
    let target = at.number("target") * bowl.loss(&x);
    let compute = |random: &mut Random| at.number("compute") * jitter.factor(random);
    // When each worker's gradient is ready, the weights it saw, and their number.
    let mut workers: Vec<(f64, Vec<f32>, usize)> =
        (0..n).map(|_| (compute(random), x.clone(), 0)).collect();
    let mut stepper = Stepper::of(at, x.len());
    let (mut free, mut ages) = (0.0_f64, 0);
    for update in 1..=MOST * 4 {
        let next = (0..n).min_by(|a, b| workers[*a].0.total_cmp(&workers[*b].0)).unwrap_or(0);
        let (ready, seen, since) = workers[next].clone();
        // The server takes one gradient after the other.
        free = free.max(ready) + at.number("push");
        stepper.step(&mut x, lr, &bowl.gradient(&seen, 1.0, random));
        ages += update - 1 - since;
        if bowl.loss(&x) <= target {
            return (free, update as f64, ages as f64 / update as f64);
        }
        workers[next] = (free + compute(random), x.clone(), update);
    }
    (f64::INFINITY, f64::INFINITY, f64::NAN)
}

fn findings(table: &Table) -> Vec<String> {
    let (models, seconds) = (table.words("model"), table.numbers("seconds"));
    let winner = |start: usize| {
        let rows = start..(start + 3).min(seconds.len());
        rows.min_by(|a, b| seconds[*a].total_cmp(&seconds[*b])).unwrap_or(start)
    };
    let (first, end) = (winner(0), winner(last(table).saturating_sub(2)));
    let soonest = if models[first] == models[end] {
        let (from, to) = (place(table, first), place(table, end));
        format!("{} SGD is soonest from {from} to {to}", models[first])
    } else {
        let (from, to) = (place(table, first), place(table, end));
        format!("{} SGD is soonest at {from}, {} at {to}", models[first], models[end])
    };
    vec![
        soonest,
        format!(
            "an asynchronous gradient is {} updates old on average",
            cell(table, "staleness", end - end % 3 + 1)
        ),
    ]
}
