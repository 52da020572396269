//! Comparison with the programs of others: model folders, adapters and training of Hugging Face's
//! libraries, task scores of lm-evaluation-harness, GGUF files in llama.cpp, checkpoints of PyTorch
//! and DeepSpeed, steps of optimizers, and chat templates; and exports of telemetry in TensorBoard,
//! Prometheus and Perfetto.
//!
//! The scripts need packages that the project itself does not and that are large; so they run only
//! with `LOCKSTEP_INTEROP=1`. The ordinary tests read recorded files instead.

use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// The scripts, in order; each ends at its first difference.
const SCRIPTS: &[&str] = &[
    "scripts/interop/interop.py",
    "scripts/interop/tasks.py",
    "scripts/interop/pytorch_checkpoints.py",
    "scripts/interop/gguf.py",
    "scripts/interop/optimizers.py",
    "scripts/interop/chat_templates.py",
    "scripts/telemetry/check_tensorboard.py",
    "scripts/telemetry/check_prometheus.py",
    "scripts/telemetry/check_perfetto.py",
];

/// The environment variable that enables this step.
const SWITCH: &str = "LOCKSTEP_INTEROP";

/// Builds the program and compares it, where the switch is set.
pub(crate) fn run() -> Result<()> {
    if std::env::var_os(SWITCH).is_none_or(|value| value != "1") {
        shell::say(&format!("   left out: {SWITCH}=1 compares with other programs"));
        return Ok(());
    }
    // The same features as those of the tests, so that nothing is built twice.
    shell::run(&mut shell::cargo("test --workspace --no-run"))?;
    // Both are built into one folder, wherever that is.
    let here = std::env::current_exe().context("where the programs are built")?;
    for script in SCRIPTS {
        let mut python = Command::new("python3");
        shell::run(python.arg(script).arg("--lockstep").arg(here.with_file_name("lockstep")))?;
    }
    Ok(())
}
