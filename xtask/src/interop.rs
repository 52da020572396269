//! Exchange of model folders with Hugging Face's `transformers`, in both directions.
//!
//! The script needs torch and transformers, which the project itself does not and which are large;
//! so it runs only with `LOCKSTEP_INTEROP=1`. The ordinary tests read recorded folders instead.

use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

const SCRIPT: &str = "scripts/interop/interop.py";

/// The environment variable that enables this step.
const SWITCH: &str = "LOCKSTEP_INTEROP";

/// Builds the program and compares it with `transformers`, where the switch is set.
pub(crate) fn run() -> Result<()> {
    if std::env::var_os(SWITCH).is_none_or(|value| value != "1") {
        shell::say(&format!("   left out: {SWITCH}=1 compares with transformers"));
        return Ok(());
    }
    shell::run(&mut shell::cargo("build --package lockstep-cli"))?;
    // Both are built into one folder, wherever that is.
    let here = std::env::current_exe().context("where the programs are built")?;
    let mut script = Command::new("python3");
    shell::run(script.arg(SCRIPT).arg("--lockstep").arg(here.with_file_name("lockstep")))
}
