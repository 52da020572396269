//! The file of a trace: rank 0 receives the events of the others, a block at a time, and writes
//! them one after the other.
//!
//! Ranks send theirs, and do not write files of their own, because only rank 0 has the run folder
//! where hosts share no disk. A run that fails leaves no trace; its flight recorders say where it
//! stood.

use super::TraceRecorder;
use super::clock_offset::{ClockMap, ClockOffset};
use lockstep_comm::{Comm, CommError};
use lockstep_platform::{FileWriter, World};
use lockstep_telemetry::trace::TraceText;
use std::io::{self, Write};
use std::path::Path;

/// Bytes that are sent at once.
const BLOCK_BYTES: usize = 1 << 20;

/// Tag of the blocks.
const TAG: u64 = 0x7472_6163;

impl TraceRecorder {
    /// Writes the trace of all ranks; `path` is that of the file on rank 0. Collective. Returns why
    /// the file could not be written, if that is so.
    pub(crate) fn write(
        &self,
        comm: &Comm,
        path: Option<&Path>,
    ) -> Result<Option<String>, CommError> {
        let clock = ClockMap { first: self.clock, last: ClockOffset::measure(comm, &self.world)? };
        // Where one rank has run out of room the trace ends for all.
        let mut ends = vec![0; comm.group_size()];
        comm.all_gather(&[self.full_at.unwrap_or(u64::MAX)], &mut ends)?;
        let end = ends.iter().copied().min().unwrap_or(u64::MAX);
        let mut errors = vec![0; comm.group_size()];
        comm.all_gather(&[clock.error_ns()], &mut errors)?;
        let host = self.world.host().name();
        let text = self.render(comm.group_rank(), &host, clock, end);
        let Some(path) = path else {
            send(comm, text.as_str().as_bytes())?;
            return Ok(None);
        };
        let mut target = Target::create(&self.world, path);
        target.write(TraceText::HEAD.as_bytes());
        target.write(text.as_str().as_bytes());
        for rank in 1..comm.group_size() {
            target.write(b",\n");
            receive(comm, rank, |block| target.write(block))?;
        }
        target.write(TraceText::tail(&notes(end, &errors)).as_bytes());
        Ok(target.finish())
    }
}

/// Facts about the trace, for its reader.
fn notes(end: u64, clock_errors_ns: &[u64]) -> Vec<(String, String)> {
    let mut notes = vec![(
        "clock".to_owned(),
        "times are on the clock of rank 0, in microseconds since the start of its process"
            .to_owned(),
    )];
    for (rank, error) in clock_errors_ns.iter().enumerate() {
        notes.push((format!("clock_error_ns_of_rank_{rank}"), error.to_string()));
    }
    if end < u64::MAX {
        let text = format!("the memory of a rank was full at step {end}");
        notes.push(("truncated".to_owned(), text));
    }
    notes
}

/// Sends a text to rank 0.
fn send(comm: &Comm, bytes: &[u8]) -> Result<(), CommError> {
    comm.send(&[bytes.len() as u64], 0, TAG)?;
    bytes.chunks(BLOCK_BYTES).try_for_each(|block| comm.send(block, 0, TAG))
}

/// Receives the text of a rank.
fn receive(comm: &Comm, rank: usize, mut visit: impl FnMut(&[u8])) -> Result<(), CommError> {
    let mut len = [0_u64];
    comm.recv(&mut len, rank, TAG)?;
    let mut block = vec![0; BLOCK_BYTES];
    let mut rest = len[0];
    while rest > 0 {
        let block = &mut block[..rest.min(BLOCK_BYTES as u64) as usize];
        comm.recv(block, rank, TAG)?;
        visit(block);
        rest -= block.len() as u64;
    }
    Ok(())
}

/// A file, or the first reason why there is none. The other ranks send their events in any case.
struct Target(Result<Box<dyn FileWriter>, String>);

impl Target {
    fn create(world: &World, path: &Path) -> Self {
        Self(world.files().create(path).map_err(|error| error.to_string()))
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Ok(file) = &mut self.0
            && let Err(error) = file.write_all(bytes)
        {
            self.0 = Err(failed(&error));
        }
    }

    fn finish(self) -> Option<String> {
        self.0.and_then(|mut file| file.sync().map_err(|error| error.to_string())).err()
    }
}

fn failed(error: &io::Error) -> String {
    format!("cannot write the trace: {error}")
}
