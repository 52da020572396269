//! The platform: clocks, files, threads, processes, sockets, entropy and host facts behind one
//! trait.
//!
//! Every other crate receives a [`World`]; none names a clock, a file, a thread, a socket or a
//! random source itself. A world can be replaced, so a whole cluster can run inside one process, in
//! virtual time, with seeded faults, on production code. Two rules make that possible: every
//! blocking call takes a timeout, and threads wait for each other only through [`Signal`] (or
//! [`Queue`], which is built on it).
//!
//! All timeouts are durations from the call, never points in time.
//!
//! # Layout
//!
//! - [`clock`]: monotonic time, wall time, sleeping, and the [`Deadline`] helper
//! - [`files`]: whole files, open files and folders; [`file_error`]: errors that name the path
//! - [`atomic`]: crash-safe replacement of a file
//! - [`threads`]: named threads and the event count ([`Signal`]) they wait on
//! - [`queue`]: a bounded queue between threads
//! - [`net`]: byte streams between processes
//! - [`processes`]: child processes, their output and their end
//! - [`memory`]: memory shared between ranks; [`arena`] allocates in it, and [`shared`] creates it,
//!   passes it to other processes and waits on its words
//! - [`paged`]: file-backed arrays that are resident only while they are used
//! - [`huge_pages`]: an allocator that puts large buffers on huge pages
//! - [`entropy`] and [`host`]: random bytes; memory, names and environment of this machine;
//!   [`with_env`] overrides variables
//! - [`scratch`]: a temporary folder that removes itself
//! - [`conformance`]: checks that every platform must pass
//! - [`faults`]: a disk that loses power at any operation, for tests
//! - `real`: the operating system behind [`real()`]
//!
//! # Example
//!
//! ```
//! use lockstep_platform::ScratchDir;
//!
//! let world = lockstep_platform::real();
//! let scratch = ScratchDir::new(&world, "example")?;
//! let path = scratch.path().join("hello.txt");
//!
//! let start = world.clock().now();
//! world.files().write_atomic(&path, b"hello")?;
//! assert_eq!(world.files().read_to_string(&path)?, "hello");
//! assert!(world.clock().now() >= start);
//! # Ok::<(), lockstep_platform::FileError>(())
//! ```

pub mod clock;
pub mod file_error;
pub mod files;

pub mod atomic;
pub mod threads;

pub mod queue;

pub mod net;

pub mod processes;

pub mod arena;
pub mod huge_pages;
pub mod memory;
pub mod paged;
pub mod shared;

pub mod entropy;
mod env_overlay;
pub mod host;

pub mod scratch;

pub mod conformance;
pub mod faults;

mod error_text;
mod real;

use std::sync::Arc;

pub use arena::{Arena, Block};
pub use atomic::write_atomic_with;
pub use clock::{Clock, Deadline};
pub use entropy::Entropy;
pub use env_overlay::with_env;
pub use file_error::{FileAction, FileError};
pub use files::{FileKind, FileMap, FileReader, FileWriter, Files, InUse, MAX_PRIVATE_BYTES};
pub use host::Host;
pub use huge_pages::HugePages;
pub use memory::{Plain, Segment, Source, Target};
pub use net::{Interest, Listener, Net, NetAction, NetError, Stream, StreamSet};
pub use paged::Paged;
pub use processes::{
    EXIT_ON_INTERRUPT, Exit, Interrupts, Process, ProcessCommand, ProcessError, ProcessOutput,
    ProcessState, ProcessWatch, Processes,
};
pub use queue::{Queue, RecvError, SendError};
pub use scratch::ScratchDir;
pub use shared::{LocalListener, LocalMessage, LocalStream, Shared, SharedError, SpinPolicy};
pub use threads::{JoinHandle, Signal, ThreadError, Threads};

/// Services of the environment of a rank.
pub trait Platform: Send + Sync {
    /// Clocks.
    fn clock(&self) -> &dyn Clock;
    /// Disks.
    fn files(&self) -> &dyn Files;
    /// Threads and signals.
    fn threads(&self) -> &dyn Threads;
    /// Byte streams to other processes.
    fn net(&self) -> &dyn Net;
    /// Other processes of this host.
    fn processes(&self) -> &dyn Processes;
    /// Memory shared between processes of this host.
    fn shared(&self) -> &dyn Shared;
    /// Unpredictable random bytes. Training never uses them: its random numbers are functions of
    /// the seed.
    fn entropy(&self) -> &dyn Entropy;
    /// Facts about this machine and this process.
    fn host(&self) -> &dyn Host;
}

/// Shared handle to a platform; cheap to clone.
pub type World = Arc<dyn Platform>;

/// The platform of the operating system.
pub fn real() -> World {
    Arc::new(real::RealPlatform::new())
}
