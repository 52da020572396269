//! What lies where at the start of a rank's segment.
//!
//! First a page of words about the rank itself, then the flags of each group, then what message
//! rings need. Words that different ranks write lie two cache lines apart, because the hardware
//! fetches lines in pairs.

use std::sync::atomic::Ordering;

use lockstep_platform::Segment;
use lockstep_platform::memory::PAGE_BYTES;

use crate::recorder::RECORDER_BYTES;

/// Distance between things that different ranks write.
const APART: usize = 128;

/// Changes when the rank is woken; written by all.
pub(super) const RINGS: usize = 0;
/// 1 while the rank sleeps; written by the rank.
pub(super) const ASLEEP: usize = APART;
/// 0, or one more than the rank whose statement counts; in the memory of the lowest rank of the
/// host, and written by whoever is first.
pub(super) const VERDICT: usize = 2 * APART;
/// 1 if the rank relies on fences that reach everyone; written before anybody else sees it.
pub(super) const FENCES: usize = 3 * APART;
/// Ranks at a starting line, and how often it was crossed; written by all.
pub(super) const ARRIVED: usize = 4 * APART;
pub(super) const STARTED: usize = 5 * APART;
/// 1 once the rank has left and will not come back; written by the rank.
pub(super) const LEFT: usize = 6 * APART;
/// 0, or one more than the rank that this one waits for; written by the rank.
pub(super) const WAITS: usize = 7 * APART;
/// Grows while the rank waits; written by the rank.
pub(super) const BEATS: usize = 8 * APART;
/// 1 once a thread of the rank has taken it upon itself to make a statement; written by the rank.
pub(super) const SPEAKS: usize = 9 * APART;
/// Where the rank runs: the number of its process, then a text; written by the rank.
const PROCESS: usize = 10 * APART;
const MAX_HOST_BYTES: usize = APART - 16;
/// What the rank has to say about a failure; written by the rank.
const STATEMENT: usize = 11 * APART;
const MAX_STATEMENT_BYTES: usize = 1024;
const _: () = assert!(crate::verdict::MAX_VERDICT_BYTES <= MAX_STATEMENT_BYTES);

/// Groups that can have flags of their own.
pub(super) const MAX_GROUPS: usize = 256;
const GROUPS: usize = PAGE_BYTES;
const GROUP_BYTES: usize = 5 * APART;

/// Independent sets of rings: calls of the caller's thread, calls in the background, messages.
pub(super) const NUM_RINGS: usize = 3;

/// Bytes on their way from one rank to another on a lane, at most.
pub(super) const RING_BYTES: usize = 128 << 10;

/// The map for a world of a certain size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    num_ranks: usize,
}

impl Header {
    pub(super) fn new(num_ranks: usize) -> Self {
        Self { num_ranks }
    }

