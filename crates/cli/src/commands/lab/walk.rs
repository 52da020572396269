//! `lockstep lab walk`: a schedule of the engine, round by round.

use super::{Format, format_of};
use crate::failure::Failure;
use crate::output;
use lockstep_config::units::Bytes;
use lockstep_lab::walk::{html, svg, text, walk};
use lockstep_platform::World;
use serde::Serialize;
use std::path::PathBuf;

/// Step through a schedule: buffers, messages and bytes of every round
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep lab walk ring --ranks 4
  lockstep lab walk hierarchical --ranks 8 --plot walk.html
  lockstep lab walk 1f1b --ranks 4 --plot walk.svg")]
pub(super) struct Arguments {
    /// ring, tree, butterfly, rabenseifner, hierarchical, all-to-all, moe, ring-attention, zero1,
    /// zero2, zero3, parameter-server, gossip-ring, gossip-torus, gossip-one-peer, gpipe, 1f1b,
    /// interleaved or zero-bubble
    name: String,
    /// Number of ranks, or of pipeline devices
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=32))]
    ranks: u64,
    /// Size of the vector
    #[arg(long, default_value = "1MB")]
    bytes: Bytes,
    /// Write a plot: FILE.svg with all rounds, or FILE.html to step through
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    name: String,
    rounds: Vec<Round>,
}

#[derive(Serialize)]
struct Round {
    title: String,
    messages: Vec<Message>,
    held: Vec<Vec<String>>,
    sent_bytes: Vec<u64>,
}

#[derive(Serialize)]
struct Message {
    source: usize,
    target: usize,
    content: String,
    bytes: u64,
}

pub(super) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let plot_format =
        arguments.plot.as_deref().map(|path| format_of("--plot", path)).transpose()?;
    let walk = walk(&arguments.name, arguments.ranks as usize, arguments.bytes)?;
    if let (Some(path), Some(format)) = (&arguments.plot, plot_format) {
        let drawn = match format {
            Format::Svg => svg(&walk),
            Format::Html => html(&walk),
        };
        world.files().write_atomic(path, drawn.as_bytes())?;
    }
    if !arguments.json {
        return output::text(&text(&walk));
    }
    let rounds = walk.frames.iter().map(|frame| Round {
        title: frame.title.clone(),
        messages: frame
            .messages
            .iter()
            .map(|message| Message {
                source: message.source,
                target: message.target,
                content: message.content.clone(),
                bytes: message.bytes.0,
            })
            .collect(),
        held: frame
            .held
            .iter()
            .map(|rank| rank.iter().map(|held| held.text.clone()).collect())
            .collect(),
        sent_bytes: frame.sent.iter().map(|sent| sent.0).collect(),
    });
    output::json(&Report { name: arguments.name.clone(), rounds: rounds.collect() })
}
