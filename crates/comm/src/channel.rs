//! Channels: the independent paths of a rank's calls.

/// Channel of a call. Calls on different channels do not block each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    /// Collective calls on the caller's thread.
    Caller,
    /// Collective calls on the background thread.
    Background,
    /// Outgoing point-to-point messages, of either thread.
    Sends,
    /// Incoming point-to-point messages.
    Recvs,
}
