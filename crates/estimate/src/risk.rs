//! What failures may cost beyond what they cost on average.
//!
//! Failures of nodes come at random moments, so a run's lost time is a sum of a random number of
//! random parts: what was computed since the last checkpoint (anything up to an interval) and a
//! restart. Its distribution is computed bin by bin (Panjer's recursion), which is exact up to the
//! width of a bin; long runs with hundreds of failures are close to a bell curve. Two things make
//! the tail longer than that: a few bad nodes fail many times as often as others, and racks fail as
//! one, which no spare node mends.

use crate::bill::{Bill, RESTART};
use crate::hardware::{Cluster, Topology};
use serde::Serialize;

/// Share of nodes that are bad, and how many times as often as others they fail: published of a
/// large cluster are 1.2 % of nodes behind 13 % of a day's failed jobs.
const BAD_NODES: f64 = 0.012;
const BAD_FACTOR: f64 = 12.3;
/// Devices of a rack where the network does not say, and failures of a rack in a day.
const RACK: u64 = 128;
const RACK_FAILURES: f64 = 2e-4;
/// Hours until a rack's power or switch is mended.
const RACK_REPAIR: f64 = 4.0;
/// Bins of an interval, or of everything that may be lost where that is too much for so many; and
/// failures from which on a bell curve will do.
const BINS: f64 = 24.0;
const MOST_BINS: f64 = 8192.0;
const MANY: f64 = 200.0;

/// What a run may lose.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Risk {
    /// Failures of nodes to expect, bad ones among them.
    pub node_failures: f64,
    /// Hours between failures if one node more than usual is bad.
    pub hours_between_failures_with_a_bad_node: f64,
    /// Failures of whole racks to expect.
    pub rack_failures: f64,
    /// Hours that are lost on average.
    pub expected_lost_hours: f64,
    /// Hours that every second run loses more than.
    pub median_lost_hours: f64,
    /// Hours that one run in ten loses more than.
    pub lost_hours_one_in_ten: f64,
    /// Hours that one run in a hundred loses more than.
    pub lost_hours_one_in_a_hundred: f64,
    /// The chance to lose more than a day.
    pub chance_to_lose_a_day: f64,
    /// Hours that were asked about.
    pub asked_hours: f64,
    /// The chance to lose more than them.
    pub chance_to_lose_more: f64,
}

/// What a run with this bill may lose, and the chance that it is more than so many hours.
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
    // The rate is a mean over good nodes and bad ones.
    let good = rate / (1.0 - BAD_NODES + BAD_NODES * BAD_FACTOR);
    let with_one = rate * nodes + good * (BAD_FACTOR - 1.0);
    let interval = bill.checkpoint_interval_seconds / 3600.0;
    let restart = RESTART / 3600.0;
    let (of_nodes, of_racks) = (
        Losses { count: node_failures, least: restart, width: interval },
        Losses { count: rack_failures, least: restart + RACK_REPAIR, width: interval },
    );
    let both = Lost::of(&[of_nodes, of_racks]);
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
        asked_hours: hours,
        chance_to_lose_more: both.chance_above(hours),
    }
}

/// A random number of losses of one kind, each between `least` and `least + width` hours.
#[derive(Clone, Copy)]
struct Losses {
    /// How many to expect.
    count: f64,
    least: f64,
    width: f64,
}

impl Losses {
    fn mean(&self) -> f64 {
        self.count * (self.least + self.width / 2.0)
    }

    fn spread(&self) -> f64 {
        let square = (self.least + self.width / 2.0).powi(2) + self.width * self.width / 12.0;
        (self.count * square).sqrt()
    }

    /// More than they ever come to.
    fn most(&self) -> f64 {
        self.mean() + 6.0 * self.spread() + 2.0 * (self.least + self.width)
    }

    /// Chances of every sum, in bins.
    fn chances(&self, bin: f64) -> Vec<f64> {
        let bins = (self.most() / bin).ceil() as usize + 1;
        if self.count > MANY {
            return bell(self.mean() / bin, self.spread() / bin, bins);
        }
        let [first, wide] = [self.least, self.width].map(|hours| (hours / bin).round() as usize);
        compound(self.count, first.max(1), wide.max(1), bins)
    }
}

/// The distribution of what is lost.
struct Lost {
    /// Hours of a bin.
    bin: f64,
    /// Chances of each bin.
    chances: Vec<f64>,
}

impl Lost {
    /// Of losses of several kinds together.
    fn of(kinds: &[Losses]) -> Self {
        let least = kinds.iter().map(|kind| kind.width / BINS).fold(f64::INFINITY, f64::min);
        let most: f64 = kinds.iter().map(Losses::most).sum();
        let bin = least.max(most / MOST_BINS).max(1e-6);
        let one = |sum: Vec<f64>, kind: &Losses| convolved(&sum, &kind.chances(bin));
        Self { bin, chances: kinds.iter().fold(vec![1.0], one) }
    }

