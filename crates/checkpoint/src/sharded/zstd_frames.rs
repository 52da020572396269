//! Index of the zstd frames of a compressed shard.

use serde::{Deserialize, Serialize};

/// Uncompressed bytes of a frame.
pub(super) const FRAME_BYTES: usize = 1 << 20;

/// Frames of a compressed shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZstdFrames {
    /// Uncompressed size of the file.
    pub plain_bytes: u64,
    /// Uncompressed size of every frame but the last.
    pub frame_bytes: u64,
    /// End of each frame in the compressed file.
    pub ends: Vec<u64>,
}

impl ZstdFrames {
    /// Whether the frames make a compressed file of this size.
    pub(super) fn prove(&self, bytes: u64) -> bool {
        let is_sane = (1..=FRAME_BYTES as u64).contains(&self.frame_bytes);
        is_sane
            && self.plain_bytes.div_ceil(self.frame_bytes) == self.ends.len() as u64
            && self.ends.is_sorted()
            && self.ends.last().copied().unwrap_or(0) == bytes
    }
}
