//! Step time of a run: on this machine, and on a cluster.
//!
//! # Layout
//! - [`engine`]: a recipe on this machine, at measured speed; `engine_pipeline`: its pipeline;
//!   `calls`: its calls
//! - [`cluster`]: a layout on a cluster, at the achieved speed of its devices
//! - [`layer`]: passes of a layer on a device; [`matmul`]: matrix products by shape;
//!   [`layer_cache`]: layer costs shared by the layouts of a search

mod calls;
pub mod cluster;
pub mod engine;
mod engine_pipeline;
pub mod layer;
pub mod layer_cache;
pub mod matmul;

pub use engine::{StepTime, microbatch_scores};
