//! Ours against `transformers`: folders that one writes, the other must read.
//!
//! The script needs torch and transformers, which the project itself does not and which are large;
//! so it runs only where `LOCKSTEP_INTEROP=1` asks for it. Elsewhere the golden folders stand in
//! for it, in the ordinary tests.

use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

const SCRIPT: &str = "scripts/interop/interop.py";

/// What asks for this step.
const ASKED: &str = "LOCKSTEP_INTEROP";

/// Builds the program and holds it against `transformers`, where that is asked for.
pub(crate) fn run() -> Result<()> {
    if std::env::var_os(ASKED).is_none_or(|value| value != "1") {
        shell::say(&format!("   left out: {ASKED}=1 compares with transformers"));
        return Ok(());
    }
    shell::run(&mut shell::cargo("build --package lockstep-cli"))?;
    // Both are built into one folder, wherever that is.
    let here = std::env::current_exe().context("where the programs are built")?;
    let mut script = Command::new("python3");
    shell::run(script.arg(SCRIPT).arg("--lockstep").arg(here.with_file_name("lockstep")))
}
