//! Size search: the smallest cluster of one device type that meets a deadline or a budget.
//!
//! The search doubles the number of devices until the best layout meets the limits. It then tries
//! every number of whole nodes below that size in increasing order: a size whose degrees divide the
//! model badly can be slower than a smaller one, so bisection would miss sizes.

use crate::Calibration;
use crate::bill::Bill;
use crate::hardware::{Cluster, Device};
use crate::model::Model;
use crate::scenario::{DEFAULT_RESERVE, Scenario};
use crate::search::Candidate;
use crate::search::fastest::{fastest_within, min_step_seconds};
use crate::search::sensitivity::{SPREAD, worsen};
use crate::time::cluster::loading_seconds;

/// Largest number of devices in the search.
pub const MAX_DEVICES: u64 = 32_768;
/// Share of the run that checkpoints may take.
pub const MAX_CHECKPOINT_SHARE: f64 = 0.01;
/// The batch is rounded to a multiple of about 1/16 of itself, so that many data-parallel degrees
/// divide it.
const BATCH_GRANULES: u64 = 16;
/// Network bandwidth per device, GB/s: from one 100 Gb/s NIC per node to one 400 Gb/s NIC per
/// device.
const NETWORKS_GBPS: [f64; 6] = [1.5625, 3.125, 6.25, 12.5, 25.0, 50.0];
/// Slowdown that a sufficient network may cause where only the number of devices is fixed.
const MAX_SLOWDOWN: f64 = 1.05;
/// Bisection steps of the search for a storage bandwidth.
const NUM_BISECTIONS: u32 = 60;

/// Training run and limits of a size search.
#[derive(Debug, Clone)]
pub struct SizeSearch {
    /// The model.
    pub model: Model,
    /// Device type of the cluster.
    pub device: Device,
    /// Constants of the device type.
    pub calibration: Calibration,
    /// Tokens of the whole run.
    pub tokens: f64,
    /// Requested tokens per step.
    pub batch_tokens: u64,
    /// Deadline in days.
    pub days: Option<f64>,
    /// Budget in dollars.
    pub dollars: Option<f64>,
    /// A fixed number of devices, or `None` to search.
    pub devices: Option<u64>,
    /// Share by which every input is worse than published; negative for better.
    pub worse: f64,
}

/// One cluster size with its best layout.
#[derive(Debug)]
pub struct ClusterSize {
    /// The model on this many devices.
    pub scenario: Scenario,
    /// The best layout.
    pub best: Candidate,
    /// Cost of the run.
    pub bill: Bill,
    /// Whether it meets the limits.
    pub meets_limits: bool,
    /// Whether the size lies between two doublings.
    pub is_between: bool,
}

/// Sizes that the search tried.
#[derive(Debug, Default)]
pub struct SizeSearchResult {
    /// Sizes with a layout, in the order of the search; only the last one may meet the limits.
    pub sizes: Vec<ClusterSize>,
    /// Number of sizes between two doublings without a layout that is fast enough.
    pub num_too_slow: usize,
}

/// Smallest bandwidths that meet the limits.
#[derive(Debug, Clone, Copy)]
pub struct SufficientBandwidth {
    /// Network bandwidth per device, GB/s.
    pub network_gbps: f64,
    /// Storage bandwidth of the whole cluster, GB/s.
    pub storage_gbps: f64,
}

impl ClusterSize {
    /// Number of devices.
    pub const fn devices(&self) -> u64 {
        self.scenario.cluster.devices
    }
}

impl SizeSearch {
    /// Global batch: the requested one, rounded to a number that many degrees divide.
    fn batch(&self) -> u64 {
        let requested = ((self.batch_tokens + self.model.context / 2) / self.model.context).max(1);
        let granule = (requested / BATCH_GRANULES).max(1).next_power_of_two();
        (requested + granule / 2) / granule * granule
    }

    /// The run on `devices` devices. The batch exceeds the requested one only where no layout could
    /// divide it among so many devices.
    fn scenario(&self, devices: u64) -> Scenario {
        let mut cluster = Cluster::of(self.device, devices);
        worsen(&mut cluster, self.worse);
        let mut scenario = Scenario {
            model: self.model.clone(),
            cluster,
            batch: self.batch(),
            tokens: self.tokens,
            calibration: self.calibration.clone(),
            layout: None,
            reserve: DEFAULT_RESERVE,
        };
        let usual = scenario.batch;
        while min_step_seconds(&scenario.workload()).is_none() {
            if scenario.batch > devices {
                scenario.batch = usual;
                break;
            }
            scenario.batch *= 2;
        }
        scenario
    }

    /// Whether a run of so many days meets the deadline.
    pub fn meets_deadline(&self, days: f64) -> bool {
        self.days.is_none_or(|most| days <= most)
    }

    /// Whether a run of so many dollars is within the budget.
    pub fn meets_budget(&self, dollars: f64) -> bool {
        self.dollars.is_none_or(|most| dollars <= most)
    }

