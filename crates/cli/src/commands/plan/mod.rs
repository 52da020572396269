//! `lockstep plan`: what a run will cost, before it costs it.
//!
//! # Layout
//! - [`recipe`]: memory, bytes and time of a recipe on this machine.
//! - [`calibrate`]: measures this machine.
//! - [`collectives`]: all-reduces on any link, by closed form and by schedule.
//! - [`timeline`]: a pipeline, played and drawn.
//! - [`cluster`]: the best layouts of a model on a cluster, or one that is [`given`];
//!   [`cluster_report`] is what it says to programs and [`cluster_text`] to people, [`upgrades`]
//!   what would help, [`best`] the recipe and [`html`] the page that it writes.
//! - [`size`]: the smallest cluster that meets a deadline or a budget.
//! - [`validate`]: predictions beside published runs.

mod best;
mod calibrate;
mod cluster;
mod cluster_report;
mod cluster_text;
mod collectives;
mod given;
mod html;
mod recipe;
mod size;
mod timeline;
mod unknown;
mod upgrades;
mod validate;

use crate::failure::Failure;
use crate::recipe_args::RecipeArguments;
use lockstep_platform::World;

/// What a run will cost: memory, bytes, time
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Memory and bytes are counted from the plan that the engine goes by; a recipe that does not fit into
this machine is refused with the nearest one that does. Time needs a machine that was measured.

Examples:
  lockstep plan                                       the default recipe on this machine
  lockstep plan my.toml --set run.workers=4 --json    for a program
  lockstep plan memory my.toml                        memory alone, by rank and part
  lockstep plan search --model llama3-70b --cluster 64xh100-80gb    layouts alone
  lockstep plan calibrate                             measure this machine, once
  lockstep plan timeline --schedule 1f1b --devices 4  draw a pipeline
  lockstep plan collectives --ranks 64                what all-reduces cost on a link
  lockstep plan --model gpt3-175b --cluster 1024xa100-80gb          the best of all layouts
  lockstep plan my.toml --cluster cluster.toml --write best.toml    as a recipe
  lockstep plan --model gpt3-13b --cluster 64xa100-80gb --layout tensor=8,pipeline=2,data=4
  lockstep plan --model llama3-70b --cluster 512xh100-80gb --html plan.html   with pictures
  lockstep plan size --model llama-65b --device a100-80gb --tokens 1.4e12 --days 21
  lockstep plan validate runs.csv                     predictions beside published runs

A cluster file has `device` and `devices`, and may have per_node, link_gbps, network_gbps (or
nics_per_node and nic_gbps), network (infiniband, ethernet), topology (full, fat-tree, rails, racks,
tree, torus), nodes_per_rack, oversubscription, racks_per_spine, spine_oversubscription, torus_dims,
memory_gb, peak_tflops, memory_gbps, host_gbps, host_memory_gbps, storage_gbps,
dollars_per_device_hour, dollars_per_kwh, watts_per_device and failures_per_node_day."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Box<Command>>,
    #[command(flatten)]
    question: Question,
}

/// What is planned, and how it is told.
#[derive(clap::Args)]
#[group(skip)]
struct Question {
    #[command(flatten)]
    recipe: RecipeArguments,
    #[command(flatten)]
    cluster: cluster::Arguments,
    /// One JSON value on standard output, with everything
    #[arg(long)]
    json: bool,
}

/// A part of a plan that is told by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    All,
    Memory,
    Time,
    Search,
}

/// How a plan is told.
#[derive(Clone, Copy)]
struct Shown {
    section: Section,
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Memory alone: of every rank of a recipe, or of the best layout on a cluster
    Memory(Question),
    /// Time alone: what a step is spent on
    Time(Question),
    /// Layouts alone: the best on a cluster, why others lost, what would fit
    Search(Question),
    Calibrate(calibrate::Arguments),
    Collectives(collectives::Arguments),
    Size(size::Arguments),
    Timeline(timeline::Arguments),
    Validate(validate::Arguments),
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    match arguments.command.as_deref() {
        None => answer(&arguments.question, Section::All, world),
        Some(Command::Memory(question)) => answer(question, Section::Memory, world),
        Some(Command::Time(question)) => answer(question, Section::Time, world),
        Some(Command::Search(question)) => answer(question, Section::Search, world),
        Some(Command::Calibrate(arguments)) => calibrate::run(arguments, world),
        Some(Command::Collectives(arguments)) => collectives::run(arguments),
        Some(Command::Size(arguments)) => size::run(arguments),
        Some(Command::Timeline(arguments)) => timeline::run(arguments, world),
        Some(Command::Validate(arguments)) => validate::run(arguments, world),
    }
}

/// A plan for a cluster, or for this machine.
fn answer(question: &Question, section: Section, world: &World) -> Result<(), Failure> {
    let shown = Shown { section, json: question.json };
    if question.cluster.cluster.is_some() {
        return cluster::run(&question.cluster, &question.recipe, shown, world);
    }
    if let Some(option) = question.cluster.given() {
        let error =
            format!("{option} is about clusters; try --cluster 64xa100-80gb, or without it");
        return Err(Failure::user(error));
    }
    if question.cluster.model.is_some() || section == Section::Search {
        let what = if section == Section::Search { "plan search" } else { "--model" };
        let error = format!("{what} needs --cluster; try --cluster 64xa100-80gb");
        return Err(Failure::user(error));
    }
    recipe::run(&question.recipe, shown, world)
}
