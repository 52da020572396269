//! Buckets and overlap: a bucket leaves in the background while the next layers are computed.

use super::{Point, Real, cluster};
use crate::failure::Failure;
use lockstep_comm::Reduction;
use lockstep_schedule::Algorithm;

pub(super) const REAL: Real = Real {
    name: "overlap",
    column: "step_seconds",
    rows: None,
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

fn measure(point: &Point<'_>) -> Result<f64, Failure> {
    let at = point.at;
    let (num_layers, per_bucket) = (at.count("layers"), at.count("bucket_layers"));
    let layer_len = at.bytes("gradient").0 as usize / num_layers / 4;
    let links = cluster::even(point.link());
    cluster::seconds(point.world, (at.count("workers"), &links), 3, |rank| {
        let comm = rank.comm.using(Algorithm::RING);
        let (mut flying, mut num_full) = (Vec::new(), 0);
        for layer in 1..=num_layers {
            rank.compute(at.number("layer"));
            num_full += 1;
            if num_full == per_bucket || layer == num_layers {
                let bucket = vec![1.0_f32; num_full * layer_len];
                flying.push(comm.start_all_reduce::<f32, _>(bucket, Reduction::Sum)?);
                num_full = 0;
            }
        }
        flying.into_iter().try_for_each(|call| call.finish().map(drop))
    })
}
