//! The system's TCP sockets.
//!
//! Sockets are non-blocking: a call first tries, and only when it would have to wait asks the
//! kernel to tell when the socket is ready, for as long as the deadline allows. The fast path has
//! thus no clock and no option call, and two handles of one socket can have different deadlines
//! (the kernel's own socket timeouts belong to the socket, not to the handle).

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is where sockets and their deadlines are"
)]

use std::any::Any;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::streams::RealStreamSet;
use crate::{Listener, Net, NetAction, NetError, Stream, StreamSet};

pub(crate) struct RealNet;

impl Net for RealNet {
    fn listen(&self, addr: &str) -> Result<Box<dyn Listener>, NetError> {
        let listen = || {
            let socket = TcpListener::bind(addr)?;
            socket.set_nonblocking(true)?;
            let addr = socket.local_addr()?.to_string();
            Ok(RealListener { socket, addr })
        };
        let listener = listen().map_err(|error| NetError::new(NetAction::Listen, addr, &error))?;
        Ok(Box::new(listener))
    }

    fn connect(&self, addr: &str, timeout: Duration) -> Result<Box<dyn Stream>, NetError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::TimedOut => NetError::timed_out(NetAction::Connect, addr, timeout),
            _ => NetError::new(NetAction::Connect, addr, &error),
        };
        let candidates: Vec<SocketAddr> = addr.to_socket_addrs().map_err(failed)?.collect();
        let socket = connect_to_any(&candidates, timeout).map_err(failed)?;
        let stream = RealStream::new(socket, addr.to_owned()).map_err(failed)?;
        Ok(Box::new(stream))
    }

    fn stream_set(&self) -> Box<dyn StreamSet> {
        Box::new(RealStreamSet::default())
    }
}

/// A host name can have several addresses; the first that answers wins, all within one deadline.
fn connect_to_any(candidates: &[SocketAddr], timeout: Duration) -> io::Result<TcpStream> {
    let start = Instant::now();
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in candidates {
        // A zero timeout is an error to the standard library; one millisecond is near enough.
        let remaining = timeout.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(candidate, remaining) {
            Ok(socket) => return Ok(socket),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

pub(super) struct RealListener {
    pub(super) socket: TcpListener,
    addr: String,
}

impl Listener for RealListener {
    fn accept(&self, timeout: Duration) -> Result<Box<dyn Stream>, NetError> {
        let deadline = Instant::now().checked_add(timeout);
        let accepted = when_ready(&self.socket, PollFlags::IN, deadline, || {
            self.socket.accept().map_err(|error| match error.kind() {
                // A caller that left before it was accepted is no reason to give up.
                io::ErrorKind::ConnectionAborted => io::ErrorKind::Interrupted.into(),
                _ => error,
            })
        });
        let stream = accepted.and_then(|(socket, peer)| RealStream::new(socket, peer.to_string()));
        match stream {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(NetError::timed_out(NetAction::Accept, &self.addr, timeout))
            }
            Err(error) => Err(NetError::new(NetAction::Accept, &self.addr, &error)),
        }
    }

    fn local_addr(&self) -> String {
        self.addr.clone()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

pub(super) struct RealStream {
    pub(super) socket: TcpStream,
    peer: String,
    deadline: Option<Instant>,
}

impl RealStream {
    fn new(socket: TcpStream, peer: String) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket, peer, deadline: None })
    }

    fn failed(&self, error: &io::Error) -> NetError {
        NetError::new(NetAction::Configure, &self.peer, error)
    }
}

impl Read for RealStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        when_ready(&self.socket, PollFlags::IN, self.deadline, || (&self.socket).read(buffer))
    }
}

impl Write for RealStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        when_ready(&self.socket, PollFlags::OUT, self.deadline, || (&self.socket).write(bytes))
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        when_ready(&self.socket, PollFlags::OUT, self.deadline, || {
            (&self.socket).write_vectored(pieces)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream for RealStream {
    fn set_deadline(&mut self, timeout: Option<Duration>) {
        self.deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    }

    fn set_nodelay(&self, nodelay: bool) -> Result<(), NetError> {
        self.socket.set_nodelay(nodelay).map_err(|error| self.failed(&error))
    }

    fn try_clone(&self) -> Result<Box<dyn Stream>, NetError> {
        let socket = self.socket.try_clone().map_err(|error| self.failed(&error))?;
        Ok(Box::new(Self { socket, peer: self.peer.clone(), deadline: None }))
    }

    fn shutdown(&self) -> Result<(), NetError> {
        match self.socket.shutdown(Shutdown::Both) {
            // The peer was quicker; the stream is as ended as it was asked to be.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            ended => ended.map_err(|error| self.failed(&error)),
        }
    }

    fn set_silence_limit(&self, limit: Duration) -> Result<(), NetError> {
        keep_watch(&self.socket, limit).map_err(|error| self.failed(&error.into()))
    }

    fn local_addr(&self) -> String {
        self.socket.local_addr().map_or_else(|_| String::new(), |addr| addr.to_string())
    }

    fn peer_addr(&self) -> String {
        self.peer.clone()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// An idle stream asks its peer for a sign of life after a third of the limit, and then again
/// twice; what was sent and not acknowledged is given the whole limit.
fn keep_watch(socket: &TcpStream, limit: Duration) -> rustix::io::Result<()> {
    let third = Duration::from_secs((limit.as_secs() / 3).max(1));
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, third)?;
    sockopt::set_tcp_keepintvl(socket, third)?;
    sockopt::set_tcp_keepcnt(socket, 2)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(socket, (3 * third).as_millis().try_into().unwrap_or(u32::MAX))?;
    Ok(())
}

/// Tries until it works, fails, or the deadline passes.
fn when_ready<T>(
    socket: &impl AsFd,
    interest: PollFlags,
    deadline: Option<Instant>,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_until_ready(socket, interest, deadline)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn wait_until_ready(
    socket: &impl AsFd,
    interest: PollFlags,
    deadline: Option<Instant>,
) -> io::Result<()> {
    loop {
        let remaining = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        // A wait too long for the kernel's type is a wait without end.
        let timeout = remaining.and_then(|remaining| Timespec::try_from(remaining).ok());
        match poll(&mut [PollFd::new(socket, interest)], timeout.as_ref()) {
            Ok(0) if past(deadline) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|at| Instant::now() >= at)
}
