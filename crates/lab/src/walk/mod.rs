//! Walk through a schedule of the engine, round by round: buffers, messages, bytes sent.
//!
//! One frame delivers every message whose send and receive are posted, which is one latency. Values
//! are sets of contributions: a frame shows which partial sum every rank has of every chunk.

mod collective;
mod pipeline;
mod render;

pub use render::{html, svg, text};

use crate::error::LabError;
use lockstep_config::units::Bytes;
use lockstep_schedule::Algorithm;
use lockstep_schedule::pipeline::Kind;

/// A message of a round.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Sending rank.
    pub source: usize,
    /// Receiving rank.
    pub target: usize,
    /// Content as text.
    pub content: String,
    /// Size.
    pub bytes: Bytes,
}

/// State of one chunk on a rank, or of one micro-batch on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// Text of the state.
    pub text: String,
    /// Completeness from 0 to 1.
    pub share: f64,
}

/// State after one round.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// Title.
    pub title: String,
    /// Messages of the round.
    pub messages: Vec<Message>,
    /// States by rank and chunk, after the messages arrived.
    pub held: Vec<Vec<Held>>,
    /// Bytes sent so far, by rank.
    pub sent: Vec<Bytes>,
}

/// All rounds of a schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Walk {
    /// Title.
    pub title: String,
    /// Name of a row: rank or device.
    pub row: &'static str,
    /// Name of a column: chunk or micro-batch.
    pub column: &'static str,
    /// Frames in order; the first is the initial state.
    pub frames: Vec<Frame>,
}

/// Names of all walks.
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

/// Walks through a schedule by name, for a number of ranks and a vector of `bytes`.
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
