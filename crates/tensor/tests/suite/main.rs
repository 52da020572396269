//! Tests of every kernel: against its `f64` oracle, against central differences, and to the bit on
//! every instruction set and number of threads.
//!
//! The crate has no unit tests: those would compile every kernel for every instruction set a second
//! time. With the feature `model-check` the pool has loom's atomics, which work only inside a
//! model, so this suite is empty and `model_check.rs` runs instead.
#![cfg(not(feature = "model-check"))]

mod common;

mod adafactor;
mod adam;
mod adamw;
mod adamw_8bit;
mod attention;
mod bias;
mod convert;
mod cross_entropy;
mod device;
mod distillation;
mod dropout;
mod embedding;
mod geglu;
mod gelu;
mod gelu_erf;
mod gemm;
mod lamb;
mod lars;
mod lion;
mod math;
mod muon;
mod nesterov;
mod nf4;
mod norm_layer;
mod norm_rms;
mod peak;
mod pool;
mod preference;
mod random;
mod reduce;
mod relu;
mod rope;
mod schedule_free;
mod sgd;
mod simd;
mod soft_cap;
mod swiglu;
