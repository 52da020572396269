//! The `lockstep` command: one file a command, exit codes by blame.
//!
//! # Layout
//! - [`commands`]: `train`, `generate`, `eval`, `inspect`, `compare`, `convert`, `data`,
//!   `data-server`, `bench`, `plan`, `lab`, `config`, `doctor`, `drill`, `rendezvous`, `sweep`, one
//!   file each.
//! - [`recipe_args`]: how every command is told its recipe (file, preset, `--set`).
//! - [`workers`]: a command that several workers carry out together.
//! - [`forecast`]: what a run will cost here, and the file with what this machine was measured at.
//! - [`child`]: another command of ours as a process; [`svg`]: the shapes of drawings.
//! - [`failure`]: an error as the person at the terminal sees it.
//! - [`output`]: standard output, where a closed pipe is a success.

mod child;
mod commands;
mod failure;
mod forecast;
mod memory_report;
mod output;
mod recipe_args;
mod svg;
mod workers;

use clap::{Parser, Subcommand};
use lockstep_platform::HugePages;
use std::process::ExitCode;

/// Weights, gradients and activations are large: a step is about 2 % faster on large pages.
#[global_allocator]
static ALLOCATOR: HugePages = HugePages;

/// Train transformers across many workers, exactly.
#[derive(Parser)]
#[command(name = "lockstep", version, after_help = EXAMPLES, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  lockstep train                                  train on the bundled corpus
  lockstep train my.toml --set train.steps=1000   a recipe of your own
  lockstep generate --prompt \"In the beginning\"   text from the newest run
  lockstep eval --data book.txt                   loss and bits per byte on any text
  lockstep compare runs/0001 runs/0002            are two runs the same to the bit?
  lockstep data tokenize texts --tokenizer byte --out shards   a corpus of your own
  lockstep plan my.toml                           memory, bytes and time of a run, before it
  lockstep lab stragglers                         an experiment, simulated and swept
  lockstep config                                 every key, its meaning and its value
  lockstep doctor runs/0007                       why a run failed: who did not arrive where
  lockstep sweep my.toml --over optim.lr=1e-3,3e-3   which setting learns best?
  lockstep drill my.toml                          kill workers at random; is the end the same?

Exit codes: 0 ok, 2 the command or its input, 3 a peer, 4 storage, 5 diverged, 101 a bug.";

#[derive(Subcommand)]
enum Command {
    Train(commands::train::Arguments),
    Generate(commands::generate::Arguments),
    Inspect(commands::inspect::Arguments),
    Compare(commands::compare::Arguments),
    Eval(commands::eval::Arguments),
    #[command(visible_alias = "export")]
    Convert(commands::convert::Arguments),
    DataServer(commands::data_server::Arguments),
    #[command(subcommand)]
    Bench(commands::bench::Command),
    Plan(commands::plan::Arguments),
    Lab(commands::lab::Arguments),
    #[command(subcommand)]
    Data(commands::data::Command),
    Config(commands::config::Arguments),
    Doctor(commands::doctor::Arguments),
    Drill(commands::drill::Arguments),
    Sweep(commands::sweep::Arguments),
    Rendezvous(commands::rendezvous::Arguments),
}

fn main() -> ExitCode {
    let world = lockstep_platform::real();
    let result = match Arguments::parse().command {
        Command::Train(arguments) => commands::train::run(&arguments, &world),
        Command::Generate(arguments) => commands::generate::run(&arguments, &world),
        Command::Inspect(arguments) => commands::inspect::run(&arguments, &world),
        Command::Compare(arguments) => commands::compare::run(&arguments, &world),
        Command::Eval(arguments) => commands::eval::run(&arguments, &world),
        Command::DataServer(arguments) => commands::data_server::run(&arguments, &world),
        Command::Convert(arguments) => commands::convert::run(&arguments, &world),
        Command::Bench(command) => commands::bench::run(&command, &world),
        Command::Plan(arguments) => commands::plan::run(&arguments, &world),
        Command::Lab(arguments) => commands::lab::run(&arguments, &world),
        Command::Data(command) => commands::data::run(&command, &world),
        Command::Config(arguments) => commands::config::run(&arguments, &world),
        Command::Doctor(arguments) => commands::doctor::run(&arguments, &world),
        Command::Drill(arguments) => commands::drill::run(&arguments, &world),
        Command::Sweep(arguments) => commands::sweep::run(&arguments, &world),
        Command::Rendezvous(arguments) => commands::rendezvous::run(&arguments, &world),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