    /// Whether there is neither a deadline nor a budget.
    pub const fn has_no_limits(&self) -> bool {
        self.days.is_none() && self.dollars.is_none()
    }

    fn meets_limits(&self, bill: &Bill) -> bool {
        self.meets_deadline(bill.days) && self.meets_budget(bill.dollars)
    }

    /// Longest step that meets the deadline, or the budget where there is no deadline.
    fn max_step_seconds(&self, scenario: &Scenario) -> f64 {
        let steps = self.tokens / (scenario.batch * self.model.context) as f64;
        let hour = scenario.cluster.devices as f64 * scenario.cluster.dollars_per_device_hour;
        let hours = match (self.days, self.dollars) {
            (Some(days), _) => 24.0 * days,
            (None, Some(dollars)) => dollars / hour,
            (None, None) => f64::INFINITY,
        };
        3600.0 * hours / steps
    }

    /// The best layout on `devices` devices, if one fits.
    fn best_on(&self, devices: u64) -> Option<ClusterSize> {
        self.best_within(self.scenario(devices), f64::INFINITY)
    }

    /// The best layout whose step takes at most `seconds`.
    fn best_within(&self, scenario: Scenario, seconds: f64) -> Option<ClusterSize> {
        let best = fastest_within(&scenario.workload(), seconds)?;
        let bill = scenario.bill_on(&scenario.cluster, best.step.seconds);
        let meets_limits = self.meets_limits(&bill);
        Some(ClusterSize { scenario, best, bill, meets_limits, is_between: false })
    }

    /// Tries sizes up to the smallest one that meets the limits, which is then the last.
    pub fn run(&self) -> SizeSearchResult {
        match self.devices {
            Some(devices) => {
                let sizes = self.best_on(devices).into_iter().collect();
                SizeSearchResult { sizes, num_too_slow: 0 }
            }
            None => self.search_sizes(),
        }
    }

    /// Doubles the size up to the first one that meets the deadline, then fills the last gap.
    fn search_sizes(&self) -> SizeSearchResult {
        let (mut found, mut was_in_time) = (SizeSearchResult::default(), false);
        let (mut below, mut devices) = (0, self.device.per_node);
        while devices <= MAX_DEVICES {
            if let Some(size) = self.best_on(devices) {
                let is_first = self.meets_deadline(size.bill.days) && !was_in_time;
                if is_first || size.meets_limits {
                    was_in_time = true;
                    if self.search_between(below, devices, &mut found) {
                        return found;
                    }
                }
                let meets_limits = size.meets_limits;
                found.sizes.push(size);
                if meets_limits {
                    return found;
                }
            }
            (below, devices) = (devices, 2 * devices);
        }
        found
    }

    /// Tries every number of whole nodes between two sizes; returns whether one meets the limits.
    fn search_between(&self, below: u64, above: u64, found: &mut SizeSearchResult) -> bool {
        let each = self.device.per_node;
        for nodes in below / each + 1..above / each {
            let scenario = self.scenario(nodes * each);
            let limit = self.max_step_seconds(&scenario);
            // Most sizes have no layout at all, or none whose matrix products alone are in time.
            if min_step_seconds(&scenario.workload()).is_none_or(|least| least > limit) {
                continue;
            }
            let Some(size) = self.best_within(scenario, limit) else {
                found.num_too_slow += 1;
                continue;
            };
            let meets_limits = size.meets_limits;
            found.sizes.push(ClusterSize { is_between: true, ..size });
            if meets_limits {
                return true;
            }
        }
        false
    }

    /// Approximate smallest sizes with all inputs better and with all inputs worse than published,
    /// `None` where no size meets the limits. `smallest` is the size with published inputs. The
    /// resolution is a sixteenth to an eighth of it.
    pub fn devices_range(&self, smallest: u64) -> [Option<u64>; 2] {
        let each = self.device.per_node;
        let nodes = smallest / each;
        let step = (nodes / 8).max(1);
        let step = if step.is_power_of_two() { step } else { step.next_power_of_two() / 2 };
        let suffices = |worse: f64, nodes: u64| {
            let inputs = Self { worse, ..self.clone() };
            let scenario = inputs.scenario(nodes * each);
            let limit = inputs.max_step_seconds(&scenario);
            inputs.best_within(scenario, limit).is_some_and(|size| size.meets_limits)
        };
        let fewer = (1..nodes).filter(|fewer| fewer.is_multiple_of(step));
        let better = fewer.into_iter().find(|nodes| suffices(-SPREAD, *nodes)).unwrap_or(nodes);
        let mut more = nodes;
        while more * each <= MAX_DEVICES && !suffices(SPREAD, more) {
            let step = step * (more / nodes).next_power_of_two();
            more = (more + 1).next_multiple_of(step);
        }
        [Some(better * each), (more * each <= MAX_DEVICES).then_some(more * each)]
    }

