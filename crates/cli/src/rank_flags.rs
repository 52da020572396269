//! Flags for starting each rank by hand.

use crate::failure::Failure;
use lockstep_cluster::launchers::{RankArguments, translate};
use lockstep_platform::World;

/// Place of this process among ranks that are started by hand.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct RankFlags {
    /// Rank of this process, for starting each rank by hand; over the launcher's variables
    #[arg(long, value_name = "N", requires = "world_size", requires = "master")]
    rank: Option<usize>,
    /// Number of ranks that are started by hand
    #[arg(long, value_name = "N", requires = "rank")]
    world_size: Option<usize>,
    /// Address at which rank 0 listens (host:port)
    #[arg(long, value_name = "ADDR", requires = "rank")]
    master: Option<String>,
}

impl RankFlags {
    /// The world of a process with this place, if the arguments give one.
    pub(crate) fn apply(&self, world: &World) -> Result<World, Failure> {
        let place = (self.rank, self.world_size, self.master.clone());
        let (Some(rank), Some(world_size), Some(master)) = place else { return Ok(world.clone()) };
        let arguments = RankArguments { rank, world_size, master };
        translate(world, Some(&arguments)).map_err(|error| Failure::user(error.to_string()))
    }
}
