//! Parallel training of a model: data, tensor, sequence, pipeline and ZeRO parallelism, and the
//! other synchronization strategies.
//!
//! One rank is a group of one, not a special case: the recipe fixes the order of every sum, so the
//! number of ranks decides where an addend is computed and never the order of additions.
//!
//! # Layout
//! - [`replica`]: one rank's model and the verbs of a step; [`replica_plan`]: its layout;
//!   [`microbatch_loop`]: its micro-batches; `step_context`: the state of a step.
//! - [`step_program`]: the step as data, one technique a file; [`programs`]: those of a rank;
//!   `task_spans`: when their tasks ran; `call_spans`: when their background calls did.
//! - [`microbatch`]: one micro-batch forward and backward; [`recompute`]: activation recomputation;
//!   `token_stage`: tokens and losses on an accelerator.
//! - [`leaves`]: the order of gradient sums; [`leaf_assignment`]: the leaves of each rank.
//! - [`buckets`]: flat parameter buckets and their shards; [`buffer`]: buffers that other ranks of
//!   the host can read; [`param_store`]: parameters and gradients at every ZeRO stage;
//!   [`trainable_params`]: trainable and frozen parameters.
//! - [`data_parallel`]: data parallelism and ZeRO-1; [`zero`]: ZeRO-2 and 3 gradients;
//!   [`shard_tree`]: their sums; [`weights`]: whole and sharded parameters;
//!   [`sparse_embedding`]: sparse embedding gradients; [`wire_precision`]: two-byte gradients.
//! - [`overlap`]: communication overlapped with computation; `exposed_communication`: the rest of
//!   it; [`bucket_tuning`]: bucket sizes.
//! - [`groups`]: process groups; [`tensor_parallel`]: tensor and sequence parallelism.
//! - [`pipeline`]: the passes of a program, run task by task; [`stages`]: the cut into stages;
//!   [`block_profile`]: measured block times; [`stage_link`]: messages between stages.
//! - [`slow_rank`]: detection of slow ranks; [`stragglers`]: steps with a cutoff; [`rebalance`]:
//!   leaves by measured speed; [`delayed_gradients`]: one-step gradient delay.
//! - [`local_sgd`], [`gossip`], [`parameter_server`], [`federated`], [`hogwild`]: synchronization
//!   strategies; [`compress`]: gradient compression.
//! - [`strategies`]: their registration; [`strategy`]: their tasks of a step; [`sync_strategy`]:
//!   between steps; [`figures`]: their figures in a summary.
//! - [`robust_aggregation`]: Byzantine-robust aggregation; [`byzantine`]: attacks.
//! - `update_tasks`: the update, task by task; `matrix_updates`, `trained_matrices`: updates of
//!   whole matrices.
//! - [`loss_scaling`], [`sharded_norm`], [`microbatch_losses`]: loss scale, norms and losses over
//!   ranks; [`leaf_norms`], `gradient_noise`: norms of single leaves; `counted_tensors`: tensors
//!   for histograms; `sequence_losses`: losses for evaluation; [`guards`]: non-finite gradients and
//!   diverged replicas; `traffic`: traffic sums.
//! - `flat_weights`: a model in one vector; [`full_tensors`]: whole tensors from shards;
//!   [`checkpoint_pieces`]: the pieces each rank saves; [`u64_as_f32`]: integers in `f32`
//!   checkpoints.
//! - [`footprint`]: memory of a rank; [`from_recipe`]: plans from a recipe.
//!
//! # Example
//! ```
//! use lockstep_config::{Family, GptNeox, LlamaVariant, Lora, Model, Mup, Problem};
//! use lockstep_comm::{Comm, Options};
//! use lockstep_model::{Microbatch, MicrobatchShape, describe};
//! use lockstep_parallel::{Leaves, Replica, ReplicaPlan};
//! use lockstep_tensor::{Isa, device::{Compute, View}};
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
//!     variant: LlamaVariant::PLAIN,
//!     gpt_neox: GptNeox::PYTHIA,
//!     mup: Mup::OFF,
//!     lora: Lora::NONE,
//!     problem: Problem::NONE,
//! };
//! let world = lockstep_platform::real();
//! let comm = &Comm::threads(&world, 1, &Options::default())?[0];
//! let cpu = Compute::single(Isa::detect());
//! let shape = MicrobatchShape { sequences: 1, tokens: 4 };
//! let plan = ReplicaPlan::single_rank(shape, Leaves { num_leaves: 2, microbatches_per_leaf: 1 });
//! let mut replica = Replica::materialize(describe(&model), 1, &cpu, plan, comm, &world)?;
//!
//! let tokens = [[1_u32, 2, 3, 4, 5], [6, 7, 8, 9, 10]];
//! let microbatch = |index: usize| {
//!     let (inputs, targets) = (View::of(&tokens[index][..4]), View::of(&tokens[index][1..]));
//!     let (first_sample, num_targets) = (index as u64, 8);
//!     let (documents, preferences) = (None, None);
//!     Microbatch { shape, inputs, targets, first_sample, num_targets, documents, preferences }
//! };
//! let loss = replica.run_microbatches(&cpu, 1, 0, &microbatch)?;
//! replica.finish_reduce(&cpu)?;
//! assert!((loss / 8.0 - (16.0_f64).ln()).abs() < 0.1, "an untrained model predicts uniformly");
//! assert!(replica.own_grads().all(|(_, grad)| grad.iter().any(|g| *g != 0.0)));
//! # Ok::<(), lockstep_comm::CommError>(())
//! ```

