//! The real binary, as people and scripts meet it: what it prints, where, and with which exit code.
//!
//! # Layout
//! - `process`: a folder of its own and the binary in it.
//! - `commands`: every command does what its help says; the names that scripts rely on.
//! - `compare`: two runs, bit by bit.
//! - `bench_comm`: collectives between real ranks.
//! - `launch`: several workers behind one command.
//! - `layouts`: workers of every kind give the bits of one.
//! - `bad_input`: whatever is wrong is said in one line, and nothing is overwritten.

mod bad_input;
mod bench_comm;
mod commands;
mod compare;
mod launch;
mod layouts;
mod process;
mod rendezvous;
