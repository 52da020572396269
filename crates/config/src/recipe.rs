//! The proven recipe: plain data that every other crate may trust without checking again.
//!
//! A value of type [`Recipe`] has passed every rule of this crate (it divides, it is in range, the
//! chosen optimizer has the setting), so the rest of the system computes with it and never asks.
//! The fields are public because they are facts to read; [`crate::resolve`] is the way to make one.

use std::fmt;
use std::time::Duration;

use crate::units::{Bytes, Seconds};

/// Declares an enum of named choices: the name in a recipe and the variant stand on one line, so
/// parsing, printing and the list of allowed values cannot disagree.
macro_rules! choices {
    (
        $(#[$doc:meta])*
        $value_type:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $value_type { $($(#[$variant_doc])* $variant,)+ }

        impl $value_type {
            /// The names a recipe may use, in order of declaration.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The name this choice has in a recipe.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The choice with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }

        impl fmt::Display for $value_type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

mod batch_schedule;
mod checkpoint;
mod compress;
mod data;
mod elastic;
mod emulate;
mod federated;
mod gossip;
mod layout_invariance;
mod offload;
mod optim;
mod parameter_server;
mod precision;
mod problem;
mod recompute;
mod robust_aggregation;
mod stragglers;
mod sync;
mod sync_mode;

pub use batch_schedule::{BatchChange, BatchPlan, BatchStage};
pub use checkpoint::{Checkpoint, Compression, Interval};
pub use compress::{Compress, CompressMethod, CompressOverride};
pub use data::{Data, Documents, EpochEnd, Order, Placement, Source, Tokenizer, ValidationSource};
pub use elastic::Elastic;
pub use emulate::{Distribution, Emulate, EmulatedLink, LinkConditions, SlowWorker};
pub use federated::{Federated, FederatedMethod, FederatedServer};
pub use gossip::{Gossip, GraphName};
pub use offload::{Offload, OffloadState};
pub use optim::{
    DecayShape, Group, LrScaling, LrSchedule, Milestone, Optim, OptimName, matches_pattern,
};
pub use parameter_server::{
    Consistency, EmbeddingRows, LateGradients, RowSharding, Server, StaleGradients, StalenessRule,
    StalenessWeight,
};
pub use precision::{LossScale, LossScaling, Precision};
pub use problem::Problem;
pub use recompute::Recompute;
pub use robust_aggregation::{AggregationRule, ByzantineAttack};
pub use stragglers::{StragglerPolicy, Stragglers};
pub use sync::{AverageScope, Outer, Sync, SyncPartition};
pub use sync_mode::SyncMode;

/// Everything that decides a run. Bits of the result depend on all of it except [`Run`],
/// [`Parallel`], [`Offload`], [`Checkpoint`] and [`Emulate`].
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    /// The shape of the transformer.
    pub model: Model,
    /// The folder of the model whose weights training starts from; empty starts from random ones.
    pub from: String,
    /// Whether only those of its weights are taken that the model has too; the rest begins afresh.
    pub partial: bool,
    /// The text it learns from.
    pub data: Data,
    /// How long and in what portions.
    pub train: Train,
    /// How a gradient becomes a step.
    pub optim: Optim,
    /// Number formats.
    pub precision: Precision,
    /// The promise about bits that do not depend on the layout.
    pub numerics: Numerics,
    /// Where and with how many hands: never changes a bit of the result.
    pub run: Run,
    /// How the work is divided among the workers: never changes a bit of the result.
    pub parallel: Parallel,
    /// When workers agree on the weights.
    pub sync: Sync,
    /// In how few bytes gradients travel.
    pub compress: Compress,
    /// Clients that keep their data, and a coordinator.
    pub federated: Federated,
    /// What lies on a disk instead of in memory: never changes a bit of the result.
    pub offload: Offload,
    /// When the run is saved, and where: never changes a bit of the result.
    pub checkpoint: Checkpoint,
    /// Worse hardware than there is: never changes a bit of the result.
    pub emulate: Emulate,
}

/// The shape of the transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Which architecture the blocks follow.
    pub family: Family,
    /// Number of transformer blocks.
    pub layers: usize,
    /// Length of the vector each token carries through the blocks.
    pub width: usize,
    /// Number of query heads; divides `width`.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`, fewer means grouped-query attention.
    pub kv_heads: usize,
    /// Length of the hidden vector of the feed-forward part.
    pub ffn: usize,
    /// Number of different tokens.
    pub vocab: usize,
    /// Number of tokens in one training sequence, and the most that attention looks back.
    pub context: usize,
    /// Whether the output projection is the embedding table.
    pub tied: bool,
    /// Share of activations dropped while training; at least 0 and below 1.
    pub dropout: f32,
    /// Added to the variance in every normalisation.
    pub norm_eps: f32,
    /// Base of the rotary position angles (Llama family).
    pub rope_theta: f64,
    /// What a small problem has instead of a text (`mlp`, `quadratic`, `ridge`, `logistic`).
    pub problem: Problem,
}

impl Model {
    /// Length of one head's vector; exact, because `heads` divides `width`.
    pub const fn head_dim(&self) -> usize {
        self.width / self.heads
    }
}

/// How long to train and in what portions.
#[derive(Debug, Clone, PartialEq)]
pub struct Train {
    /// Number of optimizer steps.
    pub steps: u64,
    /// Sequences per optimizer step, over all workers.
    pub batch: usize,
    /// Sequences per micro-batch; divides `batch`.
    pub microbatch_size: usize,
    /// Whether whoever knows the machine is to choose a larger one; it is one until then.
    pub microbatch_is_auto: bool,
    /// Decides initial weights, dropout masks and the order of the data.
    pub seed: u64,
    /// Steps between two validations; 0 validates only at the end.
    pub eval_every: u64,
    /// Number of batches in one validation.
    pub eval_batches: usize,
    /// Whether the gradient is the mean over the targets of a batch or their sum.
    pub reduction: Reduction,
    /// How many steps in a row may be skipped because a gradient is not finite.
    pub max_skipped: u64,
    /// Where the batch changes, by tokens seen; see [`Recipe::batch_plan`].
    pub batch_schedule: Vec<BatchChange>,
    /// The validation loss at which the run is done.
    pub target_loss: Option<f64>,
}

/// The promise about bits that do not depend on the layout.
#[derive(Debug, Clone, PartialEq)]
pub struct Numerics {
    /// Number of leaves G of the gradient sum, a power of two: up to G workers give equal bits.
    pub invariant_up_to: usize,
    /// Number of slices that sums over a layer are made of.
    pub invariant_tensor_up_to: usize,
}

/// Where and with how many hands the run happens.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Number of workers; the copies of the model are at most as many as leaves.
    pub workers: usize,
    /// Fewest and most of them, where they may come and go; `workers` is then the most.
    pub elastic: Option<Elastic>,
    /// How long a worker that is gone stays away before it is tried again.
    pub rejoin: Seconds,
    /// Threads per worker; 0 divides the cores of the machine, see [`Run::num_threads`].
    pub threads: usize,
    /// What a worker is.
    pub isolation: Isolation,
    /// How workers reach each other; suits `isolation`.
    pub transport: TransportChoice,
    /// Whether everything that travels by TCP is encrypted.
    pub encrypt: bool,
    /// How long a worker waits for another; more than nothing and at most a day.
    pub deadline: Seconds,
    /// Steps between two checks that all workers hold the same weights; 0 never checks.
    pub check_replicas_every: u64,
    /// Instruction set of the kernels; all of them give the same bits.
    pub isa: IsaChoice,
    /// Folder of the run; empty means a fresh folder under `runs`.
    pub dir: String,
    /// Whether the final weights are accompanied by the optimizer's state.
    pub save_optimizer: bool,
    /// How often workers are started again after one of them was lost.
    pub restarts: u64,
}

impl Run {
    /// Compute threads of one worker on a machine with so many cores and so many workers.
    pub fn num_threads(&self, num_cores: usize, num_local_workers: usize) -> usize {
        match self.threads {
            0 => (num_cores / num_local_workers.max(1)).max(1),
            threads => threads,
        }
    }

    /// How long a worker waits for another.
    pub fn deadline(&self) -> Duration {
        Duration::from_secs_f64(self.deadline.0)
    }
}

/// How the work is divided among the workers.
#[derive(Debug, Clone, PartialEq)]
pub struct Parallel {
    /// Workers that the blocks of one copy of the model are dealt out to.
    pub pipeline: usize,
    /// Stages of each of them.
    pub virtual_stages: usize,
    /// The order in which they run microbatches.
    pub schedule: PipelineSchedule,
    /// Layers of each stage, or nothing where the work is divided evenly.
    pub stage_layers: Vec<usize>,
    /// What the work of a block is, where it is divided evenly.
    pub partition: Partition,
    /// Workers that every layer's slices are dealt out to.
    pub tensor: usize,
    /// Whether they also divide the rows of what lies between layers.
    pub sequence: bool,
    /// Copies of the model that share each batch among them.
    pub data: usize,
    /// ZeRO stage: what each worker keeps only its part of. 0 nothing, 1 the optimizer's state, 2
    /// the gradients too, 3 the weights too.
    pub zero: u8,
    /// What the backward pass computes again rather than keeps.
    pub recompute: Recompute,
    /// Gradients that travel together; 0 lets the engine choose.
    pub bucket_bytes: Bytes,
    /// Whether gradients travel while the backward pass still computes others.
    pub overlap: bool,
    /// Leaves of each copy of the model, or nothing where they are divided evenly; see
    /// [`Recipe::leaf_shares`].
    pub leaf_shares: Vec<usize>,
}

impl Parallel {
    /// Workers that one copy of the model takes.
    pub const fn workers_per_replica(&self) -> usize {
        self.pipeline * self.tensor
    }

    /// Stages that the blocks of the model are cut into.
    pub const fn num_stages(&self) -> usize {
        self.pipeline * self.virtual_stages
    }
}

choices! {
    /// Which architecture the blocks follow, or which small problem is solved.
    Family {
        /// LayerNorm, learned positions, GELU, biases.
        Gpt2 = "gpt2",
        /// RMSNorm, rotary positions, SwiGLU, no biases.
        Llama = "llama",
        /// A classifier of drawn digits: linear layers with an activation between them.
        Mlp = "mlp",
        /// A bowl of known curvatures around a known point.
        Quadratic = "quadratic",
        /// Linear least squares with a pull towards zero.
        Ridge = "ridge",
        /// Logistic regression with a pull towards zero.
        Logistic = "logistic",
    }
}

choices! {
    /// What lies between the linear layers of a classifier.
    Activation {
        /// The positive part.
        Relu = "relu",
        /// A smooth relative of it.
        Gelu = "gelu",
    }
}

choices! {
    /// Number formats.
    Dtype {
        /// IEEE single precision.
        F32 = "f32",
        /// The upper half of it: its range, two to three digits.
        Bf16 = "bf16",
        /// IEEE half precision: three to four digits, up to 65,504.
        F16 = "fp16",
    }
}

choices! {
    /// What becomes of the gradients of a batch's targets.
    Reduction {
        /// Their mean: the learning rate does not depend on the batch.
        Mean = "mean",
        /// Their sum.
        Sum = "sum",
    }
}

choices! {
    /// The order in which a pipeline runs its microbatches.
    PipelineSchedule {
        /// All forward, then all backward.
        GPipe = "gpipe",
        /// One forward, one backward in turn.
        OneFOneB = "1f1b",
        /// The same with several stages a worker.
        Interleaved = "interleaved",
        /// Weight gradients fill the gaps.
        ZeroBubble = "zero-bubble",
    }
}

choices! {
    /// What the work of a block is, where stages of a pipeline are to have equal parts of it.
    Partition {
        /// Its FLOPs.
        Flops = "flops",
        /// The time it takes on the first worker, before the first step.
        Measured = "measured",
    }
}

choices! {
    /// What a worker is.
    Isolation {
        /// A process of its own.
        Processes = "processes",
        /// A thread beside the others in one process.
        Threads = "threads",
    }
}

choices! {
    /// How workers reach each other.
    TransportChoice {
        /// Memory where they see each other's, else TCP.
        Auto = "auto",
        /// The memory of the one process that all are threads of.
        Threads = "threads",
        /// Memory that the processes of one host share.
        Shm = "shm",
        /// Streams of bytes, on one host too.
        Tcp = "tcp",
    }
}

choices! {
    /// Instruction set of the kernels.
    IsaChoice {
        /// The widest one the machine has.
        Auto = "auto",
        /// 512-bit vectors.
        Avx512 = "avx512",
        /// 256-bit vectors with fused multiply-add.
        Avx2 = "avx2",
        /// Plain Rust, any machine.
        Portable = "portable",
    }
}

impl Recipe {
    /// Number of micro-batches (microbatches) in one optimizer step; exact, because it was proven.
    pub const fn num_microbatches(&self) -> usize {
        self.train.batch / self.train.microbatch_size
    }

    /// Number of leaves G of the gradient sum.
    pub const fn num_leaves(&self) -> usize {
        self.numerics.invariant_up_to
    }

    /// Number of consecutive micro-batches that each leaf adds; exact, because it was proven.
    pub const fn microbatches_per_leaf(&self) -> usize {
        self.num_microbatches() / self.num_leaves()
    }

    /// Slices that every layer is computed in: as many as sums are made of, or as there are workers
    /// to hold them.
    pub fn num_tensor_shards(&self) -> usize {
        self.numerics.invariant_tensor_up_to.max(self.parallel.tensor)
    }

    /// Number of consecutive leaves that each copy of the model computes: as asked for, or else as
    /// even as possible, the first ones having one more.
    pub fn leaf_shares(&self) -> Vec<usize> {
        if self.parallel.leaf_shares.is_empty() {
            return even_shares(self.num_leaves(), self.parallel.data);
        }
        self.parallel.leaf_shares.clone()
    }

    /// Tokens that one optimizer step learns from, over all workers.
    pub const fn tokens_per_step(&self) -> usize {
        self.train.batch * self.model.context
    }
}

/// So many leaves for so many workers, as even as possible, the first ones having one more.
pub(crate) fn even_shares(num_leaves: usize, num_workers: usize) -> Vec<usize> {
    let (each, more) = (num_leaves / num_workers, num_leaves % num_workers);
    (0..num_workers).map(|worker| each + usize::from(worker < more)).collect()
}
