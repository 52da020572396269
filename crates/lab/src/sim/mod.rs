//! A discrete-event simulator in virtual time that plays the schedules the engine runs.
//!
//! Nothing here knows an algorithm: a collective is a [`Schedule`](lockstep_schedule::Schedule), a
//! pipeline is a [`Pipeline`](lockstep_schedule::pipeline::Pipeline), both exactly as the engine
//! gets them. What a simulation adds is a world in which they run: ranks that come late, links
//! that differ, cards that several flows share, passes that take longer one time than the next,
//! ranks that never come or fail on the way. Where that world is even and undisturbed, times are
//! those of the planner to the last digit, and tests hold them together.

mod collective;
mod pipeline;
mod queue;
mod shared;

pub use collective::{Compiled, Played, play, play_until};
pub use pipeline::{PlayedPipeline, play_pipeline, watch_pipeline};
pub use shared::Shared;

use lockstep_schedule::{Link, Links};

/// What messages travel over.
#[derive(Debug, Clone, Copy)]
pub enum Fabric<'a> {
    /// The same link between any two ranks; what a rank moves in one round shares its port.
    Even(Link),
    /// A link of its own between any two ranks.
    Pairs(&'a Links),
    /// Links that several pairs share: each divides its bandwidth evenly among its flows.
    Shared(&'a Shared),
}
