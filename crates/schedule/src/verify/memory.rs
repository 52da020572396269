//! Symbolic memory of all ranks, with a race detector.
//!
//! Time is kept by vector clocks (Fidge 1988, Mattern 1989). A rank counts its rounds and learns of
//! other ranks' rounds through messages and signals. An access is allowed if every earlier
//! conflicting access happened in a round that the accessing rank knows to be over.

use std::collections::BTreeMap;

use super::VerifyError;
use super::symbol::Symbol;
use crate::instruction::{Buffer, Place};
use crate::schedule::{Schedule, StepId};

/// Whether input and output are separate buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// Separate memory.
    Apart,
    /// Input 0 and the output share memory, or the shorter of them is the part of the longer one
    /// with the same chunks.
    InPlace,
}

/// Number of rounds of each rank known to be over. Entering the operation counts as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Clock(Vec<usize>);

/// Access by a step, or the entry of a rank (which is no step).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Event {
    rank: usize,
    round: usize,
    step: Option<usize>,
}

struct Cell {
    value: Option<Symbol>,
    written: Event,
    read: Vec<Event>,
}

/// State of one buffer of one rank.
#[derive(Default)]
struct BufferState {
    cells: BTreeMap<usize, Cell>,
    /// Chunk at the beginning of a scratch slot.
    base: Option<usize>,
}

/// Memory of all ranks.
pub(super) struct Memory<'a> {
    schedule: &'a Schedule,
    storage: Storage,
    buffer_states: BTreeMap<(usize, Area), BufferState>,
}

/// Buffer without the base of a scratch slot, which changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Area {
    Input(usize),
    Output,
    Scratch(usize),
}

impl Clock {
    /// Clock of a rank that has just entered.
    pub(super) fn arrival(rank: usize, num_ranks: usize) -> Self {
        let mut rounds = vec![0; num_ranks];
        rounds[rank] = 1;
        Self(rounds)
    }

    /// Whether `rank` is known to have entered.
    pub(super) fn knows(&self, rank: usize) -> bool {
        self.0[rank] > 0
    }

    /// Ends one of the rank's own rounds.
    pub(super) fn tick(&mut self, rank: usize) {
        self.0[rank] += 1;
    }

    /// Merges another clock.
    pub(super) fn learn(&mut self, other: &Self) {
        for (own, theirs) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(*theirs);
        }
    }
}

impl<'a> Memory<'a> {
    /// Every rank holds its inputs, named by `value`; the rest is unwritten.
    pub(super) fn new(
        schedule: &'a Schedule,
        storage: Storage,
        mut value: impl FnMut(usize, usize) -> Symbol,
    ) -> Self {
        let mut memory = Self { schedule, storage, buffer_states: BTreeMap::new() };
        for rank in 0..schedule.num_ranks() {
            for chunk in schedule.output(rank).iter() {
                memory.place(rank, Area::Output, chunk, None);
            }
            for index in 0..schedule.contributions.num_inputs(rank) {
                let value = value(rank, index);
                for chunk in schedule.input(rank).iter() {
                    let (area, key) = memory.locate(Buffer::Input(index).on(rank), chunk);
                    memory.place(rank, area, key, Some(value));
                }
            }
        }
        memory
    }

    fn place(&mut self, rank: usize, area: Area, chunk: usize, value: Option<Symbol>) {
        let written = Event { rank, round: 0, step: None };
        let cell = Cell { value, written, read: Vec::new() };
        self.buffer_states.entry((rank, area)).or_default().cells.insert(chunk, cell);
    }

    /// Memory of a chunk of a buffer: the area, and the chunk that names its place there.
    fn locate(&self, place: Place, chunk: usize) -> (Area, usize) {
        match place.buffer {
            Buffer::Input(0) if self.storage == Storage::InPlace => self
                .alias(place.rank, chunk)
                .map_or((Area::Input(0), chunk), |in_output| (Area::Output, in_output)),
            Buffer::Input(index) => (Area::Input(index), chunk),
            Buffer::Output => (Area::Output, chunk),
            Buffer::Scratch { slot, .. } => (Area::Scratch(slot), chunk),
        }
    }

    /// Chunk of the output that shares memory with a chunk of the input.
    fn alias(&self, rank: usize, chunk: usize) -> Option<usize> {
        let (input, output) = (self.schedule.input(rank), self.schedule.output(rank));
        if input.len == output.len {
            let position = input.position(chunk)?;
            return Some(output.first + position * output.stride);
        }
        output.position(chunk).map(|_| chunk)
    }

