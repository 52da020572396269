//! The operations of a [`Comm`] that run in the background.
//!
//! Each takes its buffers by value (a `Vec` or an [`ArenaBuffer`](crate::ArenaBuffer), or anything
//! else that is a slice) and gives them back with the result.

use crate::background::Handle;
use crate::comm::Comm;
use crate::element::{Element, Reduction};
use crate::error::CommError;
use crate::node::Lane;

/// A buffer that can move into a call: a slice that is owned.
pub trait Owned<T>: AsRef<[T]> + AsMut<[T]> + Send + 'static {}
impl<T, B: AsRef<[T]> + AsMut<[T]> + Send + 'static> Owned<T> for B {}

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

    /// Queues any calls, made one after the other by `run` on `buffers`. Where calls in the
    /// background would have to share wires with the caller's, which could stop both, they are
    /// made at once instead.
    pub fn start<B: Send + 'static>(
        &self,
        mut buffers: B,
        run: impl FnOnce(&Self, &mut B) -> Result<(), CommError> + Send + 'static,
    ) -> Result<Handle<B>, CommError> {
        let node = &self.core.node;
        let (handle, place) = Handle::new(node.world());
        if !node.has_background_wires() && !self.shares_memory() {
            let result = run(self, &mut buffers);
            place.put(result.map(|()| buffers));
            return Ok(handle);
        }
        let thread = node.background()?;
        self.core.in_flight.begin();
        let comm = Self { lane: Lane::Background, ..self.clone() };
        let job = move || {
            let result = run(&comm, &mut buffers);
            place.put(result.map(|()| buffers));
            comm.core.in_flight.end();
        };
        if thread.submit(Box::new(job), self.timeout).is_err() {
            self.core.in_flight.end();
            let rule = "too many calls are in flight, and none ends";
            return Err(self.invalid("start", rule));
        }
        Ok(handle)
    }
}
