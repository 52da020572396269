//! (being written)
pub mod adamw;
pub mod bias;
pub mod embedding;
pub mod norm_layer;
pub mod norm_rms;
pub mod sgd;
