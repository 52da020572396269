//! JSON Lines sink: one line per event, appended to a file.
//!
//! A line is written in one call as soon as the event is recorded, so a killed process loses at
//! most the end of its last line. Readers skip a truncated last line, and a writer that reopens the
//! file removes it first; a damaged line anywhere else is an error.

mod backwards;
mod follow;
mod forwards;

use std::io::Write;
use std::path::{Path, PathBuf};

use lockstep_platform::{FileError, FileKind, FileWriter, InUse, World};
use serde::Deserialize;

use crate::{Sink, Stamped, TelemetryError, VERSION};

pub use backwards::visit_backwards;
pub use follow::{Change, Follower};
pub use forwards::visit_events;

/// Capacity for the line of any step, so that the buffer does not grow during training.
const LINE_BYTES: usize = 1024;

/// Names of version 1 with their names now, for the error of a line that has one of them.
const RENAMED: &str = concat!(
    "the line has event format 1; in format 2 the event rows is sparse_rows, kept is cached, ",
    "copied is replicated, moved is update_norm_squared and late is delayed",
);

/// A file of events, open for appending.
pub struct JsonLines {
    path: PathBuf,
    file: Box<dyn FileWriter>,
    line: Vec<u8>,
    /// Tells other processes that the run is alive; absent where the file system has no locks.
    _in_use: Option<Box<dyn InUse>>,
}

impl JsonLines {
    /// Opens or creates the file; existing lines are kept, except a truncated last line.
    pub fn open(world: &World, path: &Path) -> Result<Self, TelemetryError> {
        repair(world, path)?;
        let file = world.files().append(path)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            line: Vec::with_capacity(LINE_BYTES),
            _in_use: world.files().mark_in_use(path).ok(),
        })
    }

    fn failed(&self, reason: &impl ToString) -> TelemetryError {
        TelemetryError::Write { sink: self.path.display().to_string(), reason: reason.to_string() }
    }
}

impl Sink for JsonLines {
    fn write(&mut self, event: &Stamped) -> Result<(), TelemetryError> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, event).map_err(|error| self.failed(&error))?;
        self.line.push(b'\n');
        self.file.write_all(&self.line).map_err(|error| self.failed(&error))
    }

    fn flush(&mut self) -> Result<(), TelemetryError> {
        Ok(self.file.sync()?)
    }
}

/// Reads a file of events.
pub fn load_events(world: &World, path: &Path) -> Result<Vec<Stamped>, TelemetryError> {
    let bytes = world.files().read(path)?;
    // A truncation may split a character. Complete lines are UTF-8; an invalid one shows a
    // replacement character in a string, or fails to parse.
    read_events(&String::from_utf8_lossy(&bytes))
}

/// Reads the text of a file of events. A last line without line feed that is not an event is
/// skipped: the writer was killed in the middle of it.
pub fn read_events(text: &str) -> Result<Vec<Stamped>, TelemetryError> {
    let mut events = Vec::new();
    for (index, line) in text.split_inclusive('\n').enumerate() {
        match parse(line.trim_end_matches('\n')) {
            Ok(event) => events.push(event),
            Err(Fault::Newer(found)) => {
                let line = index + 1;
                return Err(TelemetryError::NewerVersion { line, found, known: VERSION });
            }
            Err(Fault::Damaged(_)) if !line.ends_with('\n') => {}
            Err(Fault::Damaged(reason)) => {
                return Err(TelemetryError::BadLine { line: index + 1, reason });
            }
        }
    }
    Ok(events)
}

enum Fault {
    Newer(u32),
    Damaged(String),
}

fn parse(line: &str) -> Result<Stamped, Fault> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    // The version is checked first: a newer format may not parse as an event.
    let damaged = |error: serde_json::Error| Fault::Damaged(error.to_string());
    let Version { v } = serde_json::from_str(line).map_err(damaged)?;
    if v > VERSION {
        return Err(Fault::Newer(v));
    }
    serde_json::from_str(line).map_err(|error| match v {
        VERSION => damaged(error),
        _ => Fault::Damaged(format!("{error}; {RENAMED}")),
    })
}

/// Completes the last line of an earlier writer, or removes it if it is truncated.
fn repair(world: &World, path: &Path) -> Result<(), FileError> {
    match world.files().metadata(path) {
        Some(FileKind::File { bytes }) if bytes > 0 => {}
        _ => return Ok(()),
    }
    let reader = world.files().open(path)?;
    let mut last = [0];
    reader.read_exact_at(reader.num_bytes() - 1, &mut last)?;
    if last == *b"\n" {
        return Ok(());
    }
    let mut bytes = world.files().read(path)?;
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |index| index + 1);
    let is_event = std::str::from_utf8(&bytes[whole..]).is_ok_and(|line| parse(line).is_ok());
    if is_event {
        bytes.push(b'\n');
    } else {
        bytes.truncate(whole);
    }
    world.files().write_atomic(path, &bytes)
}

#[cfg(test)]
mod tests {
    use lockstep_platform::ScratchDir;

    use super::*;
    use crate::Event;

    fn warning(message: &str) -> Stamped {
        let event = Event::Warning { message: message.to_owned() };
        Stamped { v: VERSION, seconds: 0.1, rank: 2, event }
    }

    fn text_of(events: &[Stamped]) -> String {
        let lines = events.iter().map(|event| serde_json::to_string(event).unwrap() + "\n");
        lines.collect()
    }

