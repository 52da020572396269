//! All experiments, one per file.

#![expect(
    clippy::unnecessary_wraps,
    reason = "all experiments have the signature of those that can fail"
)]

mod axes;
mod common;
mod prelude;

mod activation_memory;
mod all_reduce;
mod batch_size;
mod best_local_steps;
mod bounded_async;
mod checkpointing;
mod compression;
mod consensus;
mod consistency;
mod data_parallel;
mod end_to_end;
mod federated_drift;
mod gossip;
mod gradient_noise;
mod heterogeneity_bias;
mod heterogeneous;
mod hierarchical;
mod linear_speed_up;
mod local_sgd;
mod loss_scaling;
mod minibatch_local;
mod moe_routing;
mod momentum_delay;
mod overlap;
mod parameter_server;
mod pipeline;
mod reproducibility;
mod scaling;
mod staleness_aware;
mod stragglers;
mod tensor_parallel;
mod theorems;
mod zero_memory;

use crate::error::LabError;
use crate::study::Experiment;

pub use consistency::{Clocks, JitteredWorker};
pub use local_sgd::LocalWorker;

pub(crate) use all_reduce::algorithm as all_reduce_algorithm;
pub(crate) use axes::at;
pub(crate) use common::all_reduce as all_reduce_schedule;

/// All experiments, in the order of `lab list`.
pub const ALL: &[&dyn Experiment] = &[
    &data_parallel::DataParallel,
    &stragglers::Stragglers,
    &bounded_async::BoundedAsync,
    &all_reduce::AllReduce,
    &pipeline::PipelineBubble,
    &compression::Compression,
    &local_sgd::LocalSgd,
    &heterogeneous::Heterogeneous,
    &loss_scaling::LossScaling,
    &overlap::Overlap,
    &parameter_server::ParameterServer,
    &moe_routing::MoeRouting,
    &staleness_aware::StalenessAware,
    &checkpointing::Checkpointing,
    &batch_size::BatchSize,
    &consistency::Consistency,
    &tensor_parallel::TensorParallel,
    &hierarchical::Hierarchical,
    &reproducibility::Reproducibility,
    &end_to_end::EndToEnd,
    &scaling::Scaling,
    &gossip::Gossip,
    &momentum_delay::MomentumDelay,
    &zero_memory::ZeroMemory,
    &activation_memory::ActivationMemory,
    &gradient_noise::GradientNoise,
    &linear_speed_up::LinearSpeedUp,
    &minibatch_local::MinibatchLocal,
    &heterogeneity_bias::HeterogeneityBias,
    &best_local_steps::BestLocalSteps,
    &federated_drift::FederatedDrift,
    &consensus::Consensus,
    &theorems::Theorems,
];

/// Finds an experiment by name.
pub fn find(name: &str) -> Result<&'static dyn Experiment, LabError> {
    let names = ALL.iter().map(|experiment| experiment.description().name);
    let found = ALL.iter().find(|experiment| experiment.description().name == name);
    found.copied().ok_or_else(|| LabError::no_such("experiment", name, names))
}
