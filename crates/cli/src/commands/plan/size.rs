//! `lockstep plan size`: the smallest cluster that meets a deadline or a budget.

mod report;

use super::named_model::named_model;
use crate::failure::Failure;
use crate::output;
use lockstep_planner::Calibration;
use lockstep_planner::hardware::device_name;
use lockstep_planner::search::size::SizeSearch;
use lockstep_platform::World;
use report::SizeReport;

/// The smallest cluster that meets a deadline or a budget
#[derive(clap::Args)]
#[command(after_help = "\
Doubles the number of devices until the best layout meets the limits, then tries every number of
whole nodes below it, so no smaller size does with this batch. Reports the network and the storage
bandwidth that are sufficient together.

Ranges are days and dollars of the same layout with all inputs 20 % better and 20 % worse: compute,
memory bandwidth, links, network, hosts, failures, storage, price. All change together because a
deadline is missed by the worst case and figures of one data sheet are seldom off independently.
The most sensitive input is named; --json has the range of each.

If no size meets the limits the exit code is 2, and the last line names limits that can be met.

Examples:
  lockstep plan size --model llama-65b --device a100-80gb --tokens 1.4e12 --days 21
  lockstep plan size --model gpt3-175b --device h100-80gb --tokens 300e9 --dollars 2e6 --json
  lockstep plan size --model llama3-8b --device h100-80gb --tokens 1e12 --devices 256")]
pub(crate) struct Arguments {
    /// A published model, as gpt3-175b or llama3-70b, or a Hugging Face config.json
    #[arg(long)]
    model: String,
    /// Device type, as a100-80gb or H100
    #[arg(long)]
    device: String,
    /// Tokens of the whole run
    #[arg(long, allow_negative_numbers = true)]
    tokens: f64,
    /// Deadline in days
    #[arg(long, allow_negative_numbers = true)]
    days: Option<f64>,
    /// Budget in dollars
    #[arg(long, allow_negative_numbers = true)]
    dollars: Option<f64>,
    /// Price this number of devices instead of searching
    #[arg(long, allow_negative_numbers = true)]
    devices: Option<i64>,
    /// Tokens per step
    #[arg(long, default_value_t = BATCH_TOKENS, allow_negative_numbers = true)]
    batch_tokens: i64,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// Default tokens per step.
const BATCH_TOKENS: i64 = 4_194_304;
/// Largest number of devices or tokens per step.
const LARGEST: i64 = 1 << 40;

pub(super) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let search = size_search(arguments, world)?;
    let found = search.run();
    let sizes = SizeReport::all(&search, &found.sizes);
    if arguments.json {
        output::json(&sizes)?;
    } else {
        output::text(&report::render(&found, &sizes))?;
    }
    if found.sizes.last().is_some_and(|last| last.meets_limits) {
        return Ok(());
    }
    Err(Failure::user(report::unmet_limits(&search, &found.sizes)))
}

/// A number as an option takes it.
fn typed(number: f64) -> String {
    if (1e-3..1e7).contains(&number) { number.to_string() } else { format!("{number:e}") }
}

/// The search of the arguments, or every error in them.
fn size_search(arguments: &Arguments, world: &World) -> Result<SizeSearch, Failure> {
    let mut wrong = Vec::new();
    let model =
        named_model(&arguments.model, world).map_err(|lines: Vec<_>| wrong.extend(lines)).ok();
    let device = device_name::find(&arguments.device);
    if let Err(error) = &device {
        wrong.push(format!("--device {error}"));
    }
    let device = device.ok();
    // 20 tokens per parameter (Chinchilla, Hoffmann et al. 2022).
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
        let fix = if value.is_finite() && value < 0.0 { -value } else { usual };
        wrong.push(format!("{key} {value} must be above zero and finite; try {}", typed(fix)));
    }
    let counts = [
        ("--devices", arguments.devices, 64),
        ("--batch-tokens", Some(arguments.batch_tokens), BATCH_TOKENS),
    ];
    for (key, value, usual) in counts {
        let Some(value) = value.filter(|value| !(1..=LARGEST).contains(value)) else { continue };
        let fix = if (-LARGEST..0).contains(&value) { -value } else { usual };
        wrong.push(format!("{key} {value} must be from 1 to {LARGEST}; try {fix}"));
    }
    if arguments.days.is_none() && arguments.dollars.is_none() && arguments.devices.is_none() {
        wrong.push("give at least one of --days, --dollars and --devices; try --days 30".into());
    }
    let (Some(model), Some(device), true) = (model, device, wrong.is_empty()) else {
        return Err(Failure::user(wrong.join("\n")));
    };
    let calibration = Calibration::of(device.calibration)
        .ok_or_else(|| Failure::bug(format!("{} has no calibration", device.name)))?;
    Ok(SizeSearch {
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
