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
/// Nodes of a rack where the network does not say, and failures of a rack in a day.
const RACK: u64 = 16;
const RACK_FAILURES: f64 = 2e-4;
/// Hours until a rack's power or switch is mended.
const RACK_REPAIR: f64 = 4.0;
/// Bins of an interval, and failures from which on a bell curve will do.
const BINS: usize = 24;
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
        Topology::Full | Topology::Torus { .. } => RACK,
    };
    let racks = cluster.nodes().div_ceil(rack.max(1)) as f64;
    let rack_failures = if racks > 1.0 { racks * RACK_FAILURES * bill.days } else { 0.0 };
    let node_failures = bill.failures;
    // The rate is a mean over good nodes and bad ones.
    let good = rate / (1.0 - BAD_NODES + BAD_NODES * BAD_FACTOR);
    let with_one = rate * nodes + good * (BAD_FACTOR - 1.0);
    let interval = bill.checkpoint_interval_seconds / 3600.0;
    let restart = RESTART / 3600.0;
    let nodes_lost = Lost::new(node_failures, restart, interval);
    let racks_lost = Lost::new(rack_failures, restart + RACK_REPAIR, interval);
    let both = nodes_lost.and(&racks_lost);
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

/// The distribution of a sum of a Poisson number of parts between `least` and `least + width`.
struct Lost {
    /// Hours of a bin.
    bin: f64,
    /// Chances of each bin.
    chances: Vec<f64>,
}

impl Lost {
    fn new(count: f64, least: f64, width: f64) -> Self {
        let bin = width.max(1e-6) / BINS as f64;
        let mean = count * (least + width / 2.0);
        let spread = (count * ((least + width / 2.0).powi(2) + width * width / 12.0)).sqrt();
        let bins = ((mean + 6.0 * spread) / bin).ceil() as usize + 2 * BINS + 1;
        let chances = if count > MANY || bins > 20_000 {
            bell(mean / bin, spread / bin, bins.min(200_000))
        } else {
            let first = (least / bin).round() as usize;
            compound(count, first.max(1), bins)
        };
        Self { bin, chances }
    }

    /// The sum of two, in bins of the first.
    fn and(&self, other: &Self) -> Self {
        let end = |lost: &Self| lost.bin * lost.chances.len() as f64;
        let bins = ((end(self) + end(other)) / self.bin).ceil() as usize + 2;
        let mut chances = vec![0.0; bins];
        for (index, chance) in other.chances.iter().enumerate().filter(|(_, c)| **c > 1e-12) {
            let shift = (index as f64 * other.bin / self.bin).round() as usize;
            for (own, own_chance) in self.chances.iter().enumerate() {
                chances[(own + shift).min(bins - 1)] += chance * own_chance;
            }
        }
        Self { bin: self.bin, chances }
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

/// Panjer's recursion: parts take any of `BINS` bins from `first` on, all equally likely.
fn compound(count: f64, first: usize, bins: usize) -> Vec<f64> {
    let each = 1.0 / BINS as f64;
    let mut chances = vec![0.0; bins];
    chances[0] = (-count).exp();
    for sum in 1..bins {
        let parts: f64 = (first..(first + BINS).min(sum + 1))
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
        for count in [0.3, 5.0, 60.0, 900.0] {
            let lost = Lost::new(count, 0.5, 2.0);
            let sum: f64 = lost.chances.iter().sum();
            assert!((sum - 1.0).abs() < 1e-3, "{count}: {sum}");
            let bins = lost.chances.iter().enumerate();
            let mean: f64 = bins.map(|(bin, chance)| bin as f64 * lost.bin * chance).sum();
            assert!((mean / (count * 1.5) - 1.0).abs() < 0.04, "{count}: {mean}");
        }
    }

    #[test]
    fn without_failures_nothing_is_lost() {
        let lost = Lost::new(0.0, 0.5, 2.0);
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