    /// The slowest common network (at most the device's own) and the slowest storage with which a
    /// size meets the limits. The network is re-planned with its own best layout; storage must also
    /// keep checkpoints within [`MAX_CHECKPOINT_SHARE`]. Without limits, the network may slow the
    /// run down by 5 %.
    pub fn sufficient_bandwidth(&self, size: &ClusterSize) -> SufficientBandwidth {
        let own = size.scenario.cluster.network.device_gbps;
        let max_days =
            if self.has_no_limits() { MAX_SLOWDOWN * size.bill.days } else { f64::INFINITY };
        let slower: Vec<f64> = NETWORKS_GBPS.into_iter().filter(|gbps| *gbps < own).collect();
        let on = |gbps: f64| {
            let mut scenario = size.scenario.clone();
            scenario.cluster.network.device_gbps = gbps;
            let limit = self.max_step_seconds(&scenario);
            let seconds = fastest_within(&scenario.workload(), limit)?.step.seconds;
            let bill = scenario.bill_on(&scenario.cluster, seconds);
            (self.meets_limits(&bill) && bill.days <= max_days).then_some((scenario, seconds))
        };
        // Sufficiency is monotone in bandwidth, so bisection finds the first sufficient network.
        let first = slower.partition_point(|gbps| on(*gbps).is_none());
        let (scenario, seconds) = slower
            .get(first)
            .and_then(|gbps| on(*gbps))
            .unwrap_or_else(|| (size.scenario.clone(), size.best.step.seconds));
        let suffices = |gbps: f64| {
            let cluster = Cluster { storage_gbps: gbps, ..scenario.cluster.clone() };
            // Storage also feeds the data loader.
            let loading = loading_seconds(&scenario.model, &cluster, scenario.batch);
            let bill = scenario.bill_on(&cluster, seconds.max(loading));
            let share = bill.checkpoint_seconds / bill.checkpoint_interval_seconds;
            self.meets_limits(&bill) && share <= MAX_CHECKPOINT_SHARE
        };
        let (mut low, mut high) = (1e-6_f64, 1e6_f64);
        for _ in 0..NUM_BISECTIONS {
            let middle = (low * high).sqrt();
            if suffices(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        let network_gbps = scenario.cluster.network.device_gbps;
        SufficientBandwidth { network_gbps, storage_gbps: high }
    }

    /// Tokens per step of a larger batch with which the largest size meets the limits.
    pub fn larger_batch_tokens(&self) -> Option<u64> {
        let each = self.device.per_node;
        let devices = self.devices.unwrap_or(MAX_DEVICES / each * each);
        (1..=4).map(|doublings| self.batch_tokens << doublings).find(|tokens| {
            let larger = Self { batch_tokens: *tokens, ..self.clone() };
            larger.best_on(devices).is_some_and(|size| size.meets_limits)
        })
    }

    /// The next larger number of devices on which a layout fits.
    pub fn next_size_that_fits(&self, devices: u64) -> Option<u64> {
        let each = self.device.per_node;
        let nodes = devices / each + 1;
        let next = (nodes..nodes + 8).map(|nodes| nodes * each);
        let doubled = std::iter::successors(Some(each), |devices| Some(2 * devices));
        let larger =
            doubled.skip_while(|size| *size <= devices).take_while(|size| *size <= MAX_DEVICES);
        next.chain(larger).find(|size| self.best_on(*size).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::preset;

    fn search(batch_tokens: u64) -> SizeSearch {
        let device = Device::named("a100-80gb").expect("it is one");
        SizeSearch {
            model: preset("gpt3-6.7b").expect("it is one"),
            device,
            calibration: Calibration::of(device.calibration).expect("it is there"),
            tokens: 134e9,
            batch_tokens,
            days: Some(20.0),
            dollars: None,
            devices: None,
            worse: 0.0,
        }
    }

    #[test]
    fn batches_stay_close_to_the_request_and_grow_only_where_degrees_demand_it() {
        // 1,465 sequences round to 1,408, which 128 data-parallel replicas divide.
        assert_eq!([4_194_304, 3_000_000, 1].map(|tokens| search(tokens).batch()), [2048, 1408, 1]);
        for sequences in 1..5000 {
            let off = search(2048 * sequences).batch().abs_diff(sequences);
            assert!(off * 16 <= sequences, "{sequences} by {off}");
        }
        // One sequence allows TP8 CP8 PP32 = 2048 devices, and no more.
        assert_eq!([2048, 4096].map(|devices| search(1).scenario(devices).batch), [1, 2]);
        // A large prime divides nothing, whatever the batch.
        assert_eq!(search(4_194_304).scenario(7919).batch, 2048);
    }

    #[test]
    fn no_smaller_size_meets_the_limits() {
        let search = search(4_194_304);
        let all = search.run().sizes;
        let (smallest, failed) = all.split_last().expect("some sizes are tried");
        assert!(smallest.meets_limits && failed.iter().all(|size| !size.meets_limits));
        let nodes = smallest.scenario.cluster.nodes();
        assert!(!nodes.is_power_of_two(), "{nodes} nodes: try other days");
        for nodes in 1..nodes {
            let size = search.best_on(8 * nodes);
            assert!(size.is_none_or(|size| !size.meets_limits), "{nodes} nodes meet it too");
        }
    }
}
