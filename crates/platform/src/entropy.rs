//! Unpredictable random bytes, for secrets and unique names.
//!
//! No result of a run may depend on them: initial weights, dropout and data order are functions of
//! the seed, so that a run can be repeated.

/// A source of random bytes.
pub trait Entropy: Send + Sync {
    /// Fills the buffer.
    fn fill(&self, buffer: &mut [u8]);

    /// Eight random bytes as a number.
    fn u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}
