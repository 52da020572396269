//! Distribution of the time that a run loses to failures.
//!
//! Node failures arrive at random, so the lost time is a compound Poisson sum: each failure costs
//! the work since the last checkpoint (uniform over an interval) and a restart. Panjer's recursion
//! (Panjer 1981) computes the distribution bin by bin, exact up to the bin width; with hundreds of
//! failures a normal distribution is close enough. Two effects lengthen the tail: a few bad nodes
//! fail many times as often as the rest, and racks fail as a unit, which no spare node replaces.

use crate::bill::{Bill, RESTART};
use crate::hardware::{Cluster, Topology};
use serde::Serialize;

/// Share of bad nodes, and their failure rate relative to good ones. Kokolis et al. 2024 report 1.2
/// % of nodes behind 13 % of a day's failed jobs.
const BAD_NODES: f64 = 0.012;
const BAD_FACTOR: f64 = 12.3;
/// Devices per rack where the network does not say, and failures of a rack per day.
const RACK: u64 = 128;
const RACK_FAILURES: f64 = 2e-4;
/// Hours to repair a rack's power or switch.
const RACK_REPAIR: f64 = 4.0;
/// Bins per checkpoint interval, the most bins in all, and the number of failures above which a
/// normal distribution is used.
const BINS: f64 = 24.0;
const MAX_BINS: f64 = 8192.0;
const NORMAL_ABOVE: f64 = 200.0;

/// Time a run may lose.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Risk {
    /// Expected node failures, bad nodes included.
    pub node_failures: f64,
    /// Mean hours between failures with one bad node more than average.
    pub hours_between_failures_with_a_bad_node: f64,
    /// Expected failures of whole racks.
    pub rack_failures: f64,
    /// Expected lost hours.
    pub expected_lost_hours: f64,
    /// Median of the lost hours.
    pub median_lost_hours: f64,
    /// 90th percentile of the lost hours.
    pub lost_hours_one_in_ten: f64,
    /// 99th percentile of the lost hours.
    pub lost_hours_one_in_a_hundred: f64,
    /// Probability of losing more than a day.
    pub chance_to_lose_a_day: f64,
    /// Threshold of `chance_above_threshold`, in hours.
    pub threshold_hours: f64,
    /// Probability of losing more than `threshold_hours`.
    pub chance_above_threshold: f64,
}

/// Distribution of the time lost by a run with this bill, and the probability of losing more than
/// `hours`.
pub fn risk(cluster: &Cluster, bill: &Bill, hours: f64) -> Risk {
    let nodes = cluster.nodes() as f64;
    let rate = cluster.failures_per_node_day;
    let rack = match cluster.network.topology {
        Topology::Racks { nodes_per_rack, .. } => nodes_per_rack,
        Topology::Full | Topology::Torus { .. } => RACK / cluster.per_node,
    };
    let racks = cluster.nodes().div_ceil(rack.max(1)) as f64;
    let rack_failures = if racks > 1.0 { racks * RACK_FAILURES * bill.days } else { 0.0 };
    let node_failures = bill.failures;
    // The published rate is a mean over good and bad nodes.
    let good = rate / (1.0 - BAD_NODES + BAD_NODES * BAD_FACTOR);
    let with_one = rate * nodes + good * (BAD_FACTOR - 1.0);
    let interval = bill.checkpoint_interval_seconds / 3600.0;
    let restart = RESTART / 3600.0;
    let (of_nodes, of_racks) = (
        LossSource { count: node_failures, min_hours: restart, spread_hours: interval },
        LossSource {
            count: rack_failures,
            min_hours: restart + RACK_REPAIR,
            spread_hours: interval,
        },
    );
    let both = LossDistribution::of(&[of_nodes, of_racks]);
    Risk {
        node_failures,
        hours_between_failures_with_a_bad_node: 24.0 / with_one,
        rack_failures,
        expected_lost_hours: node_failures * (restart + interval / 2.0)
            + rack_failures * (restart + RACK_REPAIR + interval / 2.0),
        median_lost_hours: both.quantile(0.5),
        lost_hours_one_in_ten: both.quantile(0.9),
        lost_hours_one_in_a_hundred: both.quantile(0.99),
        chance_to_lose_a_day: both.chance_above(24.0),
        threshold_hours: hours,
        chance_above_threshold: both.chance_above(hours),
    }
}

