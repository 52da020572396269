//! Whole-engine tests in one binary, which links the engine once.
//!
//! Tests run as threads of one process, so none of them may depend on the rest of the process.
//! Tests that measure the whole process are binaries of their own: `no_allocation`,
//! `export_memory`, `offload_memory` and `stragglers`, which compares the speed of workers.

mod checkpoints;
mod conversations;
mod custom_model;
mod data_pipeline;
mod distillation;
mod document_masks;
mod fine_tuning;
mod generation;
mod huggingface;
mod preferences;
mod problems;
mod pytorch_checkpoints;
mod quantised_base;
mod resume;
mod tasks;

mod golden;
mod golden_hashes;
mod golden_losses;
mod golden_optimizers;
mod golden_preferences;
mod loss_scaling;
mod mixtures;

mod determinism;
mod devices;
mod layout_matrix;
mod layouts;
mod mup;
mod noise_scale;
mod offload;
mod optimizers;
mod pipelines;
mod precision;
mod seqlen_warmup;
mod tensor_parallel;

mod byzantine;
mod compression;
mod exports;
mod federated;
mod forecasts;
mod gossip;
mod hogwild;
mod local_sgd;
mod parameter_server;
mod sparse_rows;
mod step_host;
mod task_spans;
mod toy_strategy;
mod traces;
mod update_traffic;
