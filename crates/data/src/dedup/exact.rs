//! Exact copies: 128 bits of the BLAKE3 hash of each normalised text.

use super::hash_set::HashSet;
use crate::error::DataError;

/// Hashes of the texts so far.
#[derive(Debug, Default)]
pub struct ExactSet(HashSet<u128>);

impl ExactSet {
    /// Makes room for another text within a limit of memory.
    pub fn reserve(&mut self, limit_bytes: u64) -> Result<(), DataError> {
        self.0.reserve(1, limit_bytes)
    }

    /// Adds a normalised text, for which there must be room; false if it is a copy.
    pub fn insert(&mut self, normal: &str) -> bool {
        let hash = blake3::hash(normal.as_bytes());
        let (half, _) = hash.as_bytes().split_first_chunk::<16>().expect("it has 32 bytes");
        self.0.insert(u128::from_le_bytes(*half).max(1))
    }

    /// Memory of the hashes.
    pub fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes()
    }
}
