//! Configuration: TOML files, presets and `--set` arguments become a validated [`Recipe`].
//!
//! # Layout
//! - `topics`: the resolved values, plain data for all other crates, with the keys of each topic
//! - `topic`, `field`: declarations of topics, and the types of their fields
//! - `keys`, `key`, `value_type`: the key table, its rows and their value types
//! - `sources`, `value`: parsing of the sources into typed settings with their origins
//! - `fine_tuning`: the learning rate for pretrained weights
//! - `renamed_keys`: old names of keys, refused with the present ones
//! - `synonyms`: names of other frameworks, refused with the key of the same meaning
//! - `resolve`, `conditions`: from settings to a recipe
//! - `rule`, `rules`: rules between keys, and those of all topics
//! - `error`, `nearest`: all errors at once, each with a fix
//! - `print`, `reference`: recipe as text and as identity, keys as documentation
//! - [`catalog`]: one key, table or synonym with its value, and a search
//! - [`import`]: recipes from the files of other frameworks
//! - [`interval`]: checkpoint intervals (Young, Daly)
//! - `lint`, [`lints`]: valid settings that are usually a mistake, and those of all topics
//! - `presets`: recipes that ship with the program
//! - [`units`]: distinct types for bytes, seconds, FLOPs and tokens
//! - `blame`: the party responsible for a failure, and the exit code
//!
//! # Example
//! ```
//! use lockstep_config::{Sources, resolve};
//!
//! let file = ("my.toml".to_owned(), "[model]\nwidth = 192\nheads = 5".to_owned());
//! let mut sources = Sources { file: Some(file), ..Sources::default() };
//! let errors = resolve(&sources).unwrap_err();
//! assert_eq!(
//!     errors.to_string(),
//!     "my.toml:3: model.heads = 5 does not divide model.width = 192; try 1, 2, 3, 4 or 6",
//! );
//!
//! sources.sets.push("model.heads=4".to_owned());
//! let recipe = resolve(&sources)?;
//! assert_eq!((recipe.model.width, recipe.model.head_dim()), (192, 48));
//! assert_eq!(recipe.num_microbatches(), 8);
//! # Ok::<(), lockstep_config::ConfigErrors>(())
//! ```

mod topics;

mod field;
mod key;
mod keys;
mod topic;
mod value_type;

mod fine_tuning;
mod sources;
mod value;

mod conditions;
mod renamed_keys;
mod resolve;
mod rule;
mod rules;
mod synonyms;

mod error;
mod foreign_flag;
mod lint;
mod nearest;

mod print;
mod reference;

mod presets;

pub mod catalog;
pub mod import;

pub mod interval;
pub mod lints;
pub mod permutation;

pub mod units;

mod blame;

pub use blame::Blame;
pub use error::{ConfigError, ConfigErrors, Origin};
pub use foreign_flag::{FlagCounterpart, FlagSetting, flag_counterpart, nearest_flag_counterpart};
pub use nearest::nearest;
pub use presets::presets;
pub use reference::{KeyDoc, describe_keys, reference_markdown};
pub use resolve::{
    adapter_from, model_from, needs_epoch_steps, resolve, resolve_with, resolve_with_folders,
    teacher_from,
};
pub use sources::{AdapterFolder, EpochSteps, ModelFolder, Sources};
pub use topics::{
    Activation, AggregationRule, AverageScope, BatchChange, BatchPlan, BatchStage, ByzantineAttack,
    Checkpoint, CollectiveAlgorithm, CollectiveOp, CollectiveRule, Compress, CompressMethod,
    CompressOverride, Compression, Consistency, Data, DataFormat, DecayShape, DeviceChoice,
    Distribution, Documents, Dtype, Elastic, EmbeddingRows, Emulate, EmulatedLink, EpochEnd, Eval,
    Family, Federated, FederatedMethod, FederatedServer, Finetune, FinetuneLoss, FinetuneMethod,
    GeluApproximate, Gossip, GptNeox, GraphName, Group, Infilling, Interval, IsaChoice, Isolation,
    LateGradients, LinkConditions, LlamaVariant, Lora, LoraTarget, LoraTargets, LossScale,
    LossScaling, LrScaling, LrSchedule, Milestone, Mixture, MixtureSource, Model, ModelType, Mup,
    Numerics, Offload, OffloadActivations, OffloadState, Optim, OptimName, Order, Outer, Parallel,
    Partition, PipelineSchedule, Placement, Precision, Problem, QuantType, Recipe, Recompute,
    Reduction, RopeScaling, RopeScalingKind, RowSharding, Run, SeqlenWarmup, Server, SlowWorker,
    Source, StaleGradients, StalenessRule, StalenessWeight, StragglerPolicy, Stragglers, Sync,
    SyncMode, SyncPartition, Telemetry, Tokenizer, Train, TransportChoice, ValidationSource,
    WidthFactors, WireDtype, matches_pattern,
};
