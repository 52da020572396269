//! `lockstep plan --model X --cluster Y`: the best layouts of a model on a cluster that is not
//! here.

use super::cluster_report::{More, Report};
use super::cluster_text::{gib, render};
use super::{Section, Shown, best, given, html, unknown};
use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use lockstep_config::{Family, Recipe, nearest};
use lockstep_estimate::hardware::{self, Cluster};
use lockstep_estimate::layout::{Habits, Layout};
use lockstep_estimate::model::{self, Model};
use lockstep_estimate::search::quickest::quickest;
use lockstep_estimate::search::{Found, Question, search};
use lockstep_estimate::time::pipeline::Pipelines;
use lockstep_estimate::{Calibration, bill};
use lockstep_platform::World;
use std::path::{Path, PathBuf};

/// What a cluster's plan is asked for.
#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct Arguments {
    /// Plan for this cluster: NUMBERxDEVICE as in 1024xa100-80gb, or a TOML file
    #[arg(long, value_name = "CLUSTER")]
    pub(super) cluster: Option<String>,
    /// A published model instead of the recipe's, as gpt3-175b or llama3-70b
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// Sequences of a step (about four million tokens)
    #[arg(long, allow_negative_numbers = true)]
    pub(super) batch: Option<i64>,
    /// Tokens of the whole run (twenty for each parameter)
    #[arg(long, allow_negative_numbers = true)]
    pub(super) tokens: Option<f64>,
    /// Price this layout instead of searching, as tensor=8,pipeline=12,data=4
    #[arg(long, value_name = "KEY=NUMBER,…")]
    pub(super) layout: Option<String>,
    /// Layouts to show
    #[arg(long, default_value_t = 5)]
    pub(super) top: usize,
    /// Constants of the device's type, as `plan calibrate RUNS --out FOLDER` writes them
    #[arg(long, value_name = "FILE")]
    pub(super) calibration: Option<PathBuf>,
    /// Say how likely failures are to cost more than so many hours
    #[arg(long, value_name = "HOURS", default_value_t = 24.0, allow_negative_numbers = true)]
    pub(super) lost_hours: f64,
    /// Price upgrades: which resource helps most
    #[arg(long)]
    pub(super) what_if: bool,
    /// Price a quarter to four times the devices, with the same batch and with one that grows
    #[arg(long)]
    pub(super) scaling: bool,
    /// Write the plan with pictures (memory, timeline, scaling) to this file
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Write the best layout as a recipe for this engine, if it can run it
    #[arg(long, value_name = "FILE")]
    pub(super) write: Option<PathBuf>,
}

impl Arguments {
    /// An option that says nothing without a cluster, if one is given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let options = [
            ("--batch", self.batch.is_some()),
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

/// A model and a cluster with everything that a search needs.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) model: Model,
    pub(super) cluster: Cluster,
    pub(super) batch: u64,
    pub(super) tokens: f64,
    pub(super) calibration: Calibration,
    pub(super) layout: Option<Layout>,
}

impl Asked {
    pub(super) const fn question(&self) -> Question<'_> {
        Question {
            model: &self.model,
            cluster: &self.cluster,
            batch: self.batch,
            habits: Habits::MODERN,
            calibration: &self.calibration,
        }
    }
}

pub(super) fn run(
    arguments: &Arguments,
    recipe: &RecipeArguments,
    shown: Shown,
    world: &World,
) -> Result<(), Failure> {
    if arguments.model.is_some() && !recipe.is_default() {
        let error = "--model is instead of a recipe, and there is one too; try one or the other";
        return Err(Failure::user(error));
    }
    let recipe = if arguments.model.is_none() { Some(recipe.resolve(world)?) } else { None };
    let asked = asked(arguments, recipe.as_ref(), world)?;
    let question = asked.question();
    let found = match asked.layout {
        Some(layout) => only(&question, layout)?,
        None => search(&question, arguments.top.max(2)),
    };
    let Some(first) = found.best.first() else {
        return Err(Failure::user(nothing_fits(&asked, &found, arguments.batch.is_some())));
    };
    let tokens = (asked.batch * asked.model.context) as f64;
    let costs = bill::bill(&asked.model, &asked.cluster, asked.tokens, tokens, first.step.seconds);
    if costs.never_ends() {
        return Err(Failure::user(format!(
            "a run would never end: a failure in every {:.2} h, {:.0} s for a checkpoint and {:.0} \
             min until it goes on; try fewer failures_per_node_day, or more storage_gbps",
            costs.hours_between_failures,
            costs.checkpoint_seconds,
            bill::RESTART / 60.0,
        )));
    }
    if let Some(path) = &arguments.write {
        let own = recipe.as_ref().filter(|_| arguments.model.is_none());
        let text = best::recipe(own, &asked, &first.layout).map_err(Failure::user)?;
        world.files().write_atomic(path, text.as_bytes())?;
    }
    let more = More {
        what_if: arguments.what_if,
        scaling: arguments.scaling || (arguments.html.is_some() && asked.layout.is_none()),
        lost_hours: arguments.lost_hours,
    };
    let report = Report::new(&asked, &found, &costs, more);
    let text = render(&asked, &found, &report, shown.section);
    if let Some(path) = &arguments.html {
        let all = render(&asked, &found, &report, Section::All);
        let page = html::page(&asked, &found, &report.curves(), &all);
        world.files().write_atomic(path, page.as_bytes())?;
    }
    if shown.json { output::json(&report) } else { output::text(&text) }?;
    if report.feasible {
        return Ok(());
    }
    Err(Failure::user(format!(
        "--layout needs {:.1} of {:.1} GiB; try what is named above, or without it",
        gib(report.memory.needed_bytes as f64),
        gib(report.memory.device_bytes as f64)
    )))
}

