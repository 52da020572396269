//! All-reduce by algorithm and size over emulated links.

use super::cluster;
use super::measurement::{Measurement, Point};
use crate::error::LabError;
use crate::experiments::all_reduce_algorithm;

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "all-reduce",
    // Links are emulated for each pair of ranks.
    column: "separate_links_seconds",
    row_column: Some("algorithm"),
    params: &["ranks=4", "latency=5ms", "bandwidth=20MB/s"],
    sweep: "bytes=4kB,400kB,2MB",
    measure,
};

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let (num_ranks, link) = (at.count("ranks"), point.link());
    let algorithm = all_reduce_algorithm(point.row, num_ranks, at.bytes("bytes"), link);
    let links = cluster::uniform_links(link);
    cluster::shortest_seconds(point.world, (num_ranks, &links), 3, |rank| {
        rank.all_reduce(algorithm, at.number("bytes"))
    })
}
