//! Trains one model from an empty process to saved weights, and uses what was trained.
//!
//! # Layout
//! - [`train`](mod@train): the spine; reads as prose. `way`: where kinds of runs differ, which are
//!   `lockstep`, `servers` and `hogwild`.
//! - [`check`](mod@check): what a run can be refused for, before any worker starts.
//! - [`device`]: the compute device that a recipe asks for; [`feed`]: the text of a worker.
//! - [`evaluate`]: loss on held-out text; [`health`]: training must stay among finite numbers.
//! - [`journal`]: what a run tells about itself, and the hashes of its losses.
//! - [`pretrained`]: models that exist already, in folders of ours or of Hugging Face;
//!   [`mod@convert`]: from one kind of folder to the other.
//! - [`checkpoints`]: saving a run as it goes; [`restore`]: where it starts.
//! - `rounds`: steps that workers take alone, and what each keeps for itself.
//! - [`uneven`]: how fast workers are, and what is done about slow ones; [`mod@slow`]: made so on
//!   purpose.
//! - [`run_folder`]: where it is kept; [`saved`]: saving at the end, loading.
//! - [`summary`]: the figures of a finished run.
//! - [`generate`]: text from trained weights; [`sampling`]: choosing the next token.
//! - [`judge`]: the loss of a trained model on any text.
//! - [`mod@compare`]: are two runs the same to the bit, and if not, where do they part?
//! - [`curvature`]: how large a step may be.
//! - [`mod@bench`]: tokens per second, and the share of the machine's peak.
//!
//! # Example
//! ```
//! use lockstep_comm::Comm;
//! use lockstep_config::{Sources, resolve};
//! use lockstep_platform::ScratchDir;
//! use lockstep_trainer::{Options, train};
//!
//! let world = lockstep_platform::real();
//! let scratch = ScratchDir::new(&world, "trainer-example")?;
//! let sets = [
//!     "train.steps=2".to_owned(),
//!     "run.workers=1".to_owned(),
//!     "train.eval_batches=1".to_owned(),
//!     format!("run.dir={}", scratch.path().join("run").display()),
//! ];
//! let sources = Sources { preset: Some("tiny".into()), sets: sets.into(), ..Sources::default() };
//! let recipe = resolve(&sources)?;
//! let alone = &Comm::threads(&world, 1, &lockstep_comm::Options::default())?[0];
//! let summary = train(&recipe, &world, alone, Options::default())?.expect("the first worker");
//! assert_eq!(summary.steps, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod train;

pub mod check;
pub mod checkpoints;
pub mod device;
pub mod evaluate;
mod federated;
pub mod feed;
pub mod gossip;
pub mod health;
mod hogwild;
pub mod journal;
mod lockstep;
mod pace;
pub mod pretrained;
pub mod restore;
mod rounds;
mod rows;
pub mod run_folder;
pub mod saved;
mod servers;
pub mod slow;
pub mod summary;
pub mod uneven;
mod way;

pub mod bench;
pub mod compare;
pub mod convert;
pub mod curvature;
pub mod generate;
pub mod judge;
pub mod sampling;

mod error;

pub use check::{check, check_inputs};
pub use error::TrainError;
pub use run_folder::RunFolder;
pub use summary::{Predicted, PredictedBytes, Summary, Target};
pub use train::{Life, Options, train};
