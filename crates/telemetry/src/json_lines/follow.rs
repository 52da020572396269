//! Events of a file that is still written: each poll reads what was appended since the last one.
//!
//! A run that restarts replaces its file by one without the lost steps. The reader remembers the
//! last bytes before its position; where they are not those of the file any more, it starts over.

use std::path::{Path, PathBuf};

use lockstep_platform::{FileKind, World};

use super::parse;
use crate::{Stamped, TelemetryError};

/// Bytes that are read at once.
const BLOCK_BYTES: u64 = 1 << 20;
/// Bytes before the position by which a replaced file is recognized.
const MARK_BYTES: usize = 256;
/// Longest line that is kept; the events of longer ones are skipped.
const MAX_LINE_BYTES: usize = 64 << 20;

/// Reader of a growing file.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    /// Bytes that were read.
    offset: u64,
    /// Start of the line at the position, whose end is not written yet.
    rest: Vec<u8>,
    /// Last bytes before the position.
    mark: Vec<u8>,
    /// Whether the line at the position is too long and skipped.
    is_skipping: bool,
}

/// Change of a file.
#[derive(Debug)]
pub enum Change<'a> {
    /// An event was appended.
    Event(&'a Stamped),
    /// The file was replaced: events so far are void, and those of the new file follow.
    Replaced,
}

impl Follower {
    /// Reader at the start of a file, which need not exist yet.
    pub fn new(path: &Path) -> Self {
        let (rest, mark) = (Vec::new(), Vec::new());
        Self { path: path.to_owned(), offset: 0, rest, mark, is_skipping: false }
    }

