//! Step time of a run: on this machine, and on a cluster.
//!
//! # Layout
//! - [`engine`]: a recipe on this machine, whose step programs are played; `tasks`: durations of
//!   tasks at measured speed; `calls`: durations of calls
//! - [`cluster`]: a layout on a cluster, at the achieved speed of its devices; [`bottleneck`]: the
//!   resources that limit it
//! - [`layer`]: passes of a layer on a device; [`matmul`]: matrix products by shape;
//!   [`layer_cache`]: layer costs shared by the layouts of a search

pub mod bottleneck;
mod calls;
pub mod cluster;
pub mod engine;
pub mod layer;
pub mod layer_cache;
pub mod matmul;
mod tasks;

pub(crate) use calls::CallPrices;
pub use engine::StepTime;
pub(crate) use engine::call_mode;
pub use tasks::microbatch_scores;
pub(crate) use tasks::recomputed_shares;
