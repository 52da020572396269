//! Emulated links: bandwidth, latency, jitter and packet loss, so that one host behaves like a
//! cluster.
//!
//! Latency is not bandwidth: many messages can be in transit at once, and their sender has long
//! continued. So the sender is not delayed. Every piece carries a small frame with its arrival
//! time, and the *receiver's* end holds it until then. Only bandwidth slows the sender down, as a
//! full socket would, and it too is charged to the arrival time to the microsecond.
//!
//! - `direction`: arrival time of a piece from bandwidth, latency, jitter and loss
//! - `frame`: the frames, and the queue of pieces in transit
//!
//! The two ends of a link compare wall-clock times, so this is for ranks of one host. If their
//! clocks disagree, a piece is held for at most its emulated transit time.

mod direction;
mod frame;

use std::io::{self, IoSlice};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_platform::{Interest, Listener, Stream, StreamSet, World};

pub(super) use direction::LinkDirection;
use direction::Track;
use frame::{FRAME_BYTES, Frame, Incoming};

/// A stream set in which some streams have emulated conditions.
pub(super) struct EmulatedSet {
    world: World,
    inner: Box<dyn StreamSet>,
    /// By index in the inner set; `None` for streams without emulation.
    streams: Vec<Option<Emulated>>,
}

struct Emulated {
    direction: Arc<Mutex<LinkDirection>>,
    track: Track,
    /// Unsent bytes of the current frame, and number of unsent bytes of its piece.
    front: Vec<u8>,
    owed: usize,
    incoming: Incoming,
    interest: Interest,
}

impl Emulated {
    fn direction(&self) -> MutexGuard<'_, LinkDirection> {
        self.direction.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time until a new piece may be sent.
    fn closed_for(&self, now: Duration) -> Duration {
        let is_between = self.owed == 0 && self.front.is_empty();
        if is_between { self.direction().closed_for(now) } else { Duration::ZERO }
    }
}

impl EmulatedSet {
    /// Emulates a link direction on each of these streams, given by index in `inner`.
    pub(super) fn new(
        world: &World,
        inner: Box<dyn StreamSet>,
        directions: Vec<(usize, Arc<Mutex<LinkDirection>>)>,
    ) -> Self {
        let mut streams = Vec::new();
        for (index, (number, direction)) in directions.into_iter().enumerate() {
            if streams.len() <= number {
                streams.resize_with(number + 1, || None);
            }
            streams[number] = Some(Emulated {
                direction,
                track: Track::new(index as u64),
                front: Vec::with_capacity(FRAME_BYTES),
                owed: 0,
                incoming: Incoming::default(),
                interest: Interest::default(),
            });
        }
        Self { world: Arc::clone(world), inner, streams }
    }

    fn emulated(&mut self, stream: usize) -> Option<&mut Emulated> {
        self.streams.get_mut(stream)?.as_mut()
    }

    /// Registers interest with the inner set; returns the longest wait, or `None` if a stream is
    /// ready now.
    fn watch_inner(&mut self, now: Duration) -> Option<Duration> {
        let mut limit = Duration::MAX;
        for (number, emulated) in self.streams.iter().enumerate() {
            let Some(emulated) = emulated else { continue };
            let mut interest = emulated.interest;
            if interest.write {
                let closed_for = emulated.closed_for(now);
                if !closed_for.is_zero() {
                    interest.write = false;
                    limit = limit.min(closed_for);
                }
            }
            if interest.read {
                interest.read = emulated.incoming.has_room();
                limit = limit.min(emulated.incoming.arrives_in(now).unwrap_or(Duration::MAX));
            }
            self.inner.watch(number, interest);
        }
        (!limit.is_zero()).then_some(limit)
    }

    /// Reads the ready streams; returns whether any stream became ready for its watcher.
    fn take_in(&mut self) -> bool {
        let mut is_news = false;
        let now = self.world.clock().wall();
        let len = self.streams.len();
        for number in 0..len {
            let is_ready = self.inner.is_ready(number);
            let Some(emulated) = &mut self.streams[number] else {
                is_news |= is_ready;
                continue;
            };
            if is_ready && emulated.interest.read {
                let inner = &mut self.inner;
                // The end of the stream and errors surface at the next read.
                is_news |= match emulated.incoming.fill(|space| inner.read(number, space)) {
                    Ok(num_bytes) => num_bytes == 0,
                    Err(error) => error.kind() != io::ErrorKind::WouldBlock,
                };
            }
            emulated.incoming.decode_head(now);
            is_news |= is_ready && emulated.interest.write && emulated.closed_for(now).is_zero();
            is_news |= emulated.interest.read
                && emulated.incoming.arrives_in(now).is_some_and(|left| left.is_zero());
        }
        is_news
    }
}

