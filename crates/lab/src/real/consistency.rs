//! Models of consistency: workers that vary wait for all at every step, for all now and then, for
//! those who are too far behind, or for nobody. Under every model a worker has the gradients and
//! the times that the simulation gives it.

use super::{OPEN, Point, Real, cluster};
use crate::failure::Failure;
use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_lab::experiments::{Clocks, UnevenWorker};
use lockstep_lab::problem::Stepper;
use lockstep_schedule::Algorithm;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(super) const REAL: Real = Real {
    name: "consistency",
    column: "seconds",
    rows: Some("model"),
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

/// Numbers of the vector that is averaged; the weights are the first of them.
const LEN: usize = 16_384;
/// Updates after which it is given up.
const MOST: usize = 2000;
/// The weights, and a number that says whether there is more to do.
const WEIGHTS: u64 = 1;
const GRADIENT: u64 = 2;

fn measure(point: &Point<'_>) -> Result<f64, Failure> {
    match point.word {
        "synchronous" => together(point, 1),
        "local" => together(point, point.at.count("local_steps")),
        "bounded" => apart(point, Some(point.at.count("bound"))),
        "asynchronous" => apart(point, None),
        _ => Ok(f64::NAN),
    }
}

fn together(point: &Point<'_>, k: usize) -> Result<f64, Failure> {
    let at = point.at;
    let num_workers = at.count("workers");
    let bytes = 4.0 * LEN as f64;
    let links = cluster::ring_of(num_workers, bytes, at.number("communication").max(1e-6));
    cluster::seconds(point.world, (num_workers, &links), 2, |rank| {
        // Every turn begins again, with the same random numbers as the simulation.
        let mut worker = UnevenWorker::all(at, &mut point.random()).swap_remove(rank.index());
        let bowl = UnevenWorker::bowl(at);
        let mut x = bowl.start();
        let target = at.number("target") * bowl.loss(&x);
        let mut stepper = Stepper::of(at, x.len());
        let comm = rank.comm.using(Algorithm::RING);
        let (mut vector, mut updates) = (vec![0.0_f32; LEN], 0);
        while bowl.loss(&x) > target && updates < MOST {
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

/// Turns of a server, with one before that does not count.
const NUM_TURNS: usize = 2;

fn apart(point: &Point<'_>, bound: Option<usize>) -> Result<f64, Failure> {
    let num_workers = point.at.count("workers");
    let links = cluster::even(OPEN);
    let servers: Vec<Server<'_>> = (0..=NUM_TURNS).map(|_| Server::new(point, bound)).collect();
    let turns_taken: Vec<AtomicUsize> = (0..2 * num_workers).map(|_| AtomicUsize::new(0)).collect();
    cluster::turns(point.world, (2 * num_workers, &links), NUM_TURNS, |rank| {
        let turn = turns_taken[rank.index()].fetch_add(1, Ordering::Relaxed);
        match rank.index().checked_sub(num_workers) {
            None => servers[turn].serve(&rank.comm, rank.index(), rank.index() + num_workers),
            Some(number) => work(point, rank, number),
        }
    })?;
    let seconds = servers[1..].iter().map(|server| server.lock().seconds);
    Ok(seconds.fold(f64::INFINITY, f64::min))
}

/// A worker's life: weights, a gradient of them, and again until there is no more to do.
fn work(point: &Point<'_>, rank: &cluster::Rank<'_>, number: usize) -> Result<(), CommError> {
    let mut worker = UnevenWorker::all(point.at, &mut point.random()).swap_remove(number);
    let mut message = vec![0.0_f32; UnevenWorker::bowl(point.at).curvatures.len() + 1];
    loop {
        rank.comm.recv(&mut message, number, WEIGHTS)?;
        let (go_on, weights) = message.split_last().expect("it has a length");
        if *go_on == 0.0 {
            return Ok(());
        }
        let gradient = worker.gradient(weights);
        rank.compute(worker.seconds());
        rank.comm.send(&gradient, number, GRADIENT)?;
    }
}

/// A server with a rank for each of its workers, so that whoever comes first is served first.
struct Server<'a> {
    point: &'a Point<'a>,
    state: Mutex<State>,
    has_moved: Condvar,
}

/// What the ranks of a server share.
struct State {
    x: Vec<f32>,
    stepper: Stepper,
    clocks: Clocks,
    updates: usize,
    is_over: bool,
    /// To the target; infinite until then.
    seconds: f64,
}

impl<'a> Server<'a> {
    fn new(point: &'a Point<'a>, bound: Option<usize>) -> Self {
        let x = UnevenWorker::bowl(point.at).start();
        let state = State {
            stepper: Stepper::of(point.at, x.len()),
            x,
            clocks: Clocks::new(point.at.count("workers"), bound),
            updates: 0,
            is_over: false,
            seconds: f64::INFINITY,
        };
        Self { point, state: Mutex::new(state), has_moved: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one worker, who is another rank, until the target is reached.
    fn serve(&self, comm: &Comm, number: usize, worker: usize) -> Result<(), CommError> {
        let (at, clock) = (self.point.at, self.point.world.clock());
        let start = clock.now();
        let bowl = UnevenWorker::bowl(at);
        let target = at.number("target") * bowl.loss(&bowl.start());
        let lr = at.number("lr") / at.number("workers");
        let mut gradient = vec![0.0_f32; bowl.curvatures.len()];
        let mut state = self.lock();
        loop {
            while !state.is_over && !state.clocks.lets(number) {
                state = self.has_moved.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let go_on = f32::from(u8::from(!state.is_over));
            let message = [&state.x[..], &[go_on]].concat();
            drop(state);
            comm.send(&message, worker, WEIGHTS)?;
            if go_on == 0.0 {
                return Ok(());
            }
            comm.recv(&mut gradient, worker, GRADIENT)?;
            // One gradient after the other: the others wait for this one.
            state = self.lock();
            if !state.is_over {
                clock.sleep(Duration::from_secs_f64(at.number("push")));
                let State { x, stepper, .. } = &mut *state;
                stepper.step(x, lr, &gradient);
                state.clocks.count(number);
                state.updates += 1;
                if bowl.loss(&state.x) <= target {
                    state.seconds = clock.since(start).as_secs_f64();
                }
                state.is_over = state.seconds.is_finite() || state.updates >= MOST;
                self.has_moved.notify_all();
            }
        }
    }
}
