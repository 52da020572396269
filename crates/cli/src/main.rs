//! The `lockstep` command: one file per command, exit codes by blame.
//!
//! # Layout
//! - [`commands`]: `train`, `generate`, `chat`, `eval`, `inspect`, `compare`, `check`, `convert`,
//!   `data`, `data-server`, `bench`, `plan`, `lab`, `config`, `doctor`, `explain`, `drill`,
//!   `rendezvous`, `report`, `runs`, `serve`, `sweep`, `top`, `completions`, `man`
//! - [`recipe_args`]: recipe arguments of every command (file, preset, `--set`); [`common_flags`]:
//!   flags for the most common keys; [`rank_flags`]: place of a rank that is started by hand
//! - [`workers`]: runs a command on all workers; [`resume_command`]: the command that resumes a run
//! - [`prediction`]: predicted memory, bytes and step time; [`calibration_file`]: the measured
//!   machine
//! - [`subprocess`]: another `lockstep` command as a process
//! - [`console`]: standard error of a run; [`machine_peak`]: the peak behind its share (MFU)
//! - [`diagnosis`]: diagnosis of a run folder; [`dashboard_runs`]: runs of the dashboard;
//!   [`training_dashboard`]: the dashboard inside a run
//! - [`failure`]: errors and exit codes; [`unknown_flag`]: flags of other frameworks
//! - [`output`]: standard output; [`quantity`]: numbers as text; [`text_stream`]: text of a model;
//!   [`sampling_flags`]: its draws

mod automatic;
mod calibration_file;
mod commands;
mod common_flags;
mod console;
mod dashboard_runs;
mod dashboard_tools;
mod diagnosis;
mod epochs;
mod failure;
mod machine_peak;
mod memory_report;
mod newest_run;
mod output;
mod prediction;
mod quantity;
mod rank_flags;
mod recipe_args;
mod resume_command;
mod sample;
mod sampling_flags;
mod subprocess;
mod text_stream;
mod training_dashboard;
mod unknown_flag;
mod workers;

use clap::{CommandFactory, Parser, Subcommand};
use failure::Failure;
use lockstep_platform::HugePages;
use std::process::ExitCode;

/// Huge pages make a step about 2 % faster, since tensors are large.
#[global_allocator]
static ALLOCATOR: HugePages = HugePages;

/// Train transformers across many workers with bit-identical results.
#[derive(Parser)]
#[command(name = "lockstep", version, after_help = EXAMPLES, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  lockstep train                                  train on the bundled corpus
  lockstep train my.toml --set train.steps=1000   your own recipe
  lockstep generate --prompt \"In the beginning\"   text from the newest run
  lockstep chat my-chat-model                     a conversation in the terminal
  lockstep eval --data book.txt                   loss and bits per byte on any text
  lockstep runs                                   state, steps and loss of every run
  lockstep serve                                  runs in a browser, live
  lockstep top                                    workers of the newest run, live
  lockstep report --html run.html                 the newest run as one file
  lockstep compare runs/0001 runs/0002            are two runs bit-identical?
  lockstep data tokenize texts --tokenizer byte --out shards   your own corpus
  lockstep check my.toml                          all hosts before a run: what to mend
  lockstep plan my.toml                           predicted memory, bytes sent and time
  lockstep lab stragglers                         a simulated experiment
  lockstep config                                 every key with its meaning and value
  lockstep doctor runs/0007                       why a run failed: which rank missed which call
  lockstep explain runs/0007                      where the time of a run went, and what to try
  lockstep sweep my.toml --over optim.lr=1e-3,3e-3   hyperparameter search
  lockstep drill my.toml                          kill workers at random and compare the result
  torchrun --nproc-per-node 2 --no-python lockstep train   workers of another launcher
  lockstep completions bash                       a completion script; also zsh, fish

Exit codes: 0 ok, 2 the command or its input, 3 a peer, 4 storage, 5 diverged, 101 a bug,
130 Ctrl-C, 143 SIGTERM (the last line resumes a run that was saved).";

#[derive(Subcommand)]
enum Command {
    Train(commands::train::Arguments),
    Generate(commands::generate::Arguments),
    Chat(commands::chat::Arguments),
    Inspect(commands::inspect::Arguments),
    Runs(commands::runs::Arguments),
    Check(commands::check::Arguments),
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
    Explain(commands::explain::Arguments),
    Drill(commands::drill::Arguments),
    Sweep(commands::sweep::Arguments),
    Serve(commands::serve::Arguments),
    Report(commands::report::Arguments),
    Top(commands::top::Arguments),
    Rendezvous(commands::rendezvous::Arguments),
    Completions(commands::completions::Arguments),
    Man(commands::man::Arguments),
}

fn main() -> ExitCode {
    let world = lockstep_platform::real();
    let command = match Arguments::try_parse() {
        Ok(arguments) => arguments.command,
        Err(error) => {
            let arguments = std::env::args_os().map(|one| one.to_string_lossy().into_owned());
            let arguments: Vec<String> = arguments.collect();
            match unknown_flag::explain(&error, &Arguments::command(), &arguments) {
                Some(failure) => return failure.report(),
                None => error.exit(),
            }
        }
    };
    // Ranks of a batch system have the variables of any other rank from here on.
    let world = match lockstep_cluster::launchers::translate(&world, None) {
        Ok(world) => world,
        Err(error) => return Failure::user(error.to_string()).report(),
    };
    let result = match command {
        Command::Train(arguments) => commands::train::run(&arguments, &world),
        Command::Generate(arguments) => commands::generate::run(&arguments, &world),
        Command::Chat(arguments) => commands::chat::run(&arguments, &world),
        Command::Inspect(arguments) => commands::inspect::run(&arguments, &world),
        Command::Check(arguments) => commands::check::run(&arguments, &world),
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
        Command::Explain(arguments) => commands::explain::run(&arguments, &world),
        Command::Drill(arguments) => commands::drill::run(&arguments, &world),
        Command::Sweep(arguments) => commands::sweep::run(&arguments, &world),
        Command::Rendezvous(arguments) => commands::rendezvous::run(&arguments, &world),
        Command::Runs(arguments) => commands::runs::run(&arguments, &world),
        Command::Serve(arguments) => commands::serve::run(&arguments, &world),
        Command::Report(arguments) => commands::report::run(&arguments, &world),
        Command::Top(arguments) => commands::top::run(&arguments, &world),
        Command::Completions(arguments) => {
            commands::completions::run(&arguments, Arguments::command())
        }
        Command::Man(arguments) => commands::man::run(&arguments, &world, Arguments::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
