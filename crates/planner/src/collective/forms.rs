//! Closed forms by operation and algorithm, where one is exact for a number of ranks.
//!
//! Roots are rank 0. The vector of a scatter, a gather or an all-gather is that of all ranks
//! together, of an all-to-all that of one rank. Double trees and folded powers of two have no exact
//! form here; their schedules are priced instead.

use super::{ClosedForm, all_to_all, butterfly, log2_up, rabenseifner, ring, tree};
use lockstep_schedule::{Algorithm, Op};

/// Closed form of an operation by an algorithm, or `None` where only the schedule tells.
pub fn closed_form(op: Op, algorithm: Algorithm, num_ranks: usize) -> Option<ClosedForm> {
    let n = num_ranks as u64;
    let halves = num_ranks.is_power_of_two();
    let logarithmic = ClosedForm { rounds: log2_up(num_ranks), parts: n - 1, of: n };
    Some(match (op, algorithm) {
        (Op::AllReduce, Algorithm::Ring { .. } | Algorithm::Pairwise) => {
            ring::all_reduce(num_ranks)
        }
        (Op::AllReduce, Algorithm::Tree) => tree::all_reduce(num_ranks),
        (Op::AllReduce, Algorithm::Butterfly) if halves => butterfly::all_reduce(num_ranks),
        (Op::AllReduce, Algorithm::Rabenseifner) if halves => rabenseifner::all_reduce(num_ranks),
        (Op::ReduceScatter | Op::AllGather, Algorithm::Ring { .. } | Algorithm::Pairwise) => {
            ring::half(num_ranks)
        }
        (Op::ReduceScatter, Algorithm::Halving) | (Op::AllGather, Algorithm::Doubling) => {
            logarithmic
        }
        (Op::Broadcast { .. } | Op::Reduce { .. }, Algorithm::Tree) => tree::one_way(num_ranks),
        (Op::Broadcast { .. }, Algorithm::Linear) => ClosedForm { rounds: 1, parts: n - 1, of: 1 },
        (Op::Broadcast { .. }, Algorithm::ScatterGather) if halves => {
            ClosedForm { rounds: log2_up(num_ranks) + n - 1, parts: 2 * (n - 1), of: n }
        }
        (Op::Reduce { .. }, Algorithm::ScatterGather) => {
            ClosedForm { rounds: n, parts: 2 * (n - 1), of: n }
        }
        (Op::Scatter { .. } | Op::Gather { .. }, Algorithm::Tree) if halves => logarithmic,
        (Op::Scatter { .. } | Op::Gather { .. }, Algorithm::Linear) => {
            ClosedForm { rounds: 1, parts: n - 1, of: n }
        }
        (Op::AllToAll, Algorithm::Pairwise) => all_to_all::even(num_ranks),
        (Op::Barrier, Algorithm::Dissemination) => {
            ClosedForm { rounds: log2_up(num_ranks), parts: 0, of: 1 }
        }
        _ => return None,
    })
}
