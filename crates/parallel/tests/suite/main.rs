//! Tests of parallel training steps with ranks as threads.

mod support;

mod guards;
mod layouts;
mod memory_and_traffic;
mod pipelines;
mod replica;
mod tensor;