/// Devices on which it would fit, doubled as often as it takes.
fn enough(asked: &Asked) -> Option<u64> {
    let doubled =
        std::iter::successors(Some(2 * asked.cluster.devices), |devices| Some(2 * devices));
    doubled.take_while(|devices| *devices <= MOST_DEVICES).find(|devices| {
        let mut larger = asked.clone();
        larger.cluster.devices = *devices;
        larger.batch = asked.batch.max(usual_batch(&asked.model, *devices));
        quickest(&larger.question()).is_some()
    })
}

/// Why no layout can be run, and what to try.
fn nothing_fits(asked: &Asked, found: &Found, is_batch_given: bool) -> String {
    let (model, cluster) = (&asked.model.name, &asked.cluster);
    let devices = cluster.devices;
    // A file says the number of devices itself.
    let is_file = hardware::named(&cluster.name).is_none();
    if found.examined == 0 {
        let batch = asked.batch;
        let fix = batch.next_multiple_of(devices);
        let key = if is_batch_given { "--batch" } else { "train.batch or --batch" };
        return format!(
            "no layout of {model} divides {devices} devices with batches of {batch} sequences; try \
             {key} {fix}, or another number of devices"
        );
    }
    let fix = match enough(asked) {
        None => "another device, or a smaller model".to_owned(),
        Some(enough) if is_file => format!("devices = {enough} in {}", cluster.name),
        Some(enough) => format!("--cluster {enough}x{}", cluster.device.name),
    };
    format!(
        "none of {} layouts of {model} fits into {devices} devices of {} GiB; try {fix}",
        found.examined, cluster.device.memory_gb
    )
}

/// A search that found the one layout that was given, or says why that is none.
fn only(question: &Question<'_>, layout: Layout) -> Result<Found, Failure> {
    let wrong = question.job(layout).problems();
    if !wrong.is_empty() {
        let lines: Vec<String> = wrong.iter().map(|line| format!("--layout: {line}")).collect();
        return Err(Failure::user(lines.join("\n")));
    }
    let choice = question.price(layout, &mut Pipelines::default()).ok_or_else(|| {
        Failure::user(format!(
            "--layout: {} cannot be run; try schedule=1f1b and \
            as many microbatches as stages",
            layout.brief()
        ))
    })?;
    let fits = choice.memory.needed(question.calibration) <= question.cluster.device.memory_bytes();
    let nearly = (!fits).then(|| choice.clone());
    let (best, pareto) = (vec![choice], Vec::new());
    Ok(Found { examined: 1, too_large: usize::from(!fits), best, nearly, pareto, lazy: Vec::new() })
}

