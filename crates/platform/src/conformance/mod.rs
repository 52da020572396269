//! What every world must do, as a list of checks.
//!
//! The engine is tested against simulated worlds and shipped on the real one; that is worth
//! something only if all of them keep the same promises. Each promise is a [`Check`] here, and
//! each world runs the whole list. A check panics with what it found, as a test does.

mod files;
mod net;
mod small;
mod streams;
mod threads;

use std::path::Path;

use crate::World;

/// One promise.
pub struct Check {
    /// The promise as a sentence.
    pub name: &'static str,
    /// Tries it on a world, with an empty folder that exists for it alone.
    pub run: fn(&World, &Path),
}

/// Every promise, part by part.
pub fn checks() -> Vec<Check> {
    [small::CHECKS, files::CHECKS, threads::CHECKS, net::CHECKS, streams::CHECKS]
        .into_iter()
        .flatten()
        .map(|&(name, run)| Check { name, run })
        .collect()
}

/// A row of a part's table.
type Row = (&'static str, fn(&World, &Path));