    /// Whether a chunk of two buffers is the same memory.
    pub(super) fn is_same(&self, one: Place, other: Place, chunk: usize) -> bool {
        one.rank == other.rank && self.locate(one, chunk) == self.locate(other, chunk)
    }

    /// Reads a chunk, for a step of a rank with clock `clock`.
    pub(super) fn read(
        &mut self,
        at: StepId,
        clock: &Clock,
        place: Place,
        chunk: usize,
    ) -> Result<Symbol, VerifyError> {
        let (area, key) = self.locate(place, chunk);
        let buffer_state = self.buffer_states.entry((place.rank, area)).or_default();
        let unwritten = VerifyError::Unwritten { at, place, chunk };
        if let Buffer::Scratch { base, .. } = place.buffer
            && buffer_state.base != Some(base)
        {
            return Err(unwritten);
        }
        let cell = buffer_state.cells.get_mut(&key).ok_or_else(|| unwritten.clone())?;
        if !is_over(cell.written, at, clock) {
            let other = cell.written.rank;
            return Err(VerifyError::Race { at, access: "reads", place, chunk, other });
        }
        let event = Event { rank: at.rank, round: at.round + 1, step: Some(at.step) };
        if cell.read.last() != Some(&event) {
            cell.read.push(event);
        }
        cell.value.ok_or(unwritten)
    }

    /// Writes a chunk, for a step of a rank with clock `clock`.
    pub(super) fn write(
        &mut self,
        at: StepId,
        clock: &Clock,
        place: Place,
        chunk: usize,
        value: Symbol,
    ) -> Result<(), VerifyError> {
        let (area, key) = self.locate(place, chunk);
        let buffer_state = self.buffer_states.entry((place.rank, area)).or_default();
        let race = |other| VerifyError::Race { at, access: "writes", place, chunk, other };
        if let Buffer::Scratch { base, .. } = place.buffer
            && buffer_state.base != Some(base)
        {
            // A scratch slot with another base overlaps everything that it held before.
            let cells = std::mem::take(&mut buffer_state.cells);
            if let Some(other) = cells.values().find_map(|cell| cell.user(at, clock)) {
                return Err(race(other));
            }
            buffer_state.base = Some(base);
        }
        if let Some(other) = buffer_state.cells.get(&key).and_then(|cell| cell.user(at, clock)) {
            return Err(race(other));
        }
        let written = Event { rank: at.rank, round: at.round + 1, step: Some(at.step) };
        buffer_state.cells.insert(key, Cell { value: Some(value), written, read: Vec::new() });
        Ok(())
    }

    /// Final value of chunk `chunk` of a rank's output.
    pub(super) fn result(&self, rank: usize, chunk: usize) -> Option<Symbol> {
        self.buffer_states.get(&(rank, Area::Output))?.cells.get(&chunk)?.value
    }

    /// Memory of `rank` that another rank may still be using, given `clock`: buffer, chunk and
    /// user.
    pub(super) fn in_use(&self, rank: usize, clock: &Clock) -> Option<(Buffer, usize, usize)> {
        let own = self.buffer_states.iter().filter(|((owner, _), _)| *owner == rank);
        own.flat_map(|((_, area), buffer_state)| {
            buffer_state.cells.iter().map(move |cell| (area, buffer_state, cell))
        })
        .find_map(|(area, buffer_state, (&chunk, cell))| {
            let mut events = std::iter::once(&cell.written).chain(&cell.read);
            let open = events.find(|event| event.round >= clock.0[event.rank])?;
            let buffer = match *area {
                Area::Input(index) => Buffer::Input(index),
                Area::Output => Buffer::Output,
                Area::Scratch(slot) => {
                    Buffer::Scratch { slot, base: buffer_state.base.unwrap_or(0) }
                }
            };
            Some((buffer, chunk, open.rank))
        })
    }
}

impl Cell {
    /// Rank that may be using the cell when a step overwrites it.
    fn user(&self, at: StepId, clock: &Clock) -> Option<usize> {
        let mut events = std::iter::once(&self.written).chain(&self.read);
        events.find(|event| !is_over(**event, at, clock)).map(|event| event.rank)
    }
}

/// Whether an event is known to be over when step `at` runs. A step does not conflict with itself:
/// it reads an element before it writes it.
fn is_over(event: Event, at: StepId, clock: &Clock) -> bool {
    let is_same_step =
        (event.rank, event.round, event.step) == (at.rank, at.round + 1, Some(at.step));
    is_same_step || event.round < clock.0[event.rank]
}
