//! Multiplexes many sockets on one thread with `poll`.
//!
//! Sockets are non-blocking, so reads and writes are plain calls. The poll list is rebuilt for
//! every wait, in reused memory, because interests change with every message.

#![expect(clippy::disallowed_methods, reason = "this is where sockets and their deadlines are")]

use std::cell::Cell;
use std::io::{self, IoSlice, Read};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};

use super::sockets::{RealListener, RealStream};
use crate::{Interest, Listener, Stream, StreamSet};

#[derive(Default)]
pub(super) struct RealStreamSet {
    /// Streams by number; none where one was removed.
    streams: Vec<Option<Entry>>,
    /// Poll list, empty between calls.
    polled: Vec<PollFd<'static>>,
}

struct Entry {
    stream: Box<RealStream>,
    /// Watched events; none at first.
    flags: PollFlags,
    is_ready: Cell<bool>,
}

impl RealStreamSet {
    fn entry(&self, stream: usize) -> &Entry {
        self.streams[stream].as_ref().expect("a stream of this set")
    }
}

impl StreamSet for RealStreamSet {
    fn add(&mut self, stream: Box<dyn Stream>) -> usize {
        let stream = stream.into_any().downcast::<RealStream>();
        let stream = stream.unwrap_or_else(|_| panic!("a stream of the operating system"));
        let free = self.streams.iter().position(Option::is_none);
        let number = free.unwrap_or(self.streams.len());
        if free.is_none() {
            self.streams.push(None);
        }
        let (flags, is_ready) = (PollFlags::empty(), Cell::new(false));
        self.streams[number] = Some(Entry { stream, flags, is_ready });
        number
    }

    fn remove(&mut self, stream: usize) -> Box<dyn Stream> {
        self.streams[stream].take().expect("a stream of this set").stream
    }

    fn read(&mut self, stream: usize, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match (&self.entry(stream).stream.socket).read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    fn write(&mut self, stream: usize, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let socket = &self.entry(stream).stream.socket;
        // A closed peer must be an error, not SIGPIPE.
        let flags = SendFlags::NOSIGNAL;
        loop {
            let sent = match pieces {
                [piece] => send(socket, piece, flags),
                _ => sendmsg(socket, pieces, &mut SendAncillaryBuffer::default(), flags),
            };
            match sent {
                Err(Errno::INTR) => {}
                done => return Ok(done?),
            }
        }
    }

    fn watch(&mut self, stream: usize, interest: Interest) {
        let entry = self.streams[stream].as_mut().expect("a stream of this set");
        entry.flags.set(PollFlags::IN, interest.read);
        entry.flags.set(PollFlags::OUT, interest.write);
    }

    fn wait(&mut self, listener: Option<&dyn Listener>, timeout: Duration) -> io::Result<bool> {
        let mut polled = recycled(std::mem::take(&mut self.polled));
        let watched = || self.streams.iter().flatten().filter(|entry| !entry.flags.is_empty());
        polled.extend(watched().map(|entry| PollFd::new(&entry.stream.socket, entry.flags)));
        if let Some(listener) = listener {
            let listener = listener.as_any().downcast_ref::<RealListener>();
            let listener = listener.expect("a listener of the operating system");
            polled.push(PollFd::new(&listener.socket, PollFlags::IN));
        }
        let is_any_ready = poll_until(&mut polled, timeout);
        for (entry, polled) in watched().zip(&polled) {
            entry.is_ready.set(!polled.revents().is_empty());
        }
        self.polled = recycled(polled);
        is_any_ready
    }

    fn is_ready(&self, stream: usize) -> bool {
        let entry = self.entry(stream);
        !entry.flags.is_empty() && entry.is_ready.get()
    }
}

fn poll_until(polled: &mut [PollFd<'_>], timeout: Duration) -> io::Result<bool> {
    let deadline = Instant::now().checked_add(timeout);
    let mut remaining = timeout;
    loop {
        // A timeout beyond the kernel's type means no timeout.
        match poll(polled, Timespec::try_from(remaining).ok().as_ref()) {
            Ok(0) if remaining.is_zero() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        remaining = left.unwrap_or(timeout);
    }
}

/// Reuses the memory of a list: the standard library collects a vector's items in place.
fn recycled<'new>(mut list: Vec<PollFd<'_>>) -> Vec<PollFd<'new>> {
    list.clear();
    list.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_list_keeps_its_memory() {
        let mut list: Vec<PollFd<'_>> = Vec::with_capacity(40);
        let stdin = std::io::stdin();
        list.push(PollFd::new(&stdin, PollFlags::IN));
        let recycled = recycled(list);
        assert_eq!((recycled.len(), recycled.capacity()), (0, 40));
    }
}