pub mod leaf_assignment;
pub mod leaves;

pub mod bucket_tuning;
pub mod buckets;
pub mod buffer;
pub mod overlap;
pub mod wire_precision;

pub mod byzantine;
pub mod compress;
pub mod data_parallel;
pub mod delayed_gradients;
pub mod federated;
pub mod gossip;
pub mod hogwild;
pub mod local_sgd;
pub mod parameter_server;
pub mod rebalance;
pub mod robust_aggregation;
pub mod shard_tree;
pub mod slow_rank;
pub mod sparse_embedding;
pub mod stragglers;
pub mod weights;
pub mod zero;

pub mod trainable_params;

pub mod microbatch;
pub mod recompute;

pub mod block_profile;
pub mod groups;
pub mod pipeline;
pub mod stage_link;
pub mod stages;
pub mod tensor_parallel;

mod call_spans;
pub mod checkpoint_pieces;
mod counted_tensors;
mod distance;
mod exchanged_store;
mod exposed_communication;
pub mod figures;
mod flat_weights;
pub mod full_tensors;
mod gradient_noise;
pub mod guards;
pub mod leaf_norms;
pub mod loss_scaling;
mod matrix_updates;
pub mod measurements;
pub mod microbatch_loop;
pub mod microbatch_losses;
pub mod param_store;
pub mod programs;
pub mod replica;
pub mod replica_plan;
mod sequence_losses;
pub mod sharded_norm;
pub mod step;
mod step_context;
pub mod step_program;
pub mod strategies;
pub mod strategy;
pub mod sync_strategy;
mod task_spans;
mod token_stage;
mod traffic;
mod trained_matrices;
mod update_tasks;

pub mod footprint;
pub mod from_recipe;
pub mod u64_as_f32;

#[cfg(test)]
mod testing;

pub use buckets::{Bucket, Buckets};
pub use call_spans::CallSpan;
pub use checkpoint_pieces::CheckpointPiece;
pub use footprint::Footprint;
pub use gossip::Graph;
pub use groups::Groups;
pub use guards::{NonFiniteGradient, WeightMismatch};
pub use leaf_assignment::LeafAssignment;
pub use leaf_norms::SquaredNorms;
pub use leaves::{LeafTree, Leaves, Subtree};
pub use local_sgd::params_of_fragment;
pub use loss_scaling::{ScaledGradients, UnscaledGradients};
pub use measurements::{ConsensusDistance, Drift, Measurements, Topology};
pub use microbatch::{ActivationPlan, Activations, Store};
pub use recompute::RecomputePlan;
pub use replica::Replica;
pub use replica_plan::ReplicaPlan;
pub use stages::Stages;
pub use step::StepHost;
pub use stragglers::{StepCutoff, StepDuty};
pub use strategy::StepLoss;
pub use task_spans::{SampledTasks, TaskSpan};
pub use traffic::AxisCounters;
