//! Who works with whom: all workers, and those along each axis of the mesh.
//!
//! A worker stands at one place of a grid: which stage of the pipeline it is, which part of the
//! batch it has, and which slices of every layer. Workers that differ in their part of the batch
//! only hold the same parameters and add up gradients: the *data* group. Workers that differ in
//! their stage only hand microbatches to each other: the *pipeline* group. Workers that differ in
//! their slices only complete each other's sums: the *tensor* group. What concerns everybody (the
//! loss, norms, checks) goes over the *world*. Along an axis that is not split the group is the
//! worker alone, which is a group like any other.

use lockstep_comm::{Comm, CommError};
use lockstep_mesh::{Axis, Mesh, Rank};

/// A worker's ends of its groups.
#[derive(Clone)]
pub struct Groups {
    mesh: Mesh,
    world: Comm,
    data: Comm,
    pipeline: Comm,
    tensor: Comm,
}

impl Groups {
    /// Divides the workers of `world` as the mesh says; all of them do so together.
    pub fn new(world: &Comm, mesh: Mesh) -> Result<Self, CommError> {
        assert_eq!(mesh.num_ranks(), world.group_size(), "a place in the mesh for every worker");
        let along = |axis: Axis| world.split(&mesh.groups(&[axis]), &axis.to_string());
        Ok(Self {
            mesh,
            world: world.clone(),
            data: along(Axis::Data)?,
            pipeline: along(Axis::Pipeline)?,
            tensor: along(Axis::Tensor)?,
        })
    }

    /// The grid.
    pub fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// All workers.
    pub fn world(&self) -> &Comm {
        &self.world
    }

    /// Those that hold the same parameters and share the batch.
    pub fn data(&self) -> &Comm {
        &self.data
    }

    /// Those that hold other blocks of the same slices, for the same part of the batch.
    pub fn pipeline(&self) -> &Comm {
        &self.pipeline
    }

    /// Those that hold other slices of the same blocks, for the same part of the batch.
    pub fn tensor(&self) -> &Comm {
        &self.tensor
    }

    /// The same workers once more, for what is counted by itself; all of them ask together.
    pub fn messages(&self) -> Result<Comm, CommError> {
        let devices: Vec<_> = (0..self.pipeline.group_size()).map(|d| d..d + 1).collect();
        self.pipeline.summing(&devices, &Axis::Pipeline.to_string())
    }

    /// This worker's number.
    pub fn rank(&self) -> usize {
        self.world.group_rank()
    }

    /// Which device of its pipeline a worker is.
    pub fn device_of(&self, rank: usize) -> usize {
        self.mesh.index(Axis::Pipeline, Rank(rank))
    }

    /// Which part of the batch a worker has.
    pub fn part_of(&self, rank: usize) -> usize {
        self.mesh.index(Axis::Data, Rank(rank))
    }

    /// Which of the holders of slices a worker is.
    pub fn holder_of(&self, rank: usize) -> usize {
        self.mesh.index(Axis::Tensor, Rank(rank))
    }

    /// The first worker that is a device of the pipeline that has a part of the batch.
    pub fn worker_at(&self, device: usize, part: usize) -> usize {
        let is_there =
            |rank: &usize| self.device_of(*rank) == device && self.part_of(*rank) == part;
        (0..self.mesh.num_ranks()).find(is_there).expect("the mesh has this place")
    }
}
