//! Oracles of every kernel: plain loops in `f64`.
//!
//! Each function is the textbook formula in plain loops: no vectors, no threads, no fusing. Kernels
//! are compared with it up to rounding, and their backward with its central differences.

pub mod adafactor;
pub mod adam;
pub mod adamw;
pub mod adamw_8bit;
pub mod attention;
pub mod bias;
pub mod cross_entropy;
pub mod distillation;
pub mod embedding;
pub mod fp8;
pub mod geglu;
pub mod gelu;
pub mod gelu_erf;
pub mod lamb;
pub mod lars;
pub mod lion;
pub mod muon;
pub mod nesterov;
pub mod nf4;
pub mod norm_layer;
pub mod norm_rms;
pub mod preference;
pub mod relu;
pub mod rope;
pub mod schedule_free;
pub mod sgd;
pub mod soft_cap;
pub mod swiglu;