/// Random number of losses from one source, each uniform between `min_hours` and
/// `min_hours + spread_hours`.
#[derive(Clone, Copy)]
struct LossSource {
    /// Expected number of losses.
    count: f64,
    min_hours: f64,
    spread_hours: f64,
}

impl LossSource {
    fn mean(&self) -> f64 {
        self.count * (self.min_hours + self.spread_hours / 2.0)
    }

    fn std_dev(&self) -> f64 {
        let square = (self.min_hours + self.spread_hours / 2.0).powi(2)
            + self.spread_hours * self.spread_hours / 12.0;
        (self.count * square).sqrt()
    }

    /// Bound that the sum practically never exceeds.
    fn upper_bound(&self) -> f64 {
        self.mean() + 6.0 * self.std_dev() + 2.0 * (self.min_hours + self.spread_hours)
    }

    /// Probability of each sum, in bins.
    fn probabilities(&self, bin: f64) -> Vec<f64> {
        let bins = (self.upper_bound() / bin).ceil() as usize + 1;
        if self.count > NORMAL_ABOVE {
            return normal(self.mean() / bin, self.std_dev() / bin, bins);
        }
        let [first, wide] =
            [self.min_hours, self.spread_hours].map(|hours| (hours / bin).round() as usize);
        compound_poisson(self.count, first.max(1), wide.max(1), bins)
    }
}

/// Distribution of the lost time.
struct LossDistribution {
    /// Width of a bin in hours.
    bin: f64,
    /// Probability of each bin.
    probabilities: Vec<f64>,
}

impl LossDistribution {
    /// Sum of independent sources.
    fn of(sources: &[LossSource]) -> Self {
        let min_hours =
            sources.iter().map(|source| source.spread_hours / BINS).fold(f64::INFINITY, f64::min);
        let upper_bound: f64 = sources.iter().map(LossSource::upper_bound).sum();
        let bin = min_hours.max(upper_bound / MAX_BINS).max(1e-6);
        let one = |sum: Vec<f64>, source: &LossSource| convolve(&sum, &source.probabilities(bin));
        Self { bin, probabilities: sources.iter().fold(vec![1.0], one) }
    }

    /// Smallest loss that is not exceeded with this probability.
    fn quantile(&self, probability: f64) -> f64 {
        let mut sum = 0.0;
        for (index, part) in self.probabilities.iter().enumerate() {
            sum += part;
            if sum >= probability {
                return index as f64 * self.bin;
            }
        }
        self.bin * self.probabilities.len() as f64
    }

    fn chance_above(&self, hours: f64) -> f64 {
        let bins = (hours / self.bin).ceil() as usize;
        // An empty sum is a negative zero.
        self.probabilities.iter().skip(bins).sum::<f64>().abs().min(1.0)
    }
}

/// Distribution of the sum of two independent losses.
fn convolve(one: &[f64], other: &[f64]) -> Vec<f64> {
    let mut probabilities = vec![0.0; one.len() + other.len()];
    for (shift, probability) in
        other.iter().enumerate().filter(|(_, probability)| **probability > 1e-12)
    {
        for (sum, own) in probabilities[shift..].iter_mut().zip(one) {
            *sum += probability * own;
        }
    }
    probabilities
}

