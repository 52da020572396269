//! What experiments on collectives share: their parameters, and schedules ready to be played.

use crate::card::{Param, Unit};
use crate::error::LabError;
use crate::settings::Settings;
use crate::sim::Compiled;
use lockstep_config::units::Bytes;
use lockstep_schedule::collective::{GroupSpec, build};
use lockstep_schedule::{Algorithm, Layout, Link, Links, Medium, Op, Schedule, Topology};

/// An element of a vector, for the lengths of chunks.
pub(crate) const ELEMENT: Bytes = Bytes(4);

/// The time of an empty message.
pub(crate) const fn latency(default: f64) -> Param {
    Param::number("latency", Unit::Seconds, default, (0.0, 10.0), "time of an empty message")
}

/// What a link carries.
pub(crate) const fn bandwidth(default: f64) -> Param {
    let meaning = "bytes a second over a link";
    Param::number("bandwidth", Unit::BytesPerSecond, default, (1e3, 1e15), meaning)
}

/// The link of the settings.
pub(crate) fn link(at: &Settings) -> Link {
    Link { latency: at.seconds("latency"), bandwidth: at.bandwidth("bandwidth") }
}

/// Nodes of equally many ranks that send messages to each other, inside and out.
pub(crate) fn nodes(num_ranks: usize, per_node: usize) -> Topology {
    let group = |children| Topology::Group { medium: Medium::Messages, children };
    let node = |first: usize| {
        let end = (first + per_node).min(num_ranks);
        group((first..end).map(Topology::Rank).collect())
    };
    group((0..num_ranks).step_by(per_node).map(node).collect())
}

/// The engine's all-reduce, for ranks in nodes where the algorithm asks for them.
pub(crate) fn all_reduce(
    algorithm: Algorithm,
    num_ranks: usize,
    per_node: usize,
) -> Result<Schedule, LabError> {
    let mut team = GroupSpec::new(num_ranks);
    if algorithm == Algorithm::Hierarchical {
        team.topology = Some(nodes(num_ranks, per_node));
    }
    build(Op::AllReduce, algorithm, &team).map_err(|error| LabError::Together {
        key: "algorithm",
        value: algorithm.to_string(),
        rule: error.to_string(),
    })
}

/// A schedule for a vector of so many bytes.
pub(crate) fn compiled(schedule: &Schedule, bytes: Bytes) -> Compiled {
    Compiled::new(schedule, &layout(schedule, bytes), ELEMENT)
}

/// Where its chunks lie.
pub(crate) fn layout(schedule: &Schedule, bytes: Bytes) -> Layout {
    Layout::even(schedule, (bytes.0 / ELEMENT.0) as usize)
}

/// Fast links inside nodes, slow ones between them.
pub(crate) fn two_levels(num_ranks: usize, per_node: usize, inside: Link, between: Link) -> Links {
    Links::new(
        num_ranks,
        |from, to| {
            if from / per_node == to / per_node { inside } else { between }
        },
    )
}
