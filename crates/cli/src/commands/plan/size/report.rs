//! Results of a size search as JSON and as text.

use crate::quantity::{digits, dollars, percent};
use lockstep_planner::layout::LEGEND;
use lockstep_planner::search::sensitivity::{ALL, Range, ranges};
use lockstep_planner::search::size::{
    ClusterSize, MAX_CHECKPOINT_SHARE, MAX_DEVICES, SizeSearch, SizeSearchResult,
};
use serde::Serialize;
use std::fmt::Write;

/// One cluster size. Field names are stable: scripts rely on them.
#[derive(Serialize)]
pub(super) struct SizeReport {
    devices: u64,
    layout: String,
    /// Global batch in sequences and in tokens, and the requested tokens.
    batch: u64,
    batch_tokens: u64,
    batch_tokens_requested: u64,
    step_seconds: f64,
    days: f64,
    days_range: [f64; 2],
    dollars: f64,
    dollars_range: [f64; 2],
    /// Each input alone, better and worse.
    ranges: Vec<Range>,
    /// The input that changes days most, and the one that changes dollars most.
    days_depend_on: &'static str,
    dollars_depend_on: &'static str,
    speed_up: f64,
    efficiency: f64,
    /// Sufficient storage bandwidth of all nodes, GB/s, where the size meets the limits.
    storage_gbps: Option<f64>,
    /// Sufficient network bandwidth per device, GB/s, where the size meets the limits.
    network_gbps: Option<f64>,
    /// Approximate smallest sizes with better and with worse inputs, of the smallest size.
    devices_range: Option<[Option<u64>; 2]>,
    meets: bool,
    #[serde(skip)]
    has_limits: bool,
}

impl SizeReport {
    /// Every doubling, and the size that meets the limits.
    pub(super) fn all(search: &SizeSearch, sizes: &[ClusterSize]) -> Vec<Self> {
        let first = sizes.first();
        let listed = sizes.iter().filter(|size| size.meets_limits || !size.is_between);
        listed.filter_map(|size| Some(Self::new(search, size, first?))).collect()
    }

    fn new(search: &SizeSearch, size: &ClusterSize, first: &ClusterSize) -> Self {
        let devices = size.devices();
        let mut ranges = ranges(&size.scenario, &size.best);
        let all = ranges.pop().expect("all together is the last");
        debug_assert_eq!(all.input, ALL, "all together is the last");
        let widest = |spread: fn(&Range) -> f64| {
            let widest = ranges.iter().max_by(|a, b| spread(a).total_cmp(&spread(b)));
            widest.map_or(ALL, |range| range.input)
        };
        let bandwidth = size.meets_limits.then(|| search.sufficient_bandwidth(size));
        let is_smallest = size.meets_limits && search.devices.is_none();
        let speed_up = first.bill.days / size.bill.days;
        Self {
            devices,
            layout: size.best.layout.to_string(),
            batch: size.scenario.batch,
            batch_tokens: size.scenario.step_tokens(),
            batch_tokens_requested: search.batch_tokens,
            step_seconds: size.best.step.seconds,
            days: size.bill.days,
            days_range: all.days,
            dollars: size.bill.dollars,
            dollars_range: all.dollars,
            days_depend_on: widest(Range::days_spread),
            dollars_depend_on: widest(Range::dollars_spread),
            ranges,
            speed_up,
            efficiency: speed_up * first.devices() as f64 / devices as f64,
            storage_gbps: bandwidth.map(|bandwidth| bandwidth.storage_gbps),
            network_gbps: bandwidth.map(|bandwidth| bandwidth.network_gbps),
            devices_range: is_smallest.then(|| search.devices_range(devices)),
            meets: size.meets_limits,
            has_limits: !search.has_no_limits(),
        }
    }

    fn render_row(&self, text: &mut String) {
        let range = format!("{} to {}", digits(self.days_range[0]), digits(self.days_range[1]));
        let _ = writeln!(
            text,
            "{:>8} {:>7} {:>8} s {:>8} {range:>17} {:>12} {:>10}  {}",
            self.devices,
            self.batch,
            digits(self.step_seconds),
            digits(self.days),
            dollars(self.dollars),
            percent(self.efficiency),
            self.layout
        );
    }

    /// Cost, ranges and bandwidths of the size that meets the limits.
    fn render_conclusion(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "{} devices{}: {} days ({} to {}) and ${} (${} to ${}), with inputs 20 % better to \
             20 % worse",
            self.devices,
            if self.has_limits { " meet the limits" } else { "" },
            digits(self.days),
            digits(self.days_range[0]),
            digits(self.days_range[1]),
            dollars(self.dollars),
            dollars(self.dollars_range[0]),
            dollars(self.dollars_range[1]),
        );
        for range in self.ranges.iter().filter(|range| range.input == self.days_depend_on) {
            let [low, high] = range.days.map(digits);
            let _ =
                writeln!(text, "most sensitive to {}: {low} to {high} days by itself", range.input);
        }
        if let Some([Some(low), high]) = self.devices_range {
            let high = high.map_or_else(
                || format!("no size up to {MAX_DEVICES}"),
                |high| format!("about {high}"),
            );
            let _ = writeln!(
                text,
                "smallest size with better inputs: about {low} devices; with worse: {high}"
            );
        }
        if let (Some(network), Some(storage)) = (self.network_gbps, self.storage_gbps) {
            let _ = writeln!(
                text,
                "sufficient: {network} GB/s of network per device and {:.1} GB/s of storage, with \
                 checkpoints at most {:.0} % of the time",
                (10.0 * storage).ceil() / 10.0,
                100.0 * MAX_CHECKPOINT_SHARE
            );
        }
    }
}

