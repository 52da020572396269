//! The long suites: the tests of every change with many more cases, by `LOCKSTEP_SOAK=1`.
//!
//! They run in release, because a case is worth more than a debug assertion here, and print
//! progress, because they take an hour.

#![expect(clippy::disallowed_methods, reason = "a chore times itself; no run depends on it")]

use std::time::Instant;

use anyhow::Result;

use crate::shell;

/// The packages that have long suites.
const PACKAGES: &[&str] =
    &["lockstep-harness", "lockstep-comm", "lockstep-cluster", "lockstep-parallel", "lockstep-cli"];

/// Runs the long suites in release; `test_args` go to the test binaries.
pub(crate) fn run(test_args: &[&str]) -> Result<()> {
    let start = Instant::now();
    shell::say("soak: LOCKSTEP_SOAK=1, release build; a failure names the case that showed it");
    for package in PACKAGES {
        let test = format!("test --release --package {package} -- --nocapture");
        shell::run(shell::cargo(&test).args(test_args).env("LOCKSTEP_SOAK", "1"))?;
    }
    shell::say(&format!("soak: passed in {:.0} s", start.elapsed().as_secs_f64()));
    Ok(())
}
