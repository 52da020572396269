//! Workers on other hosts that come and go while a run goes on.
//!
//! A launcher can only start processes of its own host. A *guest* is a process on another one that
//! offers to start a worker there: it calls the launcher, proves that it knows the secret, and
//! stays connected. From then on its worker is to the launcher what one of its own is: started
//! with a place in its environment, heard, asked to end, ended, and its end is told. So
//! everything else stays as it is: a guest that comes fills an empty slot of the
//! [roster](crate::roster), the run makes room for it at the end of a step, as it does for a worker
//! that is back, and one whose connection breaks is a worker that was lost.
//!
//! The launcher alone decides, and each life has a secret and a generation of its own. A guest that
//! was given up ends its worker as soon as it notices; until then the worker can neither reach the
//! others nor finish a checkpoint.
//!
//! - `line`: what the two say to each other
//! - `away`: the launcher's end
//! - `serve`: the guest's end

mod away;
mod line;
mod serve;

pub use away::Guests;
pub use serve::serve;
