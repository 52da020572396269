//! The run that a command reads when none is named.

use crate::failure::Failure;
use lockstep_platform::World;
use lockstep_trainer::RunFolder;

/// The newest run under `runs`, finished or not.
pub(crate) fn newest_run(command: &str, world: &World) -> Result<RunFolder, Failure> {
    RunFolder::newest_started(world)?.ok_or_else(|| {
        Failure::user(format!(
            "there is no run under runs; name a folder: lockstep {command} FOLDER"
        ))
    })
}
