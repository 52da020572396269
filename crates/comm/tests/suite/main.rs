//! Tests of collectives between threads, processes and emulated hosts: results and failures.

mod common;

mod emulate;
mod failures;
mod mismatch;
mod mpi;
mod processes;
mod properties;
mod starved;
mod tcp;
mod tcp_processes;
mod threads;
