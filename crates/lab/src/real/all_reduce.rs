//! All-reduce by algorithm and size over emulated links.

use super::cluster;
use super::measurement::{Measurement, Point};
use crate::error::LabError;
use lockstep_schedule::Algorithm;

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "all-reduce",
    column: "seconds",
    row_column: Some("algorithm"),
    params: &["ranks=4", "latency=5ms", "bandwidth=20MB/s"],
    sweep: "bytes=4kB,400kB,2MB",
    measure,
};

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    // Parametrized algorithms, such as a segmented tree, are simulated only.
    let Ok(algorithm) = point.row.parse::<Algorithm>() else { return Ok(f64::NAN) };
    let links = cluster::uniform_links(point.link());
    cluster::shortest_seconds(point.world, (at.count("ranks"), &links), 3, |rank| {
        rank.all_reduce(algorithm, at.number("bytes"))
    })
}
