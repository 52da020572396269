//! `lockstep plan size`: the smallest cluster that meets a deadline or a budget.

use super::cluster::Asked;
use crate::failure::Failure;
use crate::output;
use lockstep_estimate::hardware::{Cluster, Device, names};
use lockstep_estimate::search::search;
use lockstep_estimate::{Calibration, bill, model};
use serde::Serialize;
use std::fmt::Write;

/// The smallest cluster that meets a deadline or a budget
#[derive(clap::Args)]
#[command(after_help = "\
Doubles the number of devices until the best layout trains in time, and says what networks and
storage that takes. Ranges are for steps that are a fifth quicker or slower than said.

Examples:
  lockstep plan size --model llama-65b --device a100-80gb --tokens 1.4e12 --days 21
  lockstep plan size --model gpt3-175b --device h100-80gb --tokens 300e9 --dollars 2e6 --json
  lockstep plan size --model llama3-8b --device h100-80gb --tokens 1e12 --devices 256")]
pub(crate) struct Arguments {
    /// A published model
    #[arg(long)]
    model: String,
    /// A type of device
    #[arg(long)]
    device: String,
    /// Tokens of the whole run
    #[arg(long)]
    tokens: f64,
    /// Days that it may take
    #[arg(long)]
    days: Option<f64>,
    /// Dollars that it may cost
    #[arg(long)]
    dollars: Option<f64>,
    /// Devices that there are: says what they take, and which network and storage are enough
    #[arg(long)]
    devices: Option<u64>,
    /// Tokens of a step
    #[arg(long, default_value_t = 4_194_304)]
    batch_tokens: u64,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// One size that was tried.
#[derive(Serialize)]
struct Size {
    devices: u64,
    layout: String,
    step_seconds: f64,
    days: f64,
    days_range: [f64; 2],
    dollars: f64,
    dollars_range: [f64; 2],
    speed_up: f64,
    efficiency: f64,
    storage_gbps: f64,
    /// Each device's share of network cards that is enough, GB/s; of sizes that meet it.
    network_gbps: Option<f64>,
    meets: bool,
}

/// Largest number of devices that is tried.
const MOST: u64 = 32_768;
/// What inputs may be off by, either way.
const RANGE: [f64; 2] = [0.8, 1.2];
/// Shares of network cards, GB/s: a node's one card of 100 Gb/s, to one of 400 for every device.
const NETWORKS: [f64; 6] = [1.5625, 3.125, 6.25, 12.5, 25.0, 50.0];
/// Days on a network that is enough, relative to those on the device's own.
const HARDLY_MORE: f64 = 1.05;
/// Share of the time that checkpoints may take.
const CHECKPOINTS: f64 = 0.01;

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let sizes = sizes(arguments)?;
    if arguments.json {
        return output::json(&sizes);
    }
    let mut text = format!(
        "{:>8} {:>9} {:>8} {:>15} {:>12} {:>8}  layout\n",
        "devices", "step", "days", "range", "dollars", "scaling"
    );
    for size in &sizes {
        let range = format!("{:.1} to {:.1}", size.days_range[0], size.days_range[1]);
        let _ = writeln!(
            text,
            "{:>8} {:>7.2} s {:>8.1} {range:>15} {:>12.0} {:>6.0} %  {}",
            size.devices,
            size.step_seconds,
            size.days,
            size.dollars,
            100.0 * size.efficiency,
            size.layout
        );
    }
    match sizes.iter().find(|size| size.meets) {
        Some(size) => {
            let _ = writeln!(
                text,
                "{} devices meet it; storage of {:.1} GB/s keeps checkpoints below 1 % of the time",
                size.devices, size.storage_gbps
            );
            if let Some(gbps) = size.network_gbps {
                let _ = writeln!(text, "a network of {gbps} GB/s for each device is enough for it");
            }
        }
        None => {
            let _ = writeln!(
                text,
                "no number of devices up to {} meets it; try more days or \
                                    dollars, or another device",
                arguments.devices.unwrap_or(MOST)
            );
        }
    }
    output::text(&text)
}

