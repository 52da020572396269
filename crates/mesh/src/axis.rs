//! Parallelism axes of the device mesh and their degrees, as in Megatron-LM and PyTorch's
//! `DeviceMesh`.
//!
//! Ranks are numbered with the tensor axis innermost: its all-reduces run inside every layer, so
//! its ranks should share a host. Pipeline stages exchange one activation per micro-batch, so the
//! pipeline axis is outermost.
//!
//! Expert groups are *inside* the data axis: `expert` consecutive data indices hold all experts
//! once, and the data axis consists of `data / expert` such groups. The data axis therefore has two
//! parts: [`Axis::Replica`], the replica of all experts, and [`Axis::Expert`], the shard of them.

use std::fmt;

/// One axis of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// Pipeline stage: consecutive blocks are on consecutive stages.
    Pipeline,
    /// Data-parallel index: samples of the batch. The product of [`Axis::Replica`] and
    /// [`Axis::Expert`].
    Data,
    /// Replica of the whole set of experts; the outer part of the data axis.
    Replica,
    /// Shard of the experts; the inner part of the data axis.
    Expert,
    /// Context-parallel part of every sequence.
    Context,
    /// Tensor-parallel shard of every matrix.
    Tensor,
}

impl Axis {
    /// Every axis, outermost first.
    pub const ALL: [Self; 6] =
        [Self::Pipeline, Self::Data, Self::Replica, Self::Expert, Self::Context, Self::Tensor];

    /// Axes of a rank's coordinates, outermost first: the data axis appears as its two parts, so
    /// that nothing is counted twice.
    pub const PRIME: [Self; 5] =
        [Self::Pipeline, Self::Replica, Self::Expert, Self::Context, Self::Tensor];

    /// Prime axes of this axis, outermost first.
    pub const fn parts(self) -> &'static [Self] {
        match self {
            Self::Pipeline => &[Self::Pipeline],
            Self::Data => &[Self::Replica, Self::Expert],
            Self::Replica => &[Self::Replica],
            Self::Expert => &[Self::Expert],
            Self::Context => &[Self::Context],
            Self::Tensor => &[Self::Tensor],
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pipeline => "pipeline",
            Self::Data => "data",
            Self::Replica => "replica",
            Self::Expert => "expert",
            Self::Context => "context",
            Self::Tensor => "tensor",
        })
    }
}

/// Degree of each axis. One means not split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Degrees {
    /// Pipeline-parallel degree: number of stages.
    pub pipeline: usize,
    /// Data-parallel degree.
    pub data: usize,
    /// Expert-parallel degree; divides `data`.
    pub expert: usize,
    /// Context-parallel degree.
    pub context: usize,
    /// Tensor-parallel degree.
    pub tensor: usize,
}

impl Degrees {
    /// Every degree is one: a single worker.
    pub const ONE: Self = Self { pipeline: 1, data: 1, expert: 1, context: 1, tensor: 1 };

    /// Degree of `axis`.
    pub const fn degree(&self, axis: Axis) -> usize {
        match axis {
            Axis::Pipeline => self.pipeline,
            Axis::Data => self.data,
            Axis::Replica => self.data / self.expert,
            Axis::Expert => self.expert,
            Axis::Context => self.context,
            Axis::Tensor => self.tensor,
        }
    }
}
