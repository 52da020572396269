//! Shared by experiments on collectives: link parameters and compiled schedules.

use crate::description::{Param, Unit};
use crate::error::LabError;
use crate::settings::Settings;
use crate::sim::CompiledSchedule;
use lockstep_config::units::Bytes;
use lockstep_schedule::collective::{GroupSpec, build};
use lockstep_schedule::{Algorithm, Layout, Link, Links, Medium, Op, Schedule, Topology};

/// Size of a vector element.
pub(crate) const ELEMENT: Bytes = Bytes(4);

/// Latency of a link.
pub(crate) const fn latency(default: f64) -> Param {
    Param::number("latency", Unit::Seconds, default, (0.0, 10.0), "latency of a link")
}

/// Bandwidth of a link.
pub(crate) const fn bandwidth(default: f64) -> Param {
    let meaning = "bandwidth of a link";
    Param::number("bandwidth", Unit::BytesPerSecond, default, (1e3, 1e15), meaning)
}

/// Link that the settings describe.
pub(crate) fn link(at: &Settings) -> Link {
    Link { latency: at.seconds("latency"), bandwidth: at.bandwidth("bandwidth") }
}

/// Topology of nodes with `per_node` ranks each; all ranks exchange messages.
pub(crate) fn nodes(num_ranks: usize, per_node: usize) -> Topology {
    let group = |children| Topology::Group { medium: Medium::Messages, children };
    let node = |first: usize| {
        let end = (first + per_node).min(num_ranks);
        group((first..end).map(Topology::Rank).collect())
    };
    group((0..num_ranks).step_by(per_node).map(node).collect())
}

/// Builds the engine's all-reduce; the hierarchical algorithm gets a topology of nodes.
pub(crate) fn all_reduce(
    algorithm: Algorithm,
    num_ranks: usize,
    per_node: usize,
) -> Result<Schedule, LabError> {
    let mut group = GroupSpec::new(num_ranks);
    if algorithm == Algorithm::Hierarchical {
        group.topology = Some(nodes(num_ranks, per_node));
    }
    build(Op::AllReduce, algorithm, &group).map_err(|error| LabError::Conflict {
        key: "algorithm",
        value: algorithm.to_string(),
        rule: error.to_string(),
    })
}

/// Compiles a schedule for a vector of `bytes`.
pub(crate) fn compiled(schedule: &Schedule, bytes: Bytes) -> CompiledSchedule {
    CompiledSchedule::new(schedule, &layout(schedule, bytes), ELEMENT)
}

/// Chunk layout of a vector of `bytes`.
pub(crate) fn layout(schedule: &Schedule, bytes: Bytes) -> Layout {
    Layout::even(schedule, (bytes.0 / ELEMENT.0) as usize)
}

/// Fast links inside nodes, slow links between nodes.
pub(crate) fn two_levels(num_ranks: usize, per_node: usize, inside: Link, between: Link) -> Links {
    Links::new(
        num_ranks,
        |from, to| {
            if from / per_node == to / per_node { inside } else { between }
        },
    )
}