fn sizes(arguments: &Arguments) -> Result<Vec<Size>, Failure> {
    let mut wrong = Vec::new();
    let model = model::preset(&arguments.model);
    if model.is_none() {
        wrong.push(format!("--model {} is not known; try gpt3-175b", arguments.model));
    }
    let device = Device::named(&arguments.device);
    if device.is_none() {
        wrong.push(format!("--device {} is not known; try one of {}", arguments.device, names()));
    }
    let numbers = [("--tokens", Some(arguments.tokens)), ("--days", arguments.days)];
    for (key, value) in numbers.into_iter().chain([("--dollars", arguments.dollars)]) {
        if let Some(value) = value.filter(|value| !(*value > 0.0 && value.is_finite())) {
            wrong.push(format!("{key} {value} must be above zero; try 30"));
        }
    }
    if arguments.devices == Some(0) {
        wrong.push("--devices 0 must be at least 1; try 64".into());
    }
    let is_open = arguments.days.is_none() && arguments.dollars.is_none();
    if is_open && arguments.devices.is_none() {
        wrong.push("none of --days, --dollars and --devices is given; try --days 30".into());
    }
    let (Some(model), Some(device), true) = (model, device, wrong.is_empty()) else {
        return Err(Failure::user(wrong.join("\n")));
    };
    let calibration = Calibration::of(device.calibration)
        .ok_or_else(|| Failure::bug(format!("{} has no calibration", device.name)))?;
    let batch = (arguments.batch_tokens / model.context).max(1).next_power_of_two();
    let mut sizes: Vec<Size> = Vec::new();
    let mut devices = arguments.devices.unwrap_or(device.per_node);
    let most = arguments.devices.unwrap_or(MOST);
    while devices <= most && !sizes.iter().any(|size| size.meets) {
        let asked = Asked {
            model: model.clone(),
            cluster: Cluster::of(device, devices),
            batch: batch.max(devices / device.per_node),
            tokens: arguments.tokens,
            calibration: calibration.clone(),
            layout: None,
        };
        if let Some(size) = size(arguments, &asked, sizes.first()) {
            sizes.push(size);
        }
        devices *= 2;
    }
    Ok(sizes)
}

/// The best layout of a number of devices, if one fits.
fn size(arguments: &Arguments, asked: &Asked, first: Option<&Size>) -> Option<Size> {
    let found = search(&asked.question(), 1);
    let best = found.best.first()?;
    let step_tokens = (asked.batch * asked.model.context) as f64;
    let cost = |factor: f64| {
        let seconds = best.step.seconds * factor;
        bill::bill(&asked.model, &asked.cluster, asked.tokens, step_tokens, seconds)
    };
    let (usual, range) = (cost(1.0), RANGE.map(cost));
    let devices = asked.cluster.devices;
    let speed_up = first.map_or(1.0, |first| first.days / usual.days);
    let more = first.map_or(1.0, |first| devices as f64 / first.devices as f64);
    let meets = meets(arguments, &usual);
    Some(Size {
        devices,
        layout: best.layout.brief(),
        step_seconds: best.step.seconds,
        days: usual.days,
        days_range: range.map(|bill| bill.days),
        dollars: usual.dollars,
        dollars_range: range.map(|bill| bill.dollars),
        speed_up,
        efficiency: speed_up / more,
        storage_gbps: usual.checkpoint_bytes
            / (CHECKPOINTS * usual.checkpoint_interval_seconds)
            / 1e9,
        network_gbps: meets.then(|| slowest_network(arguments, asked, usual.days)).flatten(),
        meets,
    })
}

/// Whether a bill is within what was asked for.
fn meets(arguments: &Arguments, bill: &bill::Bill) -> bool {
    arguments.days.is_none_or(|days| bill.days <= days)
        && arguments.dollars.is_none_or(|dollars| bill.dollars <= dollars)
}

/// The slowest usual network, up to the device's own, on which the same devices meet it with their
/// best layout there; where nothing but devices was given, with hardly more days.
fn slowest_network(arguments: &Arguments, asked: &Asked, days: f64) -> Option<f64> {
    let is_open = arguments.days.is_none() && arguments.dollars.is_none();
    let most_days = if is_open { HARDLY_MORE * days } else { f64::INFINITY };
    let own = asked.cluster.network.device_gbps;
    let slower = NETWORKS.into_iter().filter(|gbps| *gbps < own).chain([own]);
    let step_tokens = (asked.batch * asked.model.context) as f64;
    slower.into_iter().find(|gbps| {
        let mut slow = asked.clone();
        slow.cluster.network.device_gbps = *gbps;
        let found = search(&slow.question(), 1);
        found.best.first().is_some_and(|best| {
            let (model, cluster) = (&slow.model, &slow.cluster);
            let seconds = best.step.seconds;
            let bill = bill::bill(model, cluster, slow.tokens, step_tokens, seconds);
            meets(arguments, &bill) && bill.days <= most_days
        })
    })
}
