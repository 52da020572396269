//! `lockstep plan`: memory, communication, time and cost of a run, predicted.
//!
//! # Layout
//! - [`recipe`]: a recipe on this machine
//! - [`calibrate`]: measures this machine
//! - [`collectives`]: cost of collective algorithms on a link
//! - [`timeline`]: a pipeline schedule, simulated and drawn; [`step`]: a rank's step program
//! - [`cluster`]: the best layouts of a model on a cluster; [`cluster_report`] as JSON,
//!   [`cluster_text`] as text, [`html`] as a page
//! - [`live`]: a plan for the page of `lockstep serve`
//! - [`size`]: the smallest cluster that meets a deadline or a budget
//! - [`validate`]: predictions against published runs
//! - [`named_model`]: models by name or from a file; [`suggest`]: close names for an unknown one

mod calibrate;
mod cluster;
mod cluster_report;
mod cluster_text;
mod collectives;
mod html;
pub(crate) mod live;
mod named_model;
mod recipe;
mod size;
mod step;
mod suggest;
mod timeline;
mod validate;

use crate::failure::Failure;
use crate::recipe_args::RecipeArguments;
use lockstep_platform::World;

/// Predict memory, communication, time and cost of a run
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Memory and bytes sent are counted from the step program that the engine runs. A recipe that does
not fit in this machine is refused with the closest one that does. Step time needs a calibrated
machine (`lockstep plan calibrate`).

Examples:
  lockstep plan                                       default recipe on this machine
  lockstep plan my.toml --set run.workers=4 --json    JSON
  lockstep plan memory my.toml                        memory by rank and part
  lockstep plan my.toml --device h200                 on a GPU that this machine lacks
  lockstep plan search --model llama3-70b --cluster 64xh100-80gb    layout search
  lockstep plan calibrate                             measure this machine once
  lockstep plan timeline --schedule 1f1b --devices 4  draw a pipeline schedule
  lockstep plan step my.toml --rank 1                 tasks of a rank's step
  lockstep plan collectives --ranks 64                cost of collectives on a link
  lockstep plan --model gpt3-175b --cluster 1024xa100-80gb          best layout
  lockstep plan my.toml --cluster cluster.toml --write best.toml    best layout as a recipe
  lockstep plan --model gpt3-13b --cluster 64xa100-80gb --layout tp=8,pp=2,dp=4
  lockstep plan --model llama3-70b --cluster 512xh100-80gb --html plan.html   with plots
  lockstep plan size --model llama-65b --device a100-80gb --tokens 1.4e12 --days 21
  lockstep plan validate runs.csv                     predictions against published runs

A cluster file has `device` and `devices`, and may have per_node, link_gbps, network_gbps (or
nics_per_node and nic_gbps), network (infiniband, ethernet), topology (full, fat-tree, rails, racks,
tree, torus), nodes_per_rack, oversubscription, racks_per_spine, spine_oversubscription, torus_dims,
memory_gb, peak_tflops, memory_gbps, host_gbps, host_memory_gbps, host_memory_gb, nvme_gbps,
storage_gbps, dollars_per_device_hour, dollars_per_kwh, watts_per_device and failures_per_node_day."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Box<Command>>,
    #[command(flatten)]
    plan: PlanArguments,
}

/// Subject and output format of a plan.
#[derive(clap::Args)]
#[group(skip)]
struct PlanArguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    #[command(flatten)]
    cluster: cluster::Arguments,
    /// Plan the recipe for one GPU of this type, such as h200-141gb, which may be absent here
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// One JSON value on standard output, with everything
    #[arg(long)]
    json: bool,
}

/// A part of a plan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    All,
    Memory,
    Time,
    Search,
}

/// Part and format of the output.
#[derive(Clone, Copy)]
struct OutputOptions {
    section: Section,
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Memory by rank of a recipe, or of the best layout on a cluster
    Memory(PlanArguments),
    /// Step time by part
    Time(PlanArguments),
    /// Layout search: the best layouts on a cluster, and why others are slower or do not fit
    Search(PlanArguments),
    Calibrate(calibrate::Arguments),
    Collectives(collectives::Arguments),
    Size(size::Arguments),
    Step(step::Arguments),
    Timeline(timeline::Arguments),
    Validate(validate::Arguments),
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    match arguments.command.as_deref() {
        None => plan(&arguments.plan, Section::All, world),
        Some(Command::Memory(arguments)) => plan(arguments, Section::Memory, world),
        Some(Command::Time(arguments)) => plan(arguments, Section::Time, world),
        Some(Command::Search(arguments)) => plan(arguments, Section::Search, world),
        Some(Command::Calibrate(arguments)) => calibrate::run(arguments, world),
        Some(Command::Collectives(arguments)) => collectives::run(arguments),
        Some(Command::Size(arguments)) => size::run(arguments, world),
        Some(Command::Step(arguments)) => step::run(arguments, world),
        Some(Command::Timeline(arguments)) => timeline::run(arguments, world),
        Some(Command::Validate(arguments)) => validate::run(arguments, world),
    }
}

/// Plans for a cluster, or for this machine.
fn plan(arguments: &PlanArguments, section: Section, world: &World) -> Result<(), Failure> {
    let options = OutputOptions { section, json: arguments.json };
    if arguments.cluster.cluster.is_some() {
        if let Some(device) = &arguments.device {
            let error = format!("--cluster names its devices; drop --device {device}");
            return Err(Failure::user(error));
        }
        return cluster::run(&arguments.cluster, &arguments.recipe, options, world);
    }
    if let Some(option) = arguments.cluster.cluster_option() {
        let error =
            format!("{option} needs --cluster; try --cluster 64xa100-80gb, or drop {option}");
        return Err(Failure::user(error));
    }
    if arguments.cluster.model.is_some() || section == Section::Search {
        let what = if section == Section::Search { "plan search" } else { "--model" };
        let error = format!("{what} needs --cluster; try --cluster 64xa100-80gb");
        return Err(Failure::user(error));
    }
    recipe::run(&arguments.recipe, arguments.device.as_deref(), options, world)
}
