//! Sharded checkpoints: written by all workers together, readable with any layout.
//!
//! Each worker writes one safetensors shard with its pieces of the model, a *piece* being equally
//! spaced ranges of a tensor's elements. A manifest lists the shard and offset of every piece. It
//! refers to tensors by name and to elements by index, never to workers, so a run with another
//! number of workers, ZeRO stage or pipeline reads what it needs without conversion.
//!
//! ```text
//! checkpoints/generation                        the attempt that may write
//!             step-00000020/manifest.json       written last; its checksum is its last field
//!                           rank-0000.safetensors …
//!             .step-00000030.g2.partial/        a checkpoint in progress
//! ```
//!
//! **Atomicity.** Workers write into a hidden folder. Every file is renamed into place once it is
//! on disk; the first worker waits for all shards, writes the manifest, and only then renames the
//! folder. A power failure at any moment leaves the older checkpoints intact and at most a hidden
//! folder. An older checkpoint is deleted only after the newer one was read back.
//!
//! **One attempt at a time.** A worker of a replaced attempt may still write. The new attempt
//! raises the number in `generation` and *then* removes all hidden folders; a writer creates its
//! folder and *then* reads the number. So either its folder is removed and its commit fails, or it
//! detects that it was replaced: no checkpoint of an older generation can appear after a newer one
//! has begun.

mod manifest;
mod rank_shard;
mod reader;
mod shard;
mod shard_bytes;
mod snapshot;
mod store;
mod zstd_frames;

pub use manifest::{F64Span, FileEntry, Manifest, Piece, Position, TensorEntry};
pub use reader::Reader;
pub use snapshot::Snapshot;
pub use store::{Commit, Store, Writer};
pub use zstd_frames::ZstdFrames;

/// File name of the manifest.
pub const MANIFEST: &str = "manifest.json";

#[cfg(test)]
mod tests;
