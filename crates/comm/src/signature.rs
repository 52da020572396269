//! Signature of a call, in three words that travel with it.
//!
//! A collective requires that every rank of the group makes the same call. Programs often do not,
//! and other libraries then hang or corrupt data. Here each rank publishes its [`Signature`],
//! beside the flag or in front of the message that it sends anyway, so that a different call is an
//! error that names both.

use std::fmt;

use lockstep_schedule::collective::algorithms;
use lockstep_schedule::{Algorithm, Op};

use crate::element::{Dtype, Reduction};

/// Everything about a call that must be equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Signature {
    /// Operation, type, reduction, algorithm and root, packed.
    kind: u64,
    /// Number of elements of the whole vector.
    count: u64,
    /// Hash of the lengths of the parts if given explicitly, else 0.
    lengths: u64,
}

/// Names of the operations by code.
pub(crate) const NAMES: [&str; 10] = [
    "all-reduce",
    "reduce-scatter",
    "all-gather",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "all-to-all",
    "barrier",
    "send and receive",
];

/// Code of a point-to-point message.
pub(crate) const MESSAGE: usize = 9;

impl Signature {
    /// Signature of a collective.
    pub fn new(
        op: Op,
        dtype: Dtype,
        reduction: Option<Reduction>,
        algorithm: Algorithm,
        count: usize,
        lengths: u64,
    ) -> Self {
        let kind = Kind {
            op: code(op),
            dtype: dtype as usize,
            reduction: reduction.map_or(0, |reduction| 1 + reduction as usize),
            algorithm: algorithm_code(algorithm),
            root: op.root().unwrap_or(0),
        };
        Self { kind: kind.pack(), count: count as u64, lengths }
    }

    /// Signature of a point-to-point message.
    pub const fn message(dtype: Dtype, count: usize) -> Self {
        let (op, dtype) = (MESSAGE, dtype as usize);
        let kind = Kind { op, dtype, reduction: 0, algorithm: 0, root: 0 };
        Self { kind: kind.pack(), count: count as u64, lengths: 0 }
    }

    /// Whether it is a point-to-point message.
    pub fn is_message(&self) -> bool {
        Kind::unpack(self.kind).op == MESSAGE
    }

    /// Size of the whole vector in bytes.
    pub fn bytes(&self) -> u64 {
        let dtype = Dtype::ALL.get(Kind::unpack(self.kind).dtype);
        self.count.saturating_mul(dtype.map_or(0, |dtype| dtype.bytes() as u64))
    }

    /// Packs the signature into three words.
    pub const fn pack(self) -> [u64; 3] {
        [self.kind, self.count, self.lengths]
    }

    /// Unpacks a signature of a peer; every value is valid.
    pub const fn unpack([kind, count, lengths]: [u64; 3]) -> Self {
        Self { kind, count, lengths }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = Kind::unpack(self.kind);
        let name = NAMES.get(kind.op).copied().unwrap_or("unknown operation");
        write!(f, "{name}")?;
        if kind.op != code(Op::Barrier) {
            let dtype = Dtype::ALL.get(kind.dtype).map_or("unknown", |dtype| dtype.name());
            write!(f, " of {} {dtype}", self.count)?;
        }
        if let Some(reduction) = kind.reduction.checked_sub(1).and_then(|k| Reduction::ALL.get(k)) {
            write!(f, ", {reduction}")?;
        }
        if (3..=6).contains(&kind.op) {
            write!(f, ", root {}", kind.root)?;
        }
        if self.lengths != 0 {
            write!(f, ", parts #{:08x}", self.lengths >> 32)?;
        }
        match known_algorithms().find(|known| algorithm_code(*known) == kind.algorithm) {
            _ if kind.op == MESSAGE => Ok(()),
            Some(known) => write!(f, ", by {known}"),
            None => write!(f, ", by algorithm #{:02x}", kind.algorithm),
        }
    }
}

struct Kind {
    op: usize,
    dtype: usize,
    reduction: usize,
    algorithm: usize,
    root: usize,
}

impl Kind {
    const fn pack(&self) -> u64 {
        let low = self.op | self.dtype << 8 | self.reduction << 16 | self.algorithm << 24;
        (low | self.root << 32) as u64
    }

    fn unpack(word: u64) -> Self {
        let byte = |index: u32| (word >> (8 * index) & 0xff) as usize;
        let root = (word >> 32) as usize;
        Self { op: byte(0), dtype: byte(1), reduction: byte(2), algorithm: byte(3), root }
    }
}

