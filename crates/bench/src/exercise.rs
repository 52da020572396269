//! The operations that are measured, each with its buffers and with what must come out.
//!
//! A size in bytes means what it means in the benchmarks of other libraries: the vector of an
//! all-reduce, a broadcast or a reduce, all of what an all-gather or a gather collects, all of
//! what a reduce-scatter or a scatter hands out, and what one rank brings to an all-to-all.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::str::FromStr;

use lockstep_comm::{ArenaBuffer, Comm, CommError, Element, Reduction};
use lockstep_schedule::{Op, boundary};

use super::Buffers;
use super::data::{Origin, Run};

/// Who sends or receives where one rank is unlike the others.
const ROOT: usize = 0;

/// An operation that can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the operations")]
pub enum Kind {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
    Scatter,
    Gather,
    AllToAll,
    AllToAllV,
    Barrier,
}

impl Kind {
    /// Every operation.
    pub const ALL: [Self; 10] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::Reduce,
        Self::Scatter,
        Self::Gather,
        Self::AllToAll,
        Self::AllToAllV,
        Self::Barrier,
    ];

    /// How scripts call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Scatter => "scatter",
            Self::Gather => "gather",
            Self::AllToAll => "all_to_all",
            Self::AllToAllV => "all_to_all_v",
            Self::Barrier => "barrier",
        }
    }

    /// The operation that schedules know.
    pub const fn op(self) -> Op {
        match self {
            Self::AllReduce => Op::AllReduce,
            Self::ReduceScatter => Op::ReduceScatter,
            Self::AllGather => Op::AllGather,
            Self::Broadcast => Op::Broadcast { root: ROOT },
            Self::Reduce => Op::Reduce { root: ROOT },
            Self::Scatter => Op::Scatter { root: ROOT },
            Self::Gather => Op::Gather { root: ROOT },
            Self::AllToAll | Self::AllToAllV => Op::AllToAll,
            Self::Barrier => Op::Barrier,
        }
    }

    /// Bytes that a link between ranks carries for every byte of the size, at least: what makes
    /// operations and numbers of ranks comparable.
    pub fn bus_factor(self, num_ranks: usize) -> f64 {
        let share = (num_ranks as f64 - 1.0) / num_ranks as f64;
        match self {
            Self::AllReduce => 2.0 * share,
            Self::Broadcast | Self::Reduce if num_ranks > 1 => 1.0,
            Self::Broadcast | Self::Reduce | Self::Barrier => 0.0,
            _ => share,
        }
    }

    fn is_in_place(self) -> bool {
        matches!(self, Self::AllReduce | Self::Broadcast | Self::Reduce)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no operation; try {}", Kind::ALL.map(Kind::name).join(", "))]
pub struct UnknownKind {
    /// What was written.
    pub text: String,
}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == text);
        found.ok_or_else(|| UnknownKind { text: text.to_owned() })
    }
}

/// A buffer in the arena or anywhere else.
enum Memory<T> {
    Arena(ArenaBuffer<T>),
    Private(Vec<T>),
}

impl<T: Element> Deref for Memory<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self {
            Self::Arena(buffer) => buffer,
            Self::Private(buffer) => buffer,
        }
    }
}

impl<T: Element> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Arena(buffer) => buffer,
            Self::Private(buffer) => buffer,
        }
    }
}

/// One operation on one size, ready to be called again and again.
pub(super) struct Exercise<T> {
    comm: Comm,
    kind: Kind,
    count: usize,
    /// Not used by operations in place, which have all in `output`.
    input: Memory<T>,
    output: Memory<T>,
    send_counts: Vec<usize>,
    runs: Vec<Run>,
}

impl<T: Element> Exercise<T> {
    pub(super) fn new(
        comm: Comm,
        kind: Kind,
        count: usize,
        buffers: Buffers,
    ) -> Result<Self, CommError> {
        let part = comm.part_of(count, comm.group_rank()).len();
        let runs = runs(&comm, kind, count);
        let input_len = match kind {
            Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::Barrier => 0,
            Kind::ReduceScatter | Kind::Scatter | Kind::AllToAll | Kind::AllToAllV => count,
            Kind::AllGather | Kind::Gather => part,
        };
        let output_len = match kind {
            Kind::AllReduce | Kind::Broadcast | Kind::Reduce | Kind::AllGather | Kind::Gather => {
                count
            }
            Kind::ReduceScatter | Kind::Scatter => part,
            Kind::AllToAll | Kind::AllToAllV => runs.iter().map(|run| run.len).sum(),
            Kind::Barrier => 0,
        };
        let memory = |len: usize, buffers: Buffers| -> Result<Memory<T>, CommError> {
            Ok(match buffers {
                Buffers::Arena => Memory::Arena(comm.allocate(len)?),
                Buffers::Private => Memory::Private(vec![T::from_small(0); len]),
            })
        };
        let is_vec = kind == Kind::AllToAllV;
        let output = memory(output_len, if is_vec { Buffers::Private } else { buffers })?;
        let input = memory(input_len, buffers)?;
        let send_counts = counts(&comm, comm.group_rank(), count);
        Ok(Self { comm, kind, count, input, output, send_counts, runs })
    }

