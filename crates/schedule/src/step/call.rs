//! Collective calls of a step, and the groups of ranks that make them.

use crate::{Contributions, Layout, Op, Schedule};
use lockstep_config::units::Bytes;
use lockstep_mesh::Axis;
use std::sync::Arc;

/// Lengths of the parts of a call's vector, shared with the calls that a rank makes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lengths {
    /// Total number of elements, split evenly.
    Even(usize),
    /// Elements of part i, which belongs to rank i.
    Parts(Arc<[usize]>),
    /// Elements of part s·n + d, which rank s sends to rank d.
    Pairs(Arc<[usize]>),
}

/// Collective call of a group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// Group, as an index into [`super::Program::groups`].
    pub group: u32,
    /// Operation.
    pub op: Op,
    /// Lengths of the vector's parts.
    pub lengths: Lengths,
    /// Bytes of an element.
    pub element: Bytes,
}

/// Ranks that communicate, with their contributions to a sum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommGroup {
    /// Axis of the mesh along which the ranks lie.
    pub axis: Axis,
    /// Ranks of the run, ordered by group rank.
    pub ranks: Vec<usize>,
    /// Contributions of the ranks.
    pub contributions: Contributions,
}

impl Lengths {
    /// Elements of the whole vector.
    pub fn count(&self) -> usize {
        match self {
            Self::Even(count) => *count,
            Self::Parts(lens) | Self::Pairs(lens) => lens.iter().sum(),
        }
    }

    /// Layout of a schedule's chunks.
    pub fn layout(&self, schedule: &Schedule) -> Layout {
        match self {
            Self::Even(count) => Layout::even(schedule, *count),
            Self::Parts(lens) => Layout::by_part(schedule, lens),
            Self::Pairs(lens) => Layout::explicit(schedule, lens),
        }
    }
}
