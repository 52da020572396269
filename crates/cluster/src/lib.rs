//! How the workers of a run come together, and how they all end when one does.
//!
//! One command is several processes: the one that was typed starts the others, passes their words
//! on and waits for them. Which of these a process is it finds in its environment, by the names
//! that other launchers use too (`RANK`, `WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`), so workers
//! may as well be started by one of those, on several hosts.
//!
//! # Layout
//! - [`role`](mod@role): what this process is in the run
//! - [`rendezvous`]: how the ranks of a run find each other and connect
//! - [`join`]: a worker's end of the group of all workers, over any transport
//! - [`launch`](mod@launch): workers that are processes, started and watched here
//! - [`membership`]: what a launcher knows of its workers; [`supervisor`]: whether they start
//!   again; [`roster`]: how many of them
//! - [`guests`]: workers on other hosts that come and go
//! - [`relay`]: their words, each line with the rank it came from
//! - [`threads`]: workers that are threads
//! - [`verdict`]: of all workers that failed, the one that caused it
//! - `error`: why workers cannot come together
//!
//! # Example
//! ```
//! use lockstep_cluster::{Role, role, threads};
//! use lockstep_config::{Sources, resolve};
//!
//! let sets = vec!["run.workers=3".to_owned(), "run.isolation=threads".to_owned()];
//! let recipe = resolve(&Sources { sets, ..Sources::default() })?;
//! let world = lockstep_platform::real();
//! assert_eq!(role(&recipe, &world)?, Role::Host);
//!
//! let sum = threads::run(&recipe, &world, 1 << 20, |_, comm| {
//!     let mut numbers = [comm.rank().0 as u32];
//!     comm.all_reduce(&mut numbers, lockstep_comm::Reduction::Sum).unwrap();
//!     Ok((comm.rank().0 == 0).then_some(numbers[0]))
//! });
//! assert_eq!(sum.unwrap(), Some(3));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod role;

pub mod rendezvous;

pub mod join;

pub mod launch;

pub mod membership;
pub mod roster;
pub mod supervisor;

pub mod guests;

pub mod relay;

pub mod threads;

pub mod verdict;

mod error;

pub use error::ClusterError;
pub use guests::Guests;
pub use join::Member;
pub use launch::{Launch, launch};
pub use role::{Role, role};
pub use roster::Terms;
pub use verdict::RunFailure;
