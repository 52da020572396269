//! The resolved recipe: plain, validated data for all other crates.
//!
//! A [`Recipe`] has passed every rule of this crate, so other crates use it without further checks.
//! Its fields are public for reading; [`crate::resolve`] makes one.

use std::fmt;
use std::time::Duration;

use crate::units::{Bytes, Seconds};

/// Declares an enum of named choices. Name and variant are on one line, so parsing, printing and
/// the list of allowed values agree.
macro_rules! choices {
    (
        $(#[$doc:meta])*
        $choice:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $choice { $($(#[$variant_doc])* $variant,)+ }

        impl $choice {
            /// Names in a recipe, in order of declaration.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// Name in a recipe.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The choice with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }

        impl fmt::Display for $choice {
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

/// All settings of a run. The bits of the result depend on all of them except [`Run`],
/// [`Parallel`], [`Offload`], [`Checkpoint`] and [`Emulate`].
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    /// Model architecture.
    pub model: Model,
    /// Folder of the initial weights; empty initialises them randomly.
    pub from: String,
    /// Whether only weights that match by name and shape are loaded.
    pub partial: bool,
    /// Maximum number of positions that an export declares, where it is not the context; never
    /// changes a bit of the result.
    pub max_positions: Option<usize>,
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
    /// Emulated links and workers: never change a bit of the result.
    pub emulate: Emulate,
}

/// Model architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// Architecture.
    pub family: Family,
    /// Number of transformer layers.
    pub layers: usize,
    /// Hidden size.
    pub width: usize,
    /// Number of query heads; divides `width`.
    pub heads: usize,
    /// Number of key and value heads; divides `heads`, fewer means grouped-query attention.
    pub kv_heads: usize,
    /// Intermediate size of the feed-forward network.
    pub ffn: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Sequence length in tokens.
    pub context: usize,
    /// Whether the output projection shares the weights of the embedding.
    pub tied: bool,
    /// Dropout probability; at least 0 and below 1.
    pub dropout: f32,
    /// Epsilon of the normalisation layers.
    pub norm_eps: f32,
    /// Base of the rotary position angles (Llama family).
    pub rope_theta: f64,
    /// Settings of a small problem (`mlp`, `quadratic`, `ridge`, `logistic`).
    pub problem: Problem,
}

impl Model {
    /// Head size; exact, because `heads` divides `width`.
    pub const fn head_dim(&self) -> usize {
        self.width / self.heads
    }
}

/// Steps, batches and validation.
#[derive(Debug, Clone, PartialEq)]
pub struct Train {
    /// Number of optimizer steps.
    pub steps: u64,
    /// Sequences per optimizer step, over all workers.
    pub batch: usize,
    /// Sequences per micro-batch; divides `batch`.
    pub microbatch_size: usize,
    /// Whether the micro-batch size is chosen from the machine's memory; 1 until then.
    pub microbatch_is_auto: bool,
    /// Seed of initial weights, dropout masks and data order.
    pub seed: u64,
    /// Steps between two validations; 0 validates only at the end.
    pub eval_every: u64,
    /// Number of batches per validation.
    pub eval_batches: usize,
    /// Loss reduction over the targets of a batch.
    pub reduction: Reduction,
    /// Maximum number of consecutive steps skipped for non-finite gradients.
    pub max_skipped: u64,
    /// Changes of the batch size by training tokens, for [`Recipe::batch_plan`].
    pub batch_schedule: Vec<BatchChange>,
    /// Validation loss at which the run stops.
    pub target_loss: Option<f64>,
}

/// Layout invariance: results whose bits do not depend on the layout.
#[derive(Debug, Clone, PartialEq)]
pub struct Numerics {
    /// Number of reduction leaves G, a power of two: up to G replicas give equal bits.
    pub invariant_up_to: usize,
    /// Number of tensor shards in whose order the sums of a layer are made.
    pub invariant_tensor_up_to: usize,
}

/// Workers, threads and transport.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Number of workers; at most as many replicas as leaves.
    pub workers: usize,
    /// Range of workers of an elastic run; `workers` is then its maximum.
    pub elastic: Option<Elastic>,
    /// Time after which an elastic run tries a lost worker again.
    pub rejoin: Seconds,
    /// Threads per worker; with 0 [`Run::num_threads`] divides the cores of the machine.
    pub threads: usize,
    /// Whether workers are processes or threads.
    pub isolation: Isolation,
    /// Transport between workers; compatible with `isolation`.
    pub transport: TransportChoice,
    /// Whether TCP traffic is encrypted.
    pub encrypt: bool,
    /// Deadline of a wait for another worker; above zero and at most a day.
    pub deadline: Seconds,
    /// Steps between two comparisons of the replicas; 0 never compares.
    pub check_replicas_every: u64,
    /// Instruction set of the kernels; all of them give the same bits.
    pub isa: IsaChoice,
    /// Run folder; empty means a new folder under `runs`.
    pub dir: String,
    /// Whether the optimizer state is saved with the final weights.
    pub save_optimizer: bool,
    /// Maximum number of restarts after a worker is lost.
    pub restarts: u64,
}

impl Run {
    /// Compute threads of a worker on a machine with this number of cores and workers.
    pub fn num_threads(&self, num_cores: usize, num_local_workers: usize) -> usize {
        match self.threads {
            0 => (num_cores / num_local_workers.max(1)).max(1),
            threads => threads,
        }
    }

    /// Deadline of a wait for another worker.
    pub fn deadline(&self) -> Duration {
        Duration::from_secs_f64(self.deadline.0)
    }
}

/// Parallelism.
#[derive(Debug, Clone, PartialEq)]
pub struct Parallel {
    /// Pipeline-parallel degree.
    pub pipeline: usize,
    /// Virtual stages per pipeline rank.
    pub virtual_stages: usize,
    /// Pipeline schedule.
    pub schedule: PipelineSchedule,
    /// Layers of each stage; empty balances the stages automatically.
    pub stage_layers: Vec<usize>,
    /// Cost that balances the stages.
    pub partition: Partition,
    /// Tensor-parallel degree.
    pub tensor: usize,
    /// Whether sequence parallelism is on.
    pub sequence: bool,
    /// Data-parallel degree: number of replicas that share each batch.
    pub data: usize,
    /// ZeRO stage: 0 shards nothing, 1 the optimizer state, 2 also the gradients, 3 also the
    /// weights.
    pub zero: u8,
    /// Activation recomputation.
    pub recompute: Recompute,
    /// Size of a gradient bucket; 0 lets the engine choose.
    pub bucket_bytes: Bytes,
    /// Whether gradient communication overlaps the backward pass.
    pub overlap: bool,
    /// Leaves of each replica; with an empty list [`Recipe::leaf_shares`] divides them evenly.
    pub leaf_shares: Vec<usize>,
}

impl Parallel {
    /// Number of workers of one replica.
    pub const fn workers_per_replica(&self) -> usize {
        self.pipeline * self.tensor
    }

    /// Number of pipeline stages, virtual ones included.
    pub const fn num_stages(&self) -> usize {
        self.pipeline * self.virtual_stages
    }
}

choices! {
    /// Architecture of the model, or a small problem.
    Family {
        /// LayerNorm, learned positions, GELU, biases.
        Gpt2 = "gpt2",
        /// RMSNorm, rotary positions, SwiGLU, no biases.
        Llama = "llama",
        /// A multilayer perceptron that classifies drawn digits.
        Mlp = "mlp",
        /// A quadratic with known curvatures and minimum.
        Quadratic = "quadratic",
        /// Ridge regression: least squares with L2 regularisation.
        Ridge = "ridge",
        /// Logistic regression with L2 regularisation.
        Logistic = "logistic",
    }
}

choices! {
    /// Activation function of the classifier.
    Activation {
        /// ReLU.
        Relu = "relu",
        /// GELU.
        Gelu = "gelu",
    }
}

choices! {
    /// Number formats.
    Dtype {
        /// IEEE single precision.
        F32 = "f32",
        /// bfloat16: the range of f32, two to three digits.
        Bf16 = "bf16",
        /// IEEE half precision: three to four digits, up to 65,504.
        F16 = "fp16",
    }
}

choices! {
    /// Loss reduction over the targets of a batch.
    Reduction {
        /// Mean: the learning rate does not depend on the batch.
        Mean = "mean",
        /// Sum.
        Sum = "sum",
    }
}

choices! {
    /// Pipeline schedule.
    PipelineSchedule {
        /// GPipe: all forward passes, then all backward passes (Huang et al. 2019).
        GPipe = "gpipe",
        /// 1F1B: one forward and one backward pass in turn (Narayanan et al. 2019).
        OneFOneB = "1f1b",
        /// Interleaved 1F1B with virtual stages (Narayanan et al. 2021).
        Interleaved = "interleaved",
        /// Zero bubble: weight gradients fill the bubble (Qi et al. 2024).
        ZeroBubble = "zero-bubble",
    }
}

choices! {
    /// Cost that balances pipeline stages.
    Partition {
        /// FLOPs of the layers.
        Flops = "flops",
        /// Time of the layers, measured on the first worker before the first step.
        Measured = "measured",
    }
}

choices! {
    /// Isolation of workers.
    Isolation {
        /// Each worker is a process.
        Processes = "processes",
        /// All workers are threads of one process.
        Threads = "threads",
    }
}

choices! {
    /// Transport between workers.
    TransportChoice {
        /// Shared memory within a host, TCP between hosts.
        Auto = "auto",
        /// Memory of the common process.
        Threads = "threads",
        /// Shared memory between the processes of a host.
        Shm = "shm",
        /// TCP, within a host too.
        Tcp = "tcp",
    }
}

choices! {
    /// Instruction set of the kernels.
    IsaChoice {
        /// The widest that the machine supports.
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
    /// Number of micro-batches per optimizer step; exact, because the recipe is validated.
    pub const fn num_microbatches(&self) -> usize {
        self.train.batch / self.train.microbatch_size
    }

    /// Number of reduction leaves G.
    pub const fn num_leaves(&self) -> usize {
        self.numerics.invariant_up_to
    }

    /// Number of consecutive micro-batches per leaf; exact, because the recipe is validated.
    pub const fn microbatches_per_leaf(&self) -> usize {
        self.num_microbatches() / self.num_leaves()
    }

    /// Number of tensor shards in which every layer is computed: the invariant number, or the
    /// tensor-parallel degree if that is larger.
    pub fn num_tensor_shards(&self) -> usize {
        self.numerics.invariant_tensor_up_to.max(self.parallel.tensor)
    }

    /// Number of consecutive leaves of each replica: as set, or else as even as possible, with the
    /// remainder on the first replicas.
    pub fn leaf_shares(&self) -> Vec<usize> {
        if self.parallel.leaf_shares.is_empty() {
            return even_shares(self.num_leaves(), self.parallel.data);
        }
        self.parallel.leaf_shares.clone()
    }

    /// Tokens per optimizer step over all workers.
    pub const fn tokens_per_step(&self) -> usize {
        self.train.batch * self.model.context
    }
}

/// Divides leaves over workers as evenly as possible, with the remainder on the first workers.
pub(crate) fn even_shares(num_leaves: usize, num_workers: usize) -> Vec<usize> {
    let (each, more) = (num_leaves / num_workers, num_leaves % num_workers);
    (0..num_workers).map(|worker| each + usize::from(worker < more)).collect()
}
