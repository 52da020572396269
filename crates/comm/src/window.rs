//! One-sided access: put into and get from another rank's buffer without its participation.
//!
//! A [`Window`] is one arena buffer of every rank of a group, known to all of them. Accesses are
//! not announced to the owner; [`Comm::signal`] and [`Comm::wait_for`], or a barrier, order them.
//! Accesses that nothing orders give elements that some rank has stored, never a mixture of two.
//!
//! Any rank may access any of the buffers at any time, so a window lends no slice of its own one:
//! the owner gets and puts its elements as the others do, and has the buffer back when all ranks
//! have closed the window. Memory of a window that is not closed is never used again.
//!
//! ```
//! # fn main() -> Result<(), lockstep_comm::CommError> {
//! use lockstep_comm::{Comm, Options, Window};
//!
//! let comm = &Comm::threads(&lockstep_platform::real(), 1, &Options::default())?[0];
//! let mut window = Window::open(comm, comm.allocate::<f32>(10)?)?;
//! window.put(0, 0, &[1.0])?;
//! let own: &mut [f32] = &mut window.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! While the window is open, another rank may put into the buffer:
//!
//! ```compile_fail,E0599
//! # fn main() -> Result<(), lockstep_comm::CommError> {
//! # use lockstep_comm::{Comm, Options, Window};
//! # let comm = &Comm::threads(&lockstep_platform::real(), 1, &Options::default())?[0];
//! # let mut window = Window::open(comm, comm.allocate::<f32>(10)?)?;
//! # window.put(0, 0, &[1.0])?;
//! let own: &mut [f32] = window.own();
//! # Ok(())
//! # }
//! ```
//!
//! ```compile_fail,E0614
//! # fn main() -> Result<(), lockstep_comm::CommError> {
//! # use lockstep_comm::{Comm, Options, Window};
//! # let comm = &Comm::threads(&lockstep_platform::real(), 1, &Options::default())?[0];
//! # let mut window = Window::open(comm, comm.allocate::<f32>(10)?)?;
//! # window.put(0, 0, &[1.0])?;
//! let own: &mut [f32] = &mut *window;
//! # Ok(())
//! # }
//! ```

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
use crate::segment_window::{target, try_target};

/// One buffer of every rank of a group, accessible to all of them.
pub struct Window<T: Element> {
    comm: Comm,
    /// This rank's buffer, which is not accessed here; `None` once it was returned.
    own: Option<ArenaBuffer<T>>,
    remote: RemoteBuffers,
}

/// Rank, offset and length of the buffer of each group rank.
#[derive(Clone)]
struct RemoteBuffers(Arc<[(Rank, usize, usize)]>);

/// Location in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLocation {
    /// Group rank that owns the buffer.
    pub group_rank: usize,
    /// The first element.
    pub start: usize,
}

impl<T: Element> Window<T> {
    /// Opens this rank's `buffer` to the others; a collective call. Buffers may differ in length.
    pub fn open(comm: &Comm, buffer: ArenaBuffer<T>) -> Result<Self, CommError> {
        if !comm.shares_memory() {
            return Err(comm.invalid("open a window", "the ranks do not share memory"));
        }
        let shared = comm.core.endpoint.shared().expect("the ranks share memory");
        let Some(offset) = shared.own().offset_of(&buffer) else {
            return Err(
                comm.invalid("open a window", "the buffer was allocated by another communicator")
            );
        };
        let own = [offset as u64, buffer.len() as u64, T::DTYPE as u64];
        // From here on others may know the buffer: dropping the window on an error retires it.
        let (comm, remote) = (comm.clone(), RemoteBuffers([].into()));
        let mut window = Self { comm, own: Some(buffer), remote };
        let comm = &window.comm;
        let mut all = vec![0_u64; own.len() * comm.group_size()];
        comm.all_gather(&own, &mut all)?;
        let (entries, _) = all.as_chunks::<3>();
        if entries.iter().any(|&[_, _, dtype]| dtype != own[2]) {
            return Err(comm.invalid("open a window", "the buffers have different element types"));
        }
        let locate = |(&rank, &[offset, len, _]): (&Rank, &[u64; 3])| {
            let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
            try_target::<T>(shared.segment(rank), offset, len)?;
            Some((rank, offset, len))
        };
        let remote: Option<_> = comm.ranks().iter().zip(entries).map(locate).collect();
        let Some(remote) = remote else {
            return Err(comm.invalid("open a window", "a buffer lies outside its rank's memory"));
        };
        window.remote = RemoteBuffers(remote);
        Ok(window)
    }

