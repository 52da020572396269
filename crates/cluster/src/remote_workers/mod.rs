//! Workers on other hosts that join and leave a running run.
//!
//! A launcher starts processes on its own host only. An *agent* on another host offers to start a
//! worker there: it connects to the launcher, authenticates and keeps an encrypted session. Over
//! this session the launcher treats the remote worker as one of its own: it starts it, reads its
//! output, terminates or kills it, and receives its exit status. A new agent fills a vacant slot of
//! the [slot table](crate::slot_table), and the run grows at the end of a step. A worker whose
//! session breaks counts as lost.
//!
//! The launcher alone decides. Each attempt has a secret and a number of its own. An agent that
//! lost its launcher kills its worker; until then that worker can neither reach the others nor
//! finish a checkpoint.
//!
//! - `protocol`: messages between launcher and agent
//! - `launcher`: the side of the launcher
//! - `agent`: the side of the other host

mod agent;
mod launcher;
mod protocol;

pub use agent::offer_worker;
pub use launcher::RemoteWorkers;