/// Panjer's recursion for losses uniform over `wide` bins from `first` on.
fn compound_poisson(count: f64, first: usize, wide: usize, bins: usize) -> Vec<f64> {
    let each = 1.0 / wide as f64;
    let mut probabilities = vec![0.0; bins];
    probabilities[0] = (-count).exp();
    for sum in 1..bins {
        let parts: f64 = (first..(first + wide).min(sum + 1))
            .map(|part| part as f64 * each * probabilities[sum - part])
            .sum();
        probabilities[sum] = count / sum as f64 * parts;
    }
    probabilities
}

/// Normal distribution in bins.
fn normal(mean: f64, std_dev: f64, bins: usize) -> Vec<f64> {
    let weight = |bin: usize| (-0.5 * ((bin as f64 - mean) / std_dev.max(1e-9)).powi(2)).exp();
    let mut probabilities: Vec<f64> = (0..bins).map(weight).collect();
    let sum: f64 = probabilities.iter().sum();
    if sum > 0.0 {
        for probability in &mut probabilities {
            *probability /= sum;
        }
    }
    probabilities
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bill;
    use crate::scenario::Scenario;

    #[test]
    fn probabilities_sum_to_one_and_their_mean_is_the_expected_loss() {
        for count in [0.3, 5.0, 60.0, 900.0, 3e4, 1e6] {
            let losses =
                LossDistribution::of(&[LossSource { count, min_hours: 0.5, spread_hours: 2.0 }]);
            let sum: f64 = losses.probabilities.iter().sum();
            assert!((sum - 1.0).abs() < 1e-3, "{count}: {sum}");
            let bins = losses.probabilities.iter().enumerate();
            let mean: f64 =
                bins.map(|(bin, probability)| bin as f64 * losses.bin * probability).sum();
            assert!((mean / (count * 1.5) - 1.0).abs() < 0.04, "{count}: {mean}");
            let (median, worst) = (losses.quantile(0.5), losses.quantile(0.99));
            assert!((median / mean - 1.0).abs() < 0.1 || count < 60.0, "{count}: {median}");
            assert!(worst >= median && (count > 900.0 || worst > mean), "{count}: {worst}");
        }
    }

    #[test]
    fn losses_of_several_sources_add() {
        let (one, other) = (
            LossSource { count: 30.0, min_hours: 0.2, spread_hours: 1.0 },
            LossSource { count: 2.0, min_hours: 4.2, spread_hours: 1.0 },
        );
        let both = LossDistribution::of(&[one, other]);
        let bins = both.probabilities.iter().enumerate();
        let mean: f64 = bins.map(|(bin, probability)| bin as f64 * both.bin * probability).sum();
        assert!((mean / (one.mean() + other.mean()) - 1.0).abs() < 0.03, "{mean}");
    }

    #[test]
    fn without_failures_nothing_is_lost() {
        let losses =
            LossDistribution::of(&[LossSource { count: 0.0, min_hours: 0.5, spread_hours: 2.0 }]);
        assert!(losses.quantile(0.99) <= 0.0 && losses.chance_above(0.1) <= 0.0);
    }

    #[test]
    fn the_tail_is_longer_than_the_mean_and_a_bad_node_shortens_the_time_between_failures() {
        let Scenario { model, cluster, .. } = Scenario::of("llama3-70b", "1024xh100-80gb", 1);
        let costs = bill::bill(&model, &cluster, 1e12, 4e6, 10.0);
        let half = risk(&cluster, &costs, 12.0).chance_above_threshold;
        let risk = risk(&cluster, &costs, 48.0);
        assert!(half >= risk.chance_to_lose_a_day);
        assert!(risk.chance_to_lose_a_day >= risk.chance_above_threshold);
        assert!(risk.median_lost_hours <= risk.lost_hours_one_in_ten);
        assert!(risk.lost_hours_one_in_ten < risk.lost_hours_one_in_a_hundred);
        assert!(risk.expected_lost_hours < risk.lost_hours_one_in_a_hundred);
        assert!(risk.hours_between_failures_with_a_bad_node < costs.hours_between_failures);
        assert!(risk.rack_failures > 0.0);
    }
}
