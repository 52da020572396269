//! Memory of a run: of every rank on this engine, and of the fullest device on a cluster.
//!
//! # Layout
//! - [`engine`]: ranks of a recipe, counted as the engine allocates
//! - `mapped_pages`: memory of calls; [`process`]: memory of a process besides its model;
//!   [`checkpoint`]: the copy that is written in the background
//! - [`fit`]: whether a run fits, and a recipe that would; [`automatic`]: the fastest micro-batch
//!   size and recomputation that do
//! - [`cluster`]: the fullest device of a layout on a cluster
//! - [`activations`]: activations of a layer; [`zero`]: ZeRO in closed form

pub mod activations;
pub mod automatic;
pub mod checkpoint;
pub mod cluster;
pub mod engine;
pub mod fit;
mod mapped_pages;
pub mod process;
mod strategy;
pub mod zero;

pub use automatic::{Choice, Settings, choose, is_automatic, smallest};
pub use engine::{Memory, RankMemory, activations_by_block};
pub use fit::{MemoryBudget, OutOfMemory, check};
pub use process::{Process, ProcessMemory};
