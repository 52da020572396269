//! Unequal workers: a step with equal shares over one with shares by speed.

use super::{OPEN, Point, Real, cluster};
use crate::failure::Failure;

pub(super) const REAL: Real = Real {
    name: "heterogeneous",
    column: "gain",
    rows: None,
    params: &["workers=4", "batch=64", "sample=10ms"],
    sweep: "spread=0,0.3,0.6",
    measure,
};

fn measure(point: &Point<'_>) -> Result<f64, Failure> {
    let at = point.at;
    let (n, batch) = (at.count("workers"), at.number("batch"));
    let speed = |worker: usize| {
        let along = if n == 1 { 0.5 } else { worker as f64 / (n as f64 - 1.0) };
        1.0 + at.number("spread") * (2.0 * along - 1.0)
    };
    let all: f64 = (0..n).map(speed).sum();
    let links = cluster::even(OPEN);
    let step = |share: &(dyn Fn(usize) -> f64 + Sync)| {
        cluster::seconds(point.world, (n, &links), 1, |rank| {
            let worker = rank.index();
            rank.compute(share(worker) * at.number("sample") / speed(worker));
            rank.comm.barrier()
        })
    };
    let equal = step(&|_| batch / n as f64)?;
    let balanced = step(&|worker| batch * speed(worker) / all)?;
    Ok(equal / balanced)
}
