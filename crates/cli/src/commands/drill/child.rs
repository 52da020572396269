//! A run that the drill watches: `lockstep train` as a person would type it.

use crate::child::Child;
use crate::failure::Failure;
use lockstep_platform::{Exit, World};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// Between two looks at the run.
const LOOK: Duration = Duration::from_millis(5);

/// The options of the drill itself, which have a value.
const OWN: &[&str] = &["--kills", "--gone", "--seed", "--out"];

/// Starts `lockstep train` with the recipe of this command, with more settings and into this
/// folder.
pub(super) fn start(world: &World, dir: &Path, sets: &[String]) -> Result<Child, Failure> {
    let mut arguments = typed();
    let dir = format!("run.dir={}", dir.display());
    for set in sets.iter().chain([&dir]) {
        arguments.extend(["--set".into(), set.into()]);
    }
    Child::start(world, arguments, Vec::new())
}

/// Waits for it, looking around meanwhile. A run that failed ends the drill with its own words and
/// code.
pub(super) fn wait(mut child: Child, world: &World, mut look: impl FnMut()) -> Result<(), Failure> {
    let exit = loop {
        if let Some(exit) = child.try_wait()? {
            break exit;
        }
        look();
        world.clock().sleep(LOOK);
    };
    if exit == Exit::Code(0) {
        return Ok(());
    }
    let (code, text) = child.last_words(exit);
    Err(Failure::with_code(code, text))
}

/// What was typed, without what is the drill's own.
fn typed() -> Vec<OsString> {
    let mut typed: Vec<OsString> = vec!["train".into(), "--quiet".into()];
    let mut rest = std::env::args_os().skip(2);
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy().into_owned();
        let name = text.split('=').next().unwrap_or_default();
        match name {
            _ if OWN.contains(&name) && name == text => drop(rest.next()),
            "--json" | "--quiet" => {}
            _ if OWN.contains(&name) => {}
            _ => typed.push(argument),
        }
    }
    typed
}
