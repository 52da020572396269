//! Different calls on different ranks: an error on every rank that names both.
//!
//! After one of these a group is of no use, so each case has a group of its own.

use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_schedule::Algorithm;

/// Two calls that do not go together.
pub struct Mismatch {
    /// What is different about them.
    pub name: &'static str,
    others: Call,
    odd_one: Call,
    /// What must be said about each of them.
    words: [&'static str; 2],
}

type Call = fn(&Comm) -> Result<(), CommError>;

/// All cases, for groups of two to five members.
pub const MISMATCHES: &[Mismatch] = &[
    Mismatch {
        name: "operation",
        others: |comm| comm.all_reduce(&mut [1.0_f32; 10], Reduction::Sum),
        odd_one: |comm| comm.all_gather(&[1_u8], &mut vec![0; comm.group_size()]),
        words: ["all-reduce of 10 f32", "all-gather of"],
    },
    Mismatch {
        name: "length",
        others: |comm| comm.all_reduce(&mut vec![1.0_f32; 1000], Reduction::Sum),
        odd_one: |comm| comm.all_reduce(&mut vec![1.0_f32; 1001], Reduction::Sum),
        words: ["all-reduce of 1000 f32", "all-reduce of 1001 f32"],
    },
    Mismatch {
        name: "no length at all",
        others: |comm| comm.all_reduce(&mut vec![1.0_f64; 1000], Reduction::Sum),
        odd_one: |comm| comm.all_reduce::<f64>(&mut [], Reduction::Sum),
        words: ["of 1000 f64", "of 0 f64"],
    },
    Mismatch {
        name: "type",
        others: |comm| comm.all_reduce(&mut [1.0_f32; 10], Reduction::Sum),
        odd_one: |comm| comm.all_reduce(&mut [1_i32; 10], Reduction::Sum),
        words: ["10 f32, sum", "10 i32, sum"],
    },
    Mismatch {
        name: "reduction",
        others: |comm| comm.all_reduce(&mut [1_u8; 10], Reduction::Max),
        odd_one: |comm| comm.all_reduce(&mut [1_u8; 10], Reduction::Min),
        words: ["u8, max", "u8, min"],
    },
    Mismatch {
        name: "root",
        others: |comm| comm.broadcast(&mut [1_u8; 10], 0),
        odd_one: |comm| comm.broadcast(&mut [1_u8; 10], comm.group_size() - 1),
        words: ["root 0", "root "],
    },
    Mismatch {
        name: "order",
        others: |comm| {
            comm.reduce(&mut [1_u8; 10], 0, Reduction::Sum)?;
            comm.all_reduce(&mut [1.0_f32; 7], Reduction::Sum)
        },
        odd_one: |comm| {
            comm.all_reduce(&mut [1.0_f32; 7], Reduction::Sum)?;
            comm.reduce(&mut [1_u8; 10], 0, Reduction::Sum)
        },
        words: ["reduce of 10 u8", "all-reduce of 7 f32"],
    },
    Mismatch {
        name: "algorithm",
        others: |comm| comm.using(Algorithm::RING).all_reduce(&mut [1_u8; 10], Reduction::Sum),
        odd_one: |comm| comm.using(Algorithm::Tree).all_reduce(&mut [1_u8; 10], Reduction::Sum),
        words: ["by ring", "by tree"],
    },
    Mismatch {
        name: "length, over messages",
        others: |comm| comm.using(Algorithm::RING).all_reduce(&mut [1_u8; 10], Reduction::Sum),
        odd_one: |comm| comm.using(Algorithm::RING).all_reduce(&mut [1_u8; 20], Reduction::Sum),
        words: ["of 10 u8", "of 20 u8"],
    },
    Mismatch {
        name: "type of a message",
        others: |comm| match comm.group_rank() {
            0 => comm.send(&[1.0_f32; 5], 1, 3),
            _ => Ok(()),
        },
        odd_one: |comm| comm.recv(&mut [1_u32; 5], 0, 3),
        words: ["5 f32", "5 u32"],
    },
];

impl Mismatch {
    /// Makes the calls, the odd one on member 1, with this member's end of a new group.
    pub fn check(&self, comm: &Comm) {
        let call = if comm.group_rank() == 1 { self.odd_one } else { self.others };
        // A rank that nobody waited for may get away with this call, and fails in the next; one
        // that is slow to leave the first barrier may hear of the failure there.
        let all = comm.barrier().and_then(|()| call(comm)).and_then(|()| comm.barrier());
        let error = all.expect_err("the calls differ");
        let text = error.to_string();
        for word in self.words {
            let (case, rank) = (self.name, comm.rank());
            assert!(text.contains(word), "{case}: rank {rank} does not name `{word}`: {text}");
        }
        assert_eq!(error.blame(), lockstep_config::Blame::User, "{}: {text}", self.name);
    }
}
