//! `lockstep convert`: converts models between run folders and Hugging Face folders.

use crate::failure::Failure;
use crate::output;
use crate::quantity::si_bytes;
use lockstep_checkpoint::ElementType;
use lockstep_config::units::Bytes;
use lockstep_platform::World;
use lockstep_trainer::convert::{Converted, Target, convert};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;

/// Convert a run to a Hugging Face folder, or back
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep convert runs/0001 --to huggingface my-model
  lockstep convert runs/0001 --to huggingface my-model --dtype bf16 --shard-size 2GB
  lockstep export runs/0001/checkpoints/step-00000100 --to huggingface early
  lockstep convert my-model --to lockstep imported    then: lockstep generate imported
  lockstep convert a-model --to huggingface b-model --dtype f16   another number format
  lockstep convert runs/0001 --to huggingface long --max-positions 4096

The new folder must not exist; it is written atomically.")]
pub(crate) struct Arguments {
    /// Folder of a run, of a checkpoint or of a Hugging Face model
    source: PathBuf,
    /// Folder to write (default: the source's name with the format appended)
    out: Option<PathBuf>,
    /// Target format
    #[arg(long, value_enum)]
    to: Format,
    /// Number format of the weights (huggingface)
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Dtype,
    /// Largest file of weights, as 500MB (huggingface)
    #[arg(long, value_name = "BYTES", default_value = "5GB")]
    shard_size: Bytes,
    /// Maximum number of positions in config.json, as 4096 (huggingface; default: that of the model
    /// that training started from, else model.context)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    max_positions: Option<u32>,
    /// No progress on standard error
    #[arg(long)]
    quiet: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// Target format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A folder that transformers loads
    Huggingface,
    /// The folder of a run
    Lockstep,
}

/// Number format of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Dtype {
    /// Unchanged
    F32,
    /// Half the bytes, two to three digits
    Bf16,
    /// Half the bytes, three to four digits, up to 65,504
    F16,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let target = target(arguments)?;
    let shown = !arguments.quiet && std::io::stderr().is_terminal();
    let mut progress = Progress { shown, percent: None };
    let converted =
        convert(&arguments.source, &out(arguments), target, world, &mut |done, total| {
            progress.show(done, total);
        });
    progress.clear();
    let converted = converted?;
    if !arguments.quiet {
        for note in &converted.notes {
            // A closed standard error is not a failure of the command.
            let _ = writeln!(std::io::stderr(), "warning: {note}");
        }
    }
    if arguments.json { output::json(&converted) } else { output::text(&render(&converted)) }
}

/// The folder to write.
fn out(arguments: &Arguments) -> PathBuf {
    arguments.out.clone().unwrap_or_else(|| {
        let name = arguments.source.file_name().unwrap_or_else(|| "model".as_ref());
        let format = match arguments.to {
            Format::Huggingface => "huggingface",
            Format::Lockstep => "lockstep",
        };
        PathBuf::from(format!("{}-{format}", name.display()))
    })
}

fn target(arguments: &Arguments) -> Result<Target, Failure> {
    let format = match arguments.dtype {
        Dtype::F32 => ElementType::F32,
        Dtype::Bf16 => ElementType::Bf16,
        Dtype::F16 => ElementType::F16,
    };
    let max_positions = arguments.max_positions.map(|max| max as usize);
    match arguments.to {
        Format::Huggingface => {
            let shard_bytes = arguments.shard_size.0;
            Ok(Target::HuggingFace { format, shard_bytes, max_positions })
        }
        Format::Lockstep if max_positions.is_some() => Err(Failure::user(
            "--max-positions is not supported with --to lockstep, whose recipe has \
             model.max_positions; drop it"
                .to_owned(),
        )),
        Format::Lockstep if format != ElementType::F32 => Err(Failure::user(format!(
            "--dtype {} is not supported with --to lockstep, which stores f32; drop it",
            format.name()
        ))),
        Format::Lockstep => Ok(Target::Lockstep),
    }
}

/// A progress line on a terminal.
struct Progress {
    shown: bool,
    percent: Option<u64>,
}

impl Progress {
    fn show(&mut self, done: u64, total: u64) {
        let percent = done * 100 / total.max(1);
        if self.shown && self.percent != Some(percent) {
            self.percent = Some(percent);
            let _ = write!(std::io::stderr(), "\rconverting {percent:>3} %");
        }
    }

    fn clear(&self) {
        if self.percent.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn render(converted: &Converted) -> String {
    let mut text = String::new();
    let Converted { num_params, num_tensors, dtype, .. } = converted;
    let _ = writeln!(text, "folder       {}", converted.folder);
    let bytes = si_bytes(converted.num_bytes);
    let _ = writeln!(text, "weights      {num_params} in {num_tensors} tensors, {dtype}, {bytes}");
    let _ = writeln!(text, "files        {}", converted.files.join(" "));
    let _ = writeln!(text, "other files  {}", converted.others.join(" "));
    let _ = writeln!(text, "weights_hash {}", converted.weights_hash);
    text
}
