//! Conformance checks that every platform must pass.
//!
//! The engine is tested on simulated platforms and shipped on the real one, so all of them must
//! behave alike. Each requirement is a [`Check`], and each platform runs the whole list. A check
//! panics on failure.

mod basics;
mod files;
mod net;
mod stream_sets;
mod threads;

use std::path::Path;

use crate::World;

/// One requirement.
pub struct Check {
    /// Requirement as a sentence.
    pub name: &'static str,
    /// Runs the check on a world, with an empty folder of its own.
    pub run: fn(&World, &Path),
}

/// All checks.
pub fn checks() -> Vec<Check> {
    [basics::CHECKS, files::CHECKS, threads::CHECKS, net::CHECKS, stream_sets::CHECKS]
        .into_iter()
        .flatten()
        .map(|&(name, run)| Check { name, run })
        .collect()
}

/// Name and function of a check.
type Row = (&'static str, fn(&World, &Path));
