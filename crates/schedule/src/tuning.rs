//! Measured corrections of modelled costs (autotuning).
//!
//! The cost model knows latencies and bandwidths. It does not know how ranks that share cores
//! interfere, how a kernel splits a message into packets, or which data is still cached; algorithms
//! of similar modelled cost may then differ widely. Ranks therefore measure those few algorithms at
//! some sizes, and costs are corrected by measured over modelled time, interpolated in the
//! logarithm of the size.
//!
//! Below the smallest measured size the candidates are far apart and mostly latency, so costs are
//! left as they are.
//!
//! An algorithm that was not measured at a size, because its modelled cost was far from the best,
//! takes the largest factor measured there: it is never selected for lack of a measurement.

use lockstep_config::units::Bytes;

use crate::algorithm::Algorithm;
use crate::op::Op;

/// Sizes at which ranks try algorithms, in bytes of the whole vector, ascending; sizes that would
/// take too long are left out.
pub const TRIAL_BYTES: [usize; 7] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Measurement of one algorithm at one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// Operation.
    pub op: Op,
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Size of the whole vector.
    pub bytes: Bytes,
    /// Measured over modelled time.
    pub factor: f64,
}

/// All measurements; an empty table leaves costs unchanged.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TuningTable {
    /// Measurements by ascending size.
    trials: Vec<Trial>,
}

impl TuningTable {
    /// No measurements.
    pub const NONE: Self = Self { trials: Vec::new() };

    /// Table of these measurements, in any order.
    pub fn new(mut trials: Vec<Trial>) -> Self {
        trials.sort_by_key(|trial| trial.bytes);
        Self { trials }
    }

    /// Measurements by size.
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// Correction factor of a modelled cost.
    pub fn factor(&self, op: Op, algorithm: Algorithm, bytes: Bytes) -> f64 {
        let sizes = || self.trials.iter().filter(|trial| trial.op == op).map(|trial| trial.bytes);
        let below = sizes().filter(|size| *size <= bytes).max();
        let above = sizes().filter(|size| *size >= bytes).min();
        let at = |size| self.at(op, algorithm, size);
        match (below, above) {
            (None, None) => 1.0,
            (Some(last), None) => at(last),
            (None, Some(first)) => between((Bytes(first.0 / 4), 1.0), (first, at(first)), bytes),
            (Some(below), Some(above)) => between((below, at(below)), (above, at(above)), bytes),
        }
    }

    /// Factor at a measured size.
    fn at(&self, op: Op, algorithm: Algorithm, bytes: Bytes) -> f64 {
        let tried = || self.trials.iter().filter(|trial| trial.op == op && trial.bytes == bytes);
        let own = tried().find(|trial| trial.algorithm == algorithm).map(|trial| trial.factor);
        own.unwrap_or_else(|| tried().map(|trial| trial.factor).fold(0.0, f64::max))
    }
}

/// Interpolates factors in the logarithm of the size.
fn between((below, low): (Bytes, f64), (above, high): (Bytes, f64), bytes: Bytes) -> f64 {
    let log = |bytes: Bytes| (bytes.0.max(1) as f64).ln();
    let distance = (log(above) - log(below)).max(f64::MIN_POSITIVE);
    low + (high - low) * ((log(bytes) - log(below)) / distance).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(algorithm: Algorithm, bytes: u64, factor: f64) -> Trial {
        Trial { op: Op::AllReduce, algorithm, bytes: Bytes(bytes), factor }
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found}, not {expected}");
    }

    #[test]
    fn factors_interpolate_in_the_logarithm_and_are_constant_beyond_the_ends() {
        let tree = Algorithm::Tree;
        let all = TuningTable::new(vec![trial(tree, 16 << 10, 3.0), trial(tree, 1 << 10, 1.0)]);
        let only = TuningTable::new(vec![trial(tree, 4 << 10, 0.5)]);
        let of_only = |bytes| only.factor(Op::AllReduce, tree, Bytes(bytes));
        close(of_only(64), 1.0);
        close(of_only(1 << 10), 1.0);
        close(of_only(2 << 10), 0.75);
        close(of_only(1 << 20), 0.5);
        let factor = |bytes| all.factor(Op::AllReduce, tree, Bytes(bytes));
        close(factor(1), 1.0);
        close(factor(1 << 10), 1.0);
        close(factor(4 << 10), 2.0);
        close(factor(16 << 10), 3.0);
        close(factor(1 << 30), 3.0);
    }

    #[test]
    fn an_unmeasured_algorithm_takes_the_largest_factor() {
        let all = TuningTable::new(vec![
            trial(Algorithm::Tree, 1 << 10, 1.5),
            trial(Algorithm::Butterfly, 1 << 10, 2.5),
            trial(Algorithm::Tree, 1 << 20, 1.25),
        ]);
        let factor = |algorithm, bytes| all.factor(Op::AllReduce, algorithm, Bytes(bytes));
        close(factor(Algorithm::RING, 1 << 10), 2.5);
        close(factor(Algorithm::Butterfly, 1 << 20), 1.25);
        close(factor(Algorithm::Butterfly, 1 << 15), f64::midpoint(2.5, 1.25));
        close(all.factor(Op::AllGather, Algorithm::RING, Bytes(1 << 10)), 1.0);
        close(TuningTable::NONE.factor(Op::AllReduce, Algorithm::RING, Bytes(7)), 1.0);
    }
}
