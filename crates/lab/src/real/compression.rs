//! Compressed gradients: a step computes and compresses, then sums the smaller message.

use super::{Point, Real, cluster};
use crate::failure::Failure;
use lockstep_schedule::Algorithm;

pub(super) const REAL: Real = Real {
    name: "compression",
    column: "step_seconds",
    rows: None,
    params: &[
        "workers=4",
        "method=quantised",
        "parameters=500e3",
        "compute=40ms",
        "compress=10ms",
        "latency=2ms",
        "bandwidth=20MB/s",
        "dim=20",
    ],
    sweep: "ratio=0.0625,0.25,1",
    measure,
};

fn measure(point: &Point<'_>) -> Result<f64, Failure> {
    let at = point.at;
    let each = if at.word("method") == "quantised" { 4.0 } else { 8.0 };
    let bytes = each * at.number("ratio") * at.number("parameters");
    let links = cluster::even(point.link());
    cluster::seconds(point.world, (at.count("workers"), &links), 3, |rank| {
        rank.compute(at.number("compute") + at.number("compress"));
        rank.all_reduce(Algorithm::RING, bytes)
    })
}
