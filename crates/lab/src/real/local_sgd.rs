//! Local SGD: ranks take local steps on their own data, then average their weights.

use super::cluster;
use super::measurement::{Measurement, Point};
use crate::error::LabError;
use crate::experiments::LocalWorker;
use lockstep_comm::Reduction;
use lockstep_schedule::Algorithm;

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "local-sgd",
    column: "seconds",
    row_column: None,
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

/// Length of the averaged vector; the weights are its prefix.
const LEN: usize = 16_384;
/// Maximum number of steps.
const MAX_STEPS: usize = 2000;

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let (num_workers, k) = (at.count("workers"), at.count("local_steps"));
    let bytes = 4.0 * LEN as f64;
    let links = cluster::links_for_ring(num_workers, bytes, at.number("communication").max(1e-6));
    cluster::shortest_seconds(point.world, (num_workers, &links), 3, |rank| {
        // Every repetition restarts with the random streams of the simulation.
        let mut worker = LocalWorker::all(at, &mut point.random()).swap_remove(rank.index());
        let comm = rank.comm.using(Algorithm::RING);
        let mut vector = vec![0.0_f32; LEN];
        let mut steps = 0;
        while worker.loss(&worker.x) > at.number("target") && steps < MAX_STEPS {
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
