//! The run's secret: who knows it belongs to the run.
//!
//! All ranks of a run hold the same 32 random bytes. They never travel. Two ranks that connect make
//! fresh keys on both sides and mix them with the secret ([`handshake`]), as the pattern NNpsk0 of
//! the Noise protocol says; what comes out is a [`session`](session::Session) in which each side
//! can open only what the other has sealed. So a record that can be opened proves three things at
//! once: the sender knows the secret, it speaks now (a recorded conversation has other keys), and
//! nobody has changed a bit. The tag is compared in constant time.
//!
//! - [`ticket`]: the secret and where it comes from
//! - [`handshake`]: from the secret to a session, in two messages
//! - [`session`]: records, and the buffers of one connection
//! - [`stream`]: a stream of which every byte travels sealed
//! - [`set`]: the same for many streams in the hands of one thread

pub mod handshake;
#[doc(hidden)]
pub mod hostile;
pub mod session;
pub mod set;
pub mod stream;
pub mod ticket;
