//! Limits that several topics share.

/// Largest global batch; the fixes that the batch rules suggest stay below it.
pub(crate) const MAX_BATCH: i64 = 1 << 24;

/// Largest number of parameter groups.
pub(crate) const MAX_GROUPS: usize = 32;

/// Largest number of workers; equal to the largest number of leaves.
pub(crate) const MAX_WORKERS: i64 = 64;

/// Largest number of tensor shards of a layer.
pub(crate) const MAX_TENSOR_SHARDS: i64 = 64;
