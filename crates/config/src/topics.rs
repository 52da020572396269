//! The resolved recipe, by topic.
//!
//! A [`Recipe`] has passed every rule of this crate, so other crates use it without further checks.
//! Its fields are public for reading; [`crate::resolve`] makes one. A file per topic declares its
//! keys with their fields (`topic!`), its choices, and the methods, rules and lints about them.

mod batch_schedule;
mod checkpoint;
pub(crate) mod collectives;
pub(crate) mod compress;
pub(crate) mod data;
mod data_source;
mod device;
mod embedding_rows;
pub(crate) mod emulate;
pub(crate) mod epochs;
pub(crate) mod eval;
mod family;
pub(crate) mod federated;
pub(crate) mod finetune;
pub(crate) mod gossip;
pub(crate) mod gpt_neox;
pub(crate) mod hogwild;
pub(crate) mod infilling;
pub(crate) mod limits;
pub(crate) mod llama_variant;
pub(crate) mod lora;
pub(crate) mod mixture;
pub(crate) mod model;
pub(crate) mod mup;
mod numerics;
mod offload;
pub(crate) mod optim;
pub(crate) mod parallel;
mod parameter_groups;
pub(crate) mod parameter_server;
pub(crate) mod pipeline;
pub(crate) mod precision;
pub(crate) mod problem;
mod recompute;
mod robust_aggregation;
pub(crate) mod rope;
mod rounds;
pub(crate) mod run;
pub(crate) mod seqlen_warmup;
pub(crate) mod stragglers;
pub(crate) mod sync;
mod sync_mode;
pub(crate) mod telemetry;
pub(crate) mod tensor;
pub(crate) mod train;

use crate::field::Blank;

pub use batch_schedule::{BatchChange, BatchPlan, BatchStage};
pub use checkpoint::{Checkpoint, Compression, Interval};
pub use collectives::{CollectiveAlgorithm, CollectiveOp, CollectiveRule};
pub use compress::{Compress, CompressMethod, CompressOverride};
pub use data::Data;
pub use data_source::{
    DataFormat, Documents, EpochEnd, Order, Placement, Source, Tokenizer, ValidationSource,
};
pub use device::DeviceChoice;
pub use embedding_rows::{EmbeddingRows, RowSharding};
pub use emulate::{Distribution, Emulate, EmulatedLink, LinkConditions, SlowWorker};
pub use eval::Eval;
pub use family::{Activation, Family};
pub use federated::{Federated, FederatedMethod, FederatedServer};
pub use finetune::{Finetune, FinetuneLoss, FinetuneMethod};
pub use gossip::{Gossip, GraphName};
pub use gpt_neox::{GeluApproximate, GptNeox};
pub use infilling::Infilling;
pub use llama_variant::{LlamaVariant, ModelType};
pub use lora::{Lora, LoraTarget, LoraTargets, QuantType};
pub use mixture::{Mixture, MixtureSource};
pub use model::Model;
pub use mup::{Mup, WidthFactors};
pub use numerics::Numerics;
pub use offload::{Offload, OffloadActivations, OffloadState};
pub use optim::{DecayShape, LrScaling, LrSchedule, Milestone, Optim, OptimName};
pub use parallel::{Parallel, Partition, PipelineSchedule};
pub use parameter_groups::{Group, matches_pattern};
pub use parameter_server::{
    Consistency, LateGradients, Server, StaleGradients, StalenessRule, StalenessWeight,
};
pub use precision::{Dtype, LossScale, LossScaling, Precision, WireDtype};
pub use problem::Problem;
pub use recompute::Recompute;
pub use robust_aggregation::{AggregationRule, ByzantineAttack};
pub use rope::{RopeScaling, RopeScalingKind};
pub use run::{Elastic, IsaChoice, Isolation, Run, TransportChoice};
pub use seqlen_warmup::SeqlenWarmup;
pub use stragglers::{StragglerPolicy, Stragglers};
pub use sync::{AverageScope, Outer, Sync, SyncPartition};
pub use sync_mode::SyncMode;
pub use telemetry::Telemetry;
pub use train::{Reduction, Train};

/// All settings of a run. The bits of the result depend on all of them except [`Run`],
/// [`Parallel`], [`Offload`], [`Checkpoint`], [`Telemetry`], [`Eval`] and [`Emulate`].
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    /// Model architecture.
    pub model: Model,
    /// Folder of the initial weights; empty initialises them randomly.
    pub from: String,
    /// Whether only weights that match by name and shape are loaded.
    pub partial: bool,
    /// Folder of the initial adapters; empty initialises them randomly.
    pub adapter: String,
    /// Maximum number of positions that an export declares, where it is not the context; never
    /// changes a bit of the result.
    pub max_positions: Option<usize>,
    /// Fine-tuning on conversations and preferences.
    pub finetune: Finetune,
    /// Training data.
    pub data: Data,
    /// Steps, batches and validation.
    pub train: Train,
    /// Optimizer.
    pub optim: Optim,
    /// Number formats.
    pub precision: Precision,
    /// Layout invariance.
    pub numerics: Numerics,
    /// Workers, threads and transport: never changes a bit of the result.
    pub run: Run,
    /// Parallelism: never changes a bit of the result.
    pub parallel: Parallel,
    /// Synchronization.
    pub sync: Sync,
    /// Gradient compression.
    pub compress: Compress,
    /// Federated learning.
    pub federated: Federated,
    /// Offload to disk: never changes a bit of the result.
    pub offload: Offload,
    /// Checkpoints: never change a bit of the result.
    pub checkpoint: Checkpoint,
    /// Exports of metrics and traces: never change a bit of the result.
    pub telemetry: Telemetry,
    /// Evaluation tasks: never change a bit of the result.
    pub eval: Eval,
    /// Emulated links and workers: never change a bit of the result.
    pub emulate: Emulate,
}

impl Blank for Recipe {
    const BLANK: Self = Self {
        model: Model::BLANK,
        from: String::new(),
        partial: false,
        adapter: String::new(),
        max_positions: None,
        finetune: Finetune::BLANK,
        data: Data::BLANK,
        train: Train::BLANK,
        optim: Optim::BLANK,
        precision: Precision::BLANK,
        numerics: Numerics::BLANK,
        run: Run::BLANK,
        parallel: Parallel::BLANK,
        sync: Sync::BLANK,
        compress: Compress::BLANK,
        federated: Federated::BLANK,
        offload: Offload::BLANK,
        checkpoint: Checkpoint::BLANK,
        telemetry: Telemetry::BLANK,
        eval: Eval::BLANK,
        emulate: Emulate::BLANK,
    };
}
