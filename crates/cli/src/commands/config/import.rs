//! `lockstep config import`: a recipe from a DeepSpeed configuration.

use crate::failure::Failure;
use crate::output;
use lockstep_config::import::deepspeed::{self, Options};
use lockstep_config::import::{Imported, Unmapped};
use lockstep_platform::World;
use std::io::Write;
use std::path::PathBuf;

/// Make a recipe from a DeepSpeed configuration (ds_config.json)
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep config import ds_config.json                 the recipe on standard output
  lockstep config import ds_config.json --out my.toml   then: lockstep train my.toml
  lockstep config import ds_config.json --workers 8     batch sizes for 8 workers
  lockstep config import ds_config.json --json          recipe and unmapped fields, for programs

Batch sizes, accumulation, fp16 and bf16, ZeRO, offload, clipping, optimizer and scheduler become
keys of the recipe. Each field without a counterpart is a line on standard error that says why;
\"auto\" values, which the Hugging Face Trainer fills in, are listed with the key to set.")]
pub(super) struct Arguments {
    /// The DeepSpeed configuration
    file: PathBuf,
    /// Write the recipe to this new file instead of standard output
    #[arg(long)]
    out: Option<PathBuf>,
    /// Number of workers, where the batch sizes leave it open
    #[arg(long)]
    workers: Option<usize>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let file = arguments.file.display().to_string();
    if let Some(out) = arguments.out.as_ref().filter(|out| world.files().metadata(out).is_some()) {
        return Err(Failure::user(format!("{} exists; try a new name for --out", out.display())));
    }
    let text = world.files().read_to_string(&arguments.file);
    let text = text.map_err(|error| Failure::user(error.to_string()))?;
    let options = Options { workers: arguments.workers };
    let imported = deepspeed::import(&file, &text, options)
        .map_err(|error| Failure::user(format!("{file}: {error}")))?;
    if let Some(out) = &arguments.out {
        world.files().write_atomic(out, imported.toml.as_bytes())?;
    }
    if arguments.json {
        return output::json(&imported);
    }
    let Imported { toml, unmapped } = imported;
    for Unmapped { path, value, reason } in &unmapped {
        let value = if value.is_empty() { String::new() } else { format!(" = {value}") };
        // A closed standard error loses only the list.
        let _ = writeln!(std::io::stderr(), "not imported: {path}{value}: {reason}");
    }
    if arguments.out.is_some() { Ok(()) } else { output::text(&toml) }
}
