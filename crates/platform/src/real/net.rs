//! TCP connections of the operating system.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is where sockets and their deadlines are"
)]

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::sockets::{RealListener, RealStream};
use super::stream_set::RealStreamSet;
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

/// Connects to the first address of a host name that answers, within one deadline.
fn connect_to_any(candidates: &[SocketAddr], timeout: Duration) -> io::Result<TcpStream> {
    let start = Instant::now();
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in candidates {
        // The standard library rejects a zero timeout.
        let remaining = timeout.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(candidate, remaining) {
            Ok(socket) => return Ok(socket),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}
