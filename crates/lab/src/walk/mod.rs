//! Walk through a schedule of the engine, round by round: buffers, messages, bytes sent.
//!
//! One frame delivers every message whose send and receive are posted, which is one latency. Values
//! are sets of contributions: a frame shows which partial sum every rank has of every chunk.

mod attention;
mod collective;
mod gossip;
mod pipeline;
mod render;

pub use render::{Arrow, arrows, csv, frame_svg, html, message_text, svg, text};

use crate::error::LabError;
use lockstep_config::GraphName;
use lockstep_config::units::Bytes;
use lockstep_schedule::Algorithm;
use lockstep_schedule::pipeline::Kind;
use std::ops::RangeInclusive;

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
    /// Name of a column: chunk, model, block or micro-batch.
    pub column: &'static str,
    /// Line about the texts in the cells.
    pub cells: &'static str,
    /// Frames in order; the first is the initial state.
    pub frames: Vec<Frame>,
}

/// Numbers of ranks that fit on a page.
pub const RANKS: RangeInclusive<usize> = 2..=32;

/// Names of all walks.
pub const NAMES: &[&str] = &[
    "ring",
    "tree",
    "butterfly",
    "double-tree",
    "rabenseifner",
    "pairwise",
    "hierarchical",
    "all-to-all",
    "moe",
    "ring-attention",
    "zero1",
    "zero2",
    "zero3",
    "parameter-server",
    "gossip-ring",
    "gossip-torus",
    "gossip-one-peer",
    "gpipe",
    "1f1b",
    "interleaved",
    "zero-bubble",
];

/// Walks through a schedule by name, for a number of ranks and a vector of `bytes`.
pub fn walk(name: &str, num_ranks: usize, bytes: Bytes) -> Result<Walk, LabError> {
    let all_reduce = |algorithm| collective::all_reduce(algorithm, num_ranks, bytes);
    Ok(match name {
        "ring" => all_reduce(Algorithm::RING)?,
        "tree" => all_reduce(Algorithm::Tree)?,
        "butterfly" => all_reduce(Algorithm::Butterfly)?,
        "double-tree" => all_reduce(Algorithm::DoubleTree { segments: 2 })?,
        "rabenseifner" => all_reduce(Algorithm::Rabenseifner)?,
        "pairwise" => all_reduce(Algorithm::Pairwise)?,
        "hierarchical" => all_reduce(Algorithm::Hierarchical)?,
        "all-to-all" => collective::all_to_all(num_ranks, bytes),
        "moe" => collective::moe(num_ranks, bytes),
        "ring-attention" => attention::walk(num_ranks, bytes),
        "zero1" | "zero2" => collective::zero(name, num_ranks, bytes, false),
        "zero3" => collective::zero(name, num_ranks, bytes, true),
        "parameter-server" => collective::parameter_server(num_ranks, bytes),
        "gossip-ring" => gossip::walk(GraphName::Ring, num_ranks, bytes),
        "gossip-torus" => gossip::walk(GraphName::Torus, num_ranks, bytes),
        "gossip-one-peer" => gossip::walk(GraphName::OnePeer, num_ranks, bytes),
        "gpipe" => pipeline::walk(Kind::GPipe, num_ranks),
        "1f1b" => pipeline::walk(Kind::OneFOneB, num_ranks),
        "interleaved" => pipeline::walk(Kind::Interleaved, num_ranks),
        "zero-bubble" => pipeline::walk(Kind::ZeroBubble, num_ranks),
        _ => return Err(LabError::no_such("walk", name, NAMES.iter().copied())),
    })
}