impl StreamSet for EmulatedSet {
    fn add(&mut self, stream: Box<dyn Stream>) -> usize {
        self.inner.add(stream)
    }

    fn remove(&mut self, stream: usize) -> Box<dyn Stream> {
        if let Some(place) = self.streams.get_mut(stream) {
            *place = None;
        }
        self.inner.remove(stream)
    }

    fn read(&mut self, stream: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(emulated) = self.streams.get_mut(stream).and_then(Option::as_mut) else {
            return self.inner.read(stream, buffer);
        };
        let inner = &mut self.inner;
        let filled = emulated.incoming.fill(|space| inner.read(stream, space));
        let taken = emulated.incoming.take(buffer, self.world.clock().wall())?;
        if taken > 0 || buffer.is_empty() {
            return Ok(taken);
        }
        if emulated.incoming.is_empty() {
            match filled {
                // The peer closed the stream behind its last byte.
                Ok(0) => return Ok(0),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn write(&mut self, stream: usize, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(emulated) = self.streams.get_mut(stream).and_then(Option::as_mut) else {
            return self.inner.write(stream, pieces);
        };
        let offered: usize = pieces.iter().map(|piece| piece.len()).sum();
        if offered == 0 {
            return Ok(0);
        }
        if emulated.owed == 0 && emulated.front.is_empty() {
            let now = self.world.clock().wall();
            if !emulated.closed_for(now).is_zero() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let mut direction = emulated.direction.lock().unwrap_or_else(PoisonError::into_inner);
            let len = offered.min(direction.max_piece_bytes());
            let due = direction.send(&mut emulated.track, len, now);
            drop(direction);
            let hold = due.saturating_sub(now);
            emulated.front.extend_from_slice(&Frame { len, due, hold }.encode());
            emulated.owed = len;
        }
        let mut slices = [IoSlice::new(&[]), IoSlice::new(&[]), IoSlice::new(&[])];
        slices[0] = IoSlice::new(&emulated.front);
        let mut left = emulated.owed;
        for (slice, piece) in slices[1..].iter_mut().zip(pieces) {
            let len = piece.len().min(left);
            *slice = IoSlice::new(&piece[..len]);
            left -= len;
        }
        let num_bytes = self.inner.write(stream, &slices)?;
        let num_front = num_bytes.min(emulated.front.len());
        emulated.front.drain(..num_front);
        emulated.owed -= num_bytes - num_front;
        match num_bytes - num_front {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            taken => Ok(taken),
        }
    }

    fn watch(&mut self, stream: usize, interest: Interest) {
        match self.emulated(stream) {
            Some(emulated) => emulated.interest = interest,
            None => self.inner.watch(stream, interest),
        }
    }

    fn wait(&mut self, listener: Option<&dyn Listener>, timeout: Duration) -> io::Result<bool> {
        let clock = Arc::clone(&self.world);
        let start = clock.clock().now();
        loop {
            let left = timeout.saturating_sub(clock.clock().since(start));
            let Some(limit) = self.watch_inner(clock.clock().wall()) else {
                return self.inner.wait(listener, Duration::ZERO).map(|_| true);
            };
            let is_woken = self.inner.wait(listener, left.min(limit))?;
            if self.take_in() {
                return Ok(true);
            }
            // Nothing else was ready, so the listener has a new stream.
            if (is_woken && listener.is_some()) || left.is_zero() {
                return Ok(is_woken);
            }
        }
    }

    fn is_ready(&self, stream: usize) -> bool {
        let now = self.world.clock().wall();
        let has_arrived =
            self.streams.get(stream).and_then(Option::as_ref).is_some_and(|found| {
                found.incoming.arrives_in(now).is_some_and(|left| left.is_zero())
            });
        has_arrived || self.inner.is_ready(stream)
    }
}
