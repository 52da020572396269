//! The flight recorder: the last calls of every rank, in its own memory.
//!
//! Every call leaves one record of a cache line: what was called, for what, when it began, and when
//! it ended. The records are a ring in the header of the rank's segment, so the other ranks of the
//! host can read them when the rank itself no longer can. Writing one is a handful of plain stores
//! into memory that nobody else looks at while all is well.
//!
//! A record's first word is its number, and is 0 while the rest is written: a rank that dies in
//! the middle leaves no half of a record that could be taken for a whole one.
//!
//! - `dump`: the records as a file

mod dump;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockstep_platform::{Clock, Segment};

use crate::label::Label;
use crate::node::Lane;
use crate::signature::Signature;
pub(crate) use dump::{Dump, file_name};

/// Calls that are kept.
pub(crate) const NUM_RECORDS: usize = 1024;

const RECORD_BYTES: usize = 64;

/// Groups whose names are kept, and the room for what is known of one.
const MAX_GROUPS: usize = 256;
const GROUP_BYTES: usize = 64;
const MAX_NAME_BYTES: usize = GROUP_BYTES - 24;

/// Room for all of it.
pub(crate) const RECORDER_BYTES: usize = NUM_RECORDS * RECORD_BYTES + MAX_GROUPS * GROUP_BYTES;

/// The bit that tells what a failed call had moved from when a call ended.
const FAILED: u64 = 1 << 63;

/// Writes one rank's records.
pub(crate) struct Recorder {
    place: Place,
    next: AtomicU64,
}

/// Where a rank's records lie, whoever's they are.
#[derive(Clone)]
pub(crate) struct Place {
    segment: Segment,
    start: usize,
}

/// A call that is being made. It is written down when somebody has the time to, which is not before
/// the others were told that it begins.
pub(crate) struct Flight<'a> {
    recorder: &'a Recorder,
    clock: &'a dyn Clock,
    entry: Entry,
    sequence: u64,
    /// When it began, in nanoseconds, once that is written down.
    start: Cell<Option<u64>>,
}

/// Numbers for the next calls of one group. They are taken several at once, because whoever takes
/// one has to wait for all others who might.
#[derive(Default)]
pub(crate) struct Numbers {
    next: u64,
    end: u64,
}

/// How many are taken at once.
const NUM_AT_ONCE: u64 = 16;

/// What is called.
pub(crate) struct Entry {
    pub(crate) group: u64,
    pub(crate) lane: Lane,
    pub(crate) number: u64,
    pub(crate) signature: Signature,
    pub(crate) label: Label,
}

/// How far a call came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It is on its way, or was when its rank died.
    Running,
    /// It ended at this time.
    Ended(Duration),
    /// It failed after so many bytes.
    Failed(u64),
}

/// One call, as it was written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// Which call of the rank, counted from 1.
    pub(crate) sequence: u64,
    pub(crate) group: u64,
    pub(crate) lane: u64,
    pub(crate) number: u64,
    pub(crate) signature: Signature,
    pub(crate) label: Label,
    pub(crate) start: Duration,
    pub(crate) progress: Progress,
}

/// What is known of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) group_size: u64,
    pub(crate) first_member: u64,
}

