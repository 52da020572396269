//! A set of hashes by open addressing, whose memory is known and limited.
//!
//! Entries are hashes themselves, so a key's low bits are its place, and linear probing finds it. A
//! table is at most three quarters full and doubles: while it does, both tables exist, which the
//! limit counts.

use crate::error::DataError;

/// Smallest number of entries of a table.
const MIN_ENTRIES: usize = 1 << 12;

/// A hash that a table stores; zero marks an empty entry.
pub(super) trait Hash: Copy + PartialEq {
    const EMPTY: Self;
    fn place(self) -> usize;
}

impl Hash for u64 {
    const EMPTY: Self = 0;

    fn place(self) -> usize {
        self as usize
    }
}

impl Hash for u128 {
    const EMPTY: Self = 0;

    fn place(self) -> usize {
        self as usize
    }
}

/// A set of hashes.
#[derive(Debug)]
pub(super) struct HashSet<H> {
    entries: Vec<H>,
    num_used: usize,
}

impl<H> Default for HashSet<H> {
    fn default() -> Self {
        Self { entries: Vec::new(), num_used: 0 }
    }
}

impl<H: Hash> HashSet<H> {
    /// Makes room for `count` more hashes, within a limit of memory.
    pub(super) fn reserve(&mut self, count: usize, limit_bytes: u64) -> Result<(), DataError> {
        let needed = self.num_used + count;
        if needed * 4 <= self.entries.len() * 3 {
            return Ok(());
        }
        let len = (needed * 4).div_ceil(3).next_power_of_two().max(MIN_ENTRIES);
        let bytes = (len + self.entries.len()) as u64 * size_of::<H>() as u64;
        if bytes > limit_bytes {
            return Err(DataError::DedupMemory { needed_bytes: bytes, limit_bytes });
        }
        let old = std::mem::replace(&mut self.entries, vec![H::EMPTY; len]);
        self.num_used = 0;
        for hash in old.into_iter().filter(|hash| *hash != H::EMPTY) {
            self.insert(hash);
        }
        Ok(())
    }

    /// Adds a hash, for which there must be room; false if the set has it.
    pub(super) fn insert(&mut self, hash: H) -> bool {
        let index = self.find(hash);
        let is_new = self.entries[index] == H::EMPTY;
        if is_new {
            self.entries[index] = hash;
            self.num_used += 1;
        }
        is_new
    }

    /// Whether the set has a hash.
    pub(super) fn contains(&self, hash: H) -> bool {
        self.entries[self.find(hash)] != H::EMPTY
    }

    /// Index of a hash, or of the empty entry where it belongs.
    fn find(&self, hash: H) -> usize {
        assert!(hash != H::EMPTY, "zero marks an empty entry");
        let mask = self.entries.len() - 1;
        let mut index = hash.place() & mask;
        while self.entries[index] != H::EMPTY && self.entries[index] != hash {
            index = (index + 1) & mask;
        }
        index
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        (self.entries.len() * size_of::<H>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permutation::mix;

    #[test]
    fn it_is_a_set_and_stays_within_its_memory() {
        let mut set = HashSet::<u64>::default();
        for number in 0..100_000_u64 {
            set.reserve(1, 1 << 30).unwrap();
            assert!(set.insert(mix(7, number) | 1));
        }
        for number in 0..100_000 {
            assert!(set.contains(mix(7, number) | 1) && !set.insert(mix(7, number) | 1));
        }
        assert!(!set.contains(mix(8, 3) | 1));
        assert_eq!(set.memory_bytes(), 8 << 18);
        // The next doubling needs three times the memory while it copies.
        let error = set.reserve(1 << 18, 3 * (8 << 18) - 1).unwrap_err().to_string();
        assert!(error.contains("--memory"), "{error}");
        assert!(set.insert(2), "the set is as it was");
    }
}
