//! Stragglers: ranks sleep for times drawn as in the simulation, then all-reduce a gradient.

use super::cluster;
use super::measurement::{Measurement, Point};
use crate::error::LabError;
use crate::random::Jitter;
use lockstep_schedule::Algorithm;

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "stragglers",
    column: "step_seconds",
    row_column: None,
    params: &[
        "mean=80ms",
        "variation=0.4",
        "steps=20",
        "gradient=80kB",
        "latency=1ms",
        "bandwidth=20MB/s",
    ],
    sweep: "workers=2,4,8",
    measure,
};

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let (num_workers, num_steps) = (at.count("workers"), at.count("steps"));
    let jitter = match at.choice("distribution") {
        "pareto" => Jitter::Pareto { shape: at.number("shape") },
        "log-normal" if at.number("variation") > 0.0 => {
            Jitter::LogNormal { variation: at.number("variation") }
        }
        "log-normal" => Jitter::None,
        _ => return Ok(f64::NAN),
    };
    let mut random = point.random();
    let times: Vec<f64> = (0..num_steps * num_workers)
        .map(|_| at.number("mean") * jitter.factor(&mut random))
        .collect();
    let links = cluster::uniform_links(point.link());
    let seconds = cluster::shortest_seconds(point.world, (num_workers, &links), 3, |rank| {
        (0..num_steps).try_for_each(|step| {
            rank.compute(times[step * num_workers + rank.index()]);
            // An empty all-reduce still synchronizes all ranks.
            rank.all_reduce(Algorithm::RING, at.number("gradient").max(4.0 * num_workers as f64))
        })
    })?;
    Ok(seconds / num_steps as f64)
}
