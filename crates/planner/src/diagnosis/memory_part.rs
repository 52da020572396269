//! Memory of a rank by part, measured beside planned.

use super::facts::RunFacts;
use crate::memory::Memory;
use lockstep_parallel::from_recipe::blueprint_of_rank;
use serde::Serialize;

/// Names of the parts, in the order of [`RunFacts::memory_by_rank`].
const PARTS: [&str; 5] = ["weights", "gradients", "optimizer", "activations", "buffers"];

/// A part of the memory of the fullest rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryPart {
    /// Rank.
    pub rank: usize,
    /// Name of the part.
    pub part: &'static str,
    /// Bytes that the engine held.
    pub measured_bytes: u64,
    /// Bytes that the plan has.
    pub planned_bytes: u64,
}

/// Parts of the fullest rank; none where they are unknown, or on an accelerator, whose buffers
/// the engine does not divide.
pub(super) fn memory_parts(facts: &RunFacts) -> Vec<MemoryPart> {
    let fullest = facts.memory_by_rank.iter().enumerate();
    let fullest = fullest.max_by_key(|(_, parts)| parts.iter().sum::<u64>());
    let Some((rank, measured)) = fullest.filter(|_| !facts.is_accelerated) else {
        return Vec::new();
    };
    let memory = Memory::of(&facts.recipe, &blueprint_of_rank(&facts.recipe, 0));
    let Some(plan) = memory.ranks.get(rank) else { return Vec::new() };
    let planned = [plan.weights, plan.gradients, plan.optimizer, plan.activations, plan.buffers];
    let part = |(part, (measured, planned)): (&'static str, (&u64, _))| {
        let lockstep_config::units::Bytes(planned_bytes) = planned;
        MemoryPart { rank, part, measured_bytes: *measured, planned_bytes }
    };
    PARTS.into_iter().zip(measured.iter().zip(planned)).map(part).collect()
}
