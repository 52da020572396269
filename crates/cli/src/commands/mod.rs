//! One file a command.

pub(crate) mod bench;
pub(crate) mod compare;
pub(crate) mod config;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod rendezvous;
pub(crate) mod train;
