//! The outside world as one value: clocks, files, threads, processes, sockets, entropy and host
//! facts.
//!
//! Every other crate receives a [`World`] and asks it; none names a clock, a file, a thread, a
//! socket or a random source itself. What is passed in can be replaced, so a whole cluster can
//! later run inside one process, in virtual time, with seeded faults, on the code that ships.
//! Two habits make that possible: whatever can block takes a time limit, and threads wait for
//! each other only through [`Signal`] (or [`Queue`], which is built on it).
//!
//! All time limits are lengths of time counted from the call, never points on a clock.
//!
//! # Layout
//!
//! - [`clock`]: monotonic time, wall time, sleeping, and the [`Deadline`] helper
//! - [`files`]: whole files, open files, folders, and the [`FileError`] that names the path
//! - [`atomic`]: replace a file so that a crash leaves the old one or the new one, never a mix
//! - [`threads`]: named threads and the event count ([`Signal`]) they wait on
//! - [`queue`]: a bounded queue between threads
//! - [`net`]: byte streams between processes
//! - [`processes`]: starting other processes, hearing them, and leaving none behind
//! - [`memory`]: memory that several ranks see; [`arena`] gives out parts of it, and [`shared`]
//!   creates it, passes it to other processes and waits on its words
//! - [`paged`]: numbers that lie in a file and are in memory while they are worked on
//! - [`huge_pages`]: an allocator that puts large buffers on large pages
//! - [`entropy`] and [`host`]: random bytes; memory, names and environment of this machine
//! - [`scratch`]: a folder that removes itself, for tests and temporary work
//! - [`conformance`]: the checks that every world must pass
//! - [`faults`]: a disk whose power goes at any operation, for tests
//! - `real`: the operating system behind [`real()`]
//!
//! # Example
//!
//! ```
//! use lockstep_platform::ScratchDir;
//!
//! let world = lockstep_platform::real();
//! let scratch = ScratchDir::new(&world, "example")?;
//! let path = scratch.path().join("greeting.txt");
//!
//! let start = world.clock().now();
//! world.files().write_atomic(&path, b"hello")?;
//! assert_eq!(world.files().read_to_string(&path)?, "hello");
//! assert!(world.clock().now() >= start);
//! # Ok::<(), lockstep_platform::FileError>(())
//! ```

pub mod clock;
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
pub mod host;

pub mod scratch;

pub mod conformance;
pub mod faults;

mod real;
mod reason;

use std::sync::Arc;

pub use arena::{Arena, Block};
pub use atomic::write_atomic_with;
pub use clock::{Clock, Deadline};
pub use entropy::Entropy;
pub use files::{FileAction, FileError, FileKind, FileMap, FileReader, FileWriter, Files};
pub use host::Host;
pub use huge_pages::HugePages;
pub use memory::{Plain, Segment, Source, Target};
pub use net::{Interest, Listener, Net, NetAction, NetError, Stream, StreamSet};
pub use paged::Paged;
pub use processes::{
    Exit, Process, ProcessCommand, ProcessError, ProcessOutput, ProcessState, ProcessWatch,
    Processes,
};
pub use queue::{Queue, RecvError, SendError};
pub use scratch::ScratchDir;
pub use shared::{LocalListener, LocalStream, Parcel, Patience, Shared, SharedError};
pub use threads::{JoinHandle, Signal, ThreadError, Threads};

/// Everything a rank may ask of the world outside its own memory.
pub trait Platform: Send + Sync {
    /// Time.
    fn clock(&self) -> &dyn Clock;
    /// Disks.
    fn files(&self) -> &dyn Files;
    /// Threads and what they wait on.
    fn threads(&self) -> &dyn Threads;
    /// Byte streams to other processes.
    fn net(&self) -> &dyn Net;
    /// Other processes of this host.
    fn processes(&self) -> &dyn Processes;
    /// Memory that several processes of this host see.
    fn shared(&self) -> &dyn Shared;
    /// Random bytes that nobody can predict. Training never uses them: its random numbers are
    /// functions of the seed.
    fn entropy(&self) -> &dyn Entropy;
    /// Facts about this machine and this process.
    fn host(&self) -> &dyn Host;
}

/// A shared handle to one world; cheap to clone.
pub type World = Arc<dyn Platform>;

/// The world of the operating system.
pub fn real() -> World {
    Arc::new(real::RealPlatform::new())
}