impl Recorder {
    pub(crate) fn new(place: Place) -> Self {
        Self { place, next: AtomicU64::new(0) }
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// A place for a call, which gets there with [`Flight::begin`].
    #[inline]
    pub(crate) fn flight<'a>(&'a self, entry: Entry, clock: &'a dyn Clock) -> Flight<'a> {
        let sequence = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        Flight { recorder: self, clock, entry, sequence, start: Cell::new(None) }
    }

    /// The same for a group that has numbers of its own.
    #[inline]
    pub(crate) fn flight_in<'a>(
        &'a self,
        numbers: &mut Numbers,
        entry: Entry,
        clock: &'a dyn Clock,
    ) -> Flight<'a> {
        // A group that was idle for long must not write over what is newer.
        let oldest = self.next.load(Ordering::Relaxed).saturating_sub(NUM_RECORDS as u64 / 2);
        if numbers.next == numbers.end || numbers.end < oldest {
            let start = self.next.fetch_add(NUM_AT_ONCE, Ordering::Relaxed) + 1;
            *numbers = Numbers { next: start, end: start + NUM_AT_ONCE };
        }
        let sequence = numbers.next;
        numbers.next += 1;
        Flight { recorder: self, clock, entry, sequence, start: Cell::new(None) }
    }

    /// Writes down that a call begins.
    #[inline]
    fn begin(&self, sequence: u64, entry: &Entry, now: u64) {
        let line = self.place.segment.line(self.place.record(sequence));
        let [kind, count, _] = entry.signature.to_words();
        line[0].store(0, Ordering::Relaxed);
        line[1].store(entry.group | (entry.lane as u64) << 32, Ordering::Release);
        line[2].store(entry.number, Ordering::Relaxed);
        line[3].store(kind, Ordering::Relaxed);
        line[4].store(count, Ordering::Relaxed);
        line[5].store(entry.label.to_word(), Ordering::Relaxed);
        line[6].store(now, Ordering::Relaxed);
        line[7].store(0, Ordering::Relaxed);
        line[0].store(sequence, Ordering::Release);
    }

    /// Writes down how it has ended.
    #[inline]
    fn end(&self, sequence: u64, word: u64) {
        self.place.segment.line(self.place.record(sequence))[7].store(word, Ordering::Relaxed);
    }

    /// Keeps the name of a group, while there is room.
    pub(crate) fn name(&self, id: u64, name: &str, group_size: usize, first_member: usize) {
        if id < MAX_GROUPS as u64 {
            let (segment, offset) = (&self.place.segment, self.place.group(id));
            let name = &name[..name.floor_char_boundary(MAX_NAME_BYTES)];
            segment.target::<u8>(offset + 24, name.len()).copy_from_slice(name.as_bytes());
            segment.word(offset + 8).store(group_size as u64, Ordering::Relaxed);
            segment.word(offset + 16).store(first_member as u64, Ordering::Relaxed);
            segment.word(offset).store(name.len() as u64 + 1, Ordering::Release);
        }
    }
}

impl Flight<'_> {
    /// Writes down that the call begins, unless that was done; returns when it began.
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

    /// Writes down that it has ended; after a short call the clock, which ticks in milliseconds,
    /// need not be asked again.
    #[inline]
    pub(crate) fn end(&self, is_short: bool) {
        let start = self.begin();
        let end = if is_short { start } else { self.clock.wall_coarse().as_nanos() as u64 };
        self.recorder.end(self.sequence, end);
    }

    /// Writes down that it has failed, and after how many bytes.
    #[cold]
    pub(crate) fn fail(&self, done_bytes: u64) {
        self.begin();
        self.recorder.end(self.sequence, FAILED | done_bytes);
    }
}

impl Place {
    /// In the header of a segment, from an offset on.
    pub(crate) fn new(segment: Segment, start: usize) -> Self {
        Self { segment, start }
    }

    /// In memory that nobody else sees.
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

    /// All records that are whole, in the order of their times; calls of two groups that began in
    /// one tick of the clock stand in any order, but those that are on their way behind the others.
    pub(crate) fn records(&self) -> Vec<Record> {
        let mut records: Vec<Record> =
            (0..NUM_RECORDS as u64).filter_map(|index| self.read(index)).collect();
        let is_running = |record: &Record| record.progress == Progress::Running;
        records.sort_by_key(|record| (record.start, is_running(record), record.sequence));
        records
    }

