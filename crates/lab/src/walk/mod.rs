//! A schedule, round by round: who holds what, who sends what to whom, how many bytes so far.
//!
//! A walk is made from the engine's own schedules, all ranks together: in each frame every message
//! flies whose two ends are posted, which is one latency. Sets of contributions stand for values, so a
//! frame shows which part of a sum every rank holds of every chunk.

mod collective;
mod draw;
mod pipeline;

pub use draw::{html, svg, text};

use crate::error::LabError;
use lockstep_config::units::Bytes;
use lockstep_schedule::Algorithm;
use lockstep_schedule::pipeline::Kind;

/// A message of a frame.
#[derive(Debug, Clone, PartialEq)]
pub struct Flight {
    /// Who sends.
    pub source: usize,
    /// Who receives.
    pub target: usize,
    /// What, in words.
    pub what: String,
    /// How much.
    pub bytes: Bytes,
}

/// What a rank holds of one chunk, or a device does at one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// In words.
    pub words: String,
    /// How complete it is, from 0 to 1.
    pub share: f64,
}

/// One moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// What happens.
    pub title: String,
    /// Messages that fly.
    pub flights: Vec<Flight>,
    /// By rank and chunk, after they arrived.
    pub held: Vec<Vec<Held>>,
    /// Sent so far, by rank.
    pub sent: Vec<Bytes>,
}

/// All moments.
#[derive(Debug, Clone, PartialEq)]
pub struct Walk {
    /// What is walked through.
    pub title: String,
    /// What rows are: ranks or devices.
    pub row: &'static str,
    /// What columns are: chunks or microbatches.
    pub column: &'static str,
    /// One after the other; the first is the start.
    pub frames: Vec<Frame>,
}

/// What can be walked through.
pub const NAMES: &[&str] = &[
    "ring",
    "tree",
    "butterfly",
    "rabenseifner",
    "hierarchical",
    "all-to-all",
    "zero1",
    "zero2",
    "zero3",
    "parameter-server",
    "gpipe",
    "1f1b",
];

/// Walks through what has this name, over so many ranks and a vector of so many bytes.
pub fn walk(name: &str, num_ranks: usize, bytes: Bytes) -> Result<Walk, LabError> {
    let all_reduce = |algorithm| collective::all_reduce(algorithm, num_ranks, bytes);
    Ok(match name {
        "ring" => all_reduce(Algorithm::RING)?,
        "tree" => all_reduce(Algorithm::Tree)?,
        "butterfly" => all_reduce(Algorithm::Butterfly)?,
        "rabenseifner" => all_reduce(Algorithm::Rabenseifner)?,
        "hierarchical" => all_reduce(Algorithm::Hierarchical)?,
        "all-to-all" => collective::all_to_all(num_ranks, bytes),
        "zero1" | "zero2" => collective::zero(name, num_ranks, bytes, false),
        "zero3" => collective::zero(name, num_ranks, bytes, true),
        "parameter-server" => collective::parameter_server(num_ranks, bytes),
        "gpipe" => pipeline::walk(Kind::GPipe, num_ranks),
        "1f1b" => pipeline::walk(Kind::OneFOneB, num_ranks),
        _ => return Err(LabError::no_such("walk", name, NAMES.iter().copied())),
    })
}
