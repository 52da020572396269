//! Mutual authentication and encryption of connections between the ranks of a run.
//!
//! All ranks of a run share a secret of 32 random bytes, which never travels. Two ranks that
//! connect run the handshake NNpsk0 of the Noise Protocol Framework (Perrin 2018): each contributes
//! an ephemeral key, and both mix the secret into the result ([`handshake`]). The outcome is a
//! [`session`](session::Session) with one key for each direction. A record that decrypts proves
//! that the sender knows the secret, that it takes part in this handshake (a replay has other
//! keys), and that no bit was changed. Tags are compared in constant time.
//!
//! # Layout
//! - [`ticket`]: the secret and the environment variables that carry it
//! - [`handshake`]: the two handshake messages
//! - [`session`]: encrypted records and the buffers of one connection
//! - [`stream`]: a stream that encrypts every byte
//! - [`stream_set`]: a set of such streams, polled by one thread
//!
//! # Example
//! ```
//! use lockstep_auth::handshake::{Initiator, respond};
//! use lockstep_auth::ticket::Secret;
//!
//! let world = lockstep_platform::real();
//! let secret = Secret::new(&world);
//! let (initiator, first_message) = Initiator::new(&world, &secret);
//! let (reply, responder) = respond(&world, &secret, &first_message).expect("same secret");
//! let session = initiator.finish(&reply).expect("same secret");
//! let record = session.seal_one(b"hello");
//! assert_eq!(responder.open_one(&record).as_deref(), Some(&b"hello"[..]));
//! ```

pub mod handshake;
#[doc(hidden)]
pub mod hostile;
pub mod session;
pub mod stream;
pub mod stream_set;
pub mod ticket;
