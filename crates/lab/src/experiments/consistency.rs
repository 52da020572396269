//! Consistency models with stragglers: synchronous, bounded staleness (SSP, Ho et al. 2013),
//! asynchronous and local SGD.

use super::prelude::*;
use crate::problem::{OPTIMIZER, Quadratic, Stepper, mean};
use crate::random::Jitter;

experiment!(Consistency);

const DESCRIPTION: Description = Description {
    name: "consistency",
    title: "Synchronous, bounded, asynchronous and local SGD: time to the same loss",
    question: "Which consistency model reaches a loss first when compute times vary?",
    formula: "synchronous: max of n + Tm per step; asynchronous: an update every \
              max(push, mean/n), n - 1 updates old, with a step size n times smaller; bounded: \
              asynchronous, but no worker is more than a bound of steps ahead of the slowest; \
              local: K local steps, then an average",
    look: "seconds as variation grows: asynchrony pays only for strong variation; bounded \
           staleness lies between synchronous and asynchronous; updates, staleness",
    surprise: "one server handles n gradients per step, and even equal workers queue for it; \
               asynchrony saves the wait for the slowest worker, so it pays for strong variation; \
               local SGD saves both, as long as data are homogeneous",
    params: &[
        Param::number("variation", Unit::Number, 0.2, (0.0, 3.0), "log-normal jitter of compute"),
        Param::count("workers", 8.0, (1.0, 128.0), "workers"),
        Param::number("compute", Unit::Seconds, 0.05, (1e-6, 1e4), "compute time of a gradient"),
        Param::number("communication", Unit::Seconds, 0.02, (0.0, 1e4), "time of an all-reduce"),
        Param::number("push", Unit::Seconds, 0.015, (0.0, 1e4), "server time per gradient"),
        Param::count("bound", 2.0, (0.0, 1000.0), "staleness bound in steps (bounded)"),
        Param::count("local_steps", 10.0, (1.0, 1000.0), "local steps between averages (local)"),
        Param::number("lr", Unit::Number, 0.3, (1e-5, 1.9), "step size for curvature 1"),
        OPTIMIZER,
        Param::number("noise", Unit::Number, 0.05, (0.0, 100.0), "gradient noise"),
        Param::number("condition", Unit::Number, 20.0, (1.0, 1e5), "condition number"),
        Param::number("target", Unit::Number, 0.01, (1e-9, 0.9), "target loss/initial loss"),
    ],
    sweep: ("variation", &[0.0, 0.1, 0.2, 0.5, 1.0, 2.0]),
    columns: &[
        Column::new("model", Unit::Text, "consistency model"),
        Column::new("seconds", Unit::Seconds, "time to the target"),
        Column::new("updates", Unit::Count, "updates of the shared weights"),
        Column::new("staleness", Unit::Count, "mean age of a gradient, in updates"),
    ],
    chart: ChartSpec::lines("variation", &["seconds"]).by("model").log(false, true),
};

const MAX_STEPS: usize = 20_000;

/// A worker with its own gradients and compute times, which are the same under every model.
pub struct JitteredWorker {
    quadratic: Quadratic,
    noise: Random,
    timing: Random,
    jitter: Jitter,
    compute: f64,
}

impl JitteredWorker {
    /// All workers of an experiment.
    pub fn all(at: &Settings, random: &mut Random) -> Vec<Self> {
        let quadratic = Self::quadratic(at);
        let mut stream = |name: &str| Random::named(random.uniform().to_bits(), name);
        (0..at.count("workers"))
            .map(|_| Self {
                quadratic: quadratic.clone(),
                noise: stream("noise"),
                timing: stream("pace"),
                jitter: Jitter::LogNormal { variation: at.number("variation") },
                compute: at.number("compute"),
            })
            .collect()
    }

    /// The problem of all workers.
    pub fn quadratic(at: &Settings) -> Quadratic {
        Quadratic::new(8, at.number("condition"), at.number("noise"))
    }

    /// Next gradient.
    pub fn gradient(&mut self, x: &[f32]) -> Vec<f32> {
        self.quadratic.gradient(x, 1.0, &mut self.noise)
    }

    /// Compute time of the next gradient.
    pub fn seconds(&mut self) -> f64 {
        self.compute * self.jitter.factor(&mut self.timing)
    }
}

/// Clocks of stale synchronous parallel (Ho et al. 2013): bounds the lead over the slowest worker.
pub struct Clocks {
    steps: Vec<usize>,
    bound: usize,
}