    #[test]
    fn written_events_are_read_back() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "events").unwrap();
        let path = scratch.path().join("events.jsonl");
        let events = [
            warning("naïve \"quotes\"\nand lines"),
            Stamped {
                v: VERSION,
                seconds: 1.0 / 3.0,
                rank: 2,
                event: Event::Evaluated {
                    step: 7,
                    validation_loss: f64::INFINITY,
                    perplexity: 0.1,
                    train_seconds: 0.25,
                    wire_bytes: 3,
                },
            },
            Stamped {
                v: VERSION,
                seconds: 2.0,
                rank: 2,
                event: Event::RunFinished {
                    steps: u64::MAX,
                    final_loss: -0.0,
                    validation_loss: Some(f64::NEG_INFINITY),
                    losses_hash: String::new(),
                    weights_hash: "ab".to_owned(),
                    run_seconds: 5e-324,
                },
            },
        ];
        // Two writers one after the other, as when a run is resumed.
        for part in [&events[..1], &events[1..]] {
            let mut sink = JsonLines::open(&world, &path).unwrap();
            for event in part {
                sink.write(event).unwrap();
            }
            sink.flush().unwrap();
        }
        assert_eq!(load_events(&world, &path).unwrap(), events);
    }

    #[test]
    fn a_line_truncated_at_any_byte_is_skipped_and_the_rest_is_read() {
        let text = text_of(&[warning("first"), warning("sécond")]);
        let first_end = text.find('\n').unwrap() + 1;
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "truncated").unwrap();
        let path = scratch.path().join("events.jsonl");
        for end in first_end..text.len() - 1 {
            world.files().write_atomic(&path, &text.as_bytes()[..end]).unwrap();
            assert_eq!(load_events(&world, &path).unwrap(), [warning("first")], "cut at {end}");
        }
        // Only the line feed is missing: the event is complete.
        let whole = read_events(&text[..text.len() - 1]).unwrap();
        assert_eq!(whole, [warning("first"), warning("sécond")]);
    }

    #[test]
    fn a_writer_that_reopens_a_file_appends_after_the_last_complete_line() {
        let text = text_of(&[warning("first"), warning("sécond")]);
        let first_end = text.find('\n').unwrap() + 1;
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "repair").unwrap();
        for (end, num_kept) in [
            (first_end, 1),
            (first_end + 1, 1),
            (text.len() - 2, 1),
            (text.len() - 1, 2),
            (text.len(), 2),
            (5, 0),
            (0, 0),
        ] {
            let path = scratch.path().join(format!("{end}.jsonl"));
            world.files().write_atomic(&path, &text.as_bytes()[..end]).unwrap();
            JsonLines::open(&world, &path).unwrap().write(&warning("third")).unwrap();
            let events = load_events(&world, &path).unwrap();
            assert_eq!(events.len(), num_kept + 1, "cut at {end}");
            assert_eq!(events.last(), Some(&warning("third")), "cut at {end}");
        }
    }

    #[test]
    fn a_damaged_line_in_the_middle_is_an_error_with_its_number() {
        let text = text_of(&[warning("first")]) + "{\"v\":1,\"sec\n" + &text_of(&[warning("x")]);
        let error = read_events(&text).unwrap_err();
        assert!(error.to_string().starts_with("line 2 is not an event: "), "{error}");
    }

    #[test]
    fn a_newer_format_is_refused_even_at_the_end() {
        let error = read_events("{\"v\":3,\"kind\":\"step\"}").unwrap_err();
        assert_eq!(error.to_string(), "line 1 has event format 3, this program reads up to 2");
    }

    #[test]
    fn fields_added_later_are_ignored() {
        let text = text_of(&[warning("first")]).replace("\"rank\":2", "\"rank\":2,\"host\":\"a\"");
        assert_eq!(read_events(&text).unwrap(), [warning("first")]);
    }

    #[test]
    fn names_of_version_1_are_refused_with_the_new_ones() {
        let line = |text: &str| format!("{{\"v\":1,\"seconds\":1.0,\"rank\":0,{text}}}\n");
        let old = [
            r#""event":"rows","step":3,"pulled":1,"pushed":2,"cached":4,"replicated":5,"age_max":6,
               "requests_by_server":[7],"bytes_by_server":[8]"#,
            r#""event":"sparse_rows","step":3,"pulled":1,"pushed":2,"kept":4,"copied":5,"age_max":6,
               "requests_by_server":[7],"bytes_by_server":[8]"#,
            r#""event":"aggregated","step":3,"sampled":4,"counted":4,"late":1,"drift":0.5,
               "drift_max":0.5,"drift_max_client":0,"update_norm_squared":0.5"#,
            r#""event":"aggregated","step":3,"sampled":4,"counted":4,"delayed":1,"drift":0.5,
               "drift_max":0.5,"drift_max_client":0,"moved":0.5"#,
        ];
        for text in old {
            let error = read_events(&line(&text.replace('\n', ""))).unwrap_err().to_string();
            assert!(error.contains("event format 1"), "{text}: {error}");
            let names = [
                "rows is sparse_rows",
                "kept is cached",
                "copied is replicated",
                "moved is update_norm_squared",
                "late is delayed",
            ];
            assert!(names.iter().all(|name| error.contains(name)), "{error}");
        }
        // With the present names the lines are read: nothing else in them is refused.
        for (text, pairs) in [
            (old[1], &[("kept", "cached"), ("copied", "replicated")][..]),
            (old[2], &[("late", "delayed")]),
        ] {
            let mut text = text.replace('\n', "");
            for (former, present) in pairs {
                text = text.replace(former, present);
            }
            assert_eq!(read_events(&line(&text)).unwrap().len(), 1, "{text}");
        }
        // A line without a renamed field is the same in both versions.
        let warning = r#"{"v":1,"seconds":1.0,"rank":0,"event":"warning","message":"x"}"#;
        assert_eq!(read_events(&format!("{warning}\n")).unwrap().len(), 1);
    }
}
