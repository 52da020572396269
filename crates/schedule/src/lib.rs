//! Collectives and pipelines as plain data: every send, receive, reduction and copy, in order.
//!
//! An all-reduce by ring and one by tree are not two pieces of code that run; they are two values
//! of the type [`Schedule`]. One engine runs them all, [`verify()`] proves them, [`price()`]
//! models their cost, [`Display`](std::fmt::Display) renders them. Everything here is pure: no
//! clock, no network, no tensors; equal arguments give equal bytes.
//!
//! # Layout
//! - [`collective`]: the algorithms, one per file; [`collective::build`] and [`collective::select`]
//! - [`pipeline`]: pipeline schedules, one per file; [`pipeline::build`] and the proof
//! - [`step`]: a rank's whole training step as tasks, with its builder and proof
//! - `schedule`, `instruction`, `chunks`: the data: programs of rounds of steps on chunks of a
//!   vector
//! - `op`, `algorithm`: operations and names of algorithms
//! - `sum_tree`, `contributions`: the order of a sum, and the canonical one
//! - `topology`, `links`: memory domains, latencies and bandwidths between ranks
//! - `layout`: offsets of chunks for a vector of known length
//! - `builder`: construction of programs that cannot deadlock
//! - `walk`, `timeline`: symbolic execution order; start times of rounds
//! - `verify`, `price`, `tuning`, `display`: proof, cost model, its measured corrections, rendering
//! - [`mutation`]: mutations of schedules, for tests
//!
//! # How an engine runs a schedule
//! Each rank runs its own program, round by round.
//! 1. It starts all steps of a round together. They share no memory, so their order does not
//!    matter, and a send must not block a receive of the same round.
//! 2. When all of them are done, the next round starts. An engine may start a message of a later
//!    round earlier, as soon as no step before it still uses the same memory (a ring forwards a
//!    chunk while it arrives in this way); but nothing overtakes a `Wait`, and a `Signal` means
//!    that all earlier rounds are done and visible.
//! 3. The k-th message from one rank to another matches the k-th receive; no tags are needed.
//!    Steps of one round to the same peer may travel as one message.
//! 4. Rounds of different ranks are unrelated, except through messages, signals and waits.
//! 5. `Signal` increments the rank's own counter; `Wait { rank, count }` completes when that rank
//!    has incremented its counter `count` times *in this schedule*.
//! 6. Inputs are never written. Where [`Report::in_place`] holds (everywhere but in all-to-alls),
//!    the output may be the memory of input 0; a `Copy` from memory to itself is then a no-op.
//! 7. `RecvReduce` and `Reduce` add exactly in the order they state, so the result has the same
//!    bits on every rank. Other reductions (max, min) replace the addition; a mean is a sum that
//!    is scaled at the end.
//!
//! # Example
//! ```
//! use lockstep_schedule::collective::{GroupSpec, build};
//! use lockstep_schedule::{Algorithm, Layout, Op, verify};
//!
//! let ring = build(Op::AllReduce, Algorithm::RING, &GroupSpec::new(3))?;
//! assert_eq!(ring.to_string(), "\
//! all-reduce by ring, 3 ranks, 3 chunks
//! round  rank 0        rank 1        rank 2
//! 1      [2]→1 [1]+←2  [2]+←0 [0]→2  [0]+←1 [1]→0
//! 2      [1]→1 [0]+←2  [1]+←0 [2]→2  [2]+←1 [0]→0
//! 3      [0]→1 [2]←2   [0]←0 [1]→2   [1]←1 [2]→0
//! 4      [2]→1 [1]←2   [2]←0 [0]→2   [0]←1 [1]→0
//! ");
//!
//! // The report has rounds, traffic and the order of every sum.
//! let report = verify(&ring)?;
//! assert_eq!(report.num_rounds, 4);
//! let layout = Layout::even(&ring, 3_000);
//! assert_eq!(report.ranks[0].sent_len(&layout), 4_000);
//! assert!(!report.canonical);
//!
//! // Rabenseifner's algorithm adds in canonical order: its bits do not depend on the layout.
//! let halving = verify(&build(Op::AllReduce, Algorithm::Rabenseifner, &GroupSpec::new(4))?)?;
//! assert_eq!(halving.sums[0].1.to_string(), "(0+1)+(2+3)");
//! assert!(halving.canonical);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod collective;
pub mod pipeline;
pub mod step;

mod chunks;
mod instruction;
mod schedule;

mod algorithm;
mod op;

mod contributions;
mod sum_tree;

mod links;
mod topology;

mod layout;

mod builder;

mod timeline;
mod walk;

mod display;
mod price;
mod tuning;
mod verify;

pub mod mutation;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use chunks::{Chunks, boundary};
pub use contributions::{Contribution, Contributions};
pub use instruction::{Buffer, Place, Program, Round, Side, Step};
pub use layout::Layout;
pub use links::{Link, Links};
pub use op::{Op, StridedChunks};
pub use price::{CacheSpeedup, Costs, price};
pub use schedule::{RoundId, Schedule, StepId};
pub use sum_tree::{SumTree, halves, is_canonical_block};
pub use topology::{Medium, Topology};
pub use tuning::{TRIAL_BYTES, Trial, TuningTable};
pub use verify::{Malformed, Report, Traffic, Transfer, VerifyError, verify};
