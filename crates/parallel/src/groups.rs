//! Process groups of a rank: the world, and one group along each axis of the mesh.
//!
//! Ranks that differ only in their part of the batch hold the same parameters and reduce gradients:
//! the *data* group. Ranks that differ only in their pipeline stage exchange activations: the
//! *pipeline* group. Ranks that differ only in their shards of every layer complete each other's
//! sums: the *tensor* group. Losses, norms and checks use the *world*. Along an axis of degree one
//! the group is the rank alone.

use lockstep_comm::{Comm, CommError};
use lockstep_config::Recipe;
use lockstep_mesh::{Axis, Mesh, Rank};
use lockstep_schedule::collective::overrides::AlgorithmOverrides;

/// Fixes the recipe's algorithms of collectives, for the groups that are made from now on.
pub fn fix_algorithms(recipe: &Recipe, comm: &Comm) {
    comm.fix_algorithms(AlgorithmOverrides::of_recipe(recipe));
}

/// A rank's communicators.
#[derive(Clone)]
pub struct Groups {
    mesh: Mesh,
    world: Comm,
    data: Comm,
    pipeline: Comm,
    tensor: Comm,
}

impl Groups {
    /// Splits `world` along the axes of the mesh. Collective.
    pub fn new(world: &Comm, mesh: Mesh) -> Result<Self, CommError> {
        assert_eq!(mesh.num_ranks(), world.group_size(), "the mesh has the world's size");
        let along = |axis: Axis| world.split(&mesh.groups(&[axis]), &axis.to_string());
        Ok(Self {
            mesh,
            world: world.clone(),
            data: along(Axis::Data)?,
            pipeline: along(Axis::Pipeline)?,
            tensor: along(Axis::Tensor)?,
        })
    }

    /// The mesh.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// All ranks.
    pub fn world(&self) -> &Comm {
        &self.world
    }

    /// Ranks that hold the same parameters and divide the batch.
    pub fn data(&self) -> &Comm {
        &self.data
    }

    /// Ranks that hold other pipeline stages, for the same part of the batch.
    pub fn pipeline(&self) -> &Comm {
        &self.pipeline
    }

    /// Ranks that hold other tensor-parallel shards of the same blocks, for the same part of the
    /// batch.
    pub fn tensor(&self) -> &Comm {
        &self.tensor
    }

    /// A second communicator of the pipeline group, with its own traffic counters. Collective.
    pub fn messages(&self) -> Result<Comm, CommError> {
        let devices: Vec<_> = (0..self.pipeline.group_size()).map(|d| d..d + 1).collect();
        self.pipeline.summing(&devices, &Axis::Pipeline.to_string())
    }

    /// Global rank.
    pub fn rank(&self) -> usize {
        self.world.group_rank()
    }

    /// Pipeline rank of a global rank.
    pub fn device_of(&self, rank: usize) -> usize {
        self.mesh.index(Axis::Pipeline, Rank(rank))
    }

    /// Data-parallel rank of a global rank.
    pub fn dp_rank_of(&self, rank: usize) -> usize {
        self.mesh.index(Axis::Data, Rank(rank))
    }

    /// Tensor-parallel rank of a global rank.
    pub fn tp_rank_of(&self, rank: usize) -> usize {
        self.mesh.index(Axis::Tensor, Rank(rank))
    }

    /// The first global rank with this pipeline rank and data-parallel rank.
    pub fn first_rank_at(&self, device: usize, part: usize) -> usize {
        let is_there =
            |rank: &usize| self.device_of(*rank) == device && self.dp_rank_of(*rank) == part;
        (0..self.mesh.num_ranks()).find(is_there).expect("the mesh has this coordinate")
    }
}
