//! Steps of a rank's program, and the memory they access.
//!
//! A step never moves data to another position in the vector: chunk 3 that is sent, received,
//! copied or added stays chunk 3. A step therefore names its chunks once, and its buffers always
//! agree on lengths.
//!
//! There are three families. *Message* steps (`Send`, `Recv`, `RecvReduce`) need a channel between
//! two ranks. *Memory* steps (`Signal`, `Wait`, and `Copy` or `Reduce` with a [`Place`] on another
//! rank) need shared memory. `Copy` and `Reduce` within one rank need neither.

use crate::chunks::Chunks;
use crate::sum_tree::SumTree;

/// Buffer of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The caller's input number `k`, which is never written. Only sums with several contributions
    /// per rank have numbers above 0.
    Input(usize),
    /// The caller's output.
    Output,
    /// Scratch memory of the schedule. The first element of the slot is the first element of chunk
    /// `base`, so that a small slot can hold any part of a long vector.
    Scratch {
        /// Index of the slot.
        slot: usize,
        /// Chunk at its beginning.
        base: usize,
    },
}

impl Buffer {
    /// The caller's input, where there is one.
    pub const INPUT: Self = Self::Input(0);

    /// This buffer on `rank`.
    pub const fn on(self, rank: usize) -> Place {
        Place { rank, buffer: self }
    }
}

/// Buffer of a given rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Owner of the memory.
    pub rank: usize,
    /// Buffer of that rank.
    pub buffer: Buffer,
}

/// Side of an addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Left operand.
    Left,
    /// Right operand.
    Right,
}

/// One step of a rank. Ranks are indices in the group, 0 … n-1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Sends chunks of `from` to `peer`.
    Send {
        /// Receiver.
        peer: usize,
        /// Chunks to send; [`Chunks::NONE`] for a message that only synchronizes.
        chunks: Chunks,
        /// Source buffer.
        from: Buffer,
    },
    /// Receives chunks from `peer` into `into`.
    Recv {
        /// Sender.
        peer: usize,
        /// Chunks to receive.
        chunks: Chunks,
        /// Target buffer.
        into: Buffer,
    },
    /// Receives a partial sum and adds `with`: `into = received + with`, or `with + received`, as
    /// `received` states. `into` and `with` may be the same buffer.
    RecvReduce {
        /// Sender.
        peer: usize,
        /// Chunks to receive.
        chunks: Chunks,
        /// Target buffer.
        into: Buffer,
        /// Other operand.
        with: Buffer,
        /// Side of the received operand.
        received: Side,
    },
    /// `into = from`.
    Copy {
        /// Chunks to copy.
        chunks: Chunks,
        /// Target, possibly on another rank.
        into: Place,
        /// Source, possibly on another rank.
        from: Place,
    },
    /// Writes the sum of all leaves to every place of `into`, added exactly in the order of the
    /// tree. Places of `into` may be leaves of the sum: each element is read everywhere, then
    /// written.
    Reduce {
        /// Chunks to reduce.
        chunks: Chunks,
        /// Targets, possibly on other ranks.
        into: Vec<Place>,
        /// Operands and the order of their sum, possibly on other ranks.
        sum: SumTree<Place>,
    },
    /// Increments this rank's counter: everything in its earlier rounds is done and visible.
    Signal,
    /// Waits until `rank` has signalled `count` times in this schedule.
    Wait {
        /// Rank of the counter.
        rank: usize,
        /// Value to wait for.
        count: usize,
    },
}

/// Steps that start together and are independent. The next round starts when all are done.
pub type Round = Vec<Step>;

/// Program of one rank.
pub type Program = Vec<Round>;

impl Step {
    /// Chunks of the step; none for a signal or a wait.
    pub const fn chunks(&self) -> Chunks {
        match self {
            Self::Send { chunks, .. }
            | Self::Recv { chunks, .. }
            | Self::RecvReduce { chunks, .. }
            | Self::Copy { chunks, .. }
            | Self::Reduce { chunks, .. } => *chunks,
            Self::Signal | Self::Wait { .. } => Chunks::NONE,
        }
    }

    /// Places that the step reads when `rank` runs it.
    pub fn reads(&self, rank: usize) -> Vec<Place> {
        match self {
            Self::Send { from, .. } => vec![from.on(rank)],
            Self::RecvReduce { with, .. } => vec![with.on(rank)],
            Self::Copy { from, .. } => vec![*from],
            Self::Reduce { sum, .. } => sum.leaves().into_iter().copied().collect(),
            Self::Recv { .. } | Self::Signal | Self::Wait { .. } => Vec::new(),
        }
    }

    /// Places that the step writes when `rank` runs it.
    pub fn writes(&self, rank: usize) -> Vec<Place> {
        match self {
            Self::Recv { into, .. } | Self::RecvReduce { into, .. } => vec![into.on(rank)],
            Self::Copy { into, .. } => vec![*into],
            Self::Reduce { into, .. } => into.clone(),
            Self::Send { .. } | Self::Signal | Self::Wait { .. } => Vec::new(),
        }
    }

    /// Whether the step needs a channel.
    pub const fn is_message(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Recv { .. } | Self::RecvReduce { .. })
    }

    /// Other ranks whose memory `rank` accesses.
    pub fn memory_ranks(&self, rank: usize) -> Vec<usize> {
        if let Self::Wait { rank, .. } = self {
            return vec![*rank];
        }
        let places = self.reads(rank).into_iter().chain(self.writes(rank));
        places.map(|place| place.rank).filter(|&other| other != rank).collect()
    }
}
