//! Sizes for programs and for people.

use super::ranges::{ALL, Range, ranges};
use super::wanted::{CHECKPOINTS, Found, MOST, Tried, Wanted};
use serde::Serialize;
use std::fmt::Write;

/// One size that was tried. Names are stable: scripts rely on them.
#[derive(Serialize)]
pub(super) struct Size {
    devices: u64,
    layout: String,
    /// Sequences of a step, their tokens, and the tokens that were asked for.
    batch: u64,
    batch_tokens: u64,
    batch_tokens_asked: u64,
    step_seconds: f64,
    days: f64,
    days_range: [f64; 2],
    dollars: f64,
    dollars_range: [f64; 2],
    /// Each input by itself, better and worse.
    ranges: Vec<Range>,
    /// The input that days depend on most, and dollars.
    days_depend_on: &'static str,
    dollars_depend_on: &'static str,
    speed_up: f64,
    efficiency: f64,
    /// What all nodes together must store a second, GB; of sizes that meet it.
    storage_gbps: Option<f64>,
    /// Each device's share of network cards that is enough, GB/s; of sizes that meet it.
    network_gbps: Option<f64>,
    /// About the smallest size if all inputs were better, and if all were worse; of the smallest.
    devices_range: Option<[Option<u64>; 2]>,
    meets: bool,
    /// Whether nothing but the number of devices was asked for, so that there is nothing to meet.
    #[serde(skip)]
    is_asked: bool,
}

impl Size {
    /// Every size but those between that do not do.
    pub(super) fn all(wanted: &Wanted, all: &[Tried]) -> Vec<Self> {
        let first = all.first();
        let shown = all.iter().filter(|tried| tried.meets || !tried.is_between);
        shown.filter_map(|tried| Some(Self::new(wanted, tried, first?))).collect()
    }

    fn new(wanted: &Wanted, tried: &Tried, first: &Tried) -> Self {
        let devices = tried.devices();
        let mut ranges = ranges(&tried.asked, &tried.choice);
        let all = ranges.pop().expect("all together is the last");
        debug_assert_eq!(all.input, ALL, "all together is the last");
        let most = |of: fn(&Range) -> f64| {
            let most = ranges.iter().max_by(|a, b| of(a).total_cmp(&of(b)));
            most.map_or(ALL, |range| range.input)
        };
        let enough = tried.meets.then(|| wanted.enough(tried));
        let is_sized = tried.meets && wanted.devices.is_none();
        let speed_up = first.bill.days / tried.bill.days;
        let tokens = tried.asked.model.context;
        Self {
            devices,
            layout: tried.choice.layout.brief(),
            batch: tried.asked.batch,
            batch_tokens: tried.asked.batch * tokens,
            batch_tokens_asked: wanted.batch_tokens,
            step_seconds: tried.choice.step.seconds,
            days: tried.bill.days,
            days_range: all.days,
            dollars: tried.bill.dollars,
            dollars_range: all.dollars,
            days_depend_on: most(Range::of_days),
            dollars_depend_on: most(Range::of_dollars),
            ranges,
            speed_up,
            efficiency: speed_up * first.devices() as f64 / devices as f64,
            storage_gbps: enough.as_ref().map(|enough| enough.storage_gbps),
            network_gbps: enough.as_ref().map(|enough| enough.network_gbps),
            devices_range: is_sized.then(|| wanted.range(devices)),
            meets: tried.meets,
            is_asked: wanted.days.is_none() && wanted.dollars.is_none(),
        }
    }

    fn row(&self, text: &mut String) {
        let range = format!("{:.1} to {:.1}", self.days_range[0], self.days_range[1]);
        let _ = writeln!(
            text,
            "{:>8} {:>7} {:>8.2} s {:>8.1} {range:>17} {:>12.0} {:>6.0} %  {}",
            self.devices,
            self.batch,
            self.step_seconds,
            self.days,
            self.dollars,
            100.0 * self.efficiency,
            self.layout
        );
    }

    /// What the size that meets it takes.
    fn conclusion(&self, text: &mut String) {
        let [low, high] = self.dollars_range;
        let _ = writeln!(
            text,
            "{} devices{}: {:.1} days ({:.1} to {:.1}) and {:.0} dollars ({low:.0} to \
             {high:.0}), if inputs are 20 % better to 20 % worse",
            self.devices,
            if self.is_asked { "" } else { " meet it" },
            self.days,
            self.days_range[0],
            self.days_range[1],
            self.dollars
        );
        for range in self.ranges.iter().filter(|range| range.input == self.days_depend_on) {
            let [low, high] = range.days;
            let _ = writeln!(
                text,
                "{} matters most: {low:.1} to {high:.1} days by itself",
                range.input
            );
        }
        match self.devices_range {
            Some([Some(low), Some(high)]) => {
                let _ =
                    writeln!(text, "with better inputs about {low} devices do, with worse {high}");
            }
            Some([Some(low), None]) => {
                let _ = writeln!(
                    text,
                    "with better inputs about {low} devices do, with worse no number up to {MOST}"
                );
            }
            _ => {}
        }
        if let (Some(network), Some(storage)) = (self.network_gbps, self.storage_gbps) {
            let _ = writeln!(
                text,
                "a network of {network} GB/s for each device and storage of {:.1} GB/s are \
                 enough; checkpoints take at most {:.0} % of the time",
                (10.0 * storage).ceil() / 10.0,
                100.0 * CHECKPOINTS
            );
        }
    }
}

