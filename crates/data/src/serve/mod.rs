//! Data server: one process reads the corpus, workers pull their micro-batches over the network.
//!
//! The server prepares micro-batches exactly as a worker with the corpus would, so a run has the
//! same bits either way. A worker requests one step at a time, a few steps ahead of the model. Each
//! wait has a deadline; a lost server ends the run with an error that names it.
//!
//! Worker and server authenticate each other by a shared secret: each one sends a nonce and answers
//! with a keyed hash of both ([`secret`]). Tokens are not encrypted; use a tunnel on an untrusted
//! network.
//!
//! # Layout
//!
//! - [`wire`]: messages and their length limits
//! - [`secret`]: the shared secret and the proofs
//! - [`server`]: one thread per worker
//! - [`client`]: the worker's side

pub mod secret;
pub mod wire;

pub mod client;
pub mod server;

pub use client::Client;
pub use server::{Event, Server};

use lockstep_config::Recipe;

/// Keys that determine the content of batches, as `key = value` lines. Worker and server must agree
/// on them.
pub(crate) fn terms(recipe: &Recipe) -> String {
    const DECISIVE: [&str; 7] = [
        "data.",
        "model.context ",
        "model.vocab ",
        "train.batch",
        "train.microbatch ",
        "train.seed ",
        "train.eval_batches ",
    ];
    let text = recipe.identity_text();
    let lines = text.lines().filter(|line| DECISIVE.iter().any(|key| line.starts_with(key)));
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[cfg(test)]
mod tests;
