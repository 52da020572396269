//! Layout of the header at the start of a rank's segment.
//!
//! First a page about the rank itself, then the flags of each group, then the message rings and the
//! flight recorder. Words that different ranks write are two cache lines apart, because the
//! hardware prefetches lines in pairs.

use std::sync::atomic::Ordering;

use lockstep_platform::Segment;
use lockstep_platform::memory::PAGE_BYTES;

use crate::recorder::RECORDER_BYTES;
use crate::segment_window::{source, target};

/// Distance between words that different ranks write.
const APART: usize = 128;

/// Doorbell count: changes when the rank is woken; written by all.
pub(super) const RINGS: usize = 0;
/// 1 while the rank sleeps; written by the rank.
pub(super) const ASLEEP: usize = APART;
/// 0, or one more than the rank whose report is the verdict; in the segment of the lowest rank of
/// the host, written by the first rank that reports.
pub(super) const VERDICT: usize = 2 * APART;
/// 1 if the rank relies on process-wide fences; written before the segment is shared.
pub(super) const FENCES: usize = 3 * APART;
/// Ranks that have arrived at the starting line, and number of starts; written by all.
pub(super) const ARRIVED: usize = 4 * APART;
pub(super) const STARTED: usize = 5 * APART;
/// 1 once the rank has left the run; written by the rank.
pub(super) const LEFT: usize = 6 * APART;
/// A word for each thread of the rank that waits: 0, or one more than the rank that it waits for;
/// written by the rank.
pub(super) const WAITING_FOR: usize = 7 * APART;
/// Waits of a rank that others can see at once: more than it has threads that communicate.
pub(super) const MAX_WAITS: usize = APART / 8;
/// Heartbeat: grows while the rank waits; written by the rank.
pub(super) const HEARTBEAT: usize = 8 * APART;
/// 1 once a thread of the rank writes the rank's report; written by the rank.
pub(super) const REPORTING: usize = 9 * APART;
/// Process id and host name of the rank; written by the rank.
const PROCESS: usize = 10 * APART;
const MAX_HOST_BYTES: usize = APART - 16;
/// Failure report of the rank; written by the rank.
const REPORT: usize = 11 * APART;
const MAX_REPORT_BYTES: usize = 1024;
const _: () = assert!(crate::verdict::MAX_VERDICT_BYTES <= MAX_REPORT_BYTES);

/// Groups with flags in shared memory.
pub(super) const MAX_GROUPS: usize = 256;
const GROUPS: usize = PAGE_BYTES;
const GROUP_BYTES: usize = 5 * APART;

/// Independent sets of rings: blocking calls, background calls, point-to-point messages.
pub(super) const NUM_RINGS: usize = 3;

/// Capacity of the ring from one rank to another.
pub(super) const RING_BYTES: usize = 128 << 10;

/// Header layout for a world of a given size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    num_ranks: usize,
}

impl Header {
    pub(super) fn new(num_ranks: usize) -> Self {
        Self { num_ranks }
    }