    /// Lets another handle to the same end make the calls.
    pub(super) fn by(&mut self, comm: Comm) {
        self.comm = comm;
    }

    /// What the rank brings, to be rewritten before every call.
    pub(super) fn brought(&mut self) -> &mut [T] {
        if self.kind.is_in_place() { &mut self.output } else { &mut self.input }
    }

    /// What the rank has afterwards, as far as the operation says what it is.
    pub(super) fn result(&self) -> &[T] {
        let is_root = self.comm.group_rank() == ROOT;
        if self.kind == Kind::Gather && !is_root { &[] } else { &self.output }
    }

    /// Where the elements of the result come from.
    pub(super) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// The buffer that has the whole size.
    pub(super) fn whole(&self) -> &[T] {
        if self.input.len() == self.count { &self.input } else { &self.output }
    }

    pub(super) fn call(&mut self) -> Result<(), CommError> {
        let Self { comm, kind, input, output, send_counts, .. } = self;
        match kind {
            Kind::AllReduce => comm.all_reduce(output, Reduction::Sum),
            Kind::ReduceScatter => comm.reduce_scatter(input, output, Reduction::Sum),
            Kind::AllGather => comm.all_gather(input, output),
            Kind::Broadcast => comm.broadcast(output, ROOT),
            Kind::Reduce => comm.reduce(output, ROOT, Reduction::Sum),
            Kind::Scatter => comm.scatter(input, output, ROOT),
            Kind::Gather => comm.gather(input, output, ROOT),
            Kind::AllToAll => comm.all_to_all(input, output),
            Kind::AllToAllV => match output {
                Memory::Private(output) => {
                    comm.all_to_all_v(input, send_counts, output).map(|_| ())
                }
                Memory::Arena(_) => unreachable!("its output grows as needed"),
            },
            Kind::Barrier => comm.barrier(),
        }
    }
}

/// How much a rank sends to each other in an uneven all-to-all of `count` elements: once, twice
/// and three times as much in turn.
fn counts(comm: &Comm, rank: usize, count: usize) -> Vec<usize> {
    let n = comm.group_size();
    let weight = |other: usize| 1 + (rank + other) % 3;
    let total: usize = (0..n).map(weight).sum();
    let mut counts: Vec<usize> = (0..n).map(|other| count / total * weight(other)).collect();
    counts[n - 1] += count - counts.iter().sum::<usize>();
    counts
}

/// What this rank must have afterwards.
fn runs(comm: &Comm, kind: Kind, count: usize) -> Vec<Run> {
    let (n, me) = (comm.group_size(), comm.group_rank());
    let is_root = me == ROOT;
    let part = comm.part_of(count, me);
    let of_rank = |rank, start, len| Run { origin: Origin::Rank(rank), start, len };
    let sum = |start, len| Run { origin: Origin::Sum, start, len };
    match kind {
        Kind::AllReduce => vec![sum(0, count)],
        Kind::Reduce if is_root => vec![sum(0, count)],
        Kind::Reduce => vec![of_rank(me, 0, count)],
        Kind::ReduceScatter => vec![sum(part.start, part.len())],
        Kind::Broadcast => vec![of_rank(ROOT, 0, count)],
        Kind::Scatter => vec![of_rank(ROOT, part.start, part.len())],
        Kind::Gather if !is_root => Vec::new(),
        Kind::AllGather | Kind::Gather => {
            (0..n).map(|rank| of_rank(rank, 0, comm.part_of(count, rank).len())).collect()
        }
        Kind::AllToAll => {
            let at = |chunk| boundary(count * n, n * n, chunk);
            let from = |rank| {
                let (row, chunk) = (at(rank * n), rank * n + me);
                of_rank(rank, at(chunk) - row, at(chunk + 1) - at(chunk))
            };
            (0..n).map(from).collect()
        }
        Kind::AllToAllV => {
            let from = |rank| {
                let counts = counts(comm, rank, count);
                of_rank(rank, counts[..me].iter().sum(), counts[me])
            };
            (0..n).map(from).collect()
        }
        Kind::Barrier => Vec::new(),
    }
}
