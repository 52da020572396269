//! How a model is trained by workers: lanes, leaves and the memory they pass through.
//!
//! One worker is a group of one, not a special case: the order of every sum is a function of the
//! recipe, so that more workers change who adds, never what is added to what.
//!
//! # Layout
//! - [`lane`]: one lane forward and backward; what it saves is a value.
//! - [`leaves`]: the order in which lanes' gradients are added.
//! - [`replica`]: a worker's copy of the model; the step's verbs.
//! - [`footprint`]: the memory a replica will take, before it is allocated.
//!
//! # Example
//! ```
//! use lockstep_config::{Family, Model};
//! use lockstep_model::{Lane, LaneShape, Recompute, describe};
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
//! };
//! let cpu = Cpu::single(Isa::detect());
//! let plan = ReplicaPlan {
//!     lane: LaneShape { sequences: 1, tokens: 4 },
//!     leaves: Leaves { num_leaves: 2, lanes_per_leaf: 1 },
//!     recompute: Recompute::None,
//! };
//! let mut replica = Replica::materialize(describe(&model), 1, &cpu, plan);
//! let mut loss = 0.0;
//! for (first_sample, tokens) in [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]].iter().enumerate() {
//!     let (inputs, targets) = (&tokens[..4], &tokens[1..]);
//!     let first_sample = first_sample as u64;
//!     let lane = Lane { shape: plan.lane, inputs, targets, first_sample, num_targets: 8 };
//!     loss += replica.run_lane(&cpu, 1, 0, &lane);
//! }
//! replica.finish_reduce(&cpu);
//! assert!((loss / 8.0 - (16.0_f64).ln()).abs() < 0.1, "an untrained model knows nothing");
//! assert!(replica.named_grads().all(|(_, grad)| grad.iter().any(|g| *g != 0.0)));
//! ```

pub mod leaves;

pub mod lane;
pub mod replica;

pub mod footprint;

pub use footprint::Footprint;
pub use lane::{Activations, GradientSink};
pub use leaves::{LeafTree, Leaves, Subtree};
pub use replica::{NonFinite, Replica, ReplicaPlan};
