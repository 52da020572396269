//! Checkpoints: weights and training state on disk.
//!
//! Every file is replaced atomically, so a crash at any moment leaves the old or the new
//! checkpoint. Input is not trusted: damaged or hostile bytes give a one-line error that names the
//! file, never a panic and never an allocation larger than the file. Non-finite weights are neither
//! written nor read.
//!
//! # Layout
//!
//! - [`weights`]: named f32 tensors in the safetensors format, and their hash
//! - [`state`]: training state of a run, as versioned JSON
//! - [`sharded`]: sharded checkpoints, readable with any layout
//! - [`failure_rate`]: observed mean time between failures
//! - [`huggingface`]: Hugging Face model folders, read and written
//! - [`peft`]: folders of low-rank adapters, read and written
//! - [`gguf`]: export of GGUF files
//! - [`pytorch`]: checkpoints of PyTorch programs, read
//! - [`new_folder`]: atomic creation of folders
//! - [`error`][]: [`CheckpointError`]
//!
//! # Example
//!
//! ```
//! use std::collections::BTreeMap;
//! use lockstep_checkpoint::{NamedTensor, weights, weights_hash};
//! use lockstep_platform::ScratchDir;
//!
//! let world = lockstep_platform::real();
//! let scratch = ScratchDir::new(&world, "checkpoint")?;
//! let path = scratch.path().join(weights::FILE_NAME);
//!
//! let tensors = [NamedTensor { name: "norm.weight", shape: &[3], data: &[1.0, 0.5, 2.0] }];
//! weights::save(&world, &path, &tensors, &BTreeMap::new())?;
//!
//! let loaded = weights::load(&world, &path)?;
//! assert_eq!(loaded.tensor("norm.weight", &[3])?, [1.0, 0.5, 2.0]);
//! assert_eq!(loaded.hash(), weights_hash(&tensors));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod weights;

pub mod state;

pub mod failure_rate;
pub mod sharded;

pub mod gguf;
pub mod huggingface;
pub mod new_folder;
pub mod peft;
pub mod pytorch;

pub mod error;

pub use error::CheckpointError;
pub use state::{Scaling, TrainingState};
pub use weights::{
    ElementType, NamedTensor, Tensor, Tensors, Weights, WeightsHasher, weights_hash,
};