/// A table of sizes and the conclusion.
pub(super) fn render(found: &SizeSearchResult, sizes: &[SizeReport]) -> String {
    let mut text = format!(
        "({LEGEND})\n{:>8} {:>7} {:>10} {:>8} {:>17} {:>12} {:>10}  layout\n",
        "devices", "batch", "step", "days", "range", "dollars", "efficiency"
    );
    for size in sizes {
        size.render_row(&mut text);
    }
    let others = found.sizes.iter().filter(|size| size.is_between && !size.meets_limits);
    let between = found.num_too_slow + others.count();
    if between > 0 {
        let _ = writeln!(text, "{between} sizes in between do not meet the limits");
    }
    render_batches(sizes, &mut text);
    if let Some(size) = sizes.last().filter(|size| size.meets) {
        size.render_conclusion(&mut text);
    }
    text
}

/// Reports batches that differ from the requested one, with the reason.
fn render_batches(sizes: &[SizeReport], text: &mut String) {
    let Some(first) = sizes.first() else { return };
    if first.batch_tokens != first.batch_tokens_requested {
        let _ = writeln!(
            text,
            "global batch {} sequences, {} tokens, instead of the requested {} tokens: rounded so \
             that data-parallel degrees divide it",
            first.batch, first.batch_tokens, first.batch_tokens_requested
        );
    }
    if let Some(size) = sizes.iter().find(|size| size.batch > first.batch) {
        let _ = writeln!(
            text,
            "from {} devices on the global batch is {} sequences, {} tokens: {} cannot be divided \
             among them",
            size.devices, size.batch, size.batch_tokens, first.batch
        );
    }
}

/// The error where no size meets the limits, with limits that could be met.
pub(super) fn unmet_limits(search: &SizeSearch, sizes: &[ClusterSize]) -> String {
    let name = &search.model.name;
    if sizes.is_empty() {
        let devices = search.devices.unwrap_or(MAX_DEVICES);
        let fix = search.next_size_that_fits(devices).map_or_else(
            || "try another --device".to_owned(),
            |devices| format!("try --devices {devices}"),
        );
        let memory = search.device.memory_gb;
        return format!("no layout of {name} fits in {devices} devices with {memory} GiB; {fix}");
    }
    let days = |size: &&ClusterSize| size.bill.days;
    let spent = |size: &&ClusterSize| size.bill.dollars;
    let least = |of: &dyn Fn(&&ClusterSize) -> f64, within: &dyn Fn(&&ClusterSize) -> bool| {
        sizes.iter().filter(within).min_by(|a, b| of(a).total_cmp(&of(b)))
    };
    // Moving one limit is enough where a size meets the other.
    let cheap = least(&days, &|size| search.meets_budget(size.bill.dollars));
    let quick = least(&spent, &|size| search.meets_deadline(size.bill.days));
    let mut fixes = Vec::new();
    fixes.extend(cheap.filter(|_| search.days.is_some()).map(days_option));
    fixes.extend(quick.filter(|_| search.dollars.is_some()).map(dollars_option));
    let any = least(&spent, &|_| true).filter(|_| fixes.is_empty());
    fixes.extend(any.map(|size| format!("{} {}", days_option(size), dollars_option(size))));
    fixes.extend(search.larger_batch_tokens().map(|tokens| format!("--batch-tokens {tokens}")));
    let mut reached = Vec::new();
    if let Some(size) = least(&days, &|_| true) {
        reached.push(format!("{} days on {}", digits(size.bill.days), size.devices()));
    }
    if let Some(size) = least(&spent, &|_| true) {
        reached.push(format!("${} on {}", dollars(size.bill.dollars), size.devices()));
    }
    let which = search.devices.map_or_else(
        || format!("no number of devices up to {MAX_DEVICES} meets the limits"),
        |devices| format!("{devices} devices do not meet the limits"),
    );
    format!("{which}: the minimum is {}; try {}", reached.join(" and "), fixes.join(" or "))
}

/// The days of a size as an option, rounded up.
fn days_option(size: &ClusterSize) -> String {
    format!("--days {:.1}", (10.0 * size.bill.days).ceil() / 10.0)
}

/// The dollars of a size as an option, rounded up.
fn dollars_option(size: &ClusterSize) -> String {
    format!("--dollars {:.0}", size.bill.dollars.ceil())
}
