//! Batches over the network: one process reads the text, workers pull the micro-batches they run.
//!
//! The server makes micro-batches exactly as a worker would that reads the text itself, so a run has the
//! same bits either way. A worker asks for one step at a time, a few steps ahead of the model, and
//! each of its waits has a deadline; a server that is gone ends the run with a line that names it.
//!
//! Whoever wants to be served proves that it knows a shared secret, and so does the server: each
//! sends a random number, and each answers with a keyed hash of both ([`secret`]). Tokens travel as
//! they are: on a network that others can listen to, use a tunnel.
//!
//! # Layout
//!
//! - [`wire`]: messages, and how far their lengths are trusted
//! - [`secret`]: the shared secret and the proofs
//! - [`server`]: many workers, a thread each
//! - [`client`]: a worker's side

pub mod secret;
pub mod wire;

pub mod client;
pub mod server;

pub use client::Client;
pub use server::{Event, Server};

use lockstep_config::Recipe;

/// The keys that decide what a batch holds, as `key = value` lines: worker and server must have
/// the same.
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
