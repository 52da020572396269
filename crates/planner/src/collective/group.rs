//! A communication group as the cost model sees it: its size and the spacing of its ranks.

/// Ranks of one communication group, `stride` devices apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// Number of ranks.
    pub ranks: u64,
    /// Distance of neighbouring ranks in the numbering of devices.
    pub stride: u64,
}
