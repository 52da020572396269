//! Trains a model from an empty process to saved weights, and loads what was trained.
//!
//! # Layout
//! - [`train`](mod@train): the training loop, equal for all synchronization strategies; `worker`: a
//!   rank in it; `training_step`: its steps; `replica_thread`: steps on another thread.
//! - [`worker_threads`]: all ranks as threads of this process.
//! - [`check`](mod@check): checks before any worker starts; `options`: settings outside the recipe.
//! - [`host_check`]: versions, clocks, links, disks and limits of all hosts before a run.
//! - [`device`]: the compute device of a recipe; [`feed`]: the data of a worker; `custom_model`:
//!   blocks in place of a family.
//! - [`kernel_cache`]: compiled kernels on disk.
//! - [`learner`]: trainable state of a rank; [`materialize`](mod@materialize): its allocation.
//! - [`evaluate`]: loss on held-out samples; [`health`]: finite values and equal replicas.
//! - [`step_log`]: telemetry of a run; [`figures`]: its counters; `exporters`: where its metrics
//!   go; `noise_scale`: gradient noise; `histograms`: distributions of tensors; `rank_counters`:
//!   figures of every rank; `span_log`: spans of sampled steps; `trace`: trace of all ranks.
//! - `summarize`, [`summary`]: the figures of a finished run; [`utilization`]: share of the peak.
//! - `preference`: the reference of preference optimization; `teacher`: that of distillation;
//!   `frozen_weights`, `frozen_base`: weights in four bits beside adapters.
//! - [`pretrained`]: models in run folders and Hugging Face folders; [`mod@convert`]: conversion
//!   between the two.
//! - [`checkpoints`]: checkpoints during training; [`restore`], [`resume_state`]: resuming.
//! - `worker_state`: state that workers do not share, in checkpoints.
//! - [`stragglers`]: speed of workers and straggler policies; [`emulation`]: emulated slow workers.
//! - [`run_folder`]: files of a run; `artifacts`: final weights and state.
//! - [`generate`]: text generation; [`conversation`]: a chat; `vocabulary`: files beside the
//!   tokenizer of a run.
//! - [`conversation_evaluation`]: loss of answers and of preferences;
//!   [`text_evaluation`]: loss of a trained model on a text; [`task_evaluation`]: multiple choice;
//!   `evaluation_model`: the loaded model of both.
//! - [`mod@compare`]: bitwise comparison of two runs; [`run_list`]: the runs of a folder;
//!   [`failure_record`]: why a run failed; [`flight_record`]: its last calls; [`recorded_run`]:
//!   reader of a run folder.
//! - [`curvature`]: largest Hessian eigenvalue.
//! - [`mod@bench`]: throughput and fraction of the machine's peak; [`operation_profile`]: time of a
//!   step by operation of its device.
//!
//! # Example
//! ```
//! use lockstep_comm::Comm;
//! use lockstep_config::{Sources, resolve};
//! use lockstep_platform::ScratchDir;
//! use lockstep_trainer::{Options, train};
//!
//! let world = lockstep_platform::real();
//! let scratch = ScratchDir::new(&world, "trainer-example")?;
//! let sets = [
//!     "train.steps=2".to_owned(),
//!     "run.workers=1".to_owned(),
//!     "train.eval_batches=1".to_owned(),
//!     format!("run.dir={}", scratch.path().join("run").display()),
//! ];
//! let sources = Sources { preset: Some("tiny".into()), sets: sets.into(), ..Sources::default() };
//! let recipe = resolve(&sources)?;
//! let alone = &Comm::threads(&world, 1, &lockstep_comm::Options::default())?[0];
//! let summary = train(&recipe, &world, alone, Options::default())?.expect("the first worker");
//! assert_eq!(summary.steps, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod train;

pub mod adapter_folder;
mod artifacts;
pub mod check;
mod checkpoint_dir;
pub mod checkpoints;
mod custom_model;
pub mod device;
pub mod emulation;
mod epochs;
pub mod evaluate;
mod event_history;
mod exporters;
pub mod failure_record;
pub mod feed;
pub mod figures;
pub mod flight_record;
mod frozen_base;
mod frozen_weights;
pub mod health;
mod histograms;
pub mod host_check;
pub mod kernel_cache;
pub mod learner;
pub mod materialize;
mod microbatch;
mod noise_scale;
pub mod operation_profile;
mod options;
mod overlap;
mod preference;
pub mod preference_figures;
pub mod pretrained;
mod rank_counters;
mod replica_thread;
pub mod restore;
pub mod resume_state;
pub mod run_folder;
mod span_log;
pub mod step_log;
pub mod stragglers;
mod summarize;
pub mod summary;
mod teacher;
mod trace;
mod training_step;
pub mod utilization;
mod vocabulary;
mod worker;
mod worker_state;
pub mod worker_threads;

pub mod bench;
pub mod compare;
pub mod conversation;
pub mod conversation_evaluation;
pub mod convert;
pub mod curvature;
mod dcp_export;
mod evaluation_model;
pub mod generate;
pub mod recorded_run;
pub mod run_list;
pub mod task_evaluation;
pub mod text_evaluation;

mod error;

pub use check::{check, check_inputs};
pub use checkpoint_dir::{has_checkpoints, recorded_recipe};
pub use error::TrainError;
pub use lockstep_parallel::from_recipe::{arena_bytes, blueprint_of_rank, footprint};
pub use materialize::{materialize, materialize_model};
pub use options::{Attempt, Options, Predicted, PredictedBytes, SaveSignals};
pub use run_folder::RunFolder;
pub use summary::{Summary, Target};
pub use train::train;
pub use worker_threads::{train_on_comms, train_on_threads};