    /// Size of the header.
    pub(super) fn bytes(self) -> usize {
        (self.recorder() + RECORDER_BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// Offset of the flight recorder.
    pub(super) fn recorder(self) -> usize {
        self.ring(NUM_RINGS, 0)
    }

    /// Offset of the line of a signal in a call of a group.
    #[inline]
    pub(super) fn line(group: u64, call: u64, num_signals: u32) -> usize {
        debug_assert!((group as usize) < MAX_GROUPS);
        let number = 2 * (call as usize % 2) + num_signals as usize % 2;
        GROUPS + group as usize * GROUP_BYTES + number * APART
    }

    /// Offset of the number of the group's last call that the rank has finished.
    pub(super) fn finished(group: u64) -> usize {
        GROUPS + group as usize * GROUP_BYTES + 4 * APART
    }

    /// Offset of the number of the group's last call that the rank entered without a signal.
    pub(super) fn entered(group: u64) -> usize {
        Self::finished(group) + 8
    }

    /// Offset of the count of bytes written to the ring to `peer`.
    pub(super) fn written(self, channel: usize, peer: usize) -> usize {
        GROUPS + MAX_GROUPS * GROUP_BYTES + (2 * channel * self.num_ranks + peer) * APART
    }

    /// Offset of the count of bytes taken from `peer`'s ring.
    pub(super) fn taken(self, channel: usize, peer: usize) -> usize {
        self.written(channel, self.num_ranks + peer)
    }

    /// Offset of the ring to `peer`.
    pub(super) fn ring(self, channel: usize, peer: usize) -> usize {
        self.written(NUM_RINGS, 0) + (channel * self.num_ranks + peer) * RING_BYTES
    }

    /// Writes process id and host of the rank.
    pub(super) fn write_process(segment: &Segment, id: u32, host: &str) {
        let host = &host[..host.floor_char_boundary(MAX_HOST_BYTES)];
        segment.word(PROCESS).store(u64::from(id), Ordering::Relaxed);
        write_bytes(segment, PROCESS + 8, host.as_bytes());
    }

    /// Process id and host of the rank.
    pub(super) fn read_process(segment: &Segment) -> (u32, String) {
        let id = segment.word(PROCESS).load(Ordering::Relaxed);
        let host = read_bytes(segment, PROCESS + 8, MAX_HOST_BYTES);
        let id = u32::try_from(id).unwrap_or(u32::MAX);
        (id, String::from_utf8_lossy(&host).into_owned())
    }

    pub(super) fn write_report(segment: &Segment, bytes: &[u8]) {
        write_bytes(segment, REPORT, bytes);
    }

    pub(super) fn read_report(segment: &Segment) -> Vec<u8> {
        read_bytes(segment, REPORT, MAX_REPORT_BYTES)
    }
}

fn write_bytes(segment: &Segment, offset: usize, bytes: &[u8]) {
    target::<u8>(segment, offset + 8, bytes.len()).copy_from_slice(bytes);
    segment.word(offset).store(bytes.len() as u64, Ordering::Release);
}

/// Reads a text; an invalid length is clamped.
fn read_bytes(segment: &Segment, offset: usize, max_bytes: usize) -> Vec<u8> {
    let len = segment.word(offset).load(Ordering::Acquire) as usize;
    let mut bytes = vec![0; len.min(max_bytes)];
    source::<u8>(segment, offset + 8, bytes.len()).copy_to(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_do_not_overlap() {
        let num_ranks = 3;
        let header = Header::new(num_ranks);
        let mut pieces: Vec<(usize, usize)> =
            [RINGS, ASLEEP, VERDICT, FENCES, ARRIVED, STARTED, LEFT, HEARTBEAT, REPORTING]
                .map(|start| (start, 64))
                .to_vec();
        pieces.push((WAITING_FOR, 8 * MAX_WAITS));
        pieces.push((PROCESS, 16 + MAX_HOST_BYTES));
        pieces.push((REPORT, 8 + MAX_REPORT_BYTES));
        for group in 0..MAX_GROUPS as u64 {
            for (call, num_signals) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                pieces.push((Header::line(group, call, num_signals), 64));
            }
            pieces.push((Header::finished(group), 64));
        }
        for (channel, peer) in
            (0..NUM_RINGS).flat_map(|channel| (0..num_ranks).map(move |p| (channel, p)))
        {
            pieces.push((header.written(channel, peer), 64));
            pieces.push((header.taken(channel, peer), 64));
            pieces.push((header.ring(channel, peer), RING_BYTES));
        }
        pieces.push((header.recorder(), RECORDER_BYTES));
        pieces.sort_unstable();
        for pair in pieces.windows(2) {
            let ((start, len), (next, _)) = (pair[0], pair[1]);
            assert!(start + len <= next, "{pair:?}");
        }
        let (start, len) = pieces[pieces.len() - 1];
        assert!(start + len <= header.bytes());
    }

    #[test]
    fn texts_survive_and_are_truncated() {
        let header = Header::new(1);
        let segment = Segment::heap(header.bytes(), header.bytes());
        Header::write_report(&segment, b"out of memory");
        assert_eq!(Header::read_report(&segment), b"out of memory");
        Header::write_process(&segment, 12, &"x".repeat(500));
        assert_eq!(Header::read_process(&segment), (12, "x".repeat(MAX_HOST_BYTES)));
    }
}
