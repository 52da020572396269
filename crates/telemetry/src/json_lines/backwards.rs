//! Events of a file from the last one backwards, without reading the whole file.
//!
//! A run of a week has a file of many megabytes, and its state is in the last lines.

use std::ops::ControlFlow;
use std::path::Path;

use lockstep_platform::World;

use super::parse;
use crate::{Stamped, TelemetryError};

/// Bytes that are read at once.
const BLOCK_BYTES: u64 = 64 << 10;

/// Visits the events of the last `max_bytes` of a file, newest first, until `visit` breaks. Lines
/// that are not events of a known format are skipped: the last one may be truncated, and the first
/// may begin before `max_bytes`.
pub fn visit_backwards(
    world: &World,
    path: &Path,
    max_bytes: u64,
    mut visit: impl FnMut(Stamped) -> ControlFlow<()>,
) -> Result<(), TelemetryError> {
    let reader = world.files().open(path)?;
    let mut end = reader.num_bytes();
    let first = end.saturating_sub(max_bytes);
    // Start of a line whose end is in the block behind.
    let mut rest: Vec<u8> = Vec::new();
    while end > first {
        let start = first.max(end.saturating_sub(BLOCK_BYTES));
        let num_bytes = usize::try_from(end - start).expect("a block fits into memory");
        let mut block = vec![0; num_bytes];
        reader.read_exact_at(start, &mut block)?;
        block.append(&mut rest);
        let whole = match start {
            0 => 0,
            _ => block.iter().position(|&byte| byte == b'\n').map_or(block.len(), |at| at + 1),
        };
        for line in block[whole..].rsplit(|&byte| byte == b'\n') {
            let event = std::str::from_utf8(line).ok().and_then(|line| parse(line).ok());
            if event.is_some_and(|event| visit(event).is_break()) {
                return Ok(());
            }
        }
        block.truncate(whole);
        (rest, end) = (block, start);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lockstep_platform::ScratchDir;

    use super::*;
    use crate::{Event, VERSION};

    fn write(world: &World, path: &Path, messages: &[String], tail: &str) {
        let line = |message: &String| {
            let event = Event::Warning { message: message.clone() };
            let stamped = Stamped { v: VERSION, seconds: 0.0, rank: 0, event };
            serde_json::to_string(&stamped).unwrap() + "\n"
        };
        let text: String = messages.iter().map(line).collect();
        world.files().write_atomic(path, (text + tail).as_bytes()).unwrap();
    }

    fn messages(world: &World, path: &Path, max_bytes: u64, most: usize) -> Vec<String> {
        let mut found = Vec::new();
        visit_backwards(world, path, max_bytes, |stamped| {
            let Event::Warning { message } = stamped.event else { panic!("only warnings") };
            found.push(message);
            if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        found
    }

    #[test]
    fn events_come_newest_first_across_blocks() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "backwards").unwrap();
        let path = scratch.path().join("events.jsonl");
        // Lines of many lengths, one longer than a block.
        let mut written: Vec<String> =
            (0..4000).map(|number| format!("{number} {}", "x".repeat(number % 97))).collect();
        written[1234] = "y".repeat(BLOCK_BYTES as usize + 7);
        write(&world, &path, &written, "{\"v\":2,\"sec");
        let mut newest_first = written.clone();
        newest_first.reverse();
        assert_eq!(messages(&world, &path, u64::MAX, usize::MAX), newest_first);
        assert_eq!(messages(&world, &path, u64::MAX, 3), newest_first[..3]);
        let bounded = messages(&world, &path, 10_000, usize::MAX);
        assert!(bounded.len() > 10 && bounded.len() < 200, "{}", bounded.len());
        assert_eq!(bounded, newest_first[..bounded.len()]);
    }

    #[test]
    fn empty_and_foreign_files_have_no_events() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "foreign").unwrap();
        let path = scratch.path().join("events.jsonl");
        for text in ["", "\n\n", "no event", "{\"v\":99,\"event\":\"step\"}\n"] {
            write(&world, &path, &[], text);
            assert!(messages(&world, &path, u64::MAX, 1).is_empty(), "{text:?}");
        }
        assert!(visit_backwards(&world, &path.join("x"), 1, |_| ControlFlow::Break(())).is_err());
    }
}
