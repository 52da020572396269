//! Models of consistency: workers that vary wait for all at every step, for all now and then, for
//! those who are too far behind, or for nobody. Under every model a worker has the gradients and
//! the times that the simulation gives it.

use super::asynchronous::wait;
use super::{OPEN, Point, Real, cluster};
use crate::failure::Failure;
use lockstep_comm::{Comm, CommError, Handle, Reduction};
use lockstep_lab::experiments::{Clocks, UnevenWorker};
use lockstep_lab::problem::Stepper;
use lockstep_schedule::Algorithm;
use std::time::Duration;

pub(super) const REAL: Real = Real {
    name: "consistency",
    column: "seconds",
    rows: Some("model"),
    params: &[
        "workers=4",
        "compute=40ms",
        "communication=40ms",
        "push=10ms",
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

fn apart(point: &Point<'_>, bound: Option<usize>) -> Result<f64, Failure> {
    let num_workers = point.at.count("workers");
    let links = cluster::even(OPEN);
    let turns = cluster::turns(point.world, (num_workers + 1, &links), 2, |rank| {
        if rank.index() == 0 {
            return Server::new(point, &rank.comm, bound).live();
        }
        let mut workers = UnevenWorker::all(point.at, &mut point.random());
        let mut worker = workers.swap_remove(rank.index() - 1);
        let mut message = vec![0.0_f32; UnevenWorker::bowl(point.at).curvatures.len() + 1];
        loop {
            rank.comm.recv(&mut message, 0, WEIGHTS)?;
            let (go_on, weights) = message.split_last().expect("it has a length");
            if *go_on == 0.0 {
                return Ok(0.0);
            }
            let gradient = worker.gradient(weights);
            rank.compute(worker.seconds());
            rank.comm.send(&gradient, 0, GRADIENT)?;
        }
    })?;
    // What counts is when the server was there; workers come home later.
    Ok(turns.iter().map(|(_, seconds)| seconds[0]).fold(f64::INFINITY, f64::min))
}

/// The server's side: whom it waits for, and who waits for it.
struct Server<'a> {
    point: &'a Point<'a>,
    comm: &'a Comm,
    clocks: Clocks,
    x: Vec<f32>,
    /// The gradient that each worker will send; of those who must wait, none.
    arriving: Vec<Option<Handle<Vec<f32>>>>,
}

impl<'a> Server<'a> {
    fn new(point: &'a Point<'a>, comm: &'a Comm, bound: Option<usize>) -> Self {
        let num_workers = point.at.count("workers");
        Self {
            point,
            comm,
            clocks: Clocks::new(num_workers, bound),
            x: UnevenWorker::bowl(point.at).start(),
            arriving: (0..num_workers).map(|_| None).collect(),
        }
    }

    /// Sends weights to whoever waits for them and may have them.
    fn let_begin(&mut self) -> Result<(), CommError> {
        for worker in 0..self.arriving.len() {
            if self.arriving[worker].is_none() && self.clocks.lets(worker) {
                let empty = vec![0.0; self.x.len()];
                let (comm, rank) = (self.comm, worker + 1);
                self.arriving[worker] = Some(comm.start_recv::<f32, _>(empty, rank, GRADIENT)?);
                comm.send(&[&self.x[..], &[1.0]].concat(), rank, WEIGHTS)?;
            }
        }
        Ok(())
    }

    /// Seconds to the target; then everybody is sent home.
    fn live(mut self) -> Result<f64, CommError> {
        let (at, clock) = (self.point.at, self.point.world.clock());
        let bowl = UnevenWorker::bowl(at);
        let target = at.number("target") * bowl.loss(&self.x);
        let lr = at.number("lr") / self.arriving.len() as f64;
        let mut stepper = Stepper::of(at, self.x.len());
        let start = clock.now();
        let (mut updates, mut last) = (0, 0);
        while bowl.loss(&self.x) > target && updates < MOST {
            self.let_begin()?;
            last = wait(self.point.world, &self.arriving, last);
            let gradient = self.arriving[last].take().expect("it has come").finish()?;
            clock.sleep(Duration::from_secs_f64(at.number("push")));
            stepper.step(&mut self.x, lr, &gradient);
            self.clocks.count(last);
            updates += 1;
        }
        let seconds = clock.since(start).as_secs_f64();
        for (worker, arriving) in self.arriving.into_iter().enumerate() {
            arriving.map(Handle::finish).transpose()?;
            self.comm.send(&[&self.x[..], &[0.0]].concat(), worker + 1, WEIGHTS)?;
        }
        Ok(if updates < MOST { seconds } else { f64::INFINITY })
    }
}