/// Everything that was asked for, or everything that is wrong with it.
pub(super) fn asked(
    arguments: &Arguments,
    recipe: Option<&Recipe>,
    world: &World,
) -> Result<Asked, Failure> {
    let mut wrong = Vec::new();
    let model = match (&arguments.model, recipe) {
        (Some(name), _) => model::preset(name).or_else(|| {
            wrong.push(unknown::model(name));
            None
        }),
        (None, Some(recipe)) => Some(of_recipe(&recipe.model)),
        (None, None) => None,
    };
    let cluster = match cluster(arguments.cluster.as_deref().unwrap_or_default(), world) {
        Ok(cluster) => Some(cluster),
        Err(lines) => {
            wrong.extend(lines);
            None
        }
    };
    let layout =
        arguments.layout.as_deref().map(given::parse).transpose().unwrap_or_else(|lines| {
            wrong.extend(lines);
            None
        });
    if arguments.scaling && arguments.layout.is_some() {
        wrong.push(
            "--scaling searches layouts of other numbers of devices; try without --layout".into(),
        );
    }
    if let Some(batch) = arguments.batch.filter(|batch| !(1..=MOST_SEQUENCES).contains(batch)) {
        wrong.push(format!("--batch {batch} is not between 1 and {MOST_SEQUENCES}; try 1024"));
    }
    if arguments.top == 0 {
        wrong.push("--top 0 shows nothing; try 5".into());
    }
    if let Some(tokens) = arguments.tokens.filter(|tokens| !(*tokens > 0.0 && tokens.is_finite())) {
        wrong.push(format!("--tokens {tokens} must be above zero and finite; try 300e9"));
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
            "--calibration: these are constants of {}, and the cluster has {}; try those of {}",
            own.name, cluster.device.name, cluster.device.calibration
        ));
    }
    match (model, cluster, calibration) {
        (Some(model), Some(cluster), Some(calibration)) if wrong.is_empty() => {
            let usual = usual_batch(&model, cluster.devices);
            let usual = layout.map_or(usual, |l| usual.next_multiple_of(per_round(&l)));
            let given = arguments.batch.map(i64::unsigned_abs);
            let batch = given.or(recipe.map(|r| r.train.batch as u64)).unwrap_or(usual);
            let tokens = arguments.tokens.unwrap_or(20.0 * model.num_params() as f64);
            Ok(Asked { model, cluster, batch, tokens, calibration, layout })
        }
        _ => Err(Failure::user(wrong.join("\n"))),
    }
}

/// Constants of a type of device from a file.
fn read_calibration(path: &Path, world: &World) -> Result<Calibration, String> {
    let text = world.files().read_to_string(path).map_err(|error| error.to_string())?;
    Calibration::parse(&text).map_err(|error| {
        let file = path.display();
        format!("--calibration {file}: {error}; try one that `plan calibrate RUNS --out` wrote")
    })
}

/// About four million tokens, by a number of sequences that every number of copies divides.
fn usual_batch(model: &Model, devices: u64) -> u64 {
    let wanted = (4_194_304 / model.context).max(devices) as f64;
    let odd = devices >> devices.trailing_zeros();
    let doublings = (wanted / odd as f64).log2().round() as u32;
    (odd << doublings).max(devices)
}

/// Sequences that all copies read at once.
fn per_round(layout: &Layout) -> u64 {
    (layout.data * layout.microbatch).max(1)
}

/// More devices, and more sequences of a step, than anybody has.
const MOST_DEVICES: u64 = 1 << 20;
const MOST_SEQUENCES: i64 = 1 << 32;

/// A name or a file.
fn cluster(text: &str, world: &World) -> Result<Cluster, Vec<String>> {
    let found = named_or_read(text, world)?;
    if found.devices > MOST_DEVICES {
        return Err(vec![format!(
            "--cluster {text}: {} devices are more than anybody has; try at most {MOST_DEVICES}",
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

/// What is said of a cluster that is neither a file nor a number of known devices.
fn unknown_cluster(text: &str) -> String {
    let all = hardware::names();
    let Some((count, device)) = text.split_once('x') else {
        return format!(
            "--cluster {text} is neither a TOML file nor NUMBERxDEVICE; try 64xa100-80gb; devices \
             are {all}"
        );
    };
    let known: Vec<&str> = hardware::DEVICES.iter().map(|device| device.name).collect();
    let number = count.parse::<u64>().ok().filter(|count| *count > 0);
    let mut what = Vec::new();
    if number.is_none() {
        what.push(format!("{count:?} is no number of devices from 1 on"));
    }
    if !known.contains(&device) {
        what.push(format!("no device is called {device:?} (there are {all})"));
    }
    let (what, number) = (what.join(", and "), number.unwrap_or(64));
    let begun = known.iter().copied().find(|name| !device.is_empty() && name.starts_with(device));
    let near = begun.or_else(|| nearest(device, known)).unwrap_or("a100-80gb");
    let fix = format!("{number}x{near}");
    format!("--cluster {text}: {what}; try {fix}")
}

/// A recipe's model as numbers.
fn of_recipe(model: &lockstep_config::Model) -> Model {
    let name = format!("{} layers of {}", model.layers, model.width);
    let whole = |number: usize| number as u64;
    let (layers, width, heads) = (whole(model.layers), whole(model.width), whole(model.heads));
    let (ffn, kv_heads) = (whole(model.ffn), whole(model.kv_heads));
    let numbers = if model.family == Family::Llama {
        Model::llama(&name, layers, width, heads, kv_heads, ffn)
            .reading(whole(model.vocab), whole(model.context))
    } else {
        let gpt = Model::gpt(&name, layers, width, heads, whole(model.vocab), whole(model.context));
        Model { ffn, kv_heads, ..gpt }
    };
    Model { tied: model.tied, dropout: model.dropout > 0.0, ..numbers }
}
