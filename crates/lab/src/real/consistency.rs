//! Consistency models with stragglers: synchronous, local SGD, bounded staleness, asynchronous.
//!
//! Every worker draws the same gradients and compute times as in the simulation.

use super::cluster;
use super::measurement::{Measurement, Point, UNLIMITED};
use crate::error::LabError;
use crate::experiments::{Clocks, JitteredWorker};
use crate::problem::Stepper;
use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_schedule::Algorithm;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "consistency",
    column: "seconds",
    row_column: Some("model"),
    params: &[
        "workers=4",
        "compute=100ms",
        "communication=100ms",
        "push=25ms",
        "local_steps=5",
        "lr=0.6",
        "condition=5",
        "target=0.05",
    ],
    sweep: "variation=0,0.5,1",
    measure,
};

/// Length of the averaged vector; the weights are its prefix.
const LEN: usize = 16_384;
/// Maximum number of updates.
const MAX_UPDATES: usize = 2000;
/// Tag of weights, followed by 1.0 to continue or 0.0 to stop.
const WEIGHTS: u64 = 1;
/// Tag of gradients.
const GRADIENT: u64 = 2;

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    match point.row {
        "synchronous" => synchronous(point, 1),
        "local" => synchronous(point, point.at.count("local_steps")),
        "bounded" => asynchronous(point, Some(point.at.count("bound"))),
        "asynchronous" => asynchronous(point, None),
        _ => Ok(f64::NAN),
    }
}

fn synchronous(point: &Point<'_>, k: usize) -> Result<f64, LabError> {
    let at = point.at;
    let num_workers = at.count("workers");
    let bytes = 4.0 * LEN as f64;
    let links = cluster::links_for_ring(num_workers, bytes, at.number("communication").max(1e-6));
    cluster::shortest_seconds(point.world, (num_workers, &links), 2, |rank| {
        // Every repetition restarts with the random streams of the simulation.
        let mut worker = JitteredWorker::all(at, &mut point.random()).swap_remove(rank.index());
        let quadratic = JitteredWorker::quadratic(at);
        let mut x = quadratic.start();
        let target = at.number("target") * quadratic.loss(&x);
        let mut stepper = Stepper::of(at, x.len());
        let comm = rank.comm.using(Algorithm::RING);
        let (mut vector, mut updates) = (vec![0.0_f32; LEN], 0);
        while quadratic.loss(&x) > target && updates < MAX_UPDATES {
            for _ in 0..k {
                rank.compute(worker.seconds());
                let gradient = worker.gradient(&x);
                stepper.step(&mut x, at.number("lr"), &gradient);
            }
            vector[..x.len()].copy_from_slice(&x);
            comm.all_reduce(&mut vector, Reduction::Sum)?;
            for (x, sum) in x.iter_mut().zip(&vector) {
                *x = sum / num_workers as f32;
            }
            updates += 1;
        }
        Ok(())
    })
}

/// Repetitions, after one warm-up.
const NUM_REPETITIONS: usize = 2;

fn asynchronous(point: &Point<'_>, bound: Option<usize>) -> Result<f64, LabError> {
    let num_workers = point.at.count("workers");
    let links = cluster::uniform_links(UNLIMITED);
    let servers: Vec<Server<'_>> =
        (0..=NUM_REPETITIONS).map(|_| Server::new(point, bound)).collect();
    let num_started: Vec<AtomicUsize> = (0..2 * num_workers).map(|_| AtomicUsize::new(0)).collect();
    cluster::run_repeated(point.world, (2 * num_workers, &links), NUM_REPETITIONS, |rank| {
        let repetition = num_started[rank.index()].fetch_add(1, Ordering::Relaxed);
        match rank.index().checked_sub(num_workers) {
            None => servers[repetition].serve(&rank.comm, rank.index(), rank.index() + num_workers),
            Some(number) => work(point, rank, number),
        }
    })?;
    let seconds = servers[1..].iter().map(|server| server.lock().seconds);
    Ok(seconds.fold(f64::INFINITY, f64::min))
}

/// Runs a worker: pulls weights and pushes gradients until the server stops it.
fn work(point: &Point<'_>, rank: &cluster::Rank<'_>, number: usize) -> Result<(), CommError> {
    let mut worker = JitteredWorker::all(point.at, &mut point.random()).swap_remove(number);
    let mut message = vec![0.0_f32; JitteredWorker::quadratic(point.at).curvatures.len() + 1];
    loop {
        rank.comm.recv(&mut message, number, WEIGHTS)?;
        let (keep_going, weights) = message.split_last().expect("a message has a flag");
        if *keep_going == 0.0 {
            return Ok(());
        }
        let gradient = worker.gradient(weights);
        rank.compute(worker.seconds());
        rank.comm.send(&gradient, number, GRADIENT)?;
    }
}

/// A server with one rank per worker, so that it serves gradients in order of arrival.
struct Server<'a> {
    point: &'a Point<'a>,
    state: Mutex<State>,
    changed: Condvar,
}

/// State that the ranks of a server share.
struct State {
    x: Vec<f32>,
    stepper: Stepper,
    clocks: Clocks,
    updates: usize,
    is_over: bool,
    /// Time to the target; infinite until then.
    seconds: f64,
}

impl<'a> Server<'a> {
    fn new(point: &'a Point<'a>, bound: Option<usize>) -> Self {
        let x = JitteredWorker::quadratic(point.at).start();
        let state = State {
            stepper: Stepper::of(point.at, x.len()),
            x,
            clocks: Clocks::new(point.at.count("workers"), bound),
            updates: 0,
            is_over: false,
            seconds: f64::INFINITY,
        };
        Self { point, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves the worker on rank `worker` until the target is reached.
    fn serve(&self, comm: &Comm, number: usize, worker: usize) -> Result<(), CommError> {
        let (at, clock) = (self.point.at, self.point.world.clock());
        let start = clock.now();
        let quadratic = JitteredWorker::quadratic(at);
        let target = at.number("target") * quadratic.loss(&quadratic.start());
        let lr = at.number("lr") / at.number("workers");
        let mut gradient = vec![0.0_f32; quadratic.curvatures.len()];
        let mut state = self.lock();
        loop {
            while !state.is_over && !state.clocks.may_start(number) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let keep_going = f32::from(u8::from(!state.is_over));
            let message = [&state.x[..], &[keep_going]].concat();
            drop(state);
            comm.send(&message, worker, WEIGHTS)?;
            if keep_going == 0.0 {
                return Ok(());
            }
            comm.recv(&mut gradient, worker, GRADIENT)?;
            // The lock serializes gradients: other workers wait for this one.
            state = self.lock();
            if !state.is_over {
                clock.sleep(Duration::from_secs_f64(at.number("push")));
                let State { x, stepper, .. } = &mut *state;
                stepper.step(x, lr, &gradient);
                state.clocks.advance(number);
                state.updates += 1;
                if quadratic.loss(&state.x) <= target {
                    state.seconds = clock.since(start).as_secs_f64();
                }
                state.is_over = state.seconds.is_finite() || state.updates >= MAX_UPDATES;
                self.changed.notify_all();
            }
        }
    }
}
