//! Layout of a training run: parallel degrees and memory options.
//!
//! Rank order is tensor, context, data, pipeline from the innermost axis out; expert groups lie
//! inside the data axis. The axis that communicates most sits on the fastest links.

mod engine_support;
mod notation;
mod offload;

pub use notation::LEGEND;
pub use offload::{Offload, OffloadTier, OffloadedStates};

use lockstep_config::Recompute;
use lockstep_schedule::pipeline::Kind;

/// Parallel degrees and memory options of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Tensor-parallel degree (TP).
    pub tensor: u64,
    /// Sequence parallelism (SP): tensor-parallel ranks also split the activations outside matmuls.
    pub sequence: bool,
    /// Pipeline-parallel degree (PP).
    pub pipeline: u64,
    /// Virtual stages per pipeline rank (VPP).
    pub chunks: u64,
    /// Pipeline schedule.
    pub schedule: Kind,
    /// Context-parallel degree (CP).
    pub context: u64,
    /// Expert-parallel degree (EP), inside the data axis.
    pub expert: u64,
    /// Data-parallel degree (DP).
    pub data: u64,
    /// ZeRO stage.
    pub zero: u8,
    /// Model states outside device memory.
    pub offload: Offload,
    /// Micro-batch size in sequences (mbs).
    pub microbatch: u64,
    /// Activation recomputation.
    pub recompute: Recompute,
}

impl Layout {
    /// Layout of a single device.
    pub const ONE: Self = Self {
        tensor: 1,
        sequence: false,
        pipeline: 1,
        chunks: 1,
        schedule: Kind::OneFOneB,
        context: 1,
        expert: 1,
        data: 1,
        zero: 0,
        offload: Offload::NONE,
        microbatch: 1,
        recompute: Recompute::None,
    };

    /// Number of devices.
    pub const fn devices(&self) -> u64 {
        self.tensor * self.pipeline * self.context * self.data
    }
}
