//! A data-parallel step: compute, with gradient buckets all-reduced in the background.

use super::cluster;
use super::measurement::{Measurement, Point};
use crate::error::LabError;
use crate::random::Jitter;
use lockstep_comm::Reduction;
use lockstep_schedule::Algorithm;

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "data-parallel",
    column: "step_seconds",
    row_column: None,
    params: &[
        "gradient=1600kB",
        "forward=120ms",
        "backward=180ms",
        "latency=4ms",
        "bandwidth=20MB/s",
        "variation=0.1",
    ],
    sweep: "workers=2,4,8",
    measure,
};

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let algorithm: Algorithm = at.choice("algorithm").parse().expect("a choice of the parameter");
    let (num_workers, num_buckets) = (at.count("workers"), at.count("buckets"));
    let jitter = match at.number("variation") {
        variation if variation > 0.0 => Jitter::LogNormal { variation },
        _ => Jitter::None,
    };
    let mut random = point.random();
    let factors: Vec<f64> = (0..num_workers).map(|_| jitter.factor(&mut random)).collect();
    let len = at.bytes("gradient").0 as usize / num_buckets / 4;
    let links = cluster::uniform_links(point.link());
    cluster::shortest_seconds(point.world, (num_workers, &links), 4, |rank| {
        let factor = factors[rank.index()];
        let comm = rank.comm.using(algorithm);
        rank.compute(at.number("forward") * factor);
        let mut in_flight = Vec::with_capacity(num_buckets);
        for _ in 0..num_buckets {
            rank.compute(at.number("backward") / num_buckets as f64 * factor);
            let bucket = vec![1.0_f32; len];
            in_flight.push(comm.start_all_reduce::<f32, _>(bucket, Reduction::Sum)?);
        }
        in_flight.into_iter().try_for_each(|call| call.finish().map(drop))
    })
}
