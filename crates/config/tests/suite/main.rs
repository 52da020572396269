//! Tests of the public interface: recipes, keys, refused values and their messages.

mod asynchronous;
mod checkpoint;
mod compress;
mod data;
mod emulate;
mod errors;
mod folder;
mod import;
mod layout;
mod lora;
mod props;
mod recipes;
mod sync;
mod synonyms;
mod telemetry;
mod tensor;
mod training;
