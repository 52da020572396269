//! Bytes of a shard in memory, written by one thread and checksummed by another.
//!
//! A shard needs a checksum and a check for non-finite values. Both take about as long as the copy
//! of a write call, so one thread computes them while another writes.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use lockstep_platform::{FileWriter, JoinHandle, World};

use super::snapshot::Snapshot;
use crate::weights::{ElementType, bytes};

/// Bytes per write call; large calls are the fastest.
const WRITE_BYTES: usize = 8 << 20;

/// Bytes checked at a time, so that they are still in the cache for the checksum.
const CHECKSUM_BYTES: usize = 256 << 10;

/// Header, values and losses of a shard.
pub(super) struct ShardBytes {
    head: Vec<u8>,
    values: Arc<Vec<u8>>,
    tail: Vec<u8>,
}

/// The checksum, if it is requested, or the index of the first non-finite value.
pub(super) type Checksum = Result<Option<blake3::Hash>, usize>;

/// A checksum in progress on another thread.
pub(super) struct ChecksumTask {
    thread: Option<Box<dyn JoinHandle>>,
    found: Arc<Mutex<Option<Checksum>>>,
}

impl ShardBytes {
    /// The shard of a snapshot with this header.
    pub(super) fn of(header: &[u8], snapshot: &Snapshot) -> Self {
        let length = (header.len() as u64).to_le_bytes();
        let tail = snapshot.losses().iter().flat_map(|loss| loss.to_le_bytes());
        Self { head: [&length, header].concat(), values: snapshot.values(), tail: tail.collect() }
    }

    /// All bytes in order.
    pub(super) fn sections(&self) -> [&[u8]; 3] {
        [&self.head, &self.values, &self.tail]
    }

    /// Size in bytes.
    pub(super) fn num_bytes(&self) -> u64 {
        self.sections().iter().map(|section| section.len() as u64).sum()
    }

    /// Writes all bytes.
    pub(super) fn write(&self, out: &mut dyn FileWriter) -> io::Result<()> {
        let sections = self.sections();
        let mut pieces = sections.iter().flat_map(|section| section.chunks(WRITE_BYTES));
        pieces.try_for_each(|piece| out.write_all(piece))
    }

    /// Checks all values and computes the checksum if `sums` is set.
    fn checksum(&self, sums: bool) -> Checksum {
        let mut hasher = sums.then(blake3::Hasher::new);
        let mut add = |bytes: &[u8]| {
            hasher.as_mut().map(|hasher| hasher.update(bytes));
        };
        add(&self.head);
        let mut done = 0;
        for piece in self.values.chunks(CHECKSUM_BYTES) {
            if let Some(element) = bytes::first_not_finite(piece) {
                return Err(done + element);
            }
            add(piece);
            done += piece.len() / ElementType::F32.num_bytes();
        }
        add(&self.tail);
        Ok(hasher.map(|hasher| hasher.finalize()))
    }
}

impl ChecksumTask {
    /// Starts on another thread.
    pub(super) fn start(world: &World, body: &Arc<ShardBytes>, sums: bool) -> Self {
        let found = Arc::new(Mutex::new(None));
        let (shard, there) = (Arc::clone(body), Arc::clone(&found));
        let task = move || {
            let all = shard.checksum(sums);
            *there.lock().unwrap_or_else(PoisonError::into_inner) = Some(all);
        };
        let thread = world.threads().spawn("checksum", Box::new(task)).ok();
        if thread.is_none() {
            // Without another thread it runs here.
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(body.checksum(sums));
        }
        Self { thread, found }
    }

    /// Waits for the result; afterwards no other thread refers to the bytes.
    pub(super) fn finish(self) -> Checksum {
        if let Some(thread) = self.thread {
            thread.join().unwrap_or_else(|error| panic!("{error}"));
        }
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).take();
        found.expect("the task has finished")
    }
}
