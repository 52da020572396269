//! `lockstep plan --model X --cluster Y`: the best layouts of a model on a cluster.

use super::cluster_report::{Extras, Report};
use super::cluster_text::render;
use super::named_model::named_model;
use super::{OutputOptions, Section, html};
use crate::failure::Failure;
use crate::output;
use crate::quantity::{digits, gib};
use crate::recipe_args::RecipeArguments;
use lockstep_config::Recipe;
use lockstep_planner::hardware::{self, Cluster, DeviceNameError, device_name};
use lockstep_planner::layout::Layout;
use lockstep_planner::recipe::{model_from_recipe, recipe_from_layout};
use lockstep_planner::scenario::{DEFAULT_RESERVE, MAX_DEVICES, Scenario, default_batch};
use lockstep_planner::search::{SearchResult, search};
use lockstep_planner::{Calibration, bill};
use lockstep_platform::World;
use std::path::{Path, PathBuf};

/// Arguments of a plan for a cluster.
#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct Arguments {
    /// Plan for this cluster: 1024xa100-80gb or 256xH100 for a number of devices, or a TOML file
    #[arg(long, value_name = "CLUSTER")]
    pub(super) cluster: Option<String>,
    /// A model instead of the recipe's: a published one, as gpt3-175b or llama3-70b, or a Hugging
    /// Face config.json
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) model: Option<String>,
    /// Sequence length (default: the model's; of a config.json at most 8192)
    #[arg(long, value_name = "TOKENS")]
    pub(super) context: Option<u64>,
    /// Percent of the device memory that a layout must leave free
    #[arg(long, value_name = "PERCENT", default_value_t = 100.0 * DEFAULT_RESERVE,
        allow_negative_numbers = true)]
    pub(super) reserve: f64,
    /// Global batch: sequences per step (default: about four million tokens)
    #[arg(long, allow_negative_numbers = true)]
    pub(super) batch: Option<i64>,
    /// Tokens of the whole run (default: 20 per parameter)
    #[arg(long, allow_negative_numbers = true)]
    pub(super) tokens: Option<f64>,
    /// Price this layout instead of searching: tp=8,pp=12,dp=4 or tensor=8,pipeline=12,data=4
    #[arg(long, value_name = "LAYOUT")]
    pub(super) layout: Option<String>,
    /// Number of layouts to list
    #[arg(long, default_value_t = 5)]
    pub(super) top: usize,
    /// Calibration of the device type, as `plan calibrate` writes it from published runs
    #[arg(long, value_name = "FILE")]
    pub(super) calibration: Option<PathBuf>,
    /// Report the probability that failures cost more than this many hours
    #[arg(long, value_name = "HOURS", default_value_t = 24.0, allow_negative_numbers = true)]
    pub(super) lost_hours: f64,
    /// Price upgrades: which resource shortens the run most
    #[arg(long)]
    pub(super) what_if: bool,
    /// Strong and weak scaling from a quarter to four times the devices
    #[arg(long)]
    pub(super) scaling: bool,
    /// Write the plan with plots (memory, timeline, scaling) to this file
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Write the best layout as a recipe for `train`, where this engine supports it
    #[arg(long, value_name = "FILE")]
    pub(super) write: Option<PathBuf>,
}

impl Arguments {
    /// The first option present that needs --cluster.
    pub(super) fn cluster_option(&self) -> Option<&'static str> {
        let options = [
            ("--batch", self.batch.is_some()),
            ("--context", self.context.is_some()),
            ("--tokens", self.tokens.is_some()),
            ("--layout", self.layout.is_some()),
            ("--calibration", self.calibration.is_some()),
            ("--what-if", self.what_if),
            ("--scaling", self.scaling),
            ("--html", self.html.is_some()),
            ("--write", self.write.is_some()),
        ];
        options.into_iter().find(|(_, is_given)| *is_given).map(|(name, _)| name)
    }
}