impl Clocks {
    /// All clocks at 0; without a bound no worker ever waits.
    pub fn new(num_workers: usize, bound: Option<usize>) -> Self {
        Self { steps: vec![0; num_workers], bound: bound.unwrap_or(usize::MAX) }
    }

    /// Advances a worker's clock.
    pub fn advance(&mut self, worker: usize) {
        self.steps[worker] += 1;
    }

    /// Whether a worker may start its next step.
    pub fn may_start(&self, worker: usize) -> bool {
        let slowest = self.steps.iter().min().copied().unwrap_or(0);
        self.steps[worker] - slowest <= self.bound
    }
}

fn run(at: &Settings, random: &mut Random) -> Result<Vec<Row>, LabError> {
    let workers = || JitteredWorker::all(at, &mut random.clone());
    let synchronous = run_synchronous(at, workers(), 1);
    let bounded = run_asynchronous(at, workers(), Some(at.count("bound")));
    let asynchronous = run_asynchronous(at, workers(), None);
    let local = run_synchronous(at, workers(), at.count("local_steps"));
    Ok(vec![
        row!["synchronous", synchronous.0, synchronous.1, 0.0],
        row!["bounded", bounded.0, bounded.1, bounded.2],
        row!["asynchronous", asynchronous.0, asynchronous.1, asynchronous.2],
        row!["local", local.0, local.1, at.number("local_steps") - 1.0],
    ])
}

/// All workers take `k` local steps, then average; returns seconds and updates.
fn run_synchronous(at: &Settings, mut workers: Vec<JitteredWorker>, k: usize) -> (f64, f64) {
    let (quadratic, lr) = (JitteredWorker::quadratic(at), at.number("lr"));
    let mut shared = quadratic.start();
    let target = at.number("target") * quadratic.loss(&shared);
    let (mut seconds, mut updates) = (0.0, 0);
    let mut steppers: Vec<Stepper> =
        workers.iter().map(|_| Stepper::of(at, shared.len())).collect();
    while quadratic.loss(&shared) > target {
        if updates * k > MAX_STEPS {
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

/// A gradient under computation.
struct PendingGradient {
    /// Time of completion; infinite while the worker waits.
    ready: f64,
    /// Weights that it is computed on.
    weights: Vec<f32>,
    /// Version of these weights.
    version: usize,
}

/// The server applies gradients in order of arrival; returns seconds, updates and mean staleness.
fn run_asynchronous(
    at: &Settings,
    mut workers: Vec<JitteredWorker>,
    bound: Option<usize>,
) -> (f64, f64, f64) {
    let n = workers.len();
    // A gradient is n - 1 updates old, so the step size shrinks by n.
    let lr = at.number("lr") / n as f64;
    let quadratic = JitteredWorker::quadratic(at);
    let mut x = quadratic.start();
    let target = at.number("target") * quadratic.loss(&x);
    let mut clocks = Clocks::new(n, bound);
    let mut pending: Vec<PendingGradient> = workers
        .iter_mut()
        .map(|worker| PendingGradient { ready: worker.seconds(), weights: x.clone(), version: 0 })
        .collect();
    let mut stepper = Stepper::of(at, x.len());
    let (mut free, mut ages) = (0.0_f64, 0);
    for update in 1..=MAX_STEPS * 4 {
        let next =
            (0..n).min_by(|a, b| pending[*a].ready.total_cmp(&pending[*b].ready)).unwrap_or(0);
        // The server handles one gradient at a time.
        free = free.max(pending[next].ready) + at.number("push");
        stepper.step(&mut x, lr, &workers[next].gradient(&pending[next].weights));
        ages += update - 1 - pending[next].version;
        if quadratic.loss(&x) <= target {
            return (free, update as f64, ages as f64 / update as f64);
        }
        clocks.advance(next);
        pending[next].ready = f64::INFINITY;
        for worker in 0..n {
            if pending[worker].ready.is_infinite() && clocks.may_start(worker) {
                let ready = free + workers[worker].seconds();
                pending[worker] = PendingGradient { ready, weights: x.clone(), version: update };
            }
        }
    }
    (f64::INFINITY, f64::INFINITY, f64::NAN)
}

fn findings(table: &Table) -> Vec<String> {
    let [bounded, asynchronous] =
        ["bounded", "asynchronous"].map(|name| last_with(table, "model", name));
    vec![
        winners(table, "model", "seconds"),
        format!(
            "{}an asynchronous gradient is {} updates old on average, a bounded one {}",
            at(table, bounded),
            cell(table, "staleness", asynchronous),
            cell(table, "staleness", bounded)
        ),
    ]
}
