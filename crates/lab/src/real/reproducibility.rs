//! The order of sums: real all-reduces of the same numbers, bit by bit against the canonical one.

use super::{OPEN, Point, Real, cluster};
use crate::failure::Failure;
use lockstep_comm::Reduction;
use lockstep_schedule::Algorithm;
use lockstep_tensor::math::scalar::powf;

pub(super) const REAL: Real = Real {
    name: "reproducibility",
    column: "differing",
    rows: Some("algorithm"),
    params: &["steps=5000"],
    sweep: "ranks=2,4,8",
    measure,
};

fn measure(point: &Point<'_>) -> Result<f64, Failure> {
    let at = point.at;
    let Ok(algorithm) = point.word.parse::<Algorithm>() else { return Ok(f64::NAN) };
    let (num_ranks, len) = (at.count("ranks"), at.count("steps"));
    let mut random = point.random();
    let mut draw = || {
        let power = (random.uniform() - 0.5) * at.number("spread");
        (random.normal() * powf(10.0, power)) as f32
    };
    // As the simulation draws them: number by number, in each by rank.
    let numbers: Vec<f32> = (0..len * num_ranks).map(|_| draw()).collect();
    let turns = cluster::turns(point.world, (num_ranks, &cluster::even(OPEN)), 1, |rank| {
        let own = || -> Vec<f32> {
            numbers.iter().copied().skip(rank.index()).step_by(num_ranks).collect()
        };
        let (mut ours, mut canonical) = (own(), own());
        rank.comm.using(algorithm).all_reduce(&mut ours, Reduction::Sum)?;
        rank.comm.using(Algorithm::Rabenseifner).all_reduce(&mut canonical, Reduction::Sum)?;
        let differs = |(a, b): &(&f32, &f32)| a.to_bits() != b.to_bits();
        Ok(ours.iter().zip(&canonical).filter(differs).count())
    })?;
    Ok(turns[0].1[0] as f64 / len as f64)
}
