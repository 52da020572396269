//! What a run leaves on disk so that it can be used and continued: weights and training state.
//!
//! Every file is replaced atomically, so a crash at any moment leaves the old checkpoint or the
//! new one. Nothing read is trusted: damaged or hostile bytes give one line that names the file,
//! never a panic and never an allocation larger than the file itself. Weights that hold NaN or an
//! infinity are neither written nor read.
//!
//! # Layout
//!
//! - [`weights`]: named f32 tensors in the safetensors format, and their hash
//! - [`state`]: where in the run the weights belong, as versioned JSON
//! - [`sharded`]: checkpoints that all workers write together and any layout reads
//! - [`pace`]: how often failures are to be expected
//! - [`huggingface`]: folders of other programs' models, read and written
//! - [`new_folder`]: a folder that appears whole or not at all
//! - [`error`]: [`CheckpointError`], with who is to blame
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

pub mod pace;
pub mod sharded;

pub mod huggingface;
pub mod new_folder;

pub mod error;

pub use error::CheckpointError;
pub use state::{Scaling, TrainingState};
pub use weights::{
    ElementType, NamedTensor, Tensor, Tensors, Weights, WeightsHasher, weights_hash,
};
