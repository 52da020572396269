//! Whole tiny transformers: gradients, invariance of bits, decoding, counts.

mod counts;
mod decoding;
mod gradients;
mod invariance;
mod precision;
mod tensor_parallel;
mod tiny;
