//! One-sided access: put into and get from another rank's buffer without its help.
//!
//! A [`Window`] is one arena buffer of every member, made known to all of them. Nobody is told when
//! somebody reads or writes; [`Comm::signal`] and [`Comm::wait_for`], or a barrier, say when it is
//! safe.

use std::ops::Range;
use std::sync::Arc;

use lockstep_mesh::Rank;
use lockstep_platform::Target;

use crate::background::Handle;
use crate::buffer::ArenaBuffer;
use crate::channel::Channel;
use crate::comm::Comm;
use crate::element::Element;
use crate::error::CommError;
use crate::nonblocking::Owned;

/// A buffer of every member of a group, open to all of them.
pub struct Window<T: Element> {
    comm: Comm,
    own: ArenaBuffer<T>,
    remote: RemoteBuffers,
}

/// Where each member's buffer lies, and how long it is.
#[derive(Clone)]
struct RemoteBuffers(Arc<[(Rank, usize, usize)]>);

/// Elements of a member's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLocation {
    /// Whose buffer.
    pub position: usize,
    /// The first element.
    pub start: usize,
}

impl<T: Element> Window<T> {
    /// Opens this rank's `buffer` to the others; all members do the same with theirs, which may
    /// have other lengths.
    pub fn open(comm: &Comm, buffer: ArenaBuffer<T>) -> Result<Self, CommError> {
        if !comm.shares_memory() {
            return Err(comm.invalid("open a window", "the members do not share memory"));
        }
        let shared = comm.core.endpoint.shared().expect("the members share memory");
        let Some(offset) = shared.own().offset_of(&buffer) else {
            return Err(comm.invalid("open a window", "the buffer was allocated by another end"));
        };
        let mut all = vec![0_u64; 2 * comm.group_size()];
        comm.all_gather(&[offset as u64, buffer.len() as u64], &mut all)?;
        let (pairs, _) = all.as_chunks::<2>();
        let place = |(&rank, &[offset, len]): (&Rank, &[u64; 2])| {
            let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
            shared.segment(rank).try_target::<T>(offset, len)?;
            Some((rank, offset, len))
        };
        let remote: Option<_> = comm.ranks().iter().zip(pairs).map(place).collect();
        let Some(remote) = remote else {
            return Err(comm.invalid("open a window", "a buffer lies outside its rank's memory"));
        };
        Ok(Self { comm: comm.clone(), own: buffer, remote: RemoteBuffers(remote) })
    }

    /// This rank's own buffer.
    pub fn own(&mut self) -> &mut [T] {
        &mut self.own
    }

    /// How long the buffer of the member at `position` is.
    pub fn len_of(&self, position: usize) -> usize {
        self.remote.0[position].2
    }

    /// Copies elements from the buffer of the member at `position`, from `start` on.
    pub fn get(&self, position: usize, start: usize, data: &mut [T]) -> Result<(), CommError> {
        self.remote.get(&self.comm, WindowLocation { position, start }, data)
    }

    /// Copies elements into the buffer of the member at `position`, from `start` on.
    pub fn put(&self, position: usize, start: usize, data: &[T]) -> Result<(), CommError> {
        self.remote.put(&self.comm, WindowLocation { position, start }, data)
    }

    /// Copies `count` elements from one member's buffer to another's.
    pub fn copy(
        &self,
        from: WindowLocation,
        to: WindowLocation,
        count: usize,
    ) -> Result<(), CommError> {
        let source = self.remote.part::<T>(&self.comm, from, count)?;
        self.remote.part::<T>(&self.comm, to, count)?.copy_from(source.as_source());
        Ok(())
    }

    /// Starts to [get](Window::get), after all messages whose receipt was started before: behind
    /// a [wait for a signal](Comm::start_wait_for) it finds what the signal announced.
    pub fn start_get<B: Owned<T>>(
        &self,
        position: usize,
        start: usize,
        data: B,
    ) -> Result<Handle<B>, CommError> {
        let remote = self.remote.clone();
        self.comm.queue(Channel::Recvs, data, move |comm, data| {
            remote.get::<T>(comm, WindowLocation { position, start }, data.as_mut())
        })
    }

    /// Starts to [put](Window::put), before all messages that are sent later: a
    /// [signal](Comm::start_signal) behind it tells that the data is there.
    pub fn start_put<B: Owned<T>>(
        &self,
        position: usize,
        start: usize,
        data: B,
    ) -> Result<Handle<B>, CommError> {
        let remote = self.remote.clone();
        self.comm.queue(Channel::Sends, data, move |comm, data| {
            remote.put::<T>(comm, WindowLocation { position, start }, (*data).as_ref())
        })
    }

    /// Closes the window once all members have come to this point, and returns the buffer.
    pub fn close(self) -> Result<ArenaBuffer<T>, CommError> {
        self.comm.core.sends_in_flight.drain();
        self.comm.core.recvs_in_flight.drain();
        self.comm.barrier()?;
        Ok(self.own)
    }
}

impl RemoteBuffers {
    fn get<T: Element>(
        &self,
        comm: &Comm,
        from: WindowLocation,
        data: &mut [T],
    ) -> Result<(), CommError> {
        self.part(comm, from, data.len())?.as_source().copy_to(data);
        Ok(())
    }

    fn put<T: Element>(
        &self,
        comm: &Comm,
        to: WindowLocation,
        data: &[T],
    ) -> Result<(), CommError> {
        self.part(comm, to, data.len())?.copy_from_slice(data);
        Ok(())
    }

    fn part<'a, T: Element>(
        &self,
        comm: &'a Comm,
        WindowLocation { position, start }: WindowLocation,
        count: usize,
    ) -> Result<Target<'a, T>, CommError> {
        let Some(&(rank, offset, len)) = self.0.get(position) else {
            let rule = format!("there is no member at position {position}");
            return Err(comm.invalid("put or get", &rule));
        };
        let range: Range<usize> = start..start.saturating_add(count);
        if range.end > len {
            let rule = format!("elements {range:?} of a buffer of {len}");
            return Err(comm.invalid("put or get", &rule));
        }
        let shared = comm.core.endpoint.shared().expect("the members share memory");
        Ok(shared.segment(rank).target(offset + start * size_of::<T>(), count))
    }
}
