//! A page as PDF, printed by a Chromium that is installed.

use crate::failure::Failure;
use lockstep_config::Blame;
use lockstep_platform::{Exit, FileKind, ProcessCommand, World};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names of the program.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];
/// Longest time to print.
const PRINT_TIME: Duration = Duration::from_mins(2);
/// Time between two looks at the process.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The program in the folders of `PATH`.
pub(super) fn find_chromium(world: &World) -> Result<PathBuf, Failure> {
    let path = world.host().env("PATH").unwrap_or_default();
    let folders = path.split(':').filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let programs = folders.flat_map(|folder| NAMES.map(|name| folder.join(name)));
    let is_file =
        |path: &PathBuf| matches!(world.files().metadata(path), Some(FileKind::File { .. }));
    programs.into_iter().find(is_file).ok_or_else(|| {
        Failure::user(format!(
            "--pdf needs Chromium, and PATH has none of {}; install it, or write --html and print \
             that page",
            NAMES.join(", ")
        ))
    })
}

/// Prints a page.
pub(super) fn print(
    world: &World,
    chromium: &Path,
    source: &Path,
    target: &Path,
) -> Result<(), Failure> {
    let failed = |reason: String| {
        Failure::new(Blame::Storage, format!("{} could not print: {reason}", chromium.display()))
    };
    // A file of an earlier report would look like this one.
    if world.files().metadata(target).is_some() {
        world.files().remove_file(target)?;
    }
    let (source, file) = (source.display(), target.display());
    let arguments = [
        "--headless".to_owned(),
        "--disable-gpu".to_owned(),
        // The page is our own file and has no script; root may not use the sandbox.
        "--no-sandbox".to_owned(),
        "--no-pdf-header-footer".to_owned(),
        format!("--print-to-pdf={file}"),
        format!("file://{source}"),
    ];
    let command = ProcessCommand {
        program: chromium.to_owned(),
        arguments: arguments.into_iter().map(Into::into).collect(),
        environment: Vec::new(),
        shares_stdout: false,
    };
    let mut process =
        world.processes().spawn(&command).map_err(|error| failed(error.to_string()))?;
    // Its messages are read so that it never waits for a full pipe; they say nothing of use.
    let mut messages = process.take_stderr();
    let start = world.clock().now();
    let exit = loop {
        if let Some(messages) = &mut messages {
            let _ = messages.read(&mut [0; 4096], POLL_INTERVAL);
        }
        if let Some(exit) = process.try_wait().map_err(|error| failed(error.to_string()))? {
            break exit;
        }
        if world.clock().since(start) > PRINT_TIME {
            process.kill();
            return Err(failed(format!("it did not end within {} s", PRINT_TIME.as_secs())));
        }
        world.clock().sleep(POLL_INTERVAL);
    };
    match (exit, world.files().metadata(target)) {
        (Exit::Code(0), Some(_)) => Ok(()),
        (Exit::Code(0), None) => Err(failed(format!("it wrote no {file}"))),
        (exit, _) => Err(failed(exit.to_string())),
    }
}