/// Code of an operation, for any root.
#[inline]
pub(crate) fn code(op: Op) -> usize {
    match op {
        Op::AllReduce => 0,
        Op::ReduceScatter => 1,
        Op::AllGather => 2,
        Op::Broadcast { .. } => 3,
        Op::Reduce { .. } => 4,
        Op::Scatter { .. } => 5,
        Op::Gather { .. } => 6,
        Op::AllToAll => 7,
        Op::Barrier => 8,
    }
}

/// Code of an algorithm: one byte of a hash of its name, because algorithms have parameters.
fn algorithm_code(algorithm: Algorithm) -> usize {
    let name = algorithm.to_string();
    (hash_bytes(name.bytes().map(u64::from)) >> 56) as usize
}

/// Algorithms that can be named from their codes.
fn known_algorithms() -> impl Iterator<Item = Algorithm> {
    let root = 0;
    let ops = [
        Op::AllReduce,
        Op::ReduceScatter,
        Op::AllGather,
        Op::Broadcast { root },
        Op::Scatter { root },
        Op::AllToAll,
        Op::Barrier,
    ];
    ops.into_iter().flat_map(|op| algorithms(op).iter().copied())
}

/// Hash of the lengths of parts; 0 for even parts.
#[inline]
pub(crate) fn hash(lengths: &[usize]) -> u64 {
    if lengths.is_empty() { 0 } else { hash_bytes(lengths.iter().map(|&len| len as u64)) | 1 }
}

/// FNV-1a over words, with a rotation; detects mistakes, not attacks.
fn hash_bytes(fields: impl Iterator<Item = u64>) -> u64 {
    fields.fold(0xcbf2_9ce4_8422_2325, |hash, word| {
        (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_renders_as_a_phrase() {
        let op = Op::Reduce { root: 3 };
        let (sum, tree) = (Some(Reduction::Sum), Algorithm::Tree);
        let text = Signature::new(op, Dtype::Bf16, sum, tree, 10, 0).to_string();
        assert_eq!(text, "reduce of 10 bf16, sum, root 3, by tree");
        let rare = Algorithm::Ring { channels: 77 };
        let text = Signature::new(Op::AllReduce, Dtype::U8, sum, rare, 1, 0).to_string();
        assert!(text.starts_with("all-reduce of 1 u8, sum, by algorithm #"), "{text}");
        let message = Signature::message(Dtype::F16, 5);
        assert_eq!(message.to_string(), "send and receive of 5 f16");
        assert_ne!(message, Signature::message(Dtype::Bf16, 5));
    }

    #[test]
    fn algorithms_have_codes_of_their_own() {
        let mut names: Vec<String> = known_algorithms().map(|known| known.to_string()).collect();
        names.sort_unstable();
        names.dedup();
        let mut codes: Vec<usize> =
            names.iter().map(|name| algorithm_code(name.parse().unwrap())).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), names.len(), "{names:?}");
    }

    #[test]
    fn calls_that_differ_in_one_thing_differ() {
        let base = |op, dtype, reduction, algorithm, count, lengths: &[usize]| {
            Signature::new(op, dtype, Some(reduction), algorithm, count, hash(lengths))
        };
        let (op, dtype, sum, direct) =
            (Op::AllReduce, Dtype::F32, Reduction::Sum, Algorithm::Direct);
        let all = [
            base(op, dtype, sum, direct, 10, &[]),
            base(Op::ReduceScatter, dtype, sum, direct, 10, &[]),
            base(op, Dtype::I32, sum, direct, 10, &[]),
            base(op, dtype, Reduction::Max, direct, 10, &[]),
            base(op, dtype, sum, Algorithm::RING, 10, &[]),
            base(op, dtype, sum, Algorithm::Ring { channels: 2 }, 10, &[]),
            base(op, dtype, sum, direct, 11, &[]),
            base(Op::Reduce { root: 0 }, dtype, sum, direct, 10, &[]),
            base(Op::Reduce { root: 1 }, dtype, sum, direct, 10, &[]),
            base(op, dtype, sum, direct, 10, &[4, 6]),
            base(op, dtype, sum, direct, 10, &[6, 4]),
        ];
        for (i, one) in all.iter().enumerate() {
            assert_eq!(Signature::unpack(one.pack()), *one);
            assert!(all[..i].iter().all(|other| other != one), "{one}");
        }
    }
}
