//! The flight recorder: records of a rank's last calls, in its own segment.
//!
//! Every call leaves one record of a cache line: signature, label, start and end. The records are a
//! ring in the header of the rank's segment, so the other ranks of the host can read them when the
//! rank itself no longer can. Writing one is a handful of plain stores into memory that no other
//! rank reads while the run is healthy.
//!
//! The first word of a record is its sequence number, and is 0 while the rest is written: a rank
//! that dies in between leaves no torn record that looks complete.
//!
//! - `dump`: the records as a JSON file

mod dump;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockstep_platform::{Clock, Segment};

use crate::channel::Channel;
use crate::label::Label;
use crate::segment_window::{source, target};
use crate::signature::Signature;
pub(crate) use dump::{Dump, file_name};

/// Capacity of the ring.
pub(crate) const NUM_RECORDS: usize = 1024;

const RECORD_BYTES: usize = 64;

/// Groups with a record, and the size of one.
const MAX_GROUPS: usize = 256;
const GROUP_BYTES: usize = 64;
const MAX_NAME_BYTES: usize = GROUP_BYTES - 24;

/// Size of the recorder.
pub(crate) const RECORDER_BYTES: usize = NUM_RECORDS * RECORD_BYTES + MAX_GROUPS * GROUP_BYTES;

/// Set in the last word of a failed call, which holds bytes instead of the end time.
const FAILED: u64 = 1 << 63;

/// Writes one rank's records.
pub(crate) struct Recorder {
    region: RecordRegion,
    next: AtomicU64,
}

/// Memory of a rank's records: this rank's or another's.
#[derive(Clone)]
pub(crate) struct RecordRegion {
    segment: Segment,
    start: usize,
}

/// Record of a call in progress. It is written off the critical path, after the first signal to the
/// peers.
pub(crate) struct PendingRecord<'a> {
    recorder: &'a Recorder,
    clock: &'a dyn Clock,
    entry: Entry,
    sequence: u64,
    /// Start in nanoseconds, once written.
    start: Cell<Option<u64>>,
}

/// Block of sequence numbers for the next calls of one group. Numbers are reserved in blocks,
/// because each reservation is an atomic operation on a contended counter.
#[derive(Default)]
pub(crate) struct SequenceBlock {
    next: u64,
    end: u64,
}

/// Size of a block.
const BLOCK_LEN: u64 = 16;

/// Fixed fields of a record.
pub(crate) struct Entry {
    pub(crate) group: u64,
    pub(crate) channel: Channel,
    pub(crate) number: u64,
    pub(crate) signature: Signature,
    pub(crate) label: Label,
}

/// Progress of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// In progress, or interrupted by the death of its rank.
    Running,
    /// Ended at this time.
    Ended(Duration),
    /// Failed after this many bytes.
    Failed(u64),
}

/// Record of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallRecord {
    /// Call of the rank, counted from 1.
    pub(crate) sequence: u64,
    pub(crate) group: u64,
    pub(crate) channel: u64,
    pub(crate) number: u64,
    pub(crate) signature: Signature,
    pub(crate) label: Label,
    pub(crate) start: Duration,
    pub(crate) progress: Progress,
}

/// Record of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupRecord {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) group_size: u64,
    pub(crate) first_rank: u64,
}

impl Recorder {
    pub(crate) fn new(region: RecordRegion) -> Self {
        Self { region, next: AtomicU64::new(0) }
    }

    pub(crate) fn region(&self) -> &RecordRegion {
        &self.region
    }

    /// Reserves a record; [`PendingRecord::begin`] writes it.
    #[inline]
    pub(crate) fn open<'a>(&'a self, entry: Entry, clock: &'a dyn Clock) -> PendingRecord<'a> {
        let sequence = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        PendingRecord { recorder: self, clock, entry, sequence, start: Cell::new(None) }
    }

