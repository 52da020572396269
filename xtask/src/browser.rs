//! The pages of `lockstep serve` in a real browser: `scripts/browser/dashboard.mjs`.
//!
//! It needs Chromium, Node and two packages of npm, which the project itself does not. CI installs
//! them where it can; where they are absent the step is left out with the reason. The packages go
//! into the build folder. The ordinary tests send requests without a browser.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{debian, shell};

/// The environment variable that decides: 0 leaves the step out, 1 looks at every page in every
/// form and fails where a program is absent. Without it the main pages are looked at.
const SWITCH: &str = "LOCKSTEP_BROWSER";

/// Programs with their packages in Debian.
const PROGRAMS: [(&str, &str); 3] = [("chromium", "chromium"), ("node", "nodejs"), ("npm", "npm")];

/// Seconds that npm may take to install its packages, and a look at the main pages or at all.
const INSTALL_SECONDS: &str = "150";
const SHORT_SECONDS: &str = "300";
const WHOLE_SECONDS: &str = "1200";

/// The files of the test; the second names its packages.
const FILES: [&str; 2] = ["dashboard.mjs", "package.json"];

/// Builds the program and looks at its pages, if a browser is here or can be installed.
#[expect(clippy::disallowed_methods, reason = "a chore copies its scripts")]
pub(crate) fn run() -> Result<()> {
    let switch = std::env::var(SWITCH).unwrap_or_default();
    let is_whole = switch == "1";
    if switch == "0" {
        shell::say(&format!("   left out: {SWITCH}=0"));
        return Ok(());
    }
    let is_ci = std::env::var_os("CI").is_some();
    if !absent().is_empty() && is_ci {
        debian::install(&PROGRAMS.map(|(_, package)| package));
    }
    let absent = absent();
    if !absent.is_empty() && !is_whole {
        let names = absent.join(", ");
        shell::say(&format!("   left out: {names} cannot be started; {SWITCH}=1 insists"));
        return Ok(());
    }
    // The same features as those of the tests, so that nothing is built twice.
    shell::run(&mut shell::cargo("test --workspace --no-run"))?;
    // Both are built into one folder, wherever that is.
    let here = std::env::current_exe().context("where the programs are built")?;
    let folder = here.with_file_name("browser");
    std::fs::create_dir_all(&folder).context("a folder for the packages")?;
    for name in FILES {
        let source = shell::root().join("scripts/browser").join(name);
        std::fs::copy(&source, folder.join(name)).with_context(|| source.display().to_string())?;
    }
    if let Err(error) = shell::run(npm_install(&folder).arg("--no-save")) {
        if is_whole {
            return Err(error);
        }
        shell::say(&format!("   left out: no registry of npm: {error}"));
        return Ok(());
    }
    let mut look = Command::new("timeout");
    look.args([if is_whole { WHOLE_SECONDS } else { SHORT_SECONDS }, "node"]);
    look.arg(folder.join(FILES[0])).arg("--lockstep").arg(here.with_file_name("lockstep"));
    if is_whole {
        let mut gallery = Command::new(here.with_file_name("examples").join("gallery"));
        let page = folder.join("gallery.html");
        std::fs::write(&page, shell::capture(&mut gallery)?).context("the gallery of charts")?;
        look.arg("--gallery").arg(page);
        return shell::run(&mut look);
    }
    // A busy machine may take the seconds that a browser waits, but hardly twice.
    look.arg("--short");
    shell::run(&mut look).or_else(|_| shell::run(&mut look))
}

/// Programs that cannot be started.
fn absent() -> Vec<&'static str> {
    debian::absent(&PROGRAMS.map(|(name, _)| name))
}

fn npm_install(folder: &Path) -> Command {
    let mut npm = Command::new("timeout");
    npm.args([INSTALL_SECONDS, "npm", "install", "--no-audit", "--no-fund", "--prefix"])
        .arg(folder);
    npm
}
