//! Checkpoints that all workers write together and that any layout can read.
//!
//! A model that is spread over workers is saved where it lies: each worker writes one safetensors
//! file with the pieces it keeps, a *piece* being stretches of a tensor's elements at equal
//! distances. One manifest says which piece of which tensor lies where. It knows tensors by name
//! and elements by number, never workers, so a run with other workers, another ZeRO stage or
//! another pipeline reads what it needs from whichever files have it, and no converter exists.
//!
//! ```text
//! checkpoints/generation                        which life of the run may write
//!             step-00000020/manifest.json       written last; its own checksum is its last field
//!                           rank-0000.safetensors …
//!             .step-00000030.g2.partial/        one on its way
//! ```
//!
//! **Whole or not at all.** Workers write into a hidden folder. Every file takes its name only once
//! it is on the disk; the first worker waits for all parts, writes the manifest, and only then
//! gives the folder its name. A power cut at any moment leaves the older checkpoints as they were
//! and at most a hidden folder. An older one goes only after the newer one was read back.
//!
//! **One life at a time.** A worker that was given up may still write. Whoever takes over raises
//! the number in `generation` and *then* removes all hidden folders; a writer makes its folder and
//! *then* reads the number. So either its folder is removed, and its commit fails, or it sees that
//! it was replaced: nothing of an older generation can appear after a newer one has begun.

mod body;
mod manifest;
mod part;
mod reader;
mod shard;
mod snapshot;
mod store;

pub use manifest::{FileEntry, Manifest, Piece, Position, Stretch, TensorEntry};
pub use reader::Reader;
pub use shard::Frames;
pub use snapshot::Snapshot;
pub use store::{Commit, Store, Writer};

/// The name of the manifest in a checkpoint's folder.
pub const MANIFEST: &str = "manifest.json";

#[cfg(test)]
mod tests;
