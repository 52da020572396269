//! Stale gradients for real: workers compute on weights that the server has moved on from.
//!
//! Rank 0 is the server, with the engine's optimizer; every other rank asks for weights, sleeps,
//! and sends a gradient of them. With tau + 1 workers that are equally fast a gradient is tau
//! updates old.

use super::{OPEN, Point, Real, cluster};
use crate::failure::Failure;
use lockstep_comm::{Comm, CommError, Handle};
use lockstep_lab::Random;
use lockstep_lab::problem::{Bowl, Stepper, norm};
use lockstep_platform::World;
use std::time::Duration;

pub(super) const BOUNDED: Real = Real {
    name: "bounded-async",
    column: "iterations",
    rows: None,
    params: &["condition=4", "target=0.05", "most=2000"],
    sweep: "staleness=0,1,3",
    measure: bounded,
};

pub(super) const AWARE: Real = Real {
    name: "staleness-aware",
    column: "iterations",
    rows: Some("policy"),
    params: &["ages=constant", "staleness=2", "condition=4", "target=0.1"],
    sweep: "lr=0.1,0.3",
    measure: aware,
};

/// How long a worker computes: long enough that all take their turns.
const COMPUTE: f64 = 0.012;
/// How often the server looks whether a gradient has come.
const LOOK: Duration = Duration::from_micros(200);
/// The weights, and a number that says whether there is more to do.
const WEIGHTS: u64 = 1;
const GRADIENT: u64 = 2;

/// What the server does with a gradient that is so many updates old.
type Weight<'a> = &'a (dyn Fn(usize) -> f64 + Sync);

struct Job<'a> {
    bowl: Bowl,
    lr: f64,
    target: f64,
    /// How many updates in a row must be within the target.
    patience: usize,
    most: usize,
    weight: Weight<'a>,
}

fn bounded(point: &Point<'_>) -> Result<f64, Failure> {
    let at = point.at;
    let staleness = at.count("staleness");
    let scale = if at.word("step") == "scaled" { 1.0 + staleness as f64 } else { 1.0 };
    let job = Job {
        bowl: Bowl::new(at.count("dim"), at.number("condition"), 0.0),
        lr: at.number("lr") / scale,
        target: at.number("target"),
        patience: staleness,
        most: at.count("most").min(5000),
        weight: &|_| 1.0,
    };
    follow(point, staleness + 1, &job)
}

fn aware(point: &Point<'_>) -> Result<f64, Failure> {
    let at = point.at;
    let (scale, bound) = (at.number("scale"), at.count("bound"));
    let weight = |age: usize| match point.word {
        "by age" => 1.0 / (1.0 + age as f64),
        "decay" => lockstep_tensor::math::scalar::exp(-(age as f64) / scale),
        "drop" => f64::from(u8::from(age <= bound)),
        _ => 1.0,
    };
    let job = Job {
        bowl: Bowl::new(8, at.number("condition"), 0.0),
        lr: at.number("lr"),
        target: at.number("target"),
        patience: 0,
        most: 5000,
        weight: &weight,
    };
    // All are alike here; of ages that differ in the simulation, as old as theirs in the mean.
    let age = match at.word("ages") {
        "constant" => at.count("staleness"),
        _ => at.count("staleness").div_ceil(2),
    };
    follow(point, age + 1, &job)
}

fn follow(point: &Point<'_>, num_workers: usize, job: &Job<'_>) -> Result<f64, Failure> {
    let links = cluster::even(OPEN);
    let turns = cluster::turns(point.world, (num_workers + 1, &links), 1, |rank| {
        if rank.index() == 0 {
            return serve(point, &rank.comm, num_workers, job);
        }
        let mut message = vec![0.0_f32; job.bowl.curvatures.len() + 1];
        let mut unused = Random::named(0, "unused");
        loop {
            rank.comm.recv(&mut message, 0, WEIGHTS)?;
            let (go_on, weights) = message.split_last().expect("it has a length");
            if *go_on == 0.0 {
                return Ok(0.0);
            }
            let gradient = job.bowl.gradient(weights, 1.0, &mut unused);
            rank.compute(COMPUTE);
            rank.comm.send(&gradient, 0, GRADIENT)?;
        }
    })?;
    Ok(turns[0].1[0])
}

/// The server's life: updates until the target is reached.
fn serve(
    point: &Point<'_>,
    comm: &Comm,
    num_workers: usize,
    job: &Job<'_>,
) -> Result<f64, CommError> {
    let mut x = job.bowl.start();
    let first = norm(&x);
    let mut stepper = Stepper::of(point.at, x.len());
    let message = |x: &[f32], go_on: f32| [x, &[go_on]].concat();
    // The update that each worker's weights are of, and the gradient that it will send.
    let mut seen = vec![0; num_workers];
    let mut arriving: Vec<Option<Handle<Vec<f32>>>> = Vec::new();
    for worker in 1..=num_workers {
        arriving.push(Some(comm.start_recv::<f32, _>(vec![0.0; x.len()], worker, GRADIENT)?));
        comm.send(&message(&x, 1.0), worker, WEIGHTS)?;
    }
    let (mut updates, mut num_within, mut next) = (0, 0, 0);
    let mut is_over = false;
    while arriving.iter().any(Option::is_some) {
        next = wait(point.world, &arriving, next);
        let gradient = arriving[next].take().expect("it has come").finish()?;
        if !is_over {
            let weight = (job.weight)(updates - seen[next]);
            if weight > 0.0 {
                stepper.step(&mut x, job.lr * weight, &gradient);
            }
            updates += 1;
            let distance = norm(&x);
            num_within = if distance <= job.target * first { num_within + 1 } else { 0 };
            is_over = num_within > job.patience || updates >= job.most || !distance.is_finite();
        }
        let worker = next + 1;
        if !is_over {
            seen[next] = updates;
            arriving[next] =
                Some(comm.start_recv::<f32, _>(vec![0.0; x.len()], worker, GRADIENT)?);
        }
        comm.send(&message(&x, f32::from(u8::from(!is_over))), worker, WEIGHTS)?;
    }
    Ok(if updates < job.most { updates as f64 } else { f64::INFINITY })
}

/// The next worker in turn whose gradient has come.
fn wait(world: &World, arriving: &[Option<Handle<Vec<f32>>>], last: usize) -> usize {
    loop {
        let turn = (1..=arriving.len()).map(|step| (last + step) % arriving.len());
        let mut come =
            turn.filter(|worker| arriving[*worker].as_ref().is_some_and(Handle::is_done));
        if let Some(worker) = come.next() {
            return worker;
        }
        world.clock().sleep(LOOK);
    }
}
