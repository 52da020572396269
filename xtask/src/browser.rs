//! The dashboard in a real browser: `scripts/browser/dashboard.mjs`.
//!
//! It needs Node, Chromium and two packages of npm, which the project itself does not; so it runs
//! only with `LOCKSTEP_BROWSER=1`. The packages go into the build folder. The ordinary tests send
//! requests without a browser instead.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;

/// The environment variable that enables this step.
const SWITCH: &str = "LOCKSTEP_BROWSER";

/// The files of the test; the second names its packages.
const FILES: [&str; 2] = ["dashboard.mjs", "package.json"];

/// Builds the program and looks at its page, where the switch is set.
#[expect(clippy::disallowed_methods, reason = "a chore copies its scripts")]
pub(crate) fn run() -> Result<()> {
    if std::env::var_os(SWITCH).is_none_or(|value| value != "1") {
        shell::say(&format!("   left out: {SWITCH}=1 opens the dashboard in Chromium"));
        return Ok(());
    }
    shell::run(&mut shell::cargo("build --package lockstep-cli"))?;
    // Both are built into one folder, wherever that is.
    let here = std::env::current_exe().context("where the programs are built")?;
    let folder = here.with_file_name("browser");
    std::fs::create_dir_all(&folder).context("a folder for the packages")?;
    for name in FILES {
        let source = shell::root().join("scripts/browser").join(name);
        std::fs::copy(&source, folder.join(name)).with_context(|| source.display().to_string())?;
    }
    shell::run(npm_install(&folder).arg("--no-save"))?;
    let mut node = Command::new("node");
    node.arg(folder.join(FILES[0])).arg("--lockstep").arg(here.with_file_name("lockstep"));
    shell::run(&mut node)
}

fn npm_install(folder: &Path) -> Command {
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--prefix"]).arg(folder);
    npm
}