    /// Length of the buffer of a group rank.
    pub fn len_of(&self, group_rank: usize) -> usize {
        self.remote.0[group_rank].2
    }

    /// Copies elements from the buffer of a group rank, from `start` on.
    pub fn get(&self, group_rank: usize, start: usize, data: &mut [T]) -> Result<(), CommError> {
        self.remote.get(&self.comm, WindowLocation { group_rank, start }, data)
    }

    /// Copies elements into the buffer of a group rank, from `start` on.
    pub fn put(&self, group_rank: usize, start: usize, data: &[T]) -> Result<(), CommError> {
        self.remote.put(&self.comm, WindowLocation { group_rank, start }, data)
    }

    /// Copies `count` elements from one rank's buffer to another's.
    pub fn copy(
        &self,
        from: WindowLocation,
        to: WindowLocation,
        count: usize,
    ) -> Result<(), CommError> {
        let source = self.remote.part::<T>(&self.comm, from, count)?;
        self.remote.part::<T>(&self.comm, to, count)?.copy_each_from(source.as_source());
        Ok(())
    }

    /// Starts to [get](Window::get), after all receives that were started before: after a
    /// [wait for a signal](Comm::start_wait_for) it reads the data that the signal announced.
    pub fn start_get<B: Owned<T>>(
        &self,
        group_rank: usize,
        start: usize,
        data: B,
    ) -> Result<Handle<B>, CommError> {
        let remote = self.remote.clone();
        self.comm.queue(Channel::Recvs, data, move |comm, data| {
            remote.get::<T>(comm, WindowLocation { group_rank, start }, data.as_mut())
        })
    }

    /// Starts to [put](Window::put), before all sends that are started later: a
    /// [signal](Comm::start_signal) after it announces the data.
    pub fn start_put<B: Owned<T>>(
        &self,
        group_rank: usize,
        start: usize,
        data: B,
    ) -> Result<Handle<B>, CommError> {
        let remote = self.remote.clone();
        self.comm.queue(Channel::Sends, data, move |comm, data| {
            remote.put::<T>(comm, WindowLocation { group_rank, start }, (*data).as_ref())
        })
    }

    /// Closes the window after a barrier, and returns the buffer.
    pub fn close(mut self) -> Result<ArenaBuffer<T>, CommError> {
        self.comm.core.sends_in_flight.drain();
        self.comm.core.recvs_in_flight.drain();
        self.comm.barrier()?;
        Ok(self.own.take().expect("a window is closed once"))
    }
}

impl<T: Element> Drop for Window<T> {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            own.retire();
        }
    }
}

impl RemoteBuffers {
    fn get<T: Element>(
        &self,
        comm: &Comm,
        from: WindowLocation,
        data: &mut [T],
    ) -> Result<(), CommError> {
        let source = self.part(comm, from, data.len())?.as_source();
        Target::of(data).copy_each_from(source);
        Ok(())
    }

    fn put<T: Element>(
        &self,
        comm: &Comm,
        to: WindowLocation,
        data: &[T],
    ) -> Result<(), CommError> {
        self.part(comm, to, data.len())?.copy_each_from_slice(data);
        Ok(())
    }

    fn part<'a, T: Element>(
        &self,
        comm: &'a Comm,
        WindowLocation { group_rank, start }: WindowLocation,
        count: usize,
    ) -> Result<Target<'a, T>, CommError> {
        let Some(&(rank, offset, len)) = self.0.get(group_rank) else {
            let rule = format!("the group has no rank {group_rank}");
            return Err(comm.invalid("put or get", &rule));
        };
        let range: Range<usize> = start..start.saturating_add(count);
        if range.end > len {
            let rule = format!("elements {range:?} of a buffer of {len}");
            return Err(comm.invalid("put or get", &rule));
        }
        let shared = comm.core.endpoint.shared().expect("the ranks share memory");
        Ok(target(shared.segment(rank), offset + start * size_of::<T>(), count))
    }
}
