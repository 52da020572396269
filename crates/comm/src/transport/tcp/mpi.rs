//! Data streams over a cluster's MPI, beside control streams over TCP.
//!
//! A stream is the messages from one rank to another on one channel, which MPI delivers in order:
//! the tag is the channel of the sender. A write is one message, a read takes what has arrived.
//! Rendezvous, heartbeats and failure reports stay on TCP, so a dead rank is noticed and named as
//! everywhere else; MPI by itself would end the whole run without a word.

use std::any::Any;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use lockstep_mpi::{Incoming, MpiError, Process, Sending};
use lockstep_platform::{Interest, Listener, NetError, Stream, StreamSet, World};

use super::{MAX_CALL_BYTES, NUM_CHANNELS};

/// Channel of the peer from which a channel receives: what one rank sends for the point-to-point
/// messages arrives on the other's channel for receiving them.
const SENDER_OF: [usize; NUM_CHANNELS] = [0, 1, 3, 2];

/// Most messages in flight per stream.
const MAX_IN_FLIGHT: usize = 8;

/// Shortest and longest sleep between two looks for messages.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];

/// Longest wait for the last messages at the end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Streams of one channel over TCP and MPI.
pub(super) struct MpiSet {
    world: World,
    inner: Box<dyn StreamSet>,
    process: Process,
    channel: usize,
    places: Vec<Place>,
}

/// Meaning of a stream's number.
enum Place {
    /// Stream of the inner set.
    Inner(usize),
    Mpi(MpiStream),
    Free,
}

/// Messages to and from one rank.
struct MpiStream {
    peer: usize,
    sending: VecDeque<Sending>,
    receiving: Option<Incoming>,
    /// Bytes that have arrived, and how many of them were read.
    arrived: Vec<u8>,
    num_read: usize,
    /// Memory of earlier messages.
    spare: Vec<Vec<u8>>,
    interest: Interest,
    is_ready: bool,
}

impl MpiSet {
    pub(super) fn new(
        world: &World,
        inner: Box<dyn StreamSet>,
        process: Process,
        channel: usize,
    ) -> Self {
        Self { world: Arc::clone(world), inner, process, channel, places: Vec::new() }
    }

    /// Adds the messages to and from a rank as a stream.
    pub(super) fn add_peer(&mut self, peer: usize) -> usize {
        self.place(Place::Mpi(MpiStream {
            peer,
            sending: VecDeque::with_capacity(MAX_IN_FLIGHT),
            receiving: None,
            arrived: Vec::new(),
            num_read: 0,
            spare: Vec::new(),
            interest: Interest::default(),
            is_ready: false,
        }))
    }

    fn place(&mut self, place: Place) -> usize {
        let free = self.places.iter().position(|place| matches!(place, Place::Free));
        let number = free.unwrap_or(self.places.len());
        if free.is_none() {
            self.places.push(Place::Free);
        }
        self.places[number] = place;
        number
    }

    /// Looks at the watched streams; returns whether any is ready.
    fn look(&mut self) -> bool {
        let Self { process, channel, places, .. } = self;
        let mut any = false;
        for place in places {
            let Place::Mpi(stream) = place else { continue };
            let Interest { read, write } = stream.interest;
            // Errors surface at the next read or write.
            stream.is_ready = (read && stream.has_bytes(process, *channel).unwrap_or(true))
                || (write && stream.has_room().unwrap_or(true));
            any |= stream.is_ready;
        }
        any
    }

    /// Whether all messages have left.
    fn is_flushed(&mut self) -> bool {
        self.places.iter_mut().all(|place| match place {
            Place::Mpi(stream) => stream.reclaim().is_ok() && stream.sending.is_empty(),
            Place::Inner(_) | Place::Free => true,
        })
    }
}

impl MpiStream {
    /// Takes back the memory of messages that have left.
    fn reclaim(&mut self) -> Result<(), MpiError> {
        while let Some(first) = self.sending.front_mut() {
            if !first.is_done()? {
                return Ok(());
            }
            let done = self.sending.pop_front().expect("the first message");
            self.spare.push(done.into_bytes());
        }
        Ok(())
    }

    fn has_room(&mut self) -> Result<bool, MpiError> {
        self.reclaim()?;
        Ok(self.sending.len() < MAX_IN_FLIGHT)
    }

