//! Discrete-event simulator in virtual time that executes the engine's schedules.
//!
//! A collective is a [`Schedule`](lockstep_schedule::Schedule), a pipeline a
//! [`Pipeline`](lockstep_schedule::pipeline::Pipeline) and a data-parallel step a
//! [`Program`](lockstep_schedule::step::Program), exactly as the engine runs them. The
//! simulation adds late and failing ranks, heterogeneous links, NICs shared by several flows, and
//! jitter of passes. Without these, times equal the planner's bit for bit, which tests check.

mod collective;
mod compiled;
mod pipeline;
mod queue;
mod shared_links;
mod simulation;
mod step;
mod throughput;

pub use collective::{CollectiveRun, simulate_collective, simulate_with_failures};
pub use compiled::CompiledSchedule;
pub use pipeline::{PipelineRun, simulate_pipeline, trace_pipeline};
pub use shared_links::SharedLinks;
pub use step::{data_parallel_step, play_all_ranks, play_one_rank};
pub use throughput::{Throughput, throughput};

use lockstep_schedule::{Link, Links};

/// Links that messages travel over.
#[derive(Debug, Clone, Copy)]
pub enum Fabric<'a> {
    /// One kind of link between all ranks; the messages of a rank and round share its port.
    Uniform(Link),
    /// A link of its own between any two ranks, and no port: messages to several ranks travel at
    /// the same time.
    Separate(Link),
    /// An individual link between any two ranks; the messages of a rank and round share its port.
    PerPair(&'a Links),
    /// Links shared by several pairs: each divides its bandwidth evenly among its flows.
    Shared(&'a SharedLinks),
}