    /// Reserves a record from the sequence block of a group.
    #[inline]
    pub(crate) fn open_in_group<'a>(
        &'a self,
        sequences: &mut SequenceBlock,
        entry: Entry,
        clock: &'a dyn Clock,
    ) -> PendingRecord<'a> {
        // A group that was idle for long must not overwrite newer records.
        let oldest = self.next.load(Ordering::Relaxed).saturating_sub(NUM_RECORDS as u64 / 2);
        if sequences.next == sequences.end || sequences.end < oldest {
            let start = self.next.fetch_add(BLOCK_LEN, Ordering::Relaxed) + 1;
            *sequences = SequenceBlock { next: start, end: start + BLOCK_LEN };
        }
        let sequence = sequences.next;
        sequences.next += 1;
        PendingRecord { recorder: self, clock, entry, sequence, start: Cell::new(None) }
    }

    /// Writes the start of a call.
    #[inline]
    fn begin(&self, sequence: u64, entry: &Entry, now: u64) {
        let line = self.region.segment.line(self.region.record(sequence));
        let [kind, count, _] = entry.signature.pack();
        line[0].store(0, Ordering::Relaxed);
        line[1].store(entry.group | (entry.channel as u64) << 32, Ordering::Release);
        line[2].store(entry.number, Ordering::Relaxed);
        line[3].store(kind, Ordering::Relaxed);
        line[4].store(count, Ordering::Relaxed);
        line[5].store(entry.label.to_word(), Ordering::Relaxed);
        line[6].store(now, Ordering::Relaxed);
        line[7].store(0, Ordering::Relaxed);
        line[0].store(sequence, Ordering::Release);
    }

    /// Writes the end of a call.
    #[inline]
    fn end(&self, sequence: u64, word: u64) {
        self.region.segment.line(self.region.record(sequence))[7].store(word, Ordering::Relaxed);
    }

    /// Writes the record of a group, if there is space.
    pub(crate) fn record_group(&self, id: u64, name: &str, group_size: usize, first_rank: usize) {
        if id < MAX_GROUPS as u64 {
            let (segment, offset) = (&self.region.segment, self.region.group(id));
            let name = &name[..name.floor_char_boundary(MAX_NAME_BYTES)];
            target::<u8>(segment, offset + 24, name.len()).copy_from_slice(name.as_bytes());
            segment.word(offset + 8).store(group_size as u64, Ordering::Relaxed);
            segment.word(offset + 16).store(first_rank as u64, Ordering::Relaxed);
            segment.word(offset).store(name.len() as u64 + 1, Ordering::Release);
        }
    }
}

impl PendingRecord<'_> {
    /// Writes the start of the call, unless that was done; returns the start time.
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        if let Some(start) = self.start.get() {
            return start;
        }
        let start = self.clock.wall_coarse().as_nanos() as u64;
        self.recorder.begin(self.sequence, &self.entry, start);
        self.start.set(Some(start));
        start
    }

    /// Writes the end of the call. A short call reuses its start time, because the coarse clock
    /// ticks in milliseconds.
    #[inline]
    pub(crate) fn end(&self, is_short: bool) {
        let start = self.begin();
        let end = if is_short { start } else { self.clock.wall_coarse().as_nanos() as u64 };
        self.recorder.end(self.sequence, end);
    }

    /// Writes that the call failed, and after how many bytes.
    #[cold]
    pub(crate) fn fail(&self, done_bytes: u64) {
        self.begin();
        self.recorder.end(self.sequence, FAILED | done_bytes);
    }
}

impl RecordRegion {
    /// A region at an offset of a segment.
    pub(crate) fn new(segment: Segment, start: usize) -> Self {
        Self { segment, start }
    }

    /// A region in private memory.
    pub(crate) fn private() -> Self {
        Self::new(Segment::heap(RECORDER_BYTES, RECORDER_BYTES), 0)
    }

    #[inline]
    fn record(&self, sequence: u64) -> usize {
        self.start + (sequence as usize % NUM_RECORDS) * RECORD_BYTES
    }

    fn group(&self, id: u64) -> usize {
        self.start + NUM_RECORDS * RECORD_BYTES + id as usize * GROUP_BYTES
    }

    /// All complete records, ordered by start time. Within one tick of the clock running calls come
    /// last.
    pub(crate) fn records(&self) -> Vec<CallRecord> {
        let mut records: Vec<CallRecord> =
            (0..NUM_RECORDS as u64).filter_map(|index| self.read(index)).collect();
        let is_running = |record: &CallRecord| record.progress == Progress::Running;
        records.sort_by_key(|record| (record.start, is_running(record), record.sequence));
        records
    }

    fn read(&self, index: u64) -> Option<CallRecord> {
        let line = self.segment.line(self.record(index));
        let sequence = line[0].load(Ordering::Acquire);
        let word = |index: usize| line[index].load(Ordering::Relaxed);
        let is_complete = sequence != 0 && sequence % NUM_RECORDS as u64 == index;
        let progress = match word(7) {
            0 => Progress::Running,
            word if word & FAILED != 0 => Progress::Failed(word & !FAILED),
            end => Progress::Ended(Duration::from_nanos(end)),
        };
        is_complete.then(|| CallRecord {
            sequence,
            group: word(1) & 0xffff_ffff,
            channel: word(1) >> 32,
            number: word(2),
            signature: Signature::unpack([word(3), word(4), 0]),
            label: Label::from_word(word(5)),
            start: Duration::from_nanos(word(6)),
            progress,
        })
    }

