//! What one rank does: the steps of a round, and the memory they touch.
//!
//! A step never moves data to another place in the vector: chunk 3 that is sent, received, copied
//! or added stays chunk 3. So a step names its chunks once, and two buffers that meet in a step
//! always agree on lengths.
//!
//! There are three families. *Message* steps (`Send`, `Recv`, `RecvReduce`) need a channel between
//! two ranks. *Memory* steps (`Signal`, `Wait`, and `Copy` or `Reduce` with a [`Place`] on another
//! rank) need memory that both can see. `Copy` and `Reduce` within one rank need nothing.

use crate::chunks::Chunks;
use crate::sum_tree::SumTree;

/// A piece of a rank's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The caller's data number `k`; a schedule never writes to it. All but sums with several
    /// addends on one rank have number 0 only.
    Input(usize),
    /// Where the caller expects the result.
    Output,
    /// Working memory of the schedule. The first element of the slot is the first element of
    /// chunk `base`, so that a small slot can hold any part of a long vector.
    Scratch {
        /// Which piece of working memory.
        slot: usize,
        /// The chunk that lies at its beginning.
        base: usize,
    },
}

impl Buffer {
    /// The caller's data, where there is one input.
    pub const INPUT: Self = Self::Input(0);

    /// This buffer on `rank`.
    pub const fn on(self, rank: usize) -> Place {
        Place { rank, buffer: self }
    }
}

/// A buffer and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Whose memory.
    pub rank: usize,
    /// Which piece of it.
    pub buffer: Buffer,
}

/// One side of an addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Before the plus.
    Left,
    /// After the plus.
    Right,
}

/// One thing a rank does. Ranks are positions in the group, 0 … n-1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Sends chunks of `from` to `peer`.
    Send {
        /// Who receives.
        peer: usize,
        /// What is sent; [`Chunks::NONE`] for a message that only says that we got here.
        chunks: Chunks,
        /// Where it lies.
        from: Buffer,
    },
    /// Receives the same chunks from `peer` into `into`.
    Recv {
        /// Who sends.
        peer: usize,
        /// What comes.
        chunks: Chunks,
        /// Where it goes.
        into: Buffer,
    },
    /// Receives a partial sum and adds `with` to it on the way: `into = received + with`, or
    /// `with + received`, as `received` says. `into` and `with` may be the same buffer.
    RecvReduce {
        /// Who sends.
        peer: usize,
        /// What comes.
        chunks: Chunks,
        /// Where the sum goes.
        into: Buffer,
        /// The other operand.
        with: Buffer,
        /// On which side of the plus the received operand stands.
        received: Side,
    },
    /// `into = from`.
    Copy {
        /// What is copied.
        chunks: Chunks,
        /// The target, perhaps on another rank.
        into: Place,
        /// The source, perhaps on another rank.
        from: Place,
    },
    /// Every place of `into` = the sum of all leaves, added exactly in the order of the tree.
    /// Places of `into` may be leaves of the sum: element by element, all is read, then written.
    Reduce {
        /// What is added up.
        chunks: Chunks,
        /// The targets, perhaps on other ranks.
        into: Vec<Place>,
        /// The addends and the order of their sum, perhaps on other ranks.
        sum: SumTree<Place>,
    },
    /// Raises this rank's counter by one: everything in its earlier rounds is done and visible.
    Signal,
    /// Waits until `rank` has signalled `count` times in this schedule.
    Wait {
        /// Whose counter.
        rank: usize,
        /// How often it must have been raised.
        count: usize,
    },
}

/// Steps that are started together and do not depend on each other. The next round starts when all
/// of them are done.
pub type Round = Vec<Step>;

/// All that one rank does, in order.
pub type Program = Vec<Round>;

impl Step {
    /// The chunks it touches; none for a signal or a wait.
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

    /// What it reads when `rank` runs it.
    pub fn reads(&self, rank: usize) -> Vec<Place> {
        match self {
            Self::Send { from, .. } => vec![from.on(rank)],
            Self::RecvReduce { with, .. } => vec![with.on(rank)],
            Self::Copy { from, .. } => vec![*from],
            Self::Reduce { sum, .. } => sum.leaves().into_iter().copied().collect(),
            Self::Recv { .. } | Self::Signal | Self::Wait { .. } => Vec::new(),
        }
    }

    /// What it writes when `rank` runs it.
    pub fn writes(&self, rank: usize) -> Vec<Place> {
        match self {
            Self::Recv { into, .. } | Self::RecvReduce { into, .. } => vec![into.on(rank)],
            Self::Copy { into, .. } => vec![*into],
            Self::Reduce { into, .. } => into.clone(),
            Self::Send { .. } | Self::Signal | Self::Wait { .. } => Vec::new(),
        }
    }

    /// Whether it needs a channel.
    pub const fn is_message(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Recv { .. } | Self::RecvReduce { .. })
    }

    /// The other ranks into whose memory `rank` looks.
    pub fn memory_ranks(&self, rank: usize) -> Vec<usize> {
        if let Self::Wait { rank, .. } = self {
            return vec![*rank];
        }
        let places = self.reads(rank).into_iter().chain(self.writes(rank));
        places.map(|place| place.rank).filter(|&other| other != rank).collect()
    }
}
