//! Nonblocking collectives and messages of a [`Comm`]: they run in the background.
//!
//! All ranks of a group start a call, or all make it directly: the two use different channels. Each
//! call takes its buffers by value (a `Vec`, an [`ArenaBuffer`](crate::ArenaBuffer), or any owned
//! slice) and returns them with the result.

use crate::background::{Handle, InFlight};
use crate::channel::Channel;
use crate::comm::Comm;
use crate::element::{Element, Reduction};
use crate::error::CommError;

/// An owned slice, which can move into a call.
pub trait Owned<T>: AsRef<[T]> + AsMut<[T]> + Send + 'static {}
impl<T, B: AsRef<[T]> + AsMut<[T]> + Send + 'static> Owned<T> for B {}

/// Result of a nonblocking all-to-all-v: sent data, received data, and number of elements received
/// from each rank.
pub type AllToAllVOutput<B, T> = (B, Vec<T>, Vec<usize>);

impl Comm {
    /// Starts an [all-reduce](Comm::all_reduce).
    pub fn start_all_reduce<T: Element, B: Owned<T>>(
        &self,
        data: B,
        reduction: Reduction,
    ) -> Result<Handle<B>, CommError> {
        self.start(data, move |comm, data| comm.all_reduce(data.as_mut(), reduction))
    }

    /// Starts a [reduce-scatter](Comm::reduce_scatter) from the first buffer into the second.
    pub fn start_reduce_scatter<T: Element, I: Owned<T>, O: Owned<T>>(
        &self,
        buffers: (I, O),
        reduction: Reduction,
    ) -> Result<Handle<(I, O)>, CommError> {
        self.start(buffers, move |comm, (input, output)| {
            comm.reduce_scatter((*input).as_ref(), output.as_mut(), reduction)
        })
    }

    /// Starts an [all-gather](Comm::all_gather) from the first buffer into the second.
    pub fn start_all_gather<T: Element, I: Owned<T>, O: Owned<T>>(
        &self,
        buffers: (I, O),
    ) -> Result<Handle<(I, O)>, CommError> {
        self.start(buffers, move |comm, (input, output)| {
            comm.all_gather::<T>((*input).as_ref(), output.as_mut())
        })
    }

    /// Starts a [broadcast](Comm::broadcast).
    pub fn start_broadcast<T: Element, B: Owned<T>>(
        &self,
        data: B,
        root: usize,
    ) -> Result<Handle<B>, CommError> {
        self.start(data, move |comm, data| comm.broadcast::<T>(data.as_mut(), root))
    }

    /// Starts a [reduce](Comm::reduce).
    pub fn start_reduce<T: Element, B: Owned<T>>(
        &self,
        data: B,
        root: usize,
        reduction: Reduction,
    ) -> Result<Handle<B>, CommError> {
        self.start(data, move |comm, data| comm.reduce::<T>(data.as_mut(), root, reduction))
    }

    /// Starts a [scatter](Comm::scatter) from the first buffer into the second.
    pub fn start_scatter<T: Element, I: Owned<T>, O: Owned<T>>(
        &self,
        buffers: (I, O),
        root: usize,
    ) -> Result<Handle<(I, O)>, CommError> {
        self.start(buffers, move |comm, (input, output)| {
            comm.scatter::<T>((*input).as_ref(), output.as_mut(), root)
        })
    }

    /// Starts a [gather](Comm::gather) from the first buffer into the second.
    pub fn start_gather<T: Element, I: Owned<T>, O: Owned<T>>(
        &self,
        buffers: (I, O),
        root: usize,
    ) -> Result<Handle<(I, O)>, CommError> {
        self.start(buffers, move |comm, (input, output)| {
            comm.gather::<T>((*input).as_ref(), output.as_mut(), root)
        })
    }

    /// Starts an [all-to-all](Comm::all_to_all) from the first buffer into the second.
    pub fn start_all_to_all<T: Element, I: Owned<T>, O: Owned<T>>(
        &self,
        buffers: (I, O),
    ) -> Result<Handle<(I, O)>, CommError> {
        self.start(buffers, move |comm, (input, output)| {
            comm.all_to_all::<T>((*input).as_ref(), output.as_mut())
        })
    }

    /// Starts a [barrier](Comm::barrier).
    pub fn start_barrier(&self) -> Result<Handle<()>, CommError> {
        self.start((), |comm, ()| comm.barrier())
    }

    /// Starts an [all-reduce](Comm::all_reduce_into) from the first buffer into the second.
    pub fn start_all_reduce_into<T: Element, I: Owned<T>, O: Owned<T>>(
        &self,
        buffers: (I, O),
        reduction: Reduction,
    ) -> Result<Handle<(I, O)>, CommError> {
        self.start(buffers, move |comm, (input, output)| {
            comm.all_reduce_into((*input).as_ref(), output.as_mut(), reduction)
        })
    }

