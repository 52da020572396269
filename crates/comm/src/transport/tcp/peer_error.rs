//! Errors of one peer.

use std::io;

use crate::signature::Signature;

/// Error of a peer or of its streams.
#[derive(Debug)]
pub(super) enum PeerError {
    /// The stream has ended.
    Closed,
    /// The stream is broken.
    Io(io::Error),
    /// The peer violated the protocol.
    Protocol(String),
    /// The peer makes a different call.
    Mismatch(Signature),
    /// The peer made a different call earlier: the call's number and signature.
    EarlierMismatch(u64, Signature),
}

impl From<io::Error> for PeerError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Describes an I/O error of a stream as a statement about the peer.
pub(super) fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "the connection broke".to_owned()
        }
        io::ErrorKind::TimedOut => "its machine no longer answers".to_owned(),
        io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown => "its machine cannot be reached any more".to_owned(),
        _ => error.to_string(),
    }
}
