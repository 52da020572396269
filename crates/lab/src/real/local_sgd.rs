//! Local SGD: ranks take steps alone on data of their own, then average their weights over links.

use super::{Point, Real, cluster};
use crate::failure::Failure;
use lockstep_comm::Reduction;
use lockstep_lab::experiments::LocalWorker;
use lockstep_schedule::Algorithm;

pub(super) const REAL: Real = Real {
    name: "local-sgd",
    column: "seconds",
    rows: None,
    params: &[
        "workers=4",
        "compute=15ms",
        "communication=60ms",
        "lr=0.3",
        "heterogeneity=0.1",
        "noise=0.1",
        "target=0.05",
    ],
    sweep: "local_steps=1,4,16",
    measure,
};

/// Numbers of the vector that is averaged; the weights are the first of them.
const LEN: usize = 16_384;
/// Steps after which it is given up.
const MOST: usize = 2000;

fn measure(point: &Point<'_>) -> Result<f64, Failure> {
    let at = point.at;
    let (num_workers, k) = (at.count("workers"), at.count("local_steps"));
    let bytes = 4.0 * LEN as f64;
    let links = cluster::ring_of(num_workers, bytes, at.number("communication").max(1e-6));
    cluster::seconds(point.world, (num_workers, &links), 3, |rank| {
        // Every turn begins again, with the same random numbers as the simulation.
        let mut worker = LocalWorker::all(at, &mut point.random()).swap_remove(rank.index());
        let comm = rank.comm.using(Algorithm::RING);
        let mut vector = vec![0.0_f32; LEN];
        let mut steps = 0;
        while worker.loss(&worker.x) > at.number("target") && steps < MOST {
            for _ in 0..k {
                rank.compute(at.number("compute"));
                worker.step();
            }
            steps += k;
            vector[..worker.x.len()].copy_from_slice(&worker.x);
            comm.all_reduce(&mut vector, Reduction::Sum)?;
            for (x, sum) in worker.x.iter_mut().zip(&vector) {
                *x = sum / num_workers as f32;
            }
        }
        Ok(())
    })
}
