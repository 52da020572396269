//! Checks of mismatched calls: every rank reports an error that names both calls.
//!
//! A mismatch makes a group unusable, so each case needs a new group.

use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_schedule::Algorithm;

/// Two calls that do not match.
pub struct Mismatch {
    /// Difference between the calls.
    pub name: &'static str,
    others: Call,
    odd_one: Call,
    /// Text that the error must contain about each of them.
    texts: [&'static str; 2],
}

type Call = fn(&Comm) -> Result<(), CommError>;

/// All cases, for groups of two to five ranks.
pub const MISMATCHES: &[Mismatch] = &[
    Mismatch {
        name: "operation",
        others: |comm| comm.all_reduce(&mut [1.0_f32; 10], Reduction::Sum),
        odd_one: |comm| comm.all_gather(&[1_u8], &mut vec![0; comm.group_size()]),
        texts: ["all-reduce of 10 f32", "all-gather of"],
    },
    Mismatch {
        name: "length",
        others: |comm| comm.all_reduce(&mut vec![1.0_f32; 1000], Reduction::Sum),
        odd_one: |comm| comm.all_reduce(&mut vec![1.0_f32; 1001], Reduction::Sum),
        texts: ["all-reduce of 1000 f32", "all-reduce of 1001 f32"],
    },
    Mismatch {
        name: "no length at all",
        others: |comm| comm.all_reduce(&mut vec![1.0_f64; 1000], Reduction::Sum),
        odd_one: |comm| comm.all_reduce::<f64>(&mut [], Reduction::Sum),
        texts: ["of 1000 f64", "of 0 f64"],
    },
    Mismatch {
        name: "type",
        others: |comm| comm.all_reduce(&mut [1.0_f32; 10], Reduction::Sum),
        odd_one: |comm| comm.all_reduce(&mut [1_i32; 10], Reduction::Sum),
        texts: ["10 f32, sum", "10 i32, sum"],
    },
    Mismatch {
        name: "reduction",
        others: |comm| comm.all_reduce(&mut [1_u8; 10], Reduction::Max),
        odd_one: |comm| comm.all_reduce(&mut [1_u8; 10], Reduction::Min),
        texts: ["u8, max", "u8, min"],
    },
    Mismatch {
        name: "root",
        others: |comm| comm.broadcast(&mut [1_u8; 10], 0),
        odd_one: |comm| comm.broadcast(&mut [1_u8; 10], comm.group_size() - 1),
        texts: ["root 0", "root "],
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
        texts: ["reduce of 10 u8", "all-reduce of 7 f32"],
    },
    Mismatch {
        name: "algorithm",
        others: |comm| comm.using(Algorithm::RING).all_reduce(&mut [1_u8; 10], Reduction::Sum),
        odd_one: |comm| comm.using(Algorithm::Tree).all_reduce(&mut [1_u8; 10], Reduction::Sum),
        texts: ["by ring", "by tree"],
    },
    Mismatch {
        name: "length, over messages",
        others: |comm| comm.using(Algorithm::RING).all_reduce(&mut [1_u8; 10], Reduction::Sum),
        odd_one: |comm| comm.using(Algorithm::RING).all_reduce(&mut [1_u8; 20], Reduction::Sum),
        texts: ["of 10 u8", "of 20 u8"],
    },
    Mismatch {
        name: "type of a message",
        others: |comm| match comm.group_rank() {
            0 => comm.send(&[1.0_f32; 5], 1, 3),
            _ => Ok(()),
        },
        odd_one: |comm| comm.recv(&mut [1_u32; 5], 0, 3),
        texts: ["5 f32", "5 u32"],
    },
];

impl Mismatch {
    /// Runs the calls in a new group, the odd one on rank 1.
    pub fn check(&self, comm: &Comm) {
        let call = if comm.group_rank() == 1 { self.odd_one } else { self.others };
        // A rank without a waiting peer may complete this call and fail in the next one; a rank
        // that leaves the first barrier late may receive the failure there.
        let all = comm.barrier().and_then(|()| call(comm)).and_then(|()| comm.barrier());
        let error = all.expect_err("the calls differ");
        let text = error.to_string();
        for part in self.texts {
            let (case, rank) = (self.name, comm.rank());
            assert!(text.contains(part), "{case}: rank {rank} does not name `{part}`: {text}");
        }
        assert_eq!(error.blame(), lockstep_config::Blame::User, "{}: {text}", self.name);
    }
}
