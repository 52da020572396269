//! Gradient compression: compute, compress, then all-reduce the smaller message.

use super::cluster;
use super::measurement::{Measurement, Point};
use crate::error::LabError;
use lockstep_schedule::Algorithm;

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "compression",
    column: "step_seconds",
    row_column: None,
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

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let element_bytes = if at.choice("method") == "quantised" { 4.0 } else { 8.0 };
    let bytes = element_bytes * at.number("ratio") * at.number("parameters");
    let links = cluster::uniform_links(point.link());
    cluster::shortest_seconds(point.world, (at.count("workers"), &links), 3, |rank| {
        rank.compute(at.number("compute") + at.number("compress"));
        rank.all_reduce(Algorithm::RING, bytes)
    })
}
