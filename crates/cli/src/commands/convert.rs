//! `lockstep convert`: converts models between run folders and Hugging Face folders, and to GGUF.

use crate::failure::Failure;
use crate::output;
use crate::quantity::si_bytes;
use lockstep_checkpoint::ElementType;
use lockstep_checkpoint::gguf::TensorType;
use lockstep_config::units::Bytes;
use lockstep_platform::World;
use lockstep_trainer::convert::{Converted, Target, convert};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::PathBuf;

/// Convert a run to a Hugging Face folder, adapters, a GGUF file or a PyTorch checkpoint, or back
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep convert runs/0001 --to huggingface my-model
  lockstep convert runs/0001 --to huggingface my-model --dtype bf16 --shard-size 2GB
  lockstep convert runs/0001/checkpoints/step-00000100 --to huggingface early
  lockstep convert my-model --to lockstep imported    then: lockstep generate imported
  lockstep convert a-model --to huggingface b-model --dtype f16   another number format
  lockstep convert runs/0001 --to huggingface long --max-positions 4096
  lockstep convert runs/0001 --to peft my-adapter      the adapters of finetune.lora_rank alone
  lockstep convert my-model --to gguf my-model.gguf --dtype q8_0  for llama.cpp
  lockstep convert runs/0001 --to dcp my-run          weights and optimizer state for PyTorch

The new folder or file must not exist; it is written atomically.")]
pub(crate) struct Arguments {
    /// Folder of a run, of a checkpoint or of a Hugging Face model
    source: PathBuf,
    /// Folder or GGUF file to write (default: the source's name with the format appended)
    out: Option<PathBuf>,
    /// Target format
    #[arg(long, value_enum)]
    to: Format,
    /// Number format of the weights (huggingface, peft: default f32; gguf: default f16)
    #[arg(long, value_enum)]
    dtype: Option<Dtype>,
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
    /// A folder that transformers loads, with merged adapters
    Huggingface,
    /// A folder of low-rank adapters that peft loads
    Peft,
    /// A file that llama.cpp runs
    Gguf,
    /// A folder that torch.distributed.checkpoint loads, with the optimizer state
    Dcp,
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
    /// A quarter of the bytes: blocks of 8-bit integers (gguf)
    #[value(name = "q8_0")]
    Q8Zero,
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
    if arguments.json {
        output::json(&converted)
    } else {
        output::text(&render(&converted, arguments.to))
    }
}

/// The folder to write.
fn out(arguments: &Arguments) -> PathBuf {
    arguments.out.clone().unwrap_or_else(|| {
        let name = arguments.source.file_name().unwrap_or_else(|| "model".as_ref());
        let name = name.display();
        PathBuf::from(match arguments.to {
            Format::Huggingface => format!("{name}-huggingface"),
            Format::Peft => format!("{name}-peft"),
            Format::Gguf => format!("{name}.gguf"),
            Format::Dcp => format!("{name}-dcp"),
            Format::Lockstep => format!("{name}-lockstep"),
        })
    })
}

fn target(arguments: &Arguments) -> Result<Target, Failure> {
    let unsupported = |option: &str, reason: &str| {
        Err(Failure::user(format!("{option} is not supported with --to {reason}; drop it")))
    };
    let default = if arguments.to == Format::Gguf { Dtype::F16 } else { Dtype::F32 };
    let dtype = arguments.dtype.unwrap_or(default);
    let tensor_type = match dtype {
        Dtype::F32 => TensorType::Floats(ElementType::F32),
        Dtype::Bf16 => TensorType::Floats(ElementType::Bf16),
        Dtype::F16 => TensorType::Floats(ElementType::F16),
        Dtype::Q8Zero => TensorType::Q8Zero,
    };
    let option = format!("--dtype {}", tensor_type.name());
    let max_positions = arguments.max_positions.map(|max| max as usize);
    match (arguments.to, tensor_type) {
        (Format::Huggingface, TensorType::Floats(format)) => {
            let shard_bytes = arguments.shard_size.0;
            Ok(Target::HuggingFace { format, shard_bytes, max_positions })
        }
        (Format::Peft, _) if max_positions.is_some() => {
            unsupported("--max-positions", "peft, which has no config.json")
        }
        (Format::Peft, TensorType::Floats(format)) => Ok(Target::Peft { format }),
        (Format::Huggingface | Format::Peft, TensorType::Q8Zero) => {
            let format = if arguments.to == Format::Peft { "peft" } else { "huggingface" };
            let reason = format!("{format}, whose weights are f32, bf16 or f16");
            unsupported(&option, &reason)
        }
        (Format::Gguf, _) if max_positions.is_some() => {
            unsupported("--max-positions", "gguf, which has those of the model")
        }
        (Format::Gguf, _) => Ok(Target::Gguf { tensor_type }),
        (Format::Dcp, _) if max_positions.is_some() => {
            unsupported("--max-positions", "dcp, which has no config.json")
        }
        (Format::Dcp, _) if dtype != Dtype::F32 => unsupported(&option, "dcp, which stores f32"),
        (Format::Dcp, _) => Ok(Target::Dcp),
        (Format::Lockstep, _) if max_positions.is_some() => {
            unsupported("--max-positions", "lockstep, whose recipe has model.max_positions")
        }
        (Format::Lockstep, _) if dtype != Dtype::F32 => {
            unsupported(&option, "lockstep, which stores f32")
        }
        (Format::Lockstep, _) => Ok(Target::Lockstep),
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

fn render(converted: &Converted, format: Format) -> String {
    let mut text = String::new();
    let Converted { num_params, num_tensors, dtype, .. } = converted;
    let kind = if format == Format::Gguf { "file" } else { "folder" };
    let _ = writeln!(text, "{kind:<12} {}", converted.folder);
    let bytes = si_bytes(converted.num_bytes);
    let _ = writeln!(text, "weights      {num_params} in {num_tensors} tensors, {dtype}, {bytes}");
    let _ = writeln!(text, "files        {}", converted.files.join(" "));
    if !converted.others.is_empty() {
        let _ = writeln!(text, "other files  {}", converted.others.join(" "));
    }
    let _ = writeln!(text, "weights_hash {}", converted.weights_hash);
    text
}