    /// How long the header is.
    pub(super) fn bytes(self) -> usize {
        (self.flight() + RECORDER_BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// The records of the rank's last calls.
    pub(super) fn flight(self) -> usize {
        self.ring(NUM_RINGS, 0)
    }

    /// The line for a signal in a call of a group.
    #[inline]
    pub(super) fn line(group: u64, call: u64, num_signals: u32) -> usize {
        debug_assert!((group as usize) < MAX_GROUPS);
        let number = 2 * (call as usize % 2) + num_signals as usize % 2;
        GROUPS + group as usize * GROUP_BYTES + number * APART
    }

    /// The number of the group's last call that the rank is through with.
    pub(super) fn finished(group: u64) -> usize {
        GROUPS + group as usize * GROUP_BYTES + 4 * APART
    }

    /// How many bytes the rank has ever put into its ring to `peer`.
    pub(super) fn written(self, lane: usize, peer: usize) -> usize {
        GROUPS + MAX_GROUPS * GROUP_BYTES + (2 * lane * self.num_ranks + peer) * APART
    }

    /// How many bytes the rank has ever taken out of `peer`'s ring to it.
    pub(super) fn taken(self, lane: usize, peer: usize) -> usize {
        self.written(lane, self.num_ranks + peer)
    }

    /// The bytes on their way to `peer`.
    pub(super) fn ring(self, lane: usize, peer: usize) -> usize {
        self.written(NUM_RINGS, 0) + (lane * self.num_ranks + peer) * RING_BYTES
    }

    /// Writes where the rank runs.
    pub(super) fn write_process(segment: &Segment, id: u32, host: &str) {
        let host = &host[..host.floor_char_boundary(MAX_HOST_BYTES)];
        segment.word(PROCESS).store(u64::from(id), Ordering::Relaxed);
        write_bytes(segment, PROCESS + 8, host.as_bytes());
    }

    /// The number of the rank's process, and its host.
    pub(super) fn read_process(segment: &Segment) -> (u32, String) {
        let id = segment.word(PROCESS).load(Ordering::Relaxed);
        let host = read_bytes(segment, PROCESS + 8, MAX_HOST_BYTES);
        let id = u32::try_from(id).unwrap_or(u32::MAX);
        (id, String::from_utf8_lossy(&host).into_owned())
    }

    pub(super) fn write_statement(segment: &Segment, bytes: &[u8]) {
        write_bytes(segment, STATEMENT, bytes);
    }

    pub(super) fn read_statement(segment: &Segment) -> Vec<u8> {
        read_bytes(segment, STATEMENT, MAX_STATEMENT_BYTES)
    }
}

fn write_bytes(segment: &Segment, offset: usize, bytes: &[u8]) {
    segment.target::<u8>(offset + 8, bytes.len()).copy_from_slice(bytes);
    segment.word(offset).store(bytes.len() as u64, Ordering::Release);
}

/// What was written, or the beginning of it where the length makes no sense.
fn read_bytes(segment: &Segment, offset: usize, max_bytes: usize) -> Vec<u8> {
    let len = segment.word(offset).load(Ordering::Acquire) as usize;
    let mut bytes = vec![0; len.min(max_bytes)];
    segment.source::<u8>(offset + 8, bytes.len()).copy_to(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        let num_ranks = 3;
        let header = Header::new(num_ranks);
        let mut pieces: Vec<(usize, usize)> =
            [RINGS, ASLEEP, VERDICT, FENCES, ARRIVED, STARTED, LEFT, WAITS, BEATS, SPEAKS]
                .map(|start| (start, 64))
                .to_vec();
        pieces.push((PROCESS, 16 + MAX_HOST_BYTES));
        pieces.push((STATEMENT, 8 + MAX_STATEMENT_BYTES));
        for group in 0..MAX_GROUPS as u64 {
            for (call, num_signals) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                pieces.push((Header::line(group, call, num_signals), 64));
            }
            pieces.push((Header::finished(group), 64));
        }
        for (lane, peer) in (0..NUM_RINGS).flat_map(|lane| (0..num_ranks).map(move |p| (lane, p))) {
            pieces.push((header.written(lane, peer), 64));
            pieces.push((header.taken(lane, peer), 64));
            pieces.push((header.ring(lane, peer), RING_BYTES));
        }
        pieces.push((header.flight(), RECORDER_BYTES));
        pieces.sort_unstable();
        for pair in pieces.windows(2) {
            let ((start, len), (next, _)) = (pair[0], pair[1]);
            assert!(start + len <= next, "{pair:?}");
        }
        let (start, len) = pieces[pieces.len() - 1];
        assert!(start + len <= header.bytes());
    }

    #[test]
    fn texts_survive_and_are_cut_when_too_long() {
        let header = Header::new(1);
        let segment = Segment::heap(header.bytes(), header.bytes());
        Header::write_statement(&segment, b"out of patience");
        assert_eq!(Header::read_statement(&segment), b"out of patience");
        Header::write_process(&segment, 12, &"x".repeat(500));
        assert_eq!(Header::read_process(&segment), (12, "x".repeat(MAX_HOST_BYTES)));
    }
}
