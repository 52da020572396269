//! The operating system as a platform.
//!
//! One module per service. The standard library provides nearly all of it; `rustix` adds polling of
//! sockets, the boot-time clock, random bytes and the host name.

mod clock;
mod entropy;
mod files;
mod host;
mod map;
mod net;
mod paged;
mod processes;
mod shared;
mod sockets;
mod stream_set;
mod threads;
mod write_behind;

use crate::{Clock, Entropy, Files, Host, Net, Platform, Processes, Shared, Threads};

/// The operating system.
pub(crate) struct RealPlatform {
    clock: clock::RealClock,
}

impl RealPlatform {
    pub(crate) fn new() -> Self {
        Self { clock: clock::RealClock::new() }
    }
}

impl Platform for RealPlatform {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn files(&self) -> &dyn Files {
        &files::RealFiles
    }

    fn threads(&self) -> &dyn Threads {
        &threads::RealThreads
    }

    fn net(&self) -> &dyn Net {
        &net::RealNet
    }

    fn processes(&self) -> &dyn Processes {
        &processes::RealProcesses
    }

    fn shared(&self) -> &dyn Shared {
        &shared::RealShared
    }

    fn entropy(&self) -> &dyn Entropy {
        &entropy::RealEntropy
    }

    fn host(&self) -> &dyn Host {
        &host::RealHost
    }
}
