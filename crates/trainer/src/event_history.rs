//! Event history of a resumed run: its event file begins with the events of the steps it resumes
//! from, so that readers see one curve.
//!
//! A run that resumes into a new folder copies them from the folder of the earlier run; a restart
//! removes the lost steps from its own file. Lines are copied as they are, one at a time, so a file
//! of any length needs little memory. Events after the resumed step, the end of the earlier run and
//! damaged lines are left out.

use crate::resume_state::ResumeState;
use crate::{Options, RunFolder, TrainError};
use lockstep_platform::{FileAction, FileError, FileKind, FileReader, FileWriter, World};
use lockstep_telemetry::{VERSION, read_events};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Bytes that are read and written at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Writes the events of the finished steps to the event file of the run folder, if there are any.
pub(crate) fn carry_over(
    options: &Options,
    folder: Option<&RunFolder>,
    world: &World,
    start: &mut ResumeState,
) -> Result<(), TrainError> {
    let Some(folder) = folder else { return Ok(()) };
    let target = folder.events();
    let is_file = |path: &Path| matches!(world.files().metadata(path), Some(FileKind::File { .. }));
    let source = match &options.resume {
        _ if options.attempt.restarts > 0 && is_file(&target) => target.clone(),
        Some(dir) => match run_of(dir, world) {
            Some(run) if is_file(&run.events()) => run.events(),
            _ => return Ok(()),
        },
        None => return Ok(()),
    };
    let num_damaged = copy(world, &source, &target, start.step)?;
    if num_damaged > 0 {
        let source = source.display();
        start.warnings.push(format!("{num_damaged} damaged lines of {source} were left out"));
    }
    Ok(())
}

/// Run folder that a path to resume from belongs to: itself, or that of its checkpoints.
fn run_of(dir: &Path, world: &World) -> Option<RunFolder> {
    let mut path = dir;
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    if name(path).is_some_and(|name| name.starts_with("step-")) {
        path = path.parent()?;
    }
    if name(path).is_some_and(|name| name == "checkpoints") {
        path = path.parent()?;
    }
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    RunFolder::started(path, world).ok()
}

/// Copies the events up to step `num_steps`, and returns the number of damaged lines. The target is
/// replaced atomically and may be the source.
fn copy(world: &World, source: &Path, target: &Path, num_steps: u64) -> Result<u64, FileError> {
    let reader = world.files().open(source)?;
    let partial = PathBuf::from(format!("{}.partial", target.display()));
    let mut filter = Filter { num_steps, last_step: 0, num_damaged: 0 };
    let mut writer = world.files().create(&partial)?;
    let mut kept = Vec::with_capacity(BLOCK_BYTES);
    for_each_line(&*reader, |line| {
        if filter.keeps(line) {
            kept.extend_from_slice(line);
            kept.push(b'\n');
        }
        if kept.len() < BLOCK_BYTES { Ok(()) } else { flush(&mut *writer, &mut kept, &partial) }
    })?;
    flush(&mut *writer, &mut kept, &partial)?;
    writer.sync()?;
    drop(writer);
    world.files().rename(&partial, target)?;
    Ok(filter.num_damaged)
}

fn flush(writer: &mut dyn FileWriter, bytes: &mut Vec<u8>, path: &Path) -> Result<(), FileError> {
    let written = writer.write_all(bytes);
    written.map_err(|error| FileError::new(FileAction::Write, path, &error))?;
    bytes.clear();
    Ok(())
}

/// Calls `visit` with every line, without its line feed. The last one of a killed writer may be
/// truncated; it is skipped unless only the line feed is missing.
fn for_each_line(
    reader: &dyn FileReader,
    mut visit: impl FnMut(&[u8]) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let mut offset = 0;
    let mut text = Vec::new();
    while offset < reader.num_bytes() {
        let block = (reader.num_bytes() - offset).min(BLOCK_BYTES as u64);
        let (start, len) = (text.len(), usize::try_from(block).expect("a block fits"));
        text.resize(start + len, 0);
        reader.read_exact_at(offset, &mut text[start..])?;
        offset += block;
        let mut rest = text.as_slice();
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            visit(&rest[..end])?;
            rest = &rest[end + 1..];
        }
        text = rest.to_vec();
    }
    if head(&text).is_some() { visit(&text) } else { Ok(()) }
}

/// Selects the lines of the finished steps.
struct Filter {
    num_steps: u64,
    /// Last step that was kept: a file from before a restart may have steps twice.
    last_step: u64,
    num_damaged: u64,
}

/// Fields of an event that decide; the others are not parsed.
#[derive(Deserialize)]
struct Head<'a> {
    v: u32,
    event: &'a str,
    step: Option<u64>,
}