pub(super) fn run(
    arguments: &Arguments,
    recipe: &RecipeArguments,
    options: OutputOptions,
    world: &World,
) -> Result<(), Failure> {
    if arguments.model.is_some() && !recipe.is_default() {
        let error = "--model replaces the recipe's model; give either --model or a recipe";
        return Err(Failure::user(error));
    }
    let recipe = if arguments.model.is_none() { Some(recipe.resolve(world)?) } else { None };
    let scenario = scenario(arguments, recipe.as_ref(), world)?;
    let found = match scenario.layout {
        Some(layout) => scenario.price_layout(layout).map_err(|problems| {
            let lines: Vec<_> = problems.iter().map(|line| format!("--layout: {line}")).collect();
            Failure::user(lines.join("\n"))
        })?,
        None => search(&scenario.workload(), arguments.top.max(2)),
    };
    let Some(first) = found.best.first() else {
        return Err(Failure::user(nothing_fits(&scenario, &found, arguments.batch.is_some())));
    };
    let costs = scenario.bill_on(&scenario.cluster, first.step.seconds);
    if costs.never_ends() {
        return Err(Failure::user(format!(
            "the run would never end: a failure every {} h, {} s per checkpoint and {} min per \
             restart; try fewer failures_per_node_day, or more storage_gbps",
            digits(costs.hours_between_failures),
            digits(costs.checkpoint_seconds),
            digits(bill::RESTART / 60.0),
        )));
    }
    if let Some(path) = &arguments.write {
        let text = recipe_from_layout(recipe.as_ref(), &scenario, &first.layout)
            .map_err(|error| Failure::user(format!("--write: {error}")))?;
        world.files().write_atomic(path, text.as_bytes())?;
    }
    let extras = Extras {
        what_if: arguments.what_if,
        scaling: arguments.scaling || (arguments.html.is_some() && scenario.layout.is_none()),
        lost_hours: arguments.lost_hours,
    };
    let report = Report::new(recipe.as_ref(), &scenario, &found, &costs, extras);
    let text = render(&scenario, &found, &report, options.section);
    if let Some(path) = &arguments.html {
        let all = render(&scenario, &found, &report, Section::All);
        let page = html::page(&scenario, &found, &report, &all);
        world.files().write_atomic(path, page.as_bytes())?;
    }
    if options.json { output::json(&report) } else { output::text(&text) }?;
    if report.feasible {
        return Ok(());
    }
    Err(Failure::user(format!(
        "--layout needs {} of {} GiB; try the change listed above, or drop --layout to search",
        gib(report.memory.needed_bytes as f64),
        gib(report.memory.device_bytes as f64)
    )))
}

/// The error where no layout fits, with a fix.
pub(super) fn nothing_fits(
    scenario: &Scenario,
    found: &SearchResult,
    is_batch_given: bool,
) -> String {
    let (model, cluster) = (&scenario.model.name, &scenario.cluster);
    let devices = cluster.devices;
    // A cluster file has the number of devices itself.
    let is_file = hardware::named(&cluster.name).is_none();
    if found.examined == 0 {
        let batch = scenario.batch;
        let fix = batch.next_multiple_of(devices);
        let key = if is_batch_given { "--batch" } else { "train.batch or --batch" };
        return format!(
            "no layout of {model} divides a global batch of {batch} among {devices} devices; try \
             {key} {fix}, or another number of devices"
        );
    }
    let fix = match scenario.devices_that_fit() {
        None => "another device, or a smaller model".to_owned(),
        Some(enough) if is_file => format!("devices = {enough} in {}", cluster.name),
        Some(enough) => format!("--cluster {enough}x{}", cluster.device.name),
    };
    format!(
        "none of {} layouts of {model} fits in {devices} devices with {} GiB each, {} % of it \
         in reserve; try {fix}",
        found.examined,
        cluster.device.memory_gb,
        (1e4 * scenario.reserve).round() / 1e2,
    )
}

