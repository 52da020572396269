//! A world of threads for tests.
#![allow(dead_code, reason = "every test binary uses its part")]

pub(crate) mod processes;

use std::time::Duration;

use lockstep_comm::transport::Channels;
use lockstep_comm::transport::tcp::{TcpOptions, TcpTransport};
use lockstep_comm::{Comm, Options};
use lockstep_conformance::Effort;
use lockstep_platform::{World, real};

/// An arena large enough for every test, and a deadline that a loaded host meets.
pub(crate) const OPTIONS: Options =
    Options { arena_bytes: 256 << 20, timeout: Duration::from_mins(1) };

/// Runs `body` on a thread for every rank; panics if one of them does.
pub(crate) fn run_threads(num_ranks: usize, body: impl Fn(Comm) + Sync) {
    run_threads_within(num_ranks, OPTIONS.timeout, body);
}

/// [`run_threads`] with another deadline.
pub(crate) fn run_threads_within(num_ranks: usize, timeout: Duration, body: impl Fn(Comm) + Sync) {
    let world = lockstep_platform::real();
    let options = Options { timeout, ..OPTIONS };
    let ends = Comm::threads(&world, num_ranks, &options).expect("a world of threads");
    std::thread::scope(|scope| {
        for comm in ends {
            scope.spawn(|| body(comm));
        }
    });
}

/// Runs the conformance checks; all cases, which takes minutes, under `cargo xtask soak`.
pub(crate) fn run_checks(comm: &Comm) {
    let is_long = lockstep_platform::real().host().env("LOCKSTEP_SOAK").is_some();
    lockstep_conformance::run_all(comm, if is_long { Effort::Thorough } else { Effort::Quick });
}

/// Runs `body` on a thread for every rank, over the channels that `open` returns.
pub(crate) fn run_ranks<T: Send>(
    starts: Vec<T>,
    open: impl Fn(&World, T) -> Channels + Sync,
    body: impl Fn(Comm) + Sync,
) {
    let world = real();
    std::thread::scope(|scope| {
        for start in starts {
            scope.spawn(|| {
                let channels = open(&world, start);
                body(Comm::world(&world, channels).expect("a world").within(OPTIONS.timeout));
            });
        }
    });
}

/// Runs `body` on a thread for every rank, connected by loopback TCP.
pub(crate) fn run_tcp(num_ranks: usize, num_streams: usize, body: impl Fn(Comm) + Sync) {
    let options = TcpOptions::default();
    let channels = TcpTransport::loopback(&real(), num_ranks, num_streams, &options);
    run_ranks(
        channels.expect("loopback works"),
        |_, channels| TcpTransport::into_channels(channels),
        body,
    );
}
