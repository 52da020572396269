//! Sizes that are tried, and the smallest that meets what is wanted.

use super::super::cluster::Asked;
use super::ranges::{OFF, worsen};
use lockstep_estimate::Calibration;
use lockstep_estimate::bill::{self, Bill};
use lockstep_estimate::hardware::{Cluster, Device};
use lockstep_estimate::model::Model;
use lockstep_estimate::search::Choice;
use lockstep_estimate::search::quickest::{least_seconds, quickest_within};
use lockstep_estimate::time::loading_seconds;

/// Largest number of devices that is tried.
pub(super) const MOST: u64 = 32_768;
/// A batch is a multiple of about this part of it, so that copies can divide it.
const PARTS: u64 = 16;
/// Shares of network cards, GB/s: a node's one card of 100 Gb/s, to one of 400 for every device.
const NETWORKS: [f64; 6] = [1.5625, 3.125, 6.25, 12.5, 25.0, 50.0];
/// Days on a network that is enough, relative to those on the device's own.
const HARDLY_MORE: f64 = 1.05;
/// Share of the time that checkpoints may take.
pub(super) const CHECKPOINTS: f64 = 0.01;
/// Halvings of a search for a bandwidth.
const HALVINGS: u32 = 60;

/// What is to be trained, on what, and how soon or how cheaply.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) model: Model,
    pub(super) device: Device,
    pub(super) calibration: Calibration,
    pub(super) tokens: f64,
    pub(super) batch_tokens: u64,
    pub(super) days: Option<f64>,
    pub(super) dollars: Option<f64>,
    pub(super) devices: Option<u64>,
    /// How much worse inputs are than said.
    pub(super) worse: f64,
}

/// A number of devices with its best layout.
pub(super) struct Tried {
    pub(super) asked: Asked,
    pub(super) choice: Choice,
    pub(super) bill: Bill,
    pub(super) meets: bool,
    /// Whether it lies between one size and twice as many.
    pub(super) is_between: bool,
}

/// Sizes that were tried.
#[derive(Default)]
pub(super) struct Found {
    /// With their best layouts; the last may meet it.
    pub(super) all: Vec<Tried>,
    /// How many more between them have no layout that is in time.
    pub(super) too_slow: usize,
}

impl Tried {
    pub(super) const fn devices(&self) -> u64 {
        self.asked.cluster.devices
    }
}

/// A network and a storage that are enough.
pub(super) struct Enough {
    pub(super) network_gbps: f64,
    pub(super) storage_gbps: f64,
}

/// What a question costs on a cluster where a step takes this long.
pub(super) fn costs(asked: &Asked, cluster: &Cluster, step_seconds: f64) -> Bill {
    let step_tokens = (asked.batch * asked.model.context) as f64;
    bill::bill(&asked.model, cluster, asked.tokens, step_tokens, step_seconds)
}

impl Wanted {
    /// Sequences of a step: the number next to what was asked for that many copies can divide.
    fn batch(&self) -> u64 {
        let asked = ((self.batch_tokens + self.model.context / 2) / self.model.context).max(1);
        let part = (asked / PARTS).max(1).next_power_of_two();
        (asked + part / 2) / part * part
    }

    /// The question of so many devices. Batches are larger than asked for only where they could not
    /// be divided among them otherwise.
    fn question(&self, devices: u64) -> Asked {
        let mut cluster = Cluster::of(self.device, devices);
        worsen(&mut cluster, self.worse);
        let mut asked = Asked {
            model: self.model.clone(),
            cluster,
            batch: self.batch(),
            tokens: self.tokens,
            calibration: self.calibration.clone(),
            layout: None,
        };
        let usual = asked.batch;
        while least_seconds(&asked.question()).is_none() {
            if asked.batch > devices {
                asked.batch = usual;
                break;
            }
            asked.batch *= 2;
        }
        asked
    }

    pub(super) fn in_time(&self, days: f64) -> bool {
        self.days.is_none_or(|most| days <= most)
    }

    pub(super) fn affordable(&self, dollars: f64) -> bool {
        self.dollars.is_none_or(|most| dollars <= most)
    }

    /// Whether only a number of devices was given.
    fn is_open(&self) -> bool {
        self.days.is_none() && self.dollars.is_none()
    }

    fn meets(&self, bill: &Bill) -> bool {
        self.in_time(bill.days) && self.affordable(bill.dollars)
    }

