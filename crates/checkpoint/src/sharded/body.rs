//! The bytes of one worker's file as they lie in memory, written and looked at by two threads.
//!
//! A file needs its checksum, and numbers that are not finite are not worth one. Both take about as
//! long as the copying that the system does for a write, so one thread looks while another writes:
//! neither waits for the other, and the disk works all the while. The checksum is that of the bytes
//! in their order, whoever looks and however many at a time.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use lockstep_platform::{FileWriter, JoinHandle, World};

use super::snapshot::Snapshot;
use crate::weights::{ElementType, bytes};

/// Bytes given to the system at a time: large pieces are its quickest.
const WRITE_BYTES: usize = 8 << 20;

/// Bytes looked at at a time: numbers that were just found finite are still near for the checksum.
const LOOK_BYTES: usize = 256 << 10;

/// See the module's text.
pub(super) struct Body {
    head: Vec<u8>,
    values: Arc<Vec<u8>>,
    tail: Vec<u8>,
}

/// What is found by looking: the checksum where it is asked for, or the number of the first value
/// that is not finite.
pub(super) type Found = Result<Option<blake3::Hash>, usize>;

/// Somebody who looks.
pub(super) struct Look {
    thread: Option<Box<dyn JoinHandle>>,
    found: Arc<Mutex<Option<Found>>>,
}

impl Body {
    /// The file of a snapshot, whose header is this.
    pub(super) fn of(header: &[u8], snapshot: &Snapshot) -> Self {
        let length = (header.len() as u64).to_le_bytes();
        let tail = snapshot.losses().iter().flat_map(|loss| loss.to_le_bytes());
        Self { head: [&length, header].concat(), values: snapshot.values(), tail: tail.collect() }
    }

    /// All bytes, in order.
    pub(super) fn stretches(&self) -> [&[u8]; 3] {
        [&self.head, &self.values, &self.tail]
    }

    /// How many they are.
    pub(super) fn num_bytes(&self) -> u64 {
        self.stretches().iter().map(|stretch| stretch.len() as u64).sum()
    }

    /// Writes all bytes.
    pub(super) fn write(&self, out: &mut dyn FileWriter) -> io::Result<()> {
        let stretches = self.stretches();
        let mut pieces = stretches.iter().flat_map(|stretch| stretch.chunks(WRITE_BYTES));
        pieces.try_for_each(|piece| out.write_all(piece))
    }

    /// Looks at all bytes.
    fn look(&self, sums: bool) -> Found {
        let mut hasher = sums.then(blake3::Hasher::new);
        let mut add = |bytes: &[u8]| {
            hasher.as_mut().map(|hasher| hasher.update(bytes));
        };
        add(&self.head);
        let mut done = 0;
        for piece in self.values.chunks(LOOK_BYTES) {
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

impl Look {
    /// Begins to look, on a thread beside this one.
    pub(super) fn start(world: &World, body: &Arc<Body>, sums: bool) -> Self {
        let found = Arc::new(Mutex::new(None));
        let (seen, there) = (Arc::clone(body), Arc::clone(&found));
        let look = move || {
            let all = seen.look(sums);
            *there.lock().unwrap_or_else(PoisonError::into_inner) = Some(all);
        };
        let thread = world.threads().spawn("checksum", Box::new(look)).ok();
        if thread.is_none() {
            // A system without another thread takes its time.
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(body.look(sums));
        }
        Self { thread, found }
    }

    /// What was found. The bytes are the caller's alone again.
    pub(super) fn finish(self) -> Found {
        if let Some(thread) = self.thread {
            thread.join().unwrap_or_else(|error| panic!("{error}"));
        }
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner).take();
        found.expect("it has looked")
    }
}
