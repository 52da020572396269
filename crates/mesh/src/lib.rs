//! Device mesh: ranks arranged on a grid whose axes are the kinds of parallelism.
//!
//! # Layout
//! - `axis`: pipeline, data, context, tensor and expert axes, and their degrees
//! - `rank`: global rank of a worker
//! - `group`: process group, an ordered set of ranks
//! - `mesh`: rank ↔ coordinates, and process groups along any axes
//!
//! # Example
//! ```
//! use lockstep_mesh::{Axis, Degrees, Mesh, Rank};
//!
//! // PP2 DP2 TP2: two pipeline stages, two replicas of each, two tensor-parallel ranks each.
//! let mesh = Mesh::new(Degrees { pipeline: 2, data: 2, tensor: 2, ..Degrees::ONE })?;
//! assert_eq!(mesh.num_ranks(), 8);
//!
//! // The tensor axis is innermost, so its groups are consecutive ranks.
//! let rank = Rank(5);
//! assert_eq!(mesh.group(Axis::Tensor, rank).ranks(), [Rank(4), Rank(5)]);
//! assert_eq!(mesh.group(Axis::Data, rank).ranks(), [Rank(5), Rank(7)]);
//! assert_eq!(mesh.index(Axis::Pipeline, rank), 1);
//! # Ok::<(), lockstep_mesh::MeshError>(())
//! ```

mod axis;
mod group;
mod mesh;
mod rank;

pub use axis::{Axis, Degrees};
pub use group::Group;
pub use mesh::{Coordinates, Mesh, MeshError};
pub use rank::Rank;
