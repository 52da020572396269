//! Waiting for all, for nobody, or now and then: time to the same loss, worker by worker.

use super::prelude::*;
use crate::problem::{Bowl, OPTIMIZER, Stepper, mean};
use crate::random::Jitter;

experiment!(Consistency);

const CARD: Card = Card {
    name: "consistency",
    title: "Synchronous, bounded, asynchronous and local SGD: time to the same loss",
    question: "Which kind of consistency reaches a loss soonest when workers vary?",
    formula: "synchronous: max of n + Tm a step; asynchronous: an update every max(push, mean/n), \
              n - 1 updates old, its step n times smaller; bounded: the same, but nobody is more \
              than a bound of steps ahead of the slowest; local: K steps alone, then an average",
    look: "seconds as variation grows: asynchrony pays only when workers differ a lot; bounded \
           lies between waiting for all and for nobody; updates, staleness",
    surprise: "one server for n workers is busy n times a step, and even ones queue for it; what \
               asynchrony saves is waiting for the slowest, so it pays when workers differ a lot; \
               local steps save both, as long as data are alike",
    params: &[
        Param::number("variation", Unit::Number, 0.2, (0.0, 3.0), "log-normal jitter of workers"),
        Param::count("workers", 8.0, (1.0, 128.0), "workers"),
        Param::number("compute", Unit::Seconds, 0.05, (1e-6, 1e4), "a gradient"),
        Param::number("communication", Unit::Seconds, 0.02, (0.0, 1e4), "a sum over all workers"),
        Param::number("push", Unit::Seconds, 0.015, (0.0, 1e4), "the server's time for a gradient"),
        Param::count("bound", 2.0, (0.0, 1000.0), "steps ahead of the slowest (bounded)"),
        Param::count("local_steps", 10.0, (1.0, 1000.0), "steps between averages (local)"),
        Param::number("lr", Unit::Number, 0.3, (1e-5, 1.9), "step size for curvature 1"),
        OPTIMIZER,
        Param::number("noise", Unit::Number, 0.05, (0.0, 100.0), "noise of a gradient"),
        Param::number("condition", Unit::Number, 20.0, (1.0, 1e5), "largest over least curvature"),
        Param::number("target", Unit::Number, 0.01, (1e-9, 0.9), "loss over that at the start"),
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

/// Rows of a point.
const NUM_MODELS: usize = 4;

/// A worker with gradients and times of its own: the same ones under every model.
pub struct UnevenWorker {
    bowl: Bowl,
    noise: Random,
    pace: Random,
    jitter: Jitter,
    compute: f64,
}

impl UnevenWorker {
    /// All workers of an experiment.
    pub fn all(at: &Settings, random: &mut Random) -> Vec<Self> {
        let bowl = Self::bowl(at);
        let mut stream = |name: &str| Random::named(random.uniform().to_bits(), name);
        (0..at.count("workers"))
            .map(|_| Self {
                bowl: bowl.clone(),
                noise: stream("noise"),
                pace: stream("pace"),
                jitter: Jitter::LogNormal { variation: at.number("variation") },
                compute: at.number("compute"),
            })
            .collect()
    }

    /// The problem that all of them have.
    pub fn bowl(at: &Settings) -> Bowl {
        Bowl::new(8, at.number("condition"), at.number("noise"))
    }

    /// Its next gradient.
    pub fn gradient(&mut self, x: &[f32]) -> Vec<f32> {
        self.bowl.gradient(x, 1.0, &mut self.noise)
    }

    /// How long its next gradient takes.
    pub fn seconds(&mut self) -> f64 {
        self.compute * self.jitter.factor(&mut self.pace)
    }
}

/// Who may begin another step when nobody may be far ahead.
pub struct Clocks {
    steps: Vec<usize>,
    bound: usize,
}

impl Clocks {
    /// Nobody has done anything; without a bound nobody ever waits.
    pub fn new(num_workers: usize, bound: Option<usize>) -> Self {
        Self { steps: vec![0; num_workers], bound: bound.unwrap_or(usize::MAX) }
    }

    /// A worker's step has been applied.
    pub fn count(&mut self, worker: usize) {
        self.steps[worker] += 1;
    }

    /// Whether a worker may begin its next step.
    pub fn lets(&self, worker: usize) -> bool {
        let slowest = self.steps.iter().min().copied().unwrap_or(0);
        self.steps[worker] - slowest <= self.bound
    }
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let workers = || UnevenWorker::all(at, &mut random.clone());
    let synchronous = together(at, workers(), 1);
    let bounded = apart(at, workers(), Some(at.count("bound")));
    let asynchronous = apart(at, workers(), None);
    let local = together(at, workers(), at.count("local_steps"));
    Ok(vec![
        row!["synchronous", synchronous.0, synchronous.1, 0.0],
        row!["bounded", bounded.0, bounded.1, bounded.2],
        row!["asynchronous", asynchronous.0, asynchronous.1, asynchronous.2],
        row!["local", local.0, local.1, at.number("local_steps") - 1.0],
    ])
}

/// Everybody takes `k` steps, then all average: seconds and updates.
fn together(at: &Settings, mut workers: Vec<UnevenWorker>, k: usize) -> (f64, f64) {
    let (bowl, lr) = (UnevenWorker::bowl(at), at.number("lr"));
    let mut shared = bowl.start();
    let target = at.number("target") * bowl.loss(&shared);
    let (mut seconds, mut updates) = (0.0, 0);
    let mut steppers: Vec<Stepper> =
        workers.iter().map(|_| Stepper::of(at, shared.len())).collect();
    while bowl.loss(&shared) > target {
        if updates * k > MOST {
            return (f64::INFINITY, f64::INFINITY);
        }
        let mut ends = Vec::with_capacity(workers.len());
        let mut slowest = 0.0_f64;
        for (worker, stepper) in workers.iter_mut().zip(&mut steppers) {
            let (mut x, mut time) = (shared.clone(), 0.0);
            for _ in 0..k {
                let gradient = worker.gradient(&x);
                stepper.step(&mut x, lr, &gradient);
                time += worker.seconds();
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

/// What a worker of a server is doing.
struct Computing {
    /// When its gradient is ready; never while it may not begin.
    ready: f64,
    /// The weights that it saw, and how many updates they had.
    seen: Vec<f32>,
    since: usize,
}

/// A server takes a gradient when it comes, to weights that have moved on: seconds, updates and the
/// mean age of a gradient.
fn apart(at: &Settings, mut workers: Vec<UnevenWorker>, bound: Option<usize>) -> (f64, f64, f64) {
    let n = workers.len();
    // A gradient is n - 1 updates old, so the step must shrink like that.
    let lr = at.number("lr") / n as f64;
    let bowl = UnevenWorker::bowl(at);
    let mut x = bowl.start();
    let target = at.number("target") * bowl.loss(&x);
    let mut clocks = Clocks::new(n, bound);
    let mut busy: Vec<Computing> = workers
        .iter_mut()
        .map(|worker| Computing { ready: worker.seconds(), seen: x.clone(), since: 0 })
        .collect();
    let mut stepper = Stepper::of(at, x.len());
    let (mut free, mut ages) = (0.0_f64, 0);
    for update in 1..=MOST * 4 {
        let next = (0..n).min_by(|a, b| busy[*a].ready.total_cmp(&busy[*b].ready)).unwrap_or(0);
        // The server takes one gradient after the other.
        free = free.max(busy[next].ready) + at.number("push");
        stepper.step(&mut x, lr, &workers[next].gradient(&busy[next].seen));
        ages += update - 1 - busy[next].since;
        if bowl.loss(&x) <= target {
            return (free, update as f64, ages as f64 / update as f64);
        }
        clocks.count(next);
        busy[next].ready = f64::INFINITY;
        for worker in 0..n {
            if busy[worker].ready.is_infinite() && clocks.lets(worker) {
                let ready = free + workers[worker].seconds();
                busy[worker] = Computing { ready, seen: x.clone(), since: update };
            }
        }
    }
    (f64::INFINITY, f64::INFINITY, f64::NAN)
}

fn findings(table: &Table) -> Vec<String> {
    let (models, seconds) = (table.words("model"), table.numbers("seconds"));
    let winner = |start: usize| {
        let rows = start..(start + NUM_MODELS).min(seconds.len());
        rows.min_by(|a, b| seconds[*a].total_cmp(&seconds[*b])).unwrap_or(start)
    };
    let (first, end) = (winner(0), winner((last(table) + 1).saturating_sub(NUM_MODELS)));
    let soonest = if models[first] == models[end] {
        let (from, to) = (place(table, first), place(table, end));
        format!("{} SGD is soonest from {from} to {to}", models[first])
    } else {
        let (from, to) = (place(table, first), place(table, end));
        format!("{} SGD is soonest at {from}, {} at {to}", models[first], models[end])
    };
    let point = end - end % NUM_MODELS;
    vec![
        soonest,
        format!(
            "at {} an asynchronous gradient is {} updates old on average, a bounded one {}",
            place(table, point),
            cell(table, "staleness", point + 2),
            cell(table, "staleness", point + 1)
        ),
    ]
}
