//! Summation order: all-reduces of the same values, compared bit for bit with the canonical order.

use super::cluster;
use super::measurement::{Measurement, Point, UNLIMITED};
use crate::error::LabError;
use lockstep_comm::Reduction;
use lockstep_schedule::Algorithm;
use lockstep_tensor::math::scalar::powf;

pub(super) const MEASUREMENT: Measurement = Measurement {
    name: "reproducibility",
    column: "differing_share",
    row_column: Some("algorithm"),
    params: &["steps=5000"],
    sweep: "ranks=2,4,8",
    measure,
};

fn measure(point: &Point<'_>) -> Result<f64, LabError> {
    let at = point.at;
    let Ok(algorithm) = point.row.parse::<Algorithm>() else { return Ok(f64::NAN) };
    let (num_ranks, len) = (at.count("ranks"), at.count("steps"));
    let mut random = point.random();
    let mut draw = || {
        let power = (random.uniform() - 0.5) * at.number("spread");
        (random.normal() * powf(10.0, power)) as f32
    };
    // Same order of draws as the simulation: by element, then by rank.
    let numbers: Vec<f32> = (0..len * num_ranks).map(|_| draw()).collect();
    let repetitions = cluster::run_repeated(
        point.world,
        (num_ranks, &cluster::uniform_links(UNLIMITED)),
        1,
        |rank| {
            let own = || -> Vec<f32> {
                numbers.iter().copied().skip(rank.index()).step_by(num_ranks).collect()
            };
            let (mut sum, mut canonical) = (own(), own());
            rank.comm.using(algorithm).all_reduce(&mut sum, Reduction::Sum)?;
            rank.comm.using(Algorithm::Rabenseifner).all_reduce(&mut canonical, Reduction::Sum)?;
            let differs = |(a, b): &(&f32, &f32)| a.to_bits() != b.to_bits();
            Ok(sum.iter().zip(&canonical).filter(differs).count())
        },
    )?;
    Ok(repetitions[0].1[0] as f64 / len as f64)
}
