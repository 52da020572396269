//! Transports: how bytes move between ranks.
//!
//! The engine runs schedules; a transport only moves bytes. It receives all messages of one *round*
//! in one call, because a rank that finished its sends before it posted its receives would deadlock
//! with a peer that does the same.
//!
//! - [`interface`]: the [`Transport`] trait and the channels of a rank
//! - [`message`]: envelopes and rounds
//! - [`shared`]: shared memory, between threads of one process or processes of one host
//! - [`tcp`]: TCP streams
//! - [`hosts`]: shared memory inside a host and TCP between hosts
//! - `failure_state`: the first failure of a rank, seen by all its channels
//! - `timing`: intervals at which waiting ranks check their peers

mod failure_state;
pub mod hosts;
pub mod interface;
pub mod message;
pub mod shared;
pub mod tcp;
mod timing;

pub(crate) use failure_state::FailureState;
pub use interface::{Channels, EpochChange, NUM_CHANNELS, Transport};
pub(crate) use message::PURPOSE_BIT;
pub use message::{Envelope, Round};
pub(crate) use timing::{MAX_SILENCE, POLL_INTERVAL, SLOW_PEER_WARNING};