    /// Visits the changes since the last poll, reading `max_bytes` at most (and a block at least).
    /// Returns whether more is left to read. Lines that are not events of a known format are
    /// skipped; a last line without line feed waits for its end.
    pub fn poll(
        &mut self,
        world: &World,
        max_bytes: u64,
        mut visit: impl FnMut(Change<'_>),
    ) -> Result<bool, TelemetryError> {
        let is_file = matches!(world.files().metadata(&self.path), Some(FileKind::File { .. }));
        if !is_file {
            self.start_over(&mut visit);
            return Ok(false);
        }
        let reader = world.files().open(&self.path)?;
        let mut mark = vec![0; self.mark.len()];
        let is_shorter = reader.num_bytes() < self.offset;
        if !is_shorter && !mark.is_empty() {
            reader.read_exact_at(self.offset - mark.len() as u64, &mut mark)?;
        }
        if is_shorter || mark != self.mark {
            self.start_over(&mut visit);
        }
        let end = reader.num_bytes().min(self.offset + max_bytes.max(BLOCK_BYTES));
        while self.offset < end {
            let num_bytes = (end - self.offset).min(BLOCK_BYTES);
            let mut block = vec![0; usize::try_from(num_bytes).expect("a block fits into memory")];
            reader.read_exact_at(self.offset, &mut block)?;
            self.offset += num_bytes;
            self.take_block(&block, &mut visit);
        }
        Ok(end < reader.num_bytes())
    }

    /// Bytes that were read so far.
    pub fn num_bytes(&self) -> u64 {
        self.offset
    }

    fn start_over(&mut self, visit: &mut impl FnMut(Change<'_>)) {
        if self.offset > 0 {
            *self = Self::new(&self.path);
            visit(Change::Replaced);
        }
    }

    fn take_block(&mut self, block: &[u8], visit: &mut impl FnMut(Change<'_>)) {
        self.mark.extend_from_slice(&block[block.len().saturating_sub(MARK_BYTES)..]);
        let surplus = self.mark.len().saturating_sub(MARK_BYTES);
        self.mark.drain(..surplus);
        for part in block.split_inclusive(|&byte| byte == b'\n') {
            let is_whole = part.ends_with(b"\n");
            let is_alone = self.rest.is_empty() && is_whole;
            if !is_alone && !self.is_skipping {
                self.rest.extend_from_slice(part);
            }
            if is_whole && !self.is_skipping {
                let line = if is_alone { part } else { self.rest.as_slice() };
                let line = std::str::from_utf8(line).ok();
                if let Some(Ok(event)) = line.map(|line| parse(line.trim_end_matches('\n'))) {
                    visit(Change::Event(&event));
                }
            }
            self.is_skipping &= !is_whole;
            if is_whole {
                self.rest.clear();
            } else if self.rest.len() > MAX_LINE_BYTES {
                self.rest = Vec::new();
                self.is_skipping = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_platform::ScratchDir;
    use std::io::Write;

    use super::*;
    use crate::{Event, VERSION};

    fn line(message: &str) -> String {
        let event = Event::Warning { message: message.to_owned() };
        serde_json::to_string(&Stamped { v: VERSION, seconds: 0.5, rank: 0, event }).unwrap() + "\n"
    }

    /// Messages of a poll; `-` for a replaced file.
    fn poll(world: &World, follower: &mut Follower) -> Vec<String> {
        let mut found = Vec::new();
        while follower
            .poll(world, 1, |change| {
                found.push(match change {
                    Change::Replaced => "-".to_owned(),
                    Change::Event(stamped) => match &stamped.event {
                        Event::Warning { message } => message.clone(),
                        other => panic!("{other:?}"),
                    },
                });
            })
            .unwrap()
        {}
        found
    }

    #[test]
    fn every_poll_finds_what_was_appended_at_any_cut() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "follow").unwrap();
        let path = scratch.path().join("events.jsonl");
        let mut follower = Follower::new(&path);
        assert!(poll(&world, &mut follower).is_empty(), "no file yet");
        let text = line("first") + "no event\n" + &line("zwölf") + &line("third");
        let mut file = world.files().create(&path).unwrap();
        let mut found = Vec::new();
        for piece in text.as_bytes().chunks(7) {
            file.write_all(piece).unwrap();
            found.extend(poll(&world, &mut follower));
        }
        assert_eq!(found, ["first", "zwölf", "third"]);
        assert!(poll(&world, &mut follower).is_empty());
        assert_eq!(follower.num_bytes(), text.len() as u64);
    }

    #[test]
    fn a_shorter_or_different_file_is_read_anew() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "follow").unwrap();
        let path = scratch.path().join("events.jsonl");
        let write = |text: &str| world.files().write_atomic(&path, text.as_bytes()).unwrap();
        let mut follower = Follower::new(&path);
        write(&(line("a") + &line("b") + &line("c") + "{\"v\":2,\"sec"));
        assert_eq!(poll(&world, &mut follower), ["a", "b", "c"]);
        // A restart has removed the lost steps and the unfinished line.
        write(&(line("a") + &line("b")));
        assert_eq!(poll(&world, &mut follower), ["-", "a", "b"]);
        // One that is longer again before the next poll.
        write(&(line("a") + &line("x") + &line("y")));
        assert_eq!(poll(&world, &mut follower), ["-", "a", "x", "y"]);
        world.files().remove_file(&path).unwrap();
        assert_eq!(poll(&world, &mut follower), ["-"]);
        assert!(poll(&world, &mut follower).is_empty());
    }

    #[test]
    fn lines_may_cross_blocks_and_a_poll_is_bounded() {
        let world = lockstep_platform::real();
        let scratch = ScratchDir::new(&world, "follow").unwrap();
        let path = scratch.path().join("events.jsonl");
        let long = "x".repeat(3 * BLOCK_BYTES as usize / 2);
        let text = line("a") + &line(&long) + &line("b");
        world.files().write_atomic(&path, text.as_bytes()).unwrap();
        let mut follower = Follower::new(&path);
        let mut num_events = 0;
        let is_more = follower.poll(&world, 1, |_| num_events += 1).unwrap();
        assert_eq!((is_more, num_events), (true, 1), "a block ends inside the second line");
        assert_eq!(poll(&world, &mut follower), [long.as_str(), "b"]);
    }
}