    /// Starts an [all-to-all-v](Comm::all_to_all_v).
    pub fn start_all_to_all_v<T: Element, B: Owned<T>>(
        &self,
        data: B,
        send_counts: Vec<usize>,
    ) -> Result<Handle<AllToAllVOutput<B, T>>, CommError> {
        let buffers = (data, Vec::new(), send_counts);
        self.start(buffers, move |comm, (data, arrived, counts)| {
            *counts = comm.all_to_all_v((*data).as_ref(), counts, arrived)?;
            Ok(())
        })
    }

    /// Starts a [copy](Comm::copy) from the first buffer into the second.
    pub fn start_copy<T: Element, I: Owned<T>, O: Owned<T>>(
        &self,
        buffers: (I, O),
    ) -> Result<Handle<(I, O)>, CommError> {
        self.start(buffers, move |comm, (input, output)| {
            comm.copy::<T>((*input).as_ref(), output.as_mut())
        })
    }

    /// Starts to [send](Comm::send). Sends run in the order in which they were started, and so do
    /// receives; neither waits for the other.
    pub fn start_send<T: Element, B: Owned<T>>(
        &self,
        data: B,
        to: usize,
        tag: u64,
    ) -> Result<Handle<B>, CommError> {
        self.queue(Channel::Sends, data, move |comm, data| {
            comm.send::<T>((*data).as_ref(), to, tag)
        })
    }

    /// Starts to [receive](Comm::recv).
    pub fn start_recv<T: Element, B: Owned<T>>(
        &self,
        data: B,
        from: usize,
        tag: u64,
    ) -> Result<Handle<B>, CommError> {
        self.queue(Channel::Recvs, data, move |comm, data| comm.recv::<T>(data.as_mut(), from, tag))
    }

    /// Starts a [signal](Comm::signal).
    pub fn start_signal(&self, to: usize, tag: u64) -> Result<Handle<()>, CommError> {
        self.queue(Channel::Sends, (), move |comm, ()| comm.signal(to, tag))
    }

    /// Starts to [wait for a signal](Comm::wait_for).
    pub fn start_wait_for(&self, from: usize, tag: u64) -> Result<Handle<()>, CommError> {
        self.queue(Channel::Recvs, (), move |comm, ()| comm.wait_for(from, tag))
    }

    /// Starts to [wait for the signals of all ranks](Comm::wait_for_each).
    pub fn start_wait_for_each(
        &self,
        tag: u64,
        arrived: impl Fn(usize) + Send + 'static,
    ) -> Result<Handle<()>, CommError> {
        self.queue(Channel::Recvs, (), move |comm, ()| comm.wait_for_each(tag, &arrived))
    }

    /// Queues any collective calls, which `run` makes on `buffers`.
    pub fn start<B: Send + 'static>(
        &self,
        buffers: B,
        run: impl FnOnce(&Self, &mut B) -> Result<(), CommError> + Send + 'static,
    ) -> Result<Handle<B>, CommError> {
        self.queue(Channel::Background, buffers, run)
    }

    /// Queues a job behind earlier ones of the same channel.
    pub(crate) fn queue<B: Send + 'static>(
        &self,
        channel: Channel,
        buffers: B,
        run: impl FnOnce(&Self, &mut B) -> Result<(), CommError> + Send + 'static,
    ) -> Result<Handle<B>, CommError> {
        let thread = self.core.endpoint.thread(channel)?;
        let guard =
            InFlightGuard::begin(Self { channel: Channel::Background, ..self.clone() }, channel);
        let run = move |guard: &InFlightGuard, buffers: &mut B| run(&guard.comm, buffers);
        let handle = thread.submit(guard, buffers, run, self.timeout());
        handle.ok_or_else(|| self.invalid("start", "too many calls are in flight, and none ends"))
    }
}

/// Counts a call in flight until it is dropped, also by a panic.
struct InFlightGuard {
    comm: Comm,
    channel: Channel,
}

impl InFlightGuard {
    fn begin(comm: Comm, channel: Channel) -> Self {
        let guard = Self { comm, channel };
        guard.counter().begin();
        guard
    }

    fn counter(&self) -> &InFlight {
        match self.channel {
            Channel::Sends => &self.comm.core.sends_in_flight,
            Channel::Recvs => &self.comm.core.recvs_in_flight,
            Channel::Caller | Channel::Background => &self.comm.core.calls_in_flight,
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.counter().end();
    }
}
