//! How a model is trained by workers: micro-batches, leaves and the memory they pass through.
//!
//! One worker is a group of one, not a special case: the order of every sum is a function of the
//! recipe, so that more workers change who adds, never what is added to what.
//!
//! # Layout
//! - [`microbatch`]: one micro-batch forward and backward; what it saves is a value. [`recompute`]: what of it
//!   is dropped and computed again.
//! - [`leaves`]: the order in which micro-batches' gradients are added. [`shares`]: who runs which.
//! - [`buckets`]: the model as flat buffers, and who owns which part of them.
//! - [`data`]: data parallelism, and ZeRO-1; [`sparse`]: embeddings of which few rows travel.
//!   [`zero`]: ZeRO-2 and 3; [`shard_tree`] are their sums,
//!   [`weights`] their parameters. [`overlap`]: all of it beside the computation,
//!   [`tune`]: in buckets of the right size.
//! - [`stragglers`]: steps that do not wait for everybody; [`reshare`]: micro-batches by how fast a worker
//!   is. [`delayed`]: gradients that are a step old.
//! - [`local`]: rounds of steps that workers take alone. [`compress`]: gradients in few bytes.
//!   [`gossip`]: workers that average with neighbours only. [`server`]: weights on servers.
//!   [`hogwild`]: threads that step shared weights.
//!   [`robust`]: combining what some of them lie about; [`liars`]: those who do.
//! - [`groups`]: who works with whom. [`stages`]: the model cut for a pipeline, by FLOPs or
//!   as blocks are [measured](measure); [`pipeline`]: a device of it at work, [`link`]: what it
//!   hands on.
//! - [`replica`]: a worker's model; the step's verbs, [`run`]: its micro-batches. [`store`] is what it
//!   holds, [`visit`] shows it whole, [`norm`] and [`losses`] are sums over workers.
//! - [`saved`]: what a worker saves, so that all of them save everything once.
//! - [`trained`]: which blocks have gradients while others are frozen.
//! - [`guards`]: who brought a gradient that is not finite; whether all workers agree.
//! - [`words`]: whole numbers among what is saved.
//! - [`memory`]: buffers that other workers reach. [`footprint`]: how much a worker will take,
//!   [`asked`]: as a recipe asks for it.
//!
//! # Example
//! ```
//! use lockstep_config::{Family, Model, Problem};
//! use lockstep_comm::{Comm, Options};
//! use lockstep_model::{Microbatch, MicrobatchShape, describe};
//! use lockstep_parallel::{Leaves, Replica, ReplicaPlan};
//! use lockstep_tensor::{Cpu, Isa};
//!
//! let model = Model {
//!     family: Family::Llama,
//!     layers: 1,
//!     width: 8,
//!     heads: 2,
//!     kv_heads: 1,
//!     ffn: 16,
//!     vocab: 16,
//!     context: 4,
//!     tied: true,
//!     dropout: 0.0,
//!     norm_eps: 1e-5,
//!     rope_theta: 10000.0,
//!     problem: Problem::NONE,
//! };
//! let world = lockstep_platform::real();
//! let comm = &Comm::threads(&world, 1, &Options::default())?[0];
//! let cpu = Cpu::single(Isa::detect());
//! let shape = MicrobatchShape { sequences: 1, tokens: 4 };
//! let plan = ReplicaPlan::alone(shape, Leaves { num_leaves: 2, microbatches_per_leaf: 1 });
//! let mut replica = Replica::materialize(describe(&model), 1, &cpu, plan, comm, &world)?;
//!
//! let tokens = [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]];
//! let micro-batch = |index: usize| {
//!     let (inputs, targets) = (&tokens[index][..4], &tokens[index][1..]);
//!     Micro-batch { shape, inputs, targets, first_sample: index as u64, num_targets: 8 }
//! };
//! let loss = replica.run_microbatches(&cpu, 1, 0, &micro-batch)?;
//! replica.finish_reduce(&cpu)?;
//! assert!((loss / 8.0 - (16.0_f64).ln()).abs() < 0.1, "an untrained model knows nothing");
//! assert!(replica.own_grads().all(|(_, grad)| grad.iter().any(|g| *g != 0.0)));
//! # Ok::<(), lockstep_comm::CommError>(())
//! ```

pub mod leaves;
pub mod shares;

pub mod buckets;
pub mod memory;
pub mod overlap;
pub mod tune;
pub mod wire;

pub mod compress;
pub mod data;
pub mod delayed;
pub mod federated;
pub mod gossip;
pub mod hogwild;
pub mod liars;
pub mod local;
pub mod reshare;
pub mod robust;
pub mod server;
pub mod shard_tree;
pub mod sparse;
pub mod stragglers;
pub mod weights;
pub mod zero;

pub mod trained;

pub mod microbatch;
pub mod recompute;

pub mod groups;
pub mod link;
pub mod measure;
pub mod pipeline;
pub mod stages;
pub mod tensor;

pub mod guards;
pub mod losses;
pub mod norm;
pub mod replica;
pub mod run;
pub mod saved;
pub mod scaled;
pub mod store;
pub mod visit;

pub mod asked;
pub mod footprint;
pub mod words;

#[cfg(test)]
mod testing;

pub use buckets::{Bucket, Buckets};
pub use footprint::Footprint;
pub use gossip::{Consensus, Graph};
pub use groups::Groups;
pub use guards::{Differs, NonFinite};
pub use leaves::{LeafTree, Leaves, Subtree};
pub use local::{Drift, OuterRule, RoundPlan, params_of_fragment};
pub use microbatch::{Activations, Store};
pub use recompute::RecomputePlan;
pub use replica::{Replica, ReplicaPlan};
pub use saved::OwnPiece;
pub use scaled::{Scaled, Unscaled};
pub use shares::Shares;
pub use stages::Stages;
pub use stragglers::{Duty, LateRule};