    fn has_bytes(&mut self, process: &Process, channel: usize) -> Result<bool, MpiError> {
        if self.num_read < self.arrived.len() {
            return Ok(true);
        }
        if self.receiving.is_none() {
            let tag = SENDER_OF[channel] as u16;
            let spare = std::mem::take(&mut self.arrived);
            self.num_read = 0;
            self.receiving = process.receive(self.peer, tag, MAX_CALL_BYTES, spare)?;
        }
        let Some(incoming) = &mut self.receiving else { return Ok(false) };
        if !incoming.is_done()? {
            return Ok(false);
        }
        let done = self.receiving.take().expect("a message");
        self.arrived = done.into_bytes();
        self.num_read = 0;
        Ok(!self.arrived.is_empty())
    }
}

impl StreamSet for MpiSet {
    fn add(&mut self, stream: Box<dyn Stream>) -> usize {
        let number = self.inner.add(stream);
        self.place(Place::Inner(number))
    }

    fn remove(&mut self, stream: usize) -> Box<dyn Stream> {
        match std::mem::replace(&mut self.places[stream], Place::Free) {
            Place::Inner(number) => self.inner.remove(number),
            Place::Mpi(stream) => Box::new(Closed { peer: stream.peer }),
            Place::Free => panic!("no stream {stream}"),
        }
    }

    fn read(&mut self, stream: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let Self { inner, process, channel, places, .. } = self;
        let stream = match &mut places[stream] {
            Place::Inner(number) => return inner.read(*number, buffer),
            Place::Mpi(stream) => stream,
            Place::Free => panic!("no stream {stream}"),
        };
        if !stream.has_bytes(process, *channel).map_err(io::Error::other)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let left = &stream.arrived[stream.num_read..];
        let len = left.len().min(buffer.len());
        buffer[..len].copy_from_slice(&left[..len]);
        stream.num_read += len;
        Ok(len)
    }

    fn write(&mut self, stream: usize, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let Self { inner, process, channel, places, .. } = self;
        let stream = match &mut places[stream] {
            Place::Inner(number) => return inner.write(*number, pieces),
            Place::Mpi(stream) => stream,
            Place::Free => panic!("no stream {stream}"),
        };
        if pieces.iter().all(|piece| piece.is_empty()) {
            return Ok(0);
        }
        if !stream.has_room().map_err(io::Error::other)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut bytes = stream.spare.pop().unwrap_or_default();
        bytes.clear();
        for piece in pieces {
            let room = MAX_CALL_BYTES - bytes.len();
            bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        let len = bytes.len();
        let sending = process.send(bytes, stream.peer, *channel as u16);
        stream.sending.push_back(sending.map_err(io::Error::other)?);
        Ok(len)
    }

    fn watch(&mut self, stream: usize, interest: Interest) {
        match &mut self.places[stream] {
            Place::Mpi(stream) => stream.interest = interest,
            Place::Inner(number) => self.inner.watch(*number, interest),
            Place::Free => panic!("no stream {stream}"),
        }
    }

    fn wait(&mut self, listener: Option<&dyn Listener>, timeout: Duration) -> io::Result<bool> {
        let start = self.world.clock().now();
        let [mut nap, longest] = NAPS;
        loop {
            if self.look() {
                // The others may be ready as well.
                return self.inner.wait(listener, Duration::ZERO).map(|_| true);
            }
            let left = timeout.saturating_sub(self.world.clock().since(start));
            if self.inner.wait(listener, left.min(nap))? {
                self.look();
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
            nap = longest.min(2 * nap);
        }
    }

    fn is_ready(&self, stream: usize) -> bool {
        match &self.places[stream] {
            Place::Mpi(stream) => stream.is_ready,
            Place::Inner(number) => self.inner.is_ready(*number),
            Place::Free => panic!("no stream {stream}"),
        }
    }
}

impl Drop for MpiSet {
    fn drop(&mut self) {
        let start = self.world.clock().now();
        while !self.is_flushed() {
            if self.world.clock().since(start) > FLUSH_TIMEOUT {
                // A peer is lost, and MPI would wait for it for ever.
                self.process.give_up();
                return;
            }
            self.world.clock().sleep(NAPS[0]);
        }
    }
}

/// Stands for a removed stream of MPI, of which nothing is left to close.
struct Closed {
    peer: usize,
}

impl io::Read for Closed {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Ok(0)
    }
}

impl io::Write for Closed {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for Closed {
    fn set_deadline(&mut self, _: Option<Duration>) {}

    fn set_nodelay(&self, _: bool) -> Result<(), NetError> {
        Ok(())
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, NetError> {
        Ok(Box::new(Self { peer: self.peer }))
    }

    fn shutdown(&self) -> Result<(), NetError> {
        Ok(())
    }

    fn set_keepalive_timeout(&self, _: Duration) -> Result<(), NetError> {
        Ok(())
    }

    fn local_addr(&self) -> String {
        "mpi".to_owned()
    }

    fn peer_addr(&self) -> String {
        format!("mpi rank {}", self.peer)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
