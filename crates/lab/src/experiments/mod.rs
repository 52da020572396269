//! The experiments, one a file, and the list of them.

mod common;
mod prelude;

mod all_reduce;
mod checkpointing;
mod data_parallel;
mod heterogeneous;
mod loss_scaling;
mod overlap;
mod parameter_server;
mod pipeline;
mod stragglers;

use crate::error::LabError;
use crate::study::Experiment;

/// All of them, in the order of the list.
pub const ALL: &[&dyn Experiment] = &[
    &data_parallel::DataParallel,
    &stragglers::Stragglers,
    &all_reduce::AllReduce,
    &pipeline::PipelineBubble,
    &heterogeneous::Heterogeneous,
    &loss_scaling::LossScaling,
    &overlap::Overlap,
    &parameter_server::ParameterServer,
    &checkpointing::Checkpointing,
];

/// The experiment of this name.
pub fn find(name: &str) -> Result<&'static dyn Experiment, LabError> {
    let names = ALL.iter().map(|experiment| experiment.card().name);
    let found = ALL.iter().find(|experiment| experiment.card().name == name);
    found.copied().ok_or_else(|| LabError::no_such("experiment", name, names))
}
