//! A data-parallel step: every rank computes, buckets leave in the background, all are waited for.

use super::{Point, Real, cluster};
use crate::failure::Failure;
use lockstep_comm::Reduction;
use lockstep_lab::Jitter;
use lockstep_schedule::Algorithm;

pub(super) const REAL: Real = Real {
    name: "data-parallel",
    column: "step_seconds",
    rows: None,
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

fn measure(point: &Point<'_>) -> Result<f64, Failure> {
    let at = point.at;
    let algorithm: Algorithm = at.word("algorithm").parse().expect("a name of the card");
    let (num_workers, num_buckets) = (at.count("workers"), at.count("buckets"));
    let jitter = match at.number("variation") {
        variation if variation > 0.0 => Jitter::LogNormal { variation },
        _ => Jitter::None,
    };
    let mut random = point.random();
    let factors: Vec<f64> = (0..num_workers).map(|_| jitter.factor(&mut random)).collect();
    let len = at.bytes("gradient").0 as usize / num_buckets / 4;
    let links = cluster::even(point.link());
    cluster::seconds(point.world, (num_workers, &links), 4, |rank| {
        let factor = factors[rank.index()];
        let comm = rank.comm.using(algorithm);
        rank.compute(at.number("forward") * factor);
        let mut flying = Vec::with_capacity(num_buckets);
        for _ in 0..num_buckets {
            rank.compute(at.number("backward") / num_buckets as f64 * factor);
            let bucket = vec![1.0_f32; len];
            flying.push(comm.start_all_reduce::<f32, _>(bucket, Reduction::Sum)?);
        }
        flying.into_iter().try_for_each(|call| call.finish().map(drop))
    })
}