    /// Seconds of a step with which days (or dollars, if they alone are bounded) are just enough.
    fn limit(&self, asked: &Asked) -> f64 {
        let steps = self.tokens / (asked.batch * self.model.context) as f64;
        let hour = asked.cluster.devices as f64 * asked.cluster.dollars_per_device_hour;
        let hours = match (self.days, self.dollars) {
            (Some(days), _) => 24.0 * days,
            (None, Some(dollars)) => dollars / hour,
            (None, None) => f64::INFINITY,
        };
        3600.0 * hours / steps
    }

    /// The best layout of a number of devices, if one fits.
    fn try_one(&self, devices: u64) -> Option<Tried> {
        self.try_within(self.question(devices), f64::INFINITY)
    }

    /// The same if a step takes no longer than this.
    fn try_within(&self, asked: Asked, seconds: f64) -> Option<Tried> {
        let choice = quickest_within(&asked.question(), seconds)?;
        let bill = costs(&asked, &asked.cluster, choice.step.seconds);
        let meets = self.meets(&bill);
        Some(Tried { asked, choice, bill, meets, is_between: false })
    }

    /// Tries sizes up to the smallest that meets it, which is then the last.
    pub(super) fn find(&self) -> Found {
        match self.devices {
            Some(devices) => {
                Found { all: self.try_one(devices).into_iter().collect(), too_slow: 0 }
            }
            None => self.find_among(),
        }
    }

    /// Twice as many each time, up to the first that is in time; then every number of whole nodes
    /// below that which could do, from the smallest on: a size whose layers do not divide may be
    /// slower than a smaller one, so halving would miss some.
    fn find_among(&self) -> Found {
        let (mut found, mut was_in_time) = (Found::default(), false);
        let (mut below, mut devices) = (0, self.device.per_node);
        while devices <= MOST {
            if let Some(tried) = self.try_one(devices) {
                let is_first = self.in_time(tried.bill.days) && !was_in_time;
                if is_first || tried.meets {
                    was_in_time = true;
                    if self.between(below, devices, &mut found) {
                        return found;
                    }
                }
                let meets = tried.meets;
                found.all.push(tried);
                if meets {
                    return found;
                }
            }
            (below, devices) = (devices, 2 * devices);
        }
        found
    }

    /// Tries numbers of whole nodes between two sizes; says whether the last meets it.
    fn between(&self, below: u64, above: u64, found: &mut Found) -> bool {
        let each = self.device.per_node;
        for nodes in below / each + 1..above / each {
            let asked = self.question(nodes * each);
            let limit = self.limit(&asked);
            // Most have no layout at all, or none whose products alone are in time.
            if least_seconds(&asked.question()).is_none_or(|least| least > limit) {
                continue;
            }
            let Some(tried) = self.try_within(asked, limit) else {
                found.too_slow += 1;
                continue;
            };
            let meets = tried.meets;
            found.all.push(Tried { is_between: true, ..tried });
            if meets {
                return true;
            }
        }
        false
    }

    /// About the smallest sizes if all inputs were better and if all were worse than said, where
    /// `found` is the smallest as they are; none where nothing would do. In steps of a sixteenth to
    /// an eighth of it, which is as much as such a range is worth.
    pub(super) fn range(&self, found: u64) -> [Option<u64>; 2] {
        let each = self.device.per_node;
        let nodes = found / each;
        let step = (nodes / 8).max(1);
        let step = if step.is_power_of_two() { step } else { step.next_power_of_two() / 2 };
        let does = |worse: f64, nodes: u64| {
            let inputs = Self { worse, ..self.clone() };
            let asked = inputs.question(nodes * each);
            let limit = inputs.limit(&asked);
            inputs.try_within(asked, limit).is_some_and(|tried| tried.meets)
        };
        let fewer = (1..nodes).filter(|fewer| fewer.is_multiple_of(step));
        let better = fewer.into_iter().find(|nodes| does(-OFF, *nodes)).unwrap_or(nodes);
        let mut more = nodes;
        while more * each <= MOST && !does(OFF, more) {
            let step = step * (more / nodes).next_power_of_two();
            more = (more + 1).next_multiple_of(step);
        }
        [Some(better * each), (more * each <= MOST).then_some(more * each)]
    }