/// The scenario of the arguments, or every error in them.
fn scenario(
    arguments: &Arguments,
    recipe: Option<&Recipe>,
    world: &World,
) -> Result<Scenario, Failure> {
    let mut wrong = Vec::new();
    let model = match (&arguments.model, recipe) {
        (Some(name), _) => named_model(name, world).map_err(|lines| wrong.extend(lines)).ok(),
        (None, Some(recipe)) => Some(model_from_recipe(&recipe.model)),
        (None, None) => None,
    };
    if arguments.context == Some(0) {
        wrong.push("--context 0 has no tokens; try 8192".into());
    }
    let model = model.map(|model| match arguments.context {
        Some(context) => {
            let vocab = model.vocab;
            model.reading(vocab, context)
        }
        None => model,
    });
    let cluster = match cluster(arguments.cluster.as_deref().unwrap_or_default(), world) {
        Ok(cluster) => Some(cluster),
        Err(lines) => {
            wrong.extend(lines);
            None
        }
    };
    let layout =
        arguments.layout.as_deref().map(Layout::parse).transpose().unwrap_or_else(|lines| {
            wrong.extend(lines);
            None
        });
    if arguments.scaling && arguments.layout.is_some() {
        wrong.push(
            "--scaling searches layouts for other numbers of devices; try without --layout".into(),
        );
    }
    if let Some(batch) = arguments.batch.filter(|batch| !(1..=MAX_BATCH).contains(batch)) {
        wrong.push(format!("--batch {batch} is not between 1 and {MAX_BATCH}; try 1024"));
    }
    if arguments.top == 0 {
        wrong.push("--top 0 lists nothing; try 5".into());
    }
    if let Some(tokens) = arguments.tokens.filter(|tokens| !(*tokens > 0.0 && tokens.is_finite())) {
        wrong.push(format!("--tokens {tokens} must be above zero and finite; try 300e9"));
    }
    let reserve = arguments.reserve / 100.0;
    if !(0.0..1.0).contains(&reserve) {
        wrong.push(format!("--reserve {} is not from 0 to below 100; try 6", arguments.reserve));
    }
    let hours = arguments.lost_hours;
    if !(hours > 0.0 && hours.is_finite()) {
        wrong.push(format!("--lost-hours {hours} must be above zero and finite; try 24"));
    }
    let calibration = match &arguments.calibration {
        Some(path) => read_calibration(path, world).map_err(|line| wrong.push(line)).ok(),
        None => cluster.as_ref().and_then(|c| Calibration::of(c.device.calibration)),
    };
    if let (Some(cluster), Some(own)) = (&cluster, &calibration)
        && own.name != cluster.device.calibration
    {
        wrong.push(format!(
            "--calibration is for {}, but the cluster has {}; try the calibration of {}",
            own.name, cluster.device.name, cluster.device.calibration
        ));
    }
    match (model, cluster, calibration) {
        (Some(model), Some(cluster), Some(calibration)) if wrong.is_empty() => {
            let usual = default_batch(&model, cluster.devices);
            let usual =
                layout.map_or(usual, |l| usual.next_multiple_of((l.data * l.microbatch).max(1)));
            let given = arguments.batch.map(i64::unsigned_abs);
            let batch = given.or(recipe.map(|r| r.train.batch as u64)).unwrap_or(usual);
            let tokens = arguments.tokens.unwrap_or(20.0 * model.num_params() as f64);
            Ok(Scenario { model, cluster, batch, tokens, calibration, layout, reserve })
        }
        _ => Err(Failure::user(wrong.join("\n"))),
    }
}

/// Reads the calibration of a device type.
fn read_calibration(path: &Path, world: &World) -> Result<Calibration, String> {
    let text = world.files().read_to_string(path).map_err(|error| error.to_string())?;
    Calibration::parse(&text).map_err(|error| {
        let file = path.display();
        format!("--calibration {file}: {error}; try a file that `plan calibrate RUNS --out` wrote")
    })
}

/// Largest global batch.
pub(super) const MAX_BATCH: i64 = 1 << 32;

/// The cluster of `--cluster`, by name or from a file.
fn cluster(text: &str, world: &World) -> Result<Cluster, Vec<String>> {
    let found = named_or_read(text, world)?;
    if found.devices > MAX_DEVICES {
        return Err(vec![format!(
            "--cluster {text}: {} devices are too many; try at most {MAX_DEVICES}",
            found.devices
        )]);
    }
    Ok(found)
}

fn named_or_read(text: &str, world: &World) -> Result<Cluster, Vec<String>> {
    if let Some(cluster) = hardware::named(text) {
        return Ok(cluster);
    }
    let path = PathBuf::from(text);
    let is_file = path.extension().is_some_and(|extension| extension == "toml");
    if !is_file {
        return Err(vec![unknown_cluster(text)]);
    }
    let content = world.files().read_to_string(&path).map_err(|e| vec![e.to_string()])?;
    hardware::file::parse(text, &content)
}

/// The error for a `--cluster` that is neither a file nor a number of known devices.
fn unknown_cluster(text: &str) -> String {
    let all = hardware::names();
    let Some((count, device)) = hardware::cluster::split(text) else {
        // A device without a number of them.
        if let Ok(device) = device_name::find(text) {
            let fix = format!("{}x{}", device.per_node, device.name);
            return format!("--cluster {text} has no number of devices; try {fix}");
        }
        return format!(
            "--cluster {text} is neither a TOML file nor a number x a device; try 64xa100-80gb; \
             devices: {all}"
        );
    };
    let number = count.parse::<u64>().ok().filter(|count| *count > 0);
    let found = device_name::find(device);
    let mut what = Vec::new();
    if number.is_none() {
        what.push(format!("{count:?} is not a positive number of devices"));
    }
    let (number, mut hint) = (number.unwrap_or(64), String::new());
    let candidates = match found {
        Ok(device) => vec![device.name],
        Err(DeviceNameError { candidates, is_ambiguous: true, .. }) => {
            what.push(format!("{device:?} is several devices"));
            candidates
        }
        Err(DeviceNameError { candidates, .. }) => {
            what.push(format!("{device:?} is not a known device (known: {all})"));
            hint = format!(", or {}", device_name::OVERRIDE);
            if candidates.is_empty() { vec!["a100-80gb"] } else { candidates }
        }
    };
    let fixes: Vec<String> = candidates.iter().map(|name| format!("{number}x{name}")).collect();
    format!("--cluster {text}: {}; try {}{hint}", what.join(", and "), fixes.join(" or "))
}
