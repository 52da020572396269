//! The training run of a drill: `lockstep train` as a subprocess.

use crate::failure::Failure;
use crate::subprocess::Subprocess;
use lockstep_platform::{Exit, World};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Options of the drill that take a value.
const OWN_OPTIONS: &[&str] = &["--kills", "--gone", "--seed", "--out"];

/// Starts `lockstep train` with the recipe of this command, more settings and this run directory.
pub(super) fn start(world: &World, dir: &Path, sets: &[String]) -> Result<Subprocess, Failure> {
    let mut arguments = train_arguments();
    let dir = format!("run.dir={}", dir.display());
    for set in sets.iter().chain([&dir]) {
        arguments.extend(["--set".into(), set.into()]);
    }
    Subprocess::start(world, arguments, Vec::new())
}

/// Waits for the run and polls meanwhile. A failed run ends the drill with its message and exit
/// code.
pub(super) fn wait(
    mut child: Subprocess,
    world: &World,
    mut poll: impl FnMut(),
) -> Result<(), Failure> {
    let exit = loop {
        if let Some(exit) = child.try_wait()? {
            break exit;
        }
        poll();
        world.clock().sleep(POLL_INTERVAL);
    };
    if exit == Exit::Code(0) {
        return Ok(());
    }
    let (code, text) = child.error_message(exit);
    Err(Failure::with_code(code, text))
}

/// The arguments of this command without the drill's own options.
fn train_arguments() -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["train".into(), "--quiet".into()];
    let mut rest = std::env::args_os().skip(2);
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy().into_owned();
        let name = text.split('=').next().unwrap_or_default();
        match name {
            _ if OWN_OPTIONS.contains(&name) && name == text => drop(rest.next()),
            "--json" | "--quiet" => {}
            _ if OWN_OPTIONS.contains(&name) => {}
            _ => arguments.push(argument),
        }
    }
    arguments
}