    /// The recorded groups.
    pub(crate) fn groups(&self) -> Vec<GroupRecord> {
        (0..MAX_GROUPS as u64).filter_map(|id| self.read_group(id)).collect()
    }

    fn read_group(&self, id: u64) -> Option<GroupRecord> {
        let offset = self.group(id);
        let word = |at: usize| self.segment.word(offset + at).load(Ordering::Acquire);
        let len = usize::try_from(word(0)).ok()?.checked_sub(1)?.min(MAX_NAME_BYTES);
        let mut bytes = vec![0; len];
        source::<u8>(&self.segment, offset + 24, len).copy_to(&mut bytes);
        let name = String::from_utf8_lossy(&bytes).into_owned();
        Some(GroupRecord { id, name, group_size: word(8), first_rank: word(16) })
    }
}

#[cfg(test)]
mod tests {
    use lockstep_platform::real;

    use super::*;
    use crate::Dtype;

    fn entry(number: u64) -> Entry {
        let signature = Signature::message(Dtype::F32, number as usize);
        Entry {
            group: 2,
            channel: Channel::Background,
            number,
            signature,
            label: Label::bucket(1, 5),
        }
    }

    #[test]
    fn the_ring_keeps_the_last_calls() {
        let (recorder, world) = (Recorder::new(RecordRegion::private()), real());
        for number in 1..=NUM_RECORDS as u64 + 10 {
            let record = recorder.open(entry(number), world.clock());
            record.begin();
            match number % 3 {
                0 => record.end(number.is_multiple_of(2)),
                1 => record.fail(77),
                _ => {}
            }
        }
        let mut records = recorder.region().records();
        assert!(records.is_sorted_by_key(|record| record.start));
        records.sort_by_key(|record| record.sequence);
        assert_eq!(records.len(), NUM_RECORDS);
        for (index, record) in records.iter().enumerate() {
            let number = index as u64 + 11;
            assert_eq!((record.sequence, record.number, record.group), (number, number, 2));
            assert_eq!(record.label, Label::bucket(1, 5));
            assert_eq!(record.signature, Signature::message(Dtype::F32, number as usize));
            match (number % 3, record.progress) {
                (0, Progress::Ended(end)) if number.is_multiple_of(2) => {
                    assert_eq!(end, record.start);
                }
                (0, Progress::Ended(end)) => assert!(end >= record.start),
                (1, Progress::Failed(77)) | (2, Progress::Running) => {}
                (_, other) => panic!("call {number} is {other:?}"),
            }
        }
    }

    #[test]
    fn an_idle_group_reserves_a_new_block() {
        let (recorder, world) = (Recorder::new(RecordRegion::private()), real());
        let (mut one, mut other) = (SequenceBlock::default(), SequenceBlock::default());
        let call = |sequences: &mut SequenceBlock, number: u64| {
            recorder.open_in_group(sequences, entry(number), world.clock()).end(true);
        };
        call(&mut one, 1);
        call(&mut other, 2);
        call(&mut one, 3);
        for number in 4..3000 {
            call(&mut other, number);
        }
        call(&mut one, 3000);
        let records = recorder.region().records();
        let mut sequences: Vec<u64> = records.iter().map(|record| record.number).collect();
        sequences.sort_unstable();
        let newest: Vec<u64> = (3000 - 900..=3000).collect();
        assert!(sequences.ends_with(&newest), "{sequences:?}");
    }

    #[test]
    fn a_torn_record_is_skipped() {
        let (recorder, world) = (Recorder::new(RecordRegion::private()), real());
        recorder.open(entry(1), world.clock()).begin();
        recorder.open(entry(2), world.clock()).begin();
        let region = recorder.region();
        region.segment.line(region.record(2))[0].store(0, Ordering::Relaxed);
        let sequences: Vec<u64> = region.records().iter().map(|record| record.number).collect();
        assert_eq!(sequences, [1]);
    }

    #[test]
    fn groups_are_recorded() {
        let recorder = Recorder::new(RecordRegion::private());
        recorder.record_group(3, "data", 4, 2);
        recorder.record_group(9999, "too many", 1, 0);
        let group = GroupRecord { id: 3, name: "data".to_owned(), group_size: 4, first_rank: 2 };
        assert_eq!(recorder.region().groups(), [group]);
    }
}