    fn read(&self, index: u64) -> Option<Record> {
        let line = self.segment.line(self.record(index));
        let sequence = line[0].load(Ordering::Acquire);
        let word = |index: usize| line[index].load(Ordering::Relaxed);
        let is_whole = sequence != 0 && sequence % NUM_RECORDS as u64 == index;
        let progress = match word(7) {
            0 => Progress::Running,
            word if word & FAILED != 0 => Progress::Failed(word & !FAILED),
            end => Progress::Ended(Duration::from_nanos(end)),
        };
        is_whole.then(|| Record {
            sequence,
            group: word(1) & 0xffff_ffff,
            lane: word(1) >> 32,
            number: word(2),
            signature: Signature::from_words([word(3), word(4), 0]),
            label: Label::from_word(word(5)),
            start: Duration::from_nanos(word(6)),
            progress,
        })
    }

    /// The groups that have a name.
    pub(crate) fn groups(&self) -> Vec<Known> {
        (0..MAX_GROUPS as u64).filter_map(|id| self.read_group(id)).collect()
    }

    fn read_group(&self, id: u64) -> Option<Known> {
        let offset = self.group(id);
        let word = |at: usize| self.segment.word(offset + at).load(Ordering::Acquire);
        let len = usize::try_from(word(0)).ok()?.checked_sub(1)?.min(MAX_NAME_BYTES);
        let mut bytes = vec![0; len];
        self.segment.source::<u8>(offset + 24, len).copy_to(&mut bytes);
        let name = String::from_utf8_lossy(&bytes).into_owned();
        Some(Known { id, name, group_size: word(8), first_member: word(16) })
    }
}

#[cfg(test)]
mod tests {
    use lockstep_platform::real;

    use super::*;
    use crate::Dtype;

    fn entry(number: u64) -> Entry {
        let signature = Signature::message(Dtype::F32, number as usize);
        Entry { group: 2, lane: Lane::Background, number, signature, label: Label::bucket(1, 5) }
    }

    #[test]
    fn the_last_calls_are_kept_and_older_ones_are_not() {
        let (recorder, world) = (Recorder::new(Place::private()), real());
        for number in 1..=NUM_RECORDS as u64 + 10 {
            let flight = recorder.flight(entry(number), world.clock());
            flight.begin();
            match number % 3 {
                0 => flight.end(number.is_multiple_of(2)),
                1 => flight.fail(77),
                _ => {}
            }
        }
        let mut records = recorder.place().records();
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
    fn groups_take_numbers_of_their_own_and_one_that_was_idle_takes_new_ones() {
        let (recorder, world) = (Recorder::new(Place::private()), real());
        let (mut one, mut other) = (Numbers::default(), Numbers::default());
        let call = |numbers: &mut Numbers, number: u64| {
            recorder.flight_in(numbers, entry(number), world.clock()).end(true);
        };
        call(&mut one, 1);
        call(&mut other, 2);
        call(&mut one, 3);
        for number in 4..3000 {
            call(&mut other, number);
        }
        call(&mut one, 3000);
        let records = recorder.place().records();
        let mut numbers: Vec<u64> = records.iter().map(|record| record.number).collect();
        numbers.sort_unstable();
        let newest: Vec<u64> = (3000 - 900..=3000).collect();
        assert!(numbers.ends_with(&newest), "{numbers:?}");
    }

    #[test]
    fn a_record_that_was_being_written_is_left_out() {
        let (recorder, world) = (Recorder::new(Place::private()), real());
        recorder.flight(entry(1), world.clock()).begin();
        recorder.flight(entry(2), world.clock()).begin();
        let place = recorder.place();
        place.segment.line(place.record(2))[0].store(0, Ordering::Relaxed);
        let numbers: Vec<u64> = place.records().iter().map(|record| record.number).collect();
        assert_eq!(numbers, [1]);
    }

    #[test]
    fn groups_keep_their_names() {
        let recorder = Recorder::new(Place::private());
        recorder.name(3, "data", 4, 2);
        recorder.name(9999, "too many", 1, 0);
        let known = Known { id: 3, name: "data".to_owned(), group_size: 4, first_member: 2 };
        assert_eq!(recorder.place().groups(), [known]);
    }
}
