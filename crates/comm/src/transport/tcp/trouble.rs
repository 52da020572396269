//! What can be wrong with a peer.

use std::io;

use crate::signature::Signature;

/// What can be wrong with a peer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The stream has ended.
    Closed,
    /// The stream is broken.
    Io(io::Error),
    /// The peer does not keep to the protocol.
    Strange(String),
    /// The peer makes another call.
    Mismatch(Signature),
    /// The peer made another call earlier: which, and what it was.
    EarlierMismatch(u64, Signature),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What the system says about a stream, in words about the peer.
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
