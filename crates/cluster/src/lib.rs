//! Launching, rendezvous, supervision and restart of the workers of a run.
//!
//! One command is several processes: the launcher starts the workers, relays their output and waits
//! for them. A process reads its role from the environment variables that other launchers use as
//! well (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`), so any launcher can start workers, on
//! several hosts.
//!
//! # Layout
//! - [`launchers`]: place of this process among the ranks of torchrun, MPI, Slurm or Kubernetes
//! - [`role`](mod@role): role of this process: single worker, launcher or worker
//! - [`rendezvous`]: the ranks of a run find each other, authenticate and connect
//! - [`join`]: communicator of a worker, over any transport; [`mpi`]: under an MPI launcher
//! - [`launch`](mod@launch): starts and watches worker processes
//! - [`membership`]: running workers of one attempt; [`supervisor`]: restart policy;
//!   [`slot_table`]: slots of an elastic run
//! - [`remote_workers`]: workers on other hosts that join and leave
//! - [`relay`]: output of the workers, each line with its rank
//! - [`threads`]: workers that are threads of this process
//! - [`root_cause`]: the worker that caused a failure
//! - `error`: errors of launching and joining
//!
//! # Example
//! ```
//! use lockstep_cluster::{Role, role, threads};
//! use lockstep_config::{Sources, resolve};
//!
//! let sets = vec!["run.workers=3".to_owned(), "run.isolation=threads".to_owned()];
//! let recipe = resolve(&Sources { sets, ..Sources::default() })?;
//! let world = lockstep_platform::real();
//! assert_eq!(role(&recipe, &world)?, Role::ThreadHost);
//!
//! let sum = threads::run(&recipe, &world, 1 << 20, |_, comm| {
//!     let mut numbers = [comm.rank().0 as u32];
//!     comm.all_reduce(&mut numbers, lockstep_comm::Reduction::Sum).unwrap();
//!     Ok((comm.rank().0 == 0).then_some(numbers[0]))
//! });
//! assert_eq!(sum.unwrap(), Some(3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod launchers;
pub mod role;

pub mod rendezvous;

pub mod join;

pub mod mpi;

pub mod launch;

pub mod membership;
pub mod slot_table;
pub mod supervisor;

pub mod remote_workers;

pub mod relay;

pub mod threads;

pub mod root_cause;

mod error;

pub use error::ClusterError;
pub use join::JoinedWorker;
pub use launch::{Launch, launch};
pub use remote_workers::RemoteWorkers;
pub use role::{Role, role};
pub use root_cause::RunFailure;
pub use slot_table::RestartPolicy;
