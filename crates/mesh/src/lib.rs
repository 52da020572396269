//! Who is who: workers numbered once, seen as a grid whose axes are the kinds of parallelism.
//!
//! # Layout
//! - `axis`: the kinds of parallelism, from the quietest to the one that talks most
//! - `rank`: the number of a worker in the whole run
//! - `group`: some workers in order, and the position of each in that order
//! - `mesh`: the grid; rank ↔ coordinates, and the groups along any axes
//!
//! # Example
//! ```
//! use lockstep_mesh::{Axis, Degrees, Mesh, Rank};
//!
//! // Eight workers: two pipeline stages, each of two replicas that split every layer in two.
//! let mesh = Mesh::new(Degrees { pipeline: 2, data: 2, tensor: 2, ..Degrees::ONE })?;
//! assert_eq!(mesh.num_ranks(), 8);
//!
//! // Tensor parallelism talks most, so its groups are neighbours.
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
