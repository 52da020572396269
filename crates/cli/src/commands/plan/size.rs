//! `lockstep plan size`: the smallest cluster that meets a deadline or a budget.
//!
//! # Layout
//! - [`mod@wanted`]: sizes that are tried, and the smallest that does
//! - [`ranges`]: inputs that are a fifth better or worse
//! - [`told`]: what is said of them

mod ranges;
mod told;
mod wanted;

use super::unknown;
use crate::failure::Failure;
use crate::output;
use lockstep_estimate::hardware::{DEVICES, Device};
use lockstep_estimate::{Calibration, model};
use told::Size;
use wanted::Wanted;

/// The smallest cluster that meets a deadline or a budget
#[derive(clap::Args)]
#[command(after_help = "\
Tries twice as many devices each time until the best layout trains in time, and then every number of
whole nodes below that which could do, so with this batch there is none smaller (copies must divide
it; others may do with fewer). Says which network and storage are enough, both together.

Ranges are of days and dollars with the same layout where inputs are 20 % better, and 20 % worse,
all of them together: compute, memory bandwidth, links, network, hosts, failures, storage, price.
All together, because a deadline is missed by the worst case and figures of one data sheet are
seldom off independently. Each by itself is told too: which matters most, and in --json all.

If no size meets it the exit code is 2, and the last line says what could be met.

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
    #[arg(long, allow_negative_numbers = true)]
    tokens: f64,
    /// Days that it may take
    #[arg(long, allow_negative_numbers = true)]
    days: Option<f64>,
    /// Dollars that it may cost
    #[arg(long, allow_negative_numbers = true)]
    dollars: Option<f64>,
    /// Devices that there are: says what they take, and which network and storage are enough
    #[arg(long, allow_negative_numbers = true)]
    devices: Option<i64>,
    /// Tokens of a step
    #[arg(long, default_value_t = BATCH_TOKENS, allow_negative_numbers = true)]
    batch_tokens: i64,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// Tokens of a step, if nobody says.
const BATCH_TOKENS: i64 = 4_194_304;
/// More devices or tokens of a step than anybody has.
const LARGEST: i64 = 1 << 40;

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let wanted = wanted(arguments)?;
    let found = wanted.find();
    let sizes = Size::all(&wanted, &found.all);
    if arguments.json {
        output::json(&sizes)?;
    } else {
        output::text(&told::text(&found, &sizes))?;
    }
    if found.all.last().is_some_and(|last| last.meets) {
        return Ok(());
    }
    Err(Failure::user(told::what_would_do(&wanted, &found.all)))
}

/// A number as people type it.
fn typed(number: f64) -> String {
    if (1e-3..1e7).contains(&number) { number.to_string() } else { format!("{number:e}") }
}

/// What is wanted, or everything that is wrong with it.
fn wanted(arguments: &Arguments) -> Result<Wanted, Failure> {
    let mut wrong = Vec::new();
    let model = model::preset(&arguments.model);
    if model.is_none() {
        wrong.push(unknown::model(&arguments.model));
    }
    let device = Device::named(&arguments.device);
    if device.is_none() {
        let names: Vec<&str> = DEVICES.iter().map(|device| device.name).collect();
        let fix = unknown::fix(&arguments.device, &names);
        wrong.push(format!("--device {} is not known; {fix}", arguments.device));
    }
    // Twenty for each parameter are usual.
    let usual = model.as_ref().map_or(300e9, |model| 20.0 * model.num_params() as f64);
    let numbers = [
        ("--tokens", Some(arguments.tokens), usual),
        ("--days", arguments.days, 30.0),
        ("--dollars", arguments.dollars, 1e6),
    ];
    for (key, value, usual) in numbers {
        let Some(value) = value.filter(|value| !(*value > 0.0 && value.is_finite())) else {
            continue;
        };
        let near = if value.is_finite() && value < 0.0 { -value } else { usual };
        wrong.push(format!("{key} {value} must be above zero and finite; try {}", typed(near)));
    }
    let counts = [
        ("--devices", arguments.devices, 64),
        ("--batch-tokens", Some(arguments.batch_tokens), BATCH_TOKENS),
    ];
    for (key, value, usual) in counts {
        let Some(value) = value.filter(|value| !(1..=LARGEST).contains(value)) else { continue };
        let near = if (-LARGEST..0).contains(&value) { -value } else { usual };
        wrong.push(format!("{key} {value} must be from 1 to {LARGEST}; try {near}"));
    }
    if arguments.days.is_none() && arguments.dollars.is_none() && arguments.devices.is_none() {
        wrong.push("none of --days, --dollars and --devices is given; try --days 30".into());
    }
    let (Some(model), Some(device), true) = (model, device, wrong.is_empty()) else {
        return Err(Failure::user(wrong.join("\n")));
    };
    let calibration = Calibration::of(device.calibration)
        .ok_or_else(|| Failure::bug(format!("{} has no calibration", device.name)))?;
    Ok(Wanted {
        model,
        device,
        calibration,
        tokens: arguments.tokens,
        batch_tokens: arguments.batch_tokens.unsigned_abs(),
        days: arguments.days,
        dollars: arguments.dollars,
        devices: arguments.devices.map(i64::unsigned_abs),
        worse: 0.0,
    })
}
