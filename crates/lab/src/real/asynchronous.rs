//! Asynchronous SGD with stale gradients over a parameter server.
//!
//! Rank 0 is the server and runs the engine's optimizer. Every other rank pulls weights, sleeps and
//! pushes a gradient of these weights. With tau + 1 equally fast workers a gradient is tau updates
//! old.

use super::cluster;
use super::measurement::{Measurement, Point, UNLIMITED};
use crate::error::LabError;
use crate::problem::{Quadratic, Stepper, norm};
use crate::random::Random;
use lockstep_comm::{Comm, CommError, Handle};
use lockstep_platform::World;
use std::time::Duration;

pub(super) const BOUNDED_STALENESS: Measurement = Measurement {
    name: "bounded-async",
    column: "iterations",
    row_column: None,
    params: &["condition=4", "target=0.05", "max_iterations=2000"],
    sweep: "staleness=0,1,3",
    measure: measure_bounded,
};

pub(super) const STALENESS_AWARE: Measurement = Measurement {
    name: "staleness-aware",
    column: "iterations",
    row_column: Some("policy"),
    params: &["age_distribution=constant", "staleness=2", "condition=4", "target=0.1"],
    sweep: "lr=0.1,0.3",
    measure: measure_staleness_aware,
};

/// Compute time of a gradient: long enough that the server serves the workers in turn.
const COMPUTE_SECONDS: f64 = 0.012;
/// Polling interval of the server.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Tag of weights, followed by 1.0 to continue or 0.0 to stop.
const WEIGHTS: u64 = 1;
/// Tag of gradients.
const GRADIENT: u64 = 2;

/// Weight of a gradient by its staleness.
type Weight<'a> = &'a (dyn Fn(usize) -> f64 + Sync);

struct Job<'a> {
    quadratic: Quadratic,
    lr: f64,
    target: f64,
    /// Consecutive updates that must be within the target, less one.
    num_confirmations: usize,
    max_updates: usize,
    weight: Weight<'a>,
}

fn measure_bounded(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let staleness = at.count("staleness");
    let scale = if at.choice("step") == "scaled" { 1.0 + staleness as f64 } else { 1.0 };
    let job = Job {
        quadratic: Quadratic::new(at.count("dim"), at.number("condition"), 0.0),
        lr: at.number("lr") / scale,
        target: at.number("target"),
        num_confirmations: staleness,
        max_updates: at.count("max_iterations").min(5000),
        weight: &|_| 1.0,
    };
    num_updates(point, staleness + 1, &job)
}

fn measure_staleness_aware(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let (scale, bound) = (at.number("scale"), at.count("bound"));
    let weight = |age: usize| match point.row {
        "by age" => 1.0 / (1.0 + age as f64),
        "decay" => lockstep_tensor::math::scalar::exp(-(age as f64) / scale),
        "drop" => f64::from(u8::from(age <= bound)),
        _ => 1.0,
    };
    let job = Job {
        quadratic: Quadratic::new(8, at.number("condition"), 0.0),
        lr: at.number("lr"),
        target: at.number("target"),
        num_confirmations: 0,
        max_updates: 5000,
        weight: &weight,
    };
    // Workers are equally fast here: random ages of the simulation become their mean.
    let age = match at.choice("age_distribution") {
        "constant" => at.count("staleness"),
        _ => at.count("staleness").div_ceil(2),
    };
    num_updates(point, age + 1, &job)
}

fn num_updates(point: &Point<'_>, num_workers: usize, job: &Job<'_>) -> Result<f64, LabError> {
    let links = cluster::uniform_links(UNLIMITED);
    let repetitions = cluster::run_repeated(point.world, (num_workers + 1, &links), 1, |rank| {
        if rank.index() == 0 {
            return serve(point, &rank.comm, num_workers, job);
        }
        let mut message = vec![0.0_f32; job.quadratic.curvatures.len() + 1];
        let mut unused = Random::named(0, "unused");
        loop {
            rank.comm.recv(&mut message, 0, WEIGHTS)?;
            let (keep_going, weights) = message.split_last().expect("a message has a flag");
            if *keep_going == 0.0 {
                return Ok(0.0);
            }
            let gradient = job.quadratic.gradient(weights, 1.0, &mut unused);
            rank.compute(COMPUTE_SECONDS);
            rank.comm.send(&gradient, 0, GRADIENT)?;
        }
    })?;
    Ok(repetitions[0].1[0])
}

/// Runs the server: updates until the target is reached.
fn serve(
    point: &Point<'_>,
    comm: &Comm,
    num_workers: usize,
    job: &Job<'_>,
) -> Result<f64, CommError> {
    let mut x = job.quadratic.start();
    let first = norm(&x);
    let mut stepper = Stepper::of(point.at, x.len());
    let message = |x: &[f32], keep_going: f32| [x, &[keep_going]].concat();
    // Version of each worker's weights, and its pending gradient.
    let mut versions = vec![0; num_workers];
    let mut pending: Vec<Option<Handle<Vec<f32>>>> = Vec::new();
    for worker in 1..=num_workers {
        pending.push(Some(comm.start_recv::<f32, _>(vec![0.0; x.len()], worker, GRADIENT)?));
        comm.send(&message(&x, 1.0), worker, WEIGHTS)?;
    }
    let (mut updates, mut num_within, mut next) = (0, 0, 0);
    let mut is_over = false;
    while pending.iter().any(Option::is_some) {
        next = wait(point.world, &pending, next);
        let gradient = pending[next].take().expect("wait returned it").finish()?;
        if !is_over {
            let weight = (job.weight)(updates - versions[next]);
            if weight > 0.0 {
                stepper.step(&mut x, job.lr * weight, &gradient);
            }
            updates += 1;
            let distance = norm(&x);
            num_within = if distance <= job.target * first { num_within + 1 } else { 0 };
            is_over = num_within > job.num_confirmations
                || updates >= job.max_updates
                || !distance.is_finite();
        }
        let worker = next + 1;
        if !is_over {
            versions[next] = updates;
            pending[next] =
                Some(comm.start_recv::<f32, _>(vec![0.0; x.len()], worker, GRADIENT)?);
        }
        comm.send(&message(&x, f32::from(u8::from(!is_over))), worker, WEIGHTS)?;
    }
    Ok(if updates < job.max_updates { updates as f64 } else { f64::INFINITY })
}

/// Next worker, round-robin, whose gradient has arrived.
fn wait(world: &World, pending: &[Option<Handle<Vec<f32>>>], last: usize) -> usize {
    loop {
        let turn = (1..=pending.len()).map(|step| (last + step) % pending.len());
        let mut arrived =
            turn.filter(|worker| pending[*worker].as_ref().is_some_and(Handle::is_done));
        if let Some(worker) = arrived.next() {
            return worker;
        }
        world.clock().sleep(POLL_INTERVAL);
    }
}
