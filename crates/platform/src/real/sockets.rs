//! TCP listeners and streams of the operating system.
//!
//! Sockets are non-blocking: a call tries first, and polls until the deadline only if it would
//! block. The fast path needs no clock and no socket option, and two handles of one socket can have
//! different deadlines (kernel timeouts belong to the socket, not to the handle).

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is where sockets and their deadlines are"
)]

use std::any::Any;
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use crate::{Listener, NetAction, NetError, Stream};

pub(super) struct RealListener {
    pub(super) socket: TcpListener,
    pub(super) addr: String,
}

impl Listener for RealListener {
    fn accept(&self, timeout: Duration) -> Result<Box<dyn Stream>, NetError> {
        let deadline = Instant::now().checked_add(timeout);
        let accepted = when_ready(&self.socket, PollFlags::IN, deadline, || {
            self.socket.accept().map_err(|error| match error.kind() {
                // A peer that left before it was accepted is ignored.
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
    pub(super) fn new(socket: TcpStream, peer: String) -> io::Result<Self> {
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
            // The peer closed first; the stream has ended either way.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            ended => ended.map_err(|error| self.failed(&error)),
        }
    }

    fn set_keepalive_timeout(&self, limit: Duration) -> Result<(), NetError> {
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

/// An idle stream probes its peer after a third of the limit, and twice more; unacknowledged data
/// gets the whole limit.
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

/// Retries until success, failure or the deadline.
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
        // A timeout beyond the kernel's type means no timeout.
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
