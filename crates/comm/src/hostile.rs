//! Readers of bytes from peers, exposed to tests and fuzzers.
//!
//! A connection can carry any bytes, so none may make a reader panic, wait for ever or allocate
//! more than its bound.

/// A message between ranks as it travels on the first of two streams.
pub fn message() -> Vec<u8> {
    crate::transport::tcp::hostile::message()
}

/// Whether a rank that expects two such messages accepts these bytes.
pub fn receive(streams: [&[u8]; 2], piece: usize) -> bool {
    crate::transport::tcp::hostile::receive(streams, piece)
}