    /// The slowest usual network, up to the device's own, on which a size meets it with its best
    /// layout there (where nothing but devices was given, with hardly more days); and the slowest
    /// storage with which it still does, and checkpoints take no more than their share.
    pub(super) fn enough(&self, tried: &Tried) -> Enough {
        let own = tried.asked.cluster.network.device_gbps;
        let most = if self.is_open() { HARDLY_MORE * tried.bill.days } else { f64::INFINITY };
        let slower: Vec<f64> = NETWORKS.into_iter().filter(|gbps| *gbps < own).collect();
        let on = |gbps: f64| {
            let mut asked = tried.asked.clone();
            asked.cluster.network.device_gbps = gbps;
            let limit = self.limit(&asked);
            let seconds = quickest_within(&asked.question(), limit)?.step.seconds;
            let bill = costs(&asked, &asked.cluster, seconds);
            (self.meets(&bill) && bill.days <= most).then_some((asked, seconds))
        };
        // What is not enough is slower than everything that is.
        let first = slower.partition_point(|gbps| on(*gbps).is_none());
        let (asked, seconds) = slower
            .get(first)
            .and_then(|gbps| on(*gbps))
            .unwrap_or_else(|| (tried.asked.clone(), tried.choice.step.seconds));
        let does = |gbps: f64| {
            let cluster = Cluster { storage_gbps: gbps, ..asked.cluster.clone() };
            // It feeds steps too.
            let loading = loading_seconds(&asked.model, &cluster, asked.batch);
            let bill = costs(&asked, &cluster, seconds.max(loading));
            let share = bill.checkpoint_seconds / bill.checkpoint_interval_seconds;
            self.meets(&bill) && share <= CHECKPOINTS
        };
        let (mut low, mut high) = (1e-6_f64, 1e6_f64);
        for _ in 0..HALVINGS {
            let middle = (low * high).sqrt();
            if does(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        Enough { network_gbps: asked.cluster.network.device_gbps, storage_gbps: high }
    }

    /// Tokens of a larger batch with which the largest size meets it.
    pub(super) fn larger_batch(&self) -> Option<u64> {
        let devices = self.devices.unwrap_or(MOST / self.device.per_node * self.device.per_node);
        (1..=4).map(|doublings| self.batch_tokens << doublings).find(|tokens| {
            let larger = Self { batch_tokens: *tokens, ..self.clone() };
            larger.try_one(devices).is_some_and(|tried| tried.meets)
        })
    }

    /// The next larger number of devices on which a layout fits.
    pub(super) fn next_that_fits(&self, devices: u64) -> Option<u64> {
        let each = self.device.per_node;
        let nodes = devices / each + 1;
        let near = (nodes..nodes + 8).map(|nodes| nodes * each);
        let doubled = std::iter::successors(Some(each), |devices| Some(2 * devices));
        let far = doubled.skip_while(|size| *size <= devices).take_while(|size| *size <= MOST);
        near.chain(far).find(|size| self.try_one(*size).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_estimate::model::preset;

    fn wanted(batch_tokens: u64) -> Wanted {
        let device = Device::named("a100-80gb").expect("it is one");
        Wanted {
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
    fn batches_stay_near_what_was_asked_for_and_grow_only_if_they_must() {
        // 1,465 sequences are near 1,408, which 128 copies can divide.
        assert_eq!([4_194_304, 3_000_000, 1].map(|tokens| wanted(tokens).batch()), [2048, 1408, 1]);
        for sequences in 1..5000 {
            let off = wanted(2048 * sequences).batch().abs_diff(sequences);
            assert!(off * 16 <= sequences, "{sequences} by {off}");
        }
        // One sequence is for slices, its parts and stages: 8 x 8 x 32 devices, and no more.
        assert_eq!([2048, 4096].map(|devices| wanted(1).question(devices).batch), [1, 2]);
        // A large prime divides nothing, whatever the batch.
        assert_eq!(wanted(4_194_304).question(7919).batch, 2048);
    }

    #[test]
    fn no_size_below_the_smallest_that_is_found_meets_it() {
        let wanted = wanted(4_194_304);
        let all = wanted.find().all;
        let (found, failed) = all.split_last().expect("some are tried");
        assert!(found.meets && failed.iter().all(|tried| !tried.meets));
        let nodes = found.asked.cluster.nodes();
        assert!(!nodes.is_power_of_two(), "{nodes} nodes: try other days");
        for nodes in 1..nodes {
            let tried = wanted.try_one(8 * nodes);
            assert!(tried.is_none_or(|tried| !tried.meets), "{nodes} nodes meet it too");
        }
    }
}
