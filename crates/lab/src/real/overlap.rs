//! Overlap: gradient buckets are all-reduced while the backward pass continues.

use super::cluster;
use super::measurement::{Measurement, Point};
use crate::error::LabError;
use lockstep_comm::Reduction;
use lockstep_schedule::Algorithm;

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "overlap",
    column: "step_seconds",
    row_column: None,
    params: &[
        "layers=12",
        "layer=80ms",
        "gradient=2400kB",
        "workers=4",
        "latency=10ms",
        "bandwidth=6MB/s",
    ],
    sweep: "bucket_layers=1,3,6,12",
    measure,
};

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let (num_layers, per_bucket) = (at.count("layers"), at.count("bucket_layers"));
    let layer_len = at.bytes("gradient").0 as usize / num_layers / 4;
    let links = cluster::uniform_links(point.link());
    cluster::shortest_seconds(point.world, (at.count("workers"), &links), 3, |rank| {
        let comm = rank.comm.using(Algorithm::RING);
        let (mut in_flight, mut num_full) = (Vec::new(), 0);
        for layer in 1..=num_layers {
            rank.compute(at.number("layer"));
            num_full += 1;
            if num_full == per_bucket || layer == num_layers {
                let bucket = vec![1.0_f32; num_full * layer_len];
                in_flight.push(comm.start_all_reduce::<f32, _>(bucket, Reduction::Sum)?);
                num_full = 0;
            }
        }
        in_flight.into_iter().try_for_each(|call| call.finish().map(drop))
    })
}
