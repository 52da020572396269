//! All-reduces by algorithm and size over emulated links.

use super::{Point, Real, cluster};
use crate::failure::Failure;
use lockstep_schedule::Algorithm;

pub(super) const REAL: Real = Real {
    name: "all-reduce",
    column: "seconds",
    rows: Some("algorithm"),
    params: &["ranks=4", "latency=5ms", "bandwidth=20MB/s"],
    sweep: "bytes=4kB,400kB,2MB",
    measure,
};

fn measure(point: &Point<'_>) -> Result<f64, Failure> {
    let at = point.at;
    // Names with numbers in them, such as a tree in segments, are left to the simulation.
    let Ok(algorithm) = point.word.parse::<Algorithm>() else { return Ok(f64::NAN) };
    let links = cluster::even(point.link());
    cluster::seconds(point.world, (at.count("ranks"), &links), 3, |rank| {
        rank.all_reduce(algorithm, at.number("bytes"))
    })
}
