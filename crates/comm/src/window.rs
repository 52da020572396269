//! One-sided access: put into and get from another rank's buffer without its help.
//!
//! A [`Window`] is one arena buffer of every member, made known to all of them. Nobody is told when
//! somebody reads or writes; [`Comm::signal`] and [`Comm::wait_for`], or a barrier, say when it is
//! safe.

use std::ops::Range;

use lockstep_mesh::Rank;
use lockstep_platform::Target;

use crate::buffer::ArenaBuffer;
use crate::comm::Comm;
use crate::element::Element;
use crate::error::CommError;

/// A buffer of every member of a group, open to all of them.
pub struct Window<T: Element> {
    comm: Comm,
    own: ArenaBuffer<T>,
    /// Where each member's buffer lies, and how long it is.
    places: Vec<(Rank, usize, usize)>,
}

impl<T: Element> Window<T> {
    /// Opens this rank's `buffer` to the others; all members do the same with theirs, which may
    /// have other lengths.
    pub fn open(comm: &Comm, buffer: ArenaBuffer<T>) -> Result<Self, CommError> {
        if !comm.shares_memory() {
            return Err(comm.invalid("open a window", "the members do not share memory"));
        }
        let shared = comm.core.node.shared().expect("the members share memory");
        let offset = shared.own().offset_of(&buffer).expect("the arena is in the segment");
        let mut all = vec![0_u64; 2 * comm.num_members()];
        comm.all_gather(&[offset as u64, buffer.len() as u64], &mut all)?;
        let (pairs, _) = all.as_chunks::<2>();
        let place =
            |(&rank, &[offset, len]): (&Rank, &[u64; 2])| (rank, offset as usize, len as usize);
        let places = comm.members().iter().zip(pairs).map(place).collect();
        Ok(Self { comm: comm.clone(), own: buffer, places })
    }

    /// This rank's own buffer.
    pub fn own(&mut self) -> &mut [T] {
        &mut self.own
    }

    /// How long the buffer of the member at `position` is.
    pub fn len_of(&self, position: usize) -> usize {
        self.places[position].2
    }

    /// Copies elements from the buffer of the member at `position`, from `start` on.
    pub fn get(&self, position: usize, start: usize, data: &mut [T]) -> Result<(), CommError> {
        self.part(position, start..start.saturating_add(data.len()))?.as_source().copy_to(data);
        Ok(())
    }

    /// Copies elements into the buffer of the member at `position`, from `start` on.
    pub fn put(&self, position: usize, start: usize, data: &[T]) -> Result<(), CommError> {
        self.part(position, start..start.saturating_add(data.len()))?.copy_from_slice(data);
        Ok(())
    }

    /// Closes the window once all members have come to this point, and returns the buffer.
    pub fn close(self) -> Result<ArenaBuffer<T>, CommError> {
        self.comm.barrier()?;
        Ok(self.own)
    }

    fn part(&self, position: usize, range: Range<usize>) -> Result<Target<'_, T>, CommError> {
        let Some(&(rank, offset, len)) = self.places.get(position) else {
            let rule = format!("there is no member at position {position}");
            return Err(self.comm.invalid("put or get", &rule));
        };
        if range.end > len {
            let rule = format!("elements {range:?} of a buffer of {len}");
            return Err(self.comm.invalid("put or get", &rule));
        }
        let shared = self.comm.core.node.shared().expect("the members share memory");
        Ok(shared.segment(rank).target(offset + range.start * size_of::<T>(), range.len()))
    }
}