/// A table, and what comes of it.
pub(super) fn text(found: &Found, sizes: &[Size]) -> String {
    let mut text = format!(
        "{:>8} {:>7} {:>10} {:>8} {:>17} {:>12} {:>8}  layout\n",
        "devices", "batch", "step", "days", "range", "dollars", "scaling"
    );
    for size in sizes {
        size.row(&mut text);
    }
    let others = found.all.iter().filter(|tried| tried.is_between && !tried.meets);
    let between = found.too_slow + others.count();
    if between > 0 {
        let _ = writeln!(text, "{between} sizes between these were tried and do not meet it");
    }
    batches(sizes, &mut text);
    if let Some(size) = sizes.last().filter(|size| size.meets) {
        size.conclusion(&mut text);
    }
    text
}

/// Says where batches are not what was asked for, and why.
fn batches(sizes: &[Size], text: &mut String) {
    let Some(first) = sizes.first() else { return };
    if first.batch_tokens != first.batch_tokens_asked {
        let _ = writeln!(
            text,
            "batches have {} sequences, {} tokens, instead of the {} that were asked for: a number \
             that copies can divide",
            first.batch, first.batch_tokens, first.batch_tokens_asked
        );
    }
    if let Some(size) = sizes.iter().find(|size| size.batch > first.batch) {
        let _ = writeln!(
            text,
            "from {} devices on batches are larger, {} sequences and {} tokens: {} cannot be \
             divided among them",
            size.devices, size.batch, size.batch_tokens, first.batch
        );
    }
}

/// Why nothing meets it, and what could be met.
pub(super) fn what_would_do(wanted: &Wanted, all: &[Tried]) -> String {
    let name = &wanted.model.name;
    let room = wanted.device.memory_gb;
    if all.is_empty() {
        let devices = wanted.devices.unwrap_or(MOST);
        let fix = wanted.next_that_fits(devices).map_or_else(
            || "try another --device".to_owned(),
            |devices| format!("try --devices {devices}"),
        );
        return format!("no layout of {name} fits into {devices} devices of {room} GiB; {fix}");
    }
    let days = |tried: &&Tried| tried.bill.days;
    let dollars = |tried: &&Tried| tried.bill.dollars;
    let least = |of: &dyn Fn(&&Tried) -> f64, within: &dyn Fn(&&Tried) -> bool| {
        all.iter().filter(within).min_by(|a, b| of(a).total_cmp(&of(b)))
    };
    // One bound alone may be moved where the other is met.
    let cheap = least(&days, &|tried| wanted.affordable(tried.bill.dollars));
    let quick = least(&dollars, &|tried| wanted.in_time(tried.bill.days));
    let mut fixes = Vec::new();
    fixes.extend(cheap.filter(|_| wanted.days.is_some()).map(later));
    fixes.extend(quick.filter(|_| wanted.dollars.is_some()).map(dearer));
    let any = least(&dollars, &|_| true).filter(|_| fixes.is_empty());
    fixes.extend(any.map(|tried| format!("{} {}", later(tried), dearer(tried))));
    fixes.extend(wanted.larger_batch().map(|tokens| format!("--batch-tokens {tokens}")));
    let mut reached = Vec::new();
    if let Some(tried) = least(&days, &|_| true) {
        reached.push(format!("{:.1} days on {}", tried.bill.days, tried.devices()));
    }
    if let Some(tried) = least(&dollars, &|_| true) {
        reached.push(format!("{:.0} dollars on {}", tried.bill.dollars, tried.devices()));
    }
    let which = wanted.devices.map_or_else(
        || format!("no number of devices up to {MOST} meets it"),
        |devices| format!("{devices} devices do not meet it"),
    );
    format!("{which}: the least are {}; try {}", reached.join(" and "), fixes.join(" or "))
}

/// As many days as a size takes, rounded up.
fn later(tried: &Tried) -> String {
    format!("--days {:.1}", (10.0 * tried.bill.days).ceil() / 10.0)
}

/// As many dollars.
fn dearer(tried: &Tried) -> String {
    format!("--dollars {:.0}", tried.bill.dollars.ceil())
}
