//! One file a command.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod convert;
pub(crate) mod data;
pub(crate) mod data_server;
pub(crate) mod doctor;
pub(crate) mod drill;
pub(crate) mod eval;
pub(crate) mod explain;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod lab;
pub(crate) mod man;
pub(crate) mod plan;
pub(crate) mod rendezvous;
pub(crate) mod report;
pub(crate) mod runs;
pub(crate) mod serve;
pub(crate) mod sweep;
pub(crate) mod top;
pub(crate) mod train;
