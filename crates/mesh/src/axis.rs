//! The kinds of parallelism as axes of a grid, from the quietest to the one that talks most.
//!
//! Ranks are numbered with the tensor axis innermost: its all-reduces run inside every layer, so
//! its members should be neighbours on one host. Pipeline stages exchange one activation per
//! microbatch, so they lie furthest apart.
//!
//! Expert groups lie *inside* the data axis: `expert` consecutive data indices hold the experts
//! once, and the data axis is made of `data / expert` such groups. So the data axis has two parts,
//! [`Axis::Replica`] (which copy of all experts) and [`Axis::Expert`] (which share of them).

use std::fmt;

/// A direction of the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Axis {
    /// Which stage of the model: consecutive blocks live on consecutive stages.
    Pipeline,
    /// Which samples of the batch. The product of [`Axis::Replica`] and [`Axis::Expert`].
    Data,
    /// Which copy of the whole set of experts; the outer part of the data axis.
    Replica,
    /// Which share of the experts; the inner part of the data axis.
    Expert,
    /// Which part of every sequence.
    Context,
    /// Which share of every matrix.
    Tensor,
}

impl Axis {
    /// Every axis, outermost first.
    pub const ALL: [Self; 6] =
        [Self::Pipeline, Self::Data, Self::Replica, Self::Expert, Self::Context, Self::Tensor];

    /// The axes of which every rank's coordinates consist, outermost first: the data axis is
    /// spelled as its two parts, so that nothing is counted twice.
    pub const PRIME: [Self; 5] =
        [Self::Pipeline, Self::Replica, Self::Expert, Self::Context, Self::Tensor];

    /// The prime axes that this axis consists of, outermost first.
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

/// How many ways each axis is split. One means not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Degrees {
    /// Pipeline stages.
    pub pipeline: usize,
    /// Parts of the batch.
    pub data: usize,
    /// Parts of the set of experts; divides `data`.
    pub expert: usize,
    /// Parts of every sequence.
    pub context: usize,
    /// Parts of every matrix.
    pub tensor: usize,
}

impl Degrees {
    /// Nothing is split: one worker.
    pub const ONE: Self = Self { pipeline: 1, data: 1, expert: 1, context: 1, tensor: 1 };

    /// How many ways `axis` is split.
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
