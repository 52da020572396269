//! How far prices are from the truth, where algorithms were tried out.
//!
//! A price knows latencies and speeds. What ranks that share cores do to each other, how a kernel
//! cuts a message into packets and what of it a cache still holds, it does not know; algorithms
//! whose prices are close may then be far apart. So ranks *rehearse* those few, at some sizes, and
//! from then on a price is corrected by what was found: measured over priced, between two sizes by
//! the logarithm of the size.
//!
//! Sizes below the first that was tried had nothing to choose between, and their prices, which are
//! mostly latency, stand.
//!
//! An algorithm that was not tried at a size, because its price was far from the best, is taken to
//! be off by as much as the one that was off most: it is never chosen because nobody looked.

use lockstep_config::units::Bytes;

use crate::algorithm::Algorithm;
use crate::op::Op;

/// What was found of one algorithm at one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// The operation.
    pub op: Op,
    /// How it was carried out.
    pub algorithm: Algorithm,
    /// The size of the whole vector.
    pub bytes: Bytes,
    /// The time it took, over its price.
    pub factor: f64,
}

/// All that was tried; nothing of it leaves prices as they are.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rehearsal {
    /// By size, ascending.
    trials: Vec<Trial>,
}

impl Rehearsal {
    /// Nothing was tried.
    pub const NONE: Self = Self { trials: Vec::new() };

    /// From what was found, in any order.
    pub fn new(mut trials: Vec<Trial>) -> Self {
        trials.sort_by_key(|trial| trial.bytes);
        Self { trials }
    }

    /// What was tried, by size.
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// What a price is multiplied by.
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

    /// The factor at a size that was tried.
    fn at(&self, op: Op, algorithm: Algorithm, bytes: Bytes) -> f64 {
        let tried = || self.trials.iter().filter(|trial| trial.op == op && trial.bytes == bytes);
        let own = tried().find(|trial| trial.algorithm == algorithm).map(|trial| trial.factor);
        own.unwrap_or_else(|| tried().map(|trial| trial.factor).fold(0.0, f64::max))
    }
}

/// From one factor to another, by the logarithm of the size.
fn between((below, low): (Bytes, f64), (above, high): (Bytes, f64), bytes: Bytes) -> f64 {
    let log = |bytes: Bytes| (bytes.0.max(1) as f64).ln();
    let way = (log(above) - log(below)).max(f64::MIN_POSITIVE);
    low + (high - low) * ((log(bytes) - log(below)) / way).clamp(0.0, 1.0)
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
    fn between_two_sizes_a_factor_goes_by_the_logarithm_and_beyond_them_it_stays() {
        let tree = Algorithm::Tree;
        let all = Rehearsal::new(vec![trial(tree, 16 << 10, 3.0), trial(tree, 1 << 10, 1.0)]);
        let only = Rehearsal::new(vec![trial(tree, 4 << 10, 0.5)]);
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
    fn what_was_not_tried_is_off_by_as_much_as_the_worst_that_was() {
        let all = Rehearsal::new(vec![
            trial(Algorithm::Tree, 1 << 10, 1.5),
            trial(Algorithm::Butterfly, 1 << 10, 2.5),
            trial(Algorithm::Tree, 1 << 20, 1.25),
        ]);
        let factor = |algorithm, bytes| all.factor(Op::AllReduce, algorithm, Bytes(bytes));
        close(factor(Algorithm::RING, 1 << 10), 2.5);
        close(factor(Algorithm::Butterfly, 1 << 20), 1.25);
        close(factor(Algorithm::Butterfly, 1 << 15), f64::midpoint(2.5, 1.25));
        close(all.factor(Op::AllGather, Algorithm::RING, Bytes(1 << 10)), 1.0);
        close(Rehearsal::NONE.factor(Op::AllReduce, Algorithm::RING, Bytes(7)), 1.0);
    }
}
