//! Any operation, algorithm, length and number of ranks against a reference.

use crate::common::run_threads;
use lockstep_comm::{Comm, Reduction};
use lockstep_schedule::collective::algorithms;
use lockstep_schedule::{Algorithm, Op};
use proptest::prelude::*;

/// A random call.
#[derive(Debug, Clone)]
struct Case {
    op: Op,
    algorithm: Option<Algorithm>,
    count: usize,
    reduction: Reduction,
    in_arena: bool,
    seed: u64,
}

fn ops() -> impl Strategy<Value = Op> {
    let root = 0_usize..6;
    prop_oneof![
        Just(Op::AllReduce),
        Just(Op::ReduceScatter),
        Just(Op::AllGather),
        Just(Op::AllToAll),
        root.clone().prop_map(|root| Op::Broadcast { root }),
        root.clone().prop_map(|root| Op::Reduce { root }),
        root.clone().prop_map(|root| Op::Scatter { root }),
        root.prop_map(|root| Op::Gather { root }),
    ]
}

fn cases() -> impl Strategy<Value = Case> {
    let parts =
        (ops(), any::<prop::sample::Index>(), 0_usize..3000, 0_usize..4, any::<(bool, u64)>());
    parts.prop_map(|(op, choice, count, reduction, (in_arena, seed))| {
        let offered = algorithms(op);
        let algorithm = offered.get(choice.index(offered.len() + 1)).copied();
        Case { op, algorithm, count, reduction: Reduction::ALL[reduction], in_arena, seed }
    })
}

/// Element `index` of the input of a rank; integers, so that sums do not depend on the order.
fn value(seed: u64, group_rank: usize, index: usize) -> i64 {
    let mixed =
        (seed ^ (group_rank as u64) << 40 ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40).cast_signed() - (1 << 23)
}

fn reduced(case: &Case, n: usize, index: usize) -> i64 {
    let all = (0..n).map(|group_rank| value(case.seed, group_rank, index));
    match case.reduction {
        Reduction::Sum => all.sum(),
        Reduction::Mean => all.sum::<i64>() / n.cast_signed() as i64,
        Reduction::Max => all.max().expect("there are ranks"),
        Reduction::Min => all.min().expect("there are ranks"),
    }
}

/// Makes the call of a case; returns the result and the expected result of this rank.
fn run_case(comm: &Comm, case: &Case) -> (Vec<i64>, Vec<i64>) {
    let (n, me) = (comm.group_size(), comm.group_rank());
    let count = if case.op == Op::AllToAll { case.count / n * n } else { case.count };
    let own = comm.part_of(count, me);
    let whole: Vec<i64> = (0..count).map(|index| value(case.seed, me, index)).collect();
    let mut arena = comm.allocate::<i64>(count).expect("the arena has room");
    arena.copy_from_slice(&whole);
    let mut private = whole.clone();
    let data: &mut [i64] = if case.in_arena { &mut arena } else { &mut private };
    let sums = |range: std::ops::Range<usize>| range.map(|index| reduced(case, n, index));
    let from = |source: usize| move |index: usize| value(case.seed, source, index);
    let mut part = vec![0; own.len()];
    let result = match case.op {
        Op::AllReduce => comm.all_reduce(data, case.reduction),
        Op::Reduce { root } => comm.reduce(data, root, case.reduction),
        Op::Broadcast { root } => comm.broadcast(data, root),
        Op::ReduceScatter => comm.reduce_scatter(data, &mut part, case.reduction),
        Op::AllGather => comm.all_gather(&whole[own.clone()], data),
        Op::Scatter { root } => comm.scatter(data, &mut part, root),
        Op::Gather { root } => comm.gather(&whole[own.clone()], data, root),
        Op::AllToAll => comm.all_to_all(&whole, data),
        Op::Barrier => comm.barrier(),
    };
    result.unwrap_or_else(|error| panic!("{case:?}: {error}"));
    let data = data.to_vec();
    let gathered = || (0..n).flat_map(|p| comm.part_of(count, p).map(from(p))).collect();
    match case.op {
        Op::AllReduce => (data, sums(0..count).collect()),
        Op::Reduce { root } if root == me => (data, sums(0..count).collect()),
        Op::Broadcast { root } => (data, (0..count).map(from(root)).collect()),
        Op::ReduceScatter => (part, sums(own).collect()),
        Op::Scatter { root } => (part, own.map(from(root)).collect()),
        Op::AllGather => (data, gathered()),
        Op::Gather { root } if root == me => (data, gathered()),
        Op::AllToAll => (data, (0..n).flat_map(|p| own.clone().map(from(p))).collect()),
        Op::Reduce { .. } | Op::Gather { .. } | Op::Barrier => (data, whole),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_sequences_of_calls_match_the_reference(
        num_ranks in 1_usize..=6,
        cases in prop::collection::vec(cases(), 1..12),
    ) {
        run_threads(num_ranks, |comm| {
            for case in &cases {
                let root = case.op.root().unwrap_or(0);
                let offered = case.algorithm.is_none_or(|chosen| comm.offers(case.op, chosen));
                if root < num_ranks && offered {
                    let comm = case.algorithm.map_or_else(|| comm.clone(), |a| comm.using(a));
                    let (found, expected) = run_case(&comm, case);
                    assert_eq!(found, expected, "{case:?} on {num_ranks} ranks");
                }
            }
        });
    }
}