impl Filter {
    fn keeps(&mut self, line: &[u8]) -> bool {
        let Some(Head { event, step, .. }) = head(line) else {
            self.num_damaged += 1;
            return false;
        };
        // The run has not ended; and its target was reached after a step that may be lost.
        if ["run_finished", "target_reached"].contains(&event) {
            return false;
        }
        let Some(step) = step else { return true };
        let is_repeated = event == "step" && step <= self.last_step;
        if step > self.num_steps || is_repeated {
            return false;
        }
        if event == "step" {
            self.last_step = step;
        }
        true
    }
}

/// Head of a line that readers of this version accept.
fn head(line: &[u8]) -> Option<Head<'_>> {
    let head: Head<'_> = serde_json::from_slice(line).ok()?;
    match head.v {
        VERSION => Some(head),
        // Some events of earlier versions have other names now.
        _ => read_events(std::str::from_utf8(line).ok()?).ok().map(|_| head),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_platform::ScratchDir;
    use std::fmt::Write as _;

    fn step(step: u64) -> String {
        format!(r#"{{"v":2,"seconds":1.5,"rank":0,"event":"step","step":{step},"loss":0.5}}"#)
    }

    fn event(name: &str) -> String {
        format!(r#"{{"v":2,"seconds":1.5,"rank":0,"event":"{name}","message":"m"}}"#)
    }

    fn copied(text: &str, num_steps: u64) -> (String, u64) {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "history").unwrap();
        let [source, target] = ["a.jsonl", "b.jsonl"].map(|name| scratch.path().join(name));
        world.files().write_atomic(&source, text.as_bytes()).unwrap();
        let damaged = copy(&world, &source, &target, num_steps).unwrap();
        let found = world.files().read_to_string(&target).unwrap();
        // A file may be its own source, as in a restart.
        assert_eq!(copy(&world, &source, &source, num_steps).unwrap(), damaged);
        assert_eq!(world.files().read_to_string(&source).unwrap(), found);
        assert_eq!(world.files().list(scratch.path()).unwrap(), [source, target]);
        (found, damaged)
    }

    fn lines(lines: &[String]) -> String {
        lines.iter().map(|line| line.clone() + "\n").collect()
    }

    #[test]
    fn lost_steps_and_the_end_of_the_run_are_left_out() {
        let all = [
            event("run_started"),
            step(1),
            step(2),
            step(3),
            // A checkpoint is recorded when its file is complete, after later steps.
            step(2).replace("\"step\",", "\"checkpoint_saved\","),
            event("warning"),
            event("run_finished"),
        ];
        let expected = [&all[0], &all[1], &all[2], &all[4], &all[5]].map(Clone::clone);
        assert_eq!(copied(&lines(&all), 2), (lines(&expected), 0));
        assert_eq!(copied(&lines(&all), 0), (lines(&[all[0].clone(), all[5].clone()]), 0));
        assert_eq!(copied("", 3), (String::new(), 0));
    }

    #[test]
    fn steps_of_an_earlier_attempt_are_kept_once() {
        let all = [step(1), step(2), step(3), event("run_started"), step(2), step(3), step(4)];
        let expected = [step(1), step(2), step(3), event("run_started"), step(4)];
        assert_eq!(copied(&lines(&all), 9), (lines(&expected), 0));
    }

    #[test]
    fn a_truncated_last_line_is_skipped_and_a_damaged_one_is_counted() {
        let whole = lines(&[step(1), step(2)]);
        for end in lines(&[step(1)]).len()..whole.len() - 1 {
            assert_eq!(copied(&whole[..end], 9), (lines(&[step(1)]), 0), "cut at {end}");
        }
        assert_eq!(copied(&whole[..whole.len() - 1], 9), (whole.clone(), 0), "no line feed");
        let damaged = lines(&[step(1), "{\"v\":2,".to_owned(), step(2)]);
        assert_eq!(copied(&damaged, 9), (whole, 1));
        let newer = lines(&[step(1), step(2).replace("\"v\":2", "\"v\":3")]);
        assert_eq!(copied(&newer, 9), (lines(&[step(1)]), 1));
    }

    #[test]
    fn lines_may_cross_blocks() {
        let mut text = String::new();
        let num_steps = 3 * BLOCK_BYTES as u64 / 80;
        for number in 1..=num_steps {
            let _ = writeln!(text, "{}", step(number));
        }
        assert!(text.len() > 2 * BLOCK_BYTES, "several blocks");
        assert_eq!(copied(&text, num_steps), (text.clone(), 0));
    }

    #[test]
    fn a_run_is_found_from_its_checkpoints() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "history").unwrap();
        let run = scratch.path().join("run");
        world.files().create_dir_all(&run).unwrap();
        world.files().write_atomic(&run.join("recipe.toml"), b"").unwrap();
        for path in ["", "checkpoints", "checkpoints/step-00000003", "step-00000003"] {
            let found = run_of(&run.join(path), &world).expect("the run");
            assert_eq!(found.path().components().collect::<PathBuf>(), run, "{path}");
        }
        assert!(run_of(scratch.path(), &world).is_none(), "a folder of checkpoints only");
    }
}
