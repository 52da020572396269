//! A cluster's own MPI, loaded at run time.
//!
//! MPI is a standard of source code, not of binaries: handles and constants differ between Open
//! MPI, MPICH and the vendors' libraries, and a program is compiled for one of them. This crate
//! keeps one binary for all. A shim of a hundred lines of C ([`shim`]) is compiled by the `mpicc`
//! of the cluster on first use and then loaded; the binary itself links no MPI and starts without
//! one.
//!
//! - [`launcher`]: rank and size as `mpirun` and `srun` tell them in the environment
//! - [`shim`]: finds or compiles the shim
//! - `library`: its functions
//! - [`process`]: messages between the processes of `mpirun`

pub mod launcher;
mod library;
pub mod process;
pub mod shim;

use std::path::PathBuf;

pub use launcher::{Launched, Launcher, launched};
pub use process::{Incoming, Process, Sending};

/// Why MPI cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MpiError {
    /// There is no compiler for the shim.
    #[error(
        "{compiler} cannot be run ({reason}); load the cluster's MPI module, install a package \
         such as libopenmpi-dev or libmpich-dev, or set MPICC to the compiler of your MPI"
    )]
    NoCompiler {
        /// Name or path.
        compiler: String,
        /// Text of the system error.
        reason: String,
    },
    /// The shim does not compile.
    #[error("{compiler} cannot compile the bridge to MPI: {log}")]
    Compile {
        /// Name or path of the compiler.
        compiler: String,
        /// Its messages.
        log: String,
    },
    /// The shim cannot be kept.
    #[error(
        "cannot keep the bridge to MPI in {folder}: {reason}; set XDG_CACHE_HOME to a folder \
             that can be written"
    )]
    Cache {
        /// Folder of the cache.
        folder: PathBuf,
        /// Text of the error.
        reason: String,
    },
    /// The shim or the MPI library cannot be loaded.
    #[error("{path} cannot be loaded: {reason}")]
    Load {
        /// File.
        path: PathBuf,
        /// Message of the loader.
        reason: String,
    },
    /// A call failed.
    #[error("{call} failed: {reason}")]
    Call {
        /// Function of MPI.
        call: &'static str,
        /// Text of the library.
        reason: String,
    },
    /// The processes were started by another MPI than the one that was compiled for.
    #[error(
        "{launcher} started {started} processes, but {library} finds {found}: the launcher and \
         mpicc are of different MPIs; use both of one, or set MPICC"
    )]
    WrongLauncher {
        /// The launcher.
        launcher: &'static str,
        /// Processes that the launcher started.
        started: usize,
        /// Version of the library.
        library: String,
        /// Processes of its world.
        found: usize,
    },
    /// The library does not allow calls from several threads in turn.
    #[error("{library} was built without threads (MPI_THREAD_SERIALIZED)")]
    OneThread {
        /// Version of the library.
        library: String,
    },
}
