//! Every knob of Lockstep: raw TOML, presets and `--set` arguments become a proven [`Recipe`].
//!
//! # Layout
//! - `recipe`: the proven values, as plain data for every other crate; `problem` is part of them
//! - `keys`, `key`, `kind`: the one table of keys, its rows, and what a row accepts
//! - `sources`, `value`: texts become typed settings, each knowing where it was written
//! - `resolve`, `rules`: settings become a recipe; rules between keys are checked
//! - `error`, `nearest`: all errors at once, each with a value that would work
//! - `print`, `reference`: the recipe as text and as identity; the keys as documentation
//! - [`interval`]: how often to save
//! - [`lints`]: settings that are allowed and seldom meant
//! - `presets`: recipes that come with the program
//! - [`units`]: bytes, seconds, FLOPs and tokens that cannot be mixed up
//! - `blame`: who must act after a failure, and the exit code
//!
//! # Example
//! ```
//! use lockstep_config::{Sources, resolve};
//!
//! let file = ("my.toml".to_owned(), "[model]\nlayers = 2\nheads = 5".to_owned());
//! let mut sources = Sources { file: Some(file), ..Sources::default() };
//! let errors = resolve(&sources).unwrap_err();
//! assert_eq!(
//!     errors.to_string(),
//!     "my.toml:3: model.heads = 5 does not divide model.width = 192; try 1, 2, 3, 4 or 6",
//! );
//!
//! sources.sets.push("model.heads=4".to_owned());
//! let recipe = resolve(&sources)?;
//! assert_eq!((recipe.model.layers, recipe.model.head_dim()), (2, 48));
//! assert_eq!(recipe.num_microbatches(), 8);
//! # Ok::<(), lockstep_config::ConfigErrors>(())
//! ```

mod problem;
mod recipe;

mod key;
mod keys;
mod kind;

mod sources;
mod value;

mod resolve;
mod rules;

mod error;
mod nearest;

mod print;
mod reference;

mod presets;

pub mod interval;
pub mod lints;

pub mod units;

mod blame;

pub use blame::Blame;
pub use error::{ConfigError, ConfigErrors, Origin};
pub use nearest::nearest;
pub use presets::presets;
pub use problem::Problem;
pub use recipe::{
    Activation, Averaged, BatchChange, BatchPlan, BatchStage, Beyond, Checkpoint, Compress,
    CompressMethod, Compression, Conditions, Consistency, Data, DecayShape, Distribution,
    Documents, Dtype, Elastic, Emulate, EmulatedLink, EpochEnd, Family, Federated, FederatedAttack,
    FederatedCombine, FederatedMethod, FederatedServer, Gossip, GraphName, Group, HeldOut,
    Interval, IsaChoice, Isolation, Late, Level, LossScale, LossScaling, LrScaling, LrSchedule,
    Model, Moment, Numerics, Offload, OffloadState, Optim, OptimName, Order, Outer, Parallel,
    Partition, PipelineSchedule, Placement, Precision, Recipe, Recompute, Reduction, Rows, RowsBy,
    Run, Server, SlowWorker, Source, StalenessRule, StalenessWeight, Stragglers, Sync, SyncMode,
    SyncPartition, Tokenizer, Train, TransportChoice, Uneven, describes,
};
pub use reference::{KeyDoc, describe_keys, reference_markdown};
pub use resolve::{model_from, resolve, resolve_with};
pub use sources::{ModelFolder, Sources};
