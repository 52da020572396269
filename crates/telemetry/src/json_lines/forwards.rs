//! Events of a file from the first one on, a block at a time, without holding the whole file.

use std::path::Path;

use lockstep_platform::World;

use super::parse;
use crate::{Stamped, TelemetryError};

/// Bytes that are read at once.
const BLOCK_BYTES: u64 = 1 << 20;

/// Visits the events of a file in order. Lines that are not events of a known format are skipped,
/// such as a truncated last one.
pub fn visit_events(
    world: &World,
    path: &Path,
    mut visit: impl FnMut(&Stamped) -> Result<(), TelemetryError>,
) -> Result<(), TelemetryError> {
    let reader = world.files().open(path)?;
    let mut visit_line = |line: &[u8]| {
        let event = std::str::from_utf8(line).ok().and_then(|line| parse(line).ok());
        event.map_or(Ok(()), |event| visit(&event))
    };
    let (mut offset, mut text) = (0, Vec::new());
    while offset < reader.num_bytes() {
        let num_bytes = (reader.num_bytes() - offset).min(BLOCK_BYTES);
        let start = text.len();
        text.resize(start + usize::try_from(num_bytes).expect("a block fits into memory"), 0);
        reader.read_exact_at(offset, &mut text[start..])?;
        offset += num_bytes;
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        text[..whole].split(|&byte| byte == b'\n').try_for_each(&mut visit_line)?;
        text.drain(..whole);
    }
    visit_line(&text)
}

#[cfg(test)]
mod tests {
    use lockstep_platform::ScratchDir;

    use super::*;
    use crate::{Event, VERSION};

    #[test]
    fn every_whole_event_is_visited_in_order_across_blocks() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "forwards").unwrap();
        let path = scratch.path().join("events.jsonl");
        let message = |number: u64| format!("{number} {}", "x".repeat(700));
        let num_events = 4 * BLOCK_BYTES / 1024;
        let mut text = String::new();
        for number in 0..num_events {
            let event = Event::Warning { message: message(number) };
            let line = Stamped { v: VERSION, seconds: 0.5, rank: 0, event };
            text += &serde_json::to_string(&line).unwrap();
            text += "\n";
        }
        text += "{\"v\":2,\"seconds\":0.5,\"ra";
        world.files().write_atomic(&path, text.as_bytes()).unwrap();
        let mut number = 0;
        visit_events(&world, &path, |stamped| {
            assert_eq!(stamped.event, Event::Warning { message: message(number) });
            number += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(number, num_events);
    }
}
