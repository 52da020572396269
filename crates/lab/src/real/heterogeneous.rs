//! Heterogeneous workers: step time with equal batch shares over shares proportional to speed.

use super::cluster;
use super::measurement::{Measurement, Point, UNLIMITED};
use crate::error::LabError;

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "heterogeneous",
    column: "gain",
    row_column: None,
    params: &["workers=4", "batch=64", "sample=10ms"],
    sweep: "spread=0,0.3,0.6",
    measure,
};

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let (n, batch) = (at.count("workers"), at.number("batch"));
    let speed = |worker: usize| {
        let along = if n == 1 { 0.5 } else { worker as f64 / (n as f64 - 1.0) };
        1.0 + at.number("spread") * (2.0 * along - 1.0)
    };
    let all: f64 = (0..n).map(speed).sum();
    let links = cluster::uniform_links(UNLIMITED);
    let step = |share: &(dyn Fn(usize) -> f64 + Sync)| {
        cluster::shortest_seconds(point.world, (n, &links), 1, |rank| {
            let worker = rank.index();
            rank.compute(share(worker) * at.number("sample") / speed(worker));
            rank.comm.barrier()
        })
    };
    let equal = step(&|_| batch / n as f64)?;
    let balanced = step(&|worker| batch * speed(worker) / all)?;
    Ok(equal / balanced)
}