    /// The least that is not exceeded with this chance.
    fn quantile(&self, chance: f64) -> f64 {
        let mut sum = 0.0;
        for (index, part) in self.chances.iter().enumerate() {
            sum += part;
            if sum >= chance {
                return index as f64 * self.bin;
            }
        }
        self.bin * self.chances.len() as f64
    }

    fn chance_above(&self, hours: f64) -> f64 {
        let bins = (hours / self.bin).ceil() as usize;
        // The sum of none is a negative zero.
        self.chances.iter().skip(bins).sum::<f64>().abs().min(1.0)
    }
}

/// Chances of the sum of two.
fn convolved(one: &[f64], other: &[f64]) -> Vec<f64> {
    let mut chances = vec![0.0; one.len() + other.len()];
    for (shift, chance) in other.iter().enumerate().filter(|(_, chance)| **chance > 1e-12) {
        for (sum, own) in chances[shift..].iter_mut().zip(one) {
            *sum += chance * own;
        }
    }
    chances
}

/// Panjer's recursion: parts take any of `wide` bins from `first` on, all equally likely.
fn compound(count: f64, first: usize, wide: usize, bins: usize) -> Vec<f64> {
    let each = 1.0 / wide as f64;
    let mut chances = vec![0.0; bins];
    chances[0] = (-count).exp();
    for sum in 1..bins {
        let parts: f64 = (first..(first + wide).min(sum + 1))
            .map(|part| part as f64 * each * chances[sum - part])
            .sum();
        chances[sum] = count / sum as f64 * parts;
    }
    chances
}

/// A bell curve in bins.
fn bell(mean: f64, spread: f64, bins: usize) -> Vec<f64> {
    let weight = |bin: usize| (-0.5 * ((bin as f64 - mean) / spread.max(1e-9)).powi(2)).exp();
    let mut chances: Vec<f64> = (0..bins).map(weight).collect();
    let sum: f64 = chances.iter().sum();
    if sum > 0.0 {
        for chance in &mut chances {
            *chance /= sum;
        }
    }
    chances
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bill;
    use crate::hardware::named;
    use crate::model::preset;

    #[test]
    fn chances_add_up_and_their_mean_is_the_expected_loss() {
        for count in [0.3, 5.0, 60.0, 900.0, 3e4, 1e6] {
            let lost = Lost::of(&[Losses { count, least: 0.5, width: 2.0 }]);
            let sum: f64 = lost.chances.iter().sum();
            assert!((sum - 1.0).abs() < 1e-3, "{count}: {sum}");
            let bins = lost.chances.iter().enumerate();
            let mean: f64 = bins.map(|(bin, chance)| bin as f64 * lost.bin * chance).sum();
            assert!((mean / (count * 1.5) - 1.0).abs() < 0.04, "{count}: {mean}");
            let (median, worst) = (lost.quantile(0.5), lost.quantile(0.99));
            assert!((median / mean - 1.0).abs() < 0.1 || count < 60.0, "{count}: {median}");
            assert!(worst >= median && (count > 900.0 || worst > mean), "{count}: {worst}");
        }
    }

    #[test]
    fn kinds_of_losses_add_up() {
        let (one, other) = (
            Losses { count: 30.0, least: 0.2, width: 1.0 },
            Losses { count: 2.0, least: 4.2, width: 1.0 },
        );
        let both = Lost::of(&[one, other]);
        let bins = both.chances.iter().enumerate();
        let mean: f64 = bins.map(|(bin, chance)| bin as f64 * both.bin * chance).sum();
        assert!((mean / (one.mean() + other.mean()) - 1.0).abs() < 0.03, "{mean}");
    }

    #[test]
    fn without_failures_nothing_is_lost() {
        let lost = Lost::of(&[Losses { count: 0.0, least: 0.5, width: 2.0 }]);
        assert!(lost.quantile(0.99) <= 0.0 && lost.chance_above(0.1) <= 0.0);
    }

    #[test]
    fn the_tail_is_longer_than_the_mean_and_a_bad_node_shortens_the_time_between_failures() {
        let cluster = named("1024xh100-80gb").expect("a cluster");
        let model = preset("llama3-70b").expect("it is one");
        let costs = bill::bill(&model, &cluster, 1e12, 4e6, 10.0);
        let half = risk(&cluster, &costs, 12.0).chance_to_lose_more;
        let risk = risk(&cluster, &costs, 48.0);
        assert!(half >= risk.chance_to_lose_a_day);
        assert!(risk.chance_to_lose_a_day >= risk.chance_to_lose_more);
        assert!(risk.median_lost_hours <= risk.lost_hours_one_in_ten);
        assert!(risk.lost_hours_one_in_ten < risk.lost_hours_one_in_a_hundred);
        assert!(risk.expected_lost_hours < risk.lost_hours_one_in_a_hundred);
        assert!(risk.hours_between_failures_with_a_bad_node < costs.hours_between_failures);
        assert!(risk.rack_failures > 0.0);
    }
}
