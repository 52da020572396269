//! Measured collectives with their buffers and expected results.
//!
//! Sizes follow nccl-tests: the vector of an all-reduce, broadcast or reduce, the output of an
//! all-gather or gather, the input of a reduce-scatter or scatter, and the input of one rank of an
//! all-to-all.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::str::FromStr;

use lockstep_comm::{ArenaBuffer, Comm, CommError, Element, Reduction};
use lockstep_schedule::{Op, boundary};

use super::Buffers;
use super::data::{Origin, Span};

/// Root of rooted collectives.
const ROOT: usize = 0;

/// Collective that can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the operations")]
pub enum Collective {
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

impl Collective {
    /// All collectives.
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

    /// Name on the command line and in JSON.
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

    /// Operation of its schedule.
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

    /// Bus bandwidth factor of nccl-tests: least bytes on a link per byte of the size. It makes
    /// collectives and world sizes comparable.
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

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Text that names no collective.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a collective; try {}", Collective::ALL.map(Collective::name).join(", "))]
pub struct UnknownCollective {
    /// Text.
    pub text: String,
}

impl FromStr for Collective {
    type Err = UnknownCollective;

    fn from_str(text: &str) -> Result<Self, UnknownCollective> {
        let found = Self::ALL.into_iter().find(|collective| collective.name() == text);
        found.ok_or_else(|| UnknownCollective { text: text.to_owned() })
    }
}

/// Buffer in the arena or in private memory.
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

/// Collective with its buffers, ready for repeated calls.
pub(super) struct Operation<T> {
    comm: Comm,
    collective: Collective,
    count: usize,
    /// Empty for in-place collectives, which use `output` only.
    input: Memory<T>,
    output: Memory<T>,
    send_counts: Vec<usize>,
    spans: Vec<Span>,
}

impl<T: Element> Operation<T> {
    pub(super) fn new(
        comm: Comm,
        collective: Collective,
        count: usize,
        buffers: Buffers,
    ) -> Result<Self, CommError> {
        let part = comm.part_of(count, comm.group_rank()).len();
        let spans = expected_spans(&comm, collective, count);
        let input_len = match collective {
            Collective::AllReduce
            | Collective::Broadcast
            | Collective::Reduce
            | Collective::Barrier => 0,
            Collective::ReduceScatter
            | Collective::Scatter
            | Collective::AllToAll
            | Collective::AllToAllV => count,
            Collective::AllGather | Collective::Gather => part,
        };
        let output_len = match collective {
            Collective::AllReduce
            | Collective::Broadcast
            | Collective::Reduce
            | Collective::AllGather
            | Collective::Gather => count,
            Collective::ReduceScatter | Collective::Scatter => part,
            Collective::AllToAll | Collective::AllToAllV => spans.iter().map(|span| span.len).sum(),
            Collective::Barrier => 0,
        };
        let memory = |len: usize, buffers: Buffers| -> Result<Memory<T>, CommError> {
            Ok(match buffers {
                Buffers::Arena => Memory::Arena(comm.allocate(len)?),
                Buffers::Private => Memory::Private(vec![T::from_small(0); len]),
            })
        };
        let is_vec = collective == Collective::AllToAllV;
        let output = memory(output_len, if is_vec { Buffers::Private } else { buffers })?;
        let input = memory(input_len, buffers)?;
        let send_counts = counts(&comm, comm.group_rank(), count);
        Ok(Self { comm, collective, count, input, output, send_counts, spans })
    }

    /// Replaces the communicator by another handle of the same rank.
    pub(super) fn use_comm(&mut self, comm: Comm) {
        self.comm = comm;
    }

    /// Input of the rank, rewritten before every call.
    pub(super) fn input(&mut self) -> &mut [T] {
        if self.collective.is_in_place() { &mut self.output } else { &mut self.input }
    }

    /// Defined part of the result.
    pub(super) fn result(&self) -> &[T] {
        let is_root = self.comm.group_rank() == ROOT;
        if self.collective == Collective::Gather && !is_root { &[] } else { &self.output }
    }

    /// Expected content of the result.
    pub(super) fn expected(&self) -> &[Span] {
        &self.spans
    }

    /// Buffer of the full size.
    pub(super) fn whole(&self) -> &[T] {
        if self.input.len() == self.count { &self.input } else { &self.output }
    }

    pub(super) fn call(&mut self) -> Result<(), CommError> {
        let Self { comm, collective, input, output, send_counts, .. } = self;
        match collective {
            Collective::AllReduce => comm.all_reduce(output, Reduction::Sum),
            Collective::ReduceScatter => comm.reduce_scatter(input, output, Reduction::Sum),
            Collective::AllGather => comm.all_gather(input, output),
            Collective::Broadcast => comm.broadcast(output, ROOT),
            Collective::Reduce => comm.reduce(output, ROOT, Reduction::Sum),
            Collective::Scatter => comm.scatter(input, output, ROOT),
            Collective::Gather => comm.gather(input, output, ROOT),
            Collective::AllToAll => comm.all_to_all(input, output),
            Collective::AllToAllV => match output {
                Memory::Private(output) => {
                    comm.all_to_all_v(input, send_counts, output).map(|_| ())
                }
                Memory::Arena(_) => unreachable!("its output is a vector that grows"),
            },
            Collective::Barrier => comm.barrier(),
        }
    }
}

/// Send counts of a rank in an all-to-all-v of `count` elements, with weights 1, 2 and 3 in turn.
fn counts(comm: &Comm, rank: usize, count: usize) -> Vec<usize> {
    let n = comm.group_size();
    let weight = |other: usize| 1 + (rank + other) % 3;
    let total: usize = (0..n).map(weight).sum();
    let mut counts: Vec<usize> = (0..n).map(|other| count / total * weight(other)).collect();
    counts[n - 1] += count - counts.iter().sum::<usize>();
    counts
}

/// Expected content of the result on this rank.
fn expected_spans(comm: &Comm, collective: Collective, count: usize) -> Vec<Span> {
    let (n, me) = (comm.group_size(), comm.group_rank());
    let is_root = me == ROOT;
    let part = comm.part_of(count, me);
    let of_rank = |rank, start, len| Span { origin: Origin::Rank(rank), start, len };
    let sum = |start, len| Span { origin: Origin::Sum, start, len };
    match collective {
        Collective::AllReduce => vec![sum(0, count)],
        Collective::Reduce if is_root => vec![sum(0, count)],
        Collective::Reduce => vec![of_rank(me, 0, count)],
        Collective::ReduceScatter => vec![sum(part.start, part.len())],
        Collective::Broadcast => vec![of_rank(ROOT, 0, count)],
        Collective::Scatter => vec![of_rank(ROOT, part.start, part.len())],
        Collective::Gather if !is_root => Vec::new(),
        Collective::AllGather | Collective::Gather => {
            (0..n).map(|rank| of_rank(rank, 0, comm.part_of(count, rank).len())).collect()
        }
        Collective::AllToAll => {
            let at = |chunk| boundary(count * n, n * n, chunk);
            let from = |rank| {
                let (row, chunk) = (at(rank * n), rank * n + me);
                of_rank(rank, at(chunk) - row, at(chunk + 1) - at(chunk))
            };
            (0..n).map(from).collect()
        }
        Collective::AllToAllV => {
            let from = |rank| {
                let counts = counts(comm, rank, count);
                of_rank(rank, counts[..me].iter().sum(), counts[me])
            };
            (0..n).map(from).collect()
        }
        Collective::Barrier => Vec::new(),
    }
}
