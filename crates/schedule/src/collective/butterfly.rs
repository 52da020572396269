//! Butterfly all-reduce: recursive doubling of the whole vector (Thakur, Rabenseifner and Gropp
//! 2005).
//!
//! In round r every rank exchanges its partial sum with the rank at distance 2^r and adds. After
//! log₂ n rounds every rank has the total. It takes log₂ n rounds, the fewest possible, and sends
//! log₂ n times the vector per rank, so it suits short vectors, where latency dominates. Other
//! group sizes are first reduced to a power of two, for two more rounds.
//!
//! *Order of the sum:* canonical for powers of two. Both partners add the same two numbers with the
//! lower rank on the left, so all ranks get the same bits.

use super::power_of_two::PowerOfTwoGroup;
use crate::algorithm::Algorithm;
use crate::builder::Builder;
use crate::chunks::Chunks;
use crate::instruction::Buffer;
use crate::op::Op;
use crate::schedule::Schedule;
use crate::sum_tree::SumTree;

/// All-reduce.
pub fn all_reduce(num_ranks: usize) -> Schedule {
    let all = Chunks::all(1);
    let mut builder = Builder::new(num_ranks);
    let group = PowerOfTwoGroup::new(num_ranks);
    let (mut places, mut slot) = group.fold_in(&mut builder, 0, all);
    // Data that arrives must not overwrite data that is being sent, so it goes to scratch memory.
    let received = Buffer::Scratch { slot: 0, base: 0 };
    for doubling in 0..group.num_doublings() {
        for (index, own) in places.iter().enumerate() {
            let partner = places[index ^ (1 << doubling)];
            builder.message(slot, all, *own, received.on(partner.rank));
        }
        for (index, own) in places.iter_mut().enumerate() {
            let output = Buffer::Output.on(own.rank);
            let (own_sum, other) = (SumTree::Leaf(*own), SumTree::Leaf(received.on(own.rank)));
            let is_lower = index & (1 << doubling) == 0;
            let (left, right) = if is_lower { (own_sum, other) } else { (other, own_sum) };
            builder.reduce(slot + 1, own.rank, all, vec![output], SumTree::sum(left, right));
            *own = output;
        }
        slot += 2;
    }
    group.return_result(&mut builder, slot, all);
    if num_ranks == 1 {
        builder.copy(slot, 0, all, Buffer::Output.on(0), Buffer::INPUT.on(0));
    }
    builder.finish(Op::AllReduce, Algorithm::Butterfly, 1)
}
