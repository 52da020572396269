//! Rounds and bytes of every algorithm, against their closed forms (Thakur, Rabenseifner and Gropp
//! 2005).

use lockstep_schedule::collective::{GroupSpec, build};
use lockstep_schedule::{Algorithm, Layout, Op, Report, Traffic, verify};

/// A proven schedule and its lengths, for a vector that divides evenly.
struct Measured {
    num_ranks: usize,
    count: usize,
    layout: Layout,
    report: Report,
}

fn measure(op: Op, algorithm: Algorithm, num_ranks: usize) -> Measured {
    let schedule = build(op, algorithm, &GroupSpec::new(num_ranks)).expect("it is for this");
    let count = schedule.num_chunks * num_ranks * 4;
    let layout = Layout::even(&schedule, count);
    let report = verify(&schedule).expect("every schedule is right");
    Measured { num_ranks, count, layout, report }
}

impl Measured {
    fn rounds(&self) -> usize {
        self.report.num_rounds
    }

    fn each(&self, what: impl Fn(&Traffic, &Layout) -> usize) -> Vec<usize> {
        self.report.ranks.iter().map(|rank| what(rank, &self.layout)).collect()
    }

    /// Every rank sends and receives `times` parts, of which the vector has one per rank.
    fn assert_each_moves_parts(&self, times: usize) {
        let expected = vec![times * self.count / self.num_ranks; self.num_ranks];
        assert_eq!(self.each(Traffic::sent_len), expected);
        assert_eq!(self.each(Traffic::received_len), expected);
    }

    fn total_sent(&self) -> usize {
        self.each(Traffic::sent_len).into_iter().sum()
    }

    fn scratch(&self) -> Vec<usize> {
        self.each(Traffic::scratch_len)
    }

    fn num_messages(&self) -> Vec<usize> {
        self.each(|rank, _| rank.num_messages)
    }
}

fn log2_up(n: usize) -> usize {
    n.next_power_of_two().trailing_zeros() as usize
}

const SIZES: std::ops::RangeInclusive<usize> = 2..=16;

#[test]
fn a_ring_all_reduce_takes_2_n_minus_1_rounds_of_a_part() {
    for n in SIZES {
        for channels in 1..=4 {
            let ring = measure(Op::AllReduce, Algorithm::Ring { channels }, n);
            assert_eq!(ring.rounds(), 2 * (n - 1));
            ring.assert_each_moves_parts(2 * (n - 1));
            assert_eq!(ring.scratch(), vec![0; n]);
        }
    }
}

#[test]
fn both_directions_of_a_ring_carry_half() {
    for n in 3..=16 {
        let ring = measure(Op::AllReduce, Algorithm::Ring { channels: 2 }, n);
        for (rank, traffic) in ring.report.ranks.iter().enumerate() {
            let to = |peer: usize| {
                let sent = traffic.sent.iter().filter(|transfer| transfer.peer == peer);
                sent.map(|transfer| ring.layout.len(transfer.chunks)).sum::<usize>()
            };
            let (next, last) = ((rank + 1) % n, (rank + n - 1) % n);
            assert_eq!(to(next), (n - 1) * ring.count / n);
            assert_eq!(to(last), (n - 1) * ring.count / n);
        }
    }
}

#[test]
fn half_a_ring_takes_n_minus_1_rounds_and_two_parts_of_memory() {
    for n in SIZES {
        let scattered = measure(Op::ReduceScatter, Algorithm::RING, n);
        assert_eq!(scattered.rounds(), n - 1);
        scattered.assert_each_moves_parts(n - 1);
        assert_eq!(scattered.scratch(), vec![(n - 2).min(2) * scattered.count / n; n]);
        let gathered = measure(Op::AllGather, Algorithm::RING, n);
        assert_eq!(gathered.rounds(), n - 1);
        gathered.assert_each_moves_parts(n - 1);
    }
}

#[test]
fn a_tree_takes_twice_its_height_and_every_link_once_in_each_direction() {
    for n in SIZES {
        let tree = measure(Op::AllReduce, Algorithm::Tree, n);
        assert_eq!(tree.rounds(), 2 * log2_up(n));
        assert_eq!(tree.total_sent(), 2 * (n - 1) * tree.count);
        for root in 0..n {
            let reduce = measure(Op::Reduce { root }, Algorithm::Tree, n);
            assert_eq!(reduce.rounds(), log2_up(n));
            assert_eq!(reduce.total_sent(), (n - 1) * reduce.count);
            let broadcast = measure(Op::Broadcast { root }, Algorithm::Tree, n);
            assert_eq!(broadcast.rounds(), log2_up(n));
            assert_eq!(broadcast.total_sent(), (n - 1) * broadcast.count);
        }
    }
}

#[test]
fn a_double_tree_moves_at_most_two_vectors_per_rank_and_is_pipelined() {
    for n in SIZES {
        for segments in [1, 2, 8, 32] {
            let double_tree = measure(Op::AllReduce, Algorithm::DoubleTree { segments }, n);
            for moved in [Traffic::sent_len, Traffic::received_len] {
                assert!(
                    double_tree.each(moved).into_iter().max().unwrap() <= 2 * double_tree.count
                );
            }
            // Two slots for every segment, and for every level up and down.
            let height = n.ilog2() as usize;
            assert!(double_tree.rounds() <= 2 * (segments - 1) + 4 * height);
        }
    }
}

#[test]
fn a_butterfly_takes_log_n_rounds_of_the_whole_vector() {
    for n in SIZES {
        let butterfly = measure(Op::AllReduce, Algorithm::Butterfly, n);
        let doublings = n.ilog2() as usize;
        if n.is_power_of_two() {
            assert_eq!(butterfly.rounds(), doublings);
            assert_eq!(butterfly.each(Traffic::sent_len), vec![doublings * butterfly.count; n]);
        } else {
            assert_eq!(butterfly.rounds(), doublings + 2);
        }
    }
}

#[test]
fn rabenseifner_takes_2_log_n_rounds_and_as_few_bytes_as_a_ring() {
    for n in SIZES {
        let halving = measure(Op::AllReduce, Algorithm::Rabenseifner, n);
        let doublings = n.ilog2() as usize;
        if n.is_power_of_two() {
            assert_eq!(halving.rounds(), 2 * doublings);
            halving.assert_each_moves_parts(2 * (n - 1));
            assert_eq!(halving.num_messages(), vec![2 * doublings; n]);
            // Chunks of one message are contiguous.
            assert!(halving.report.ranks.iter().all(|rank| rank.sent.len() == 2 * doublings));
        } else {
            assert_eq!(halving.rounds(), 2 * doublings + 2);
        }
        assert_eq!(halving.scratch(), vec![0; n]);
    }
}

#[test]
fn halving_alone_takes_log_n_rounds() {
    for n in [2, 4, 8, 16, 32] {
        let halving = measure(Op::ReduceScatter, Algorithm::Halving, n);
        assert_eq!(halving.rounds(), log2_up(n));
        halving.assert_each_moves_parts(n - 1);
        assert_eq!(halving.num_messages(), vec![log2_up(n); n]);
    }
}

#[test]
fn doubling_takes_log_n_rounds_for_any_n() {
    for n in SIZES {
        let doubling = measure(Op::AllGather, Algorithm::Doubling, n);
        assert_eq!(doubling.rounds(), log2_up(n));
        doubling.assert_each_moves_parts(n - 1);
        assert_eq!(doubling.num_messages(), vec![log2_up(n); n]);
    }
}

#[test]
fn pairwise_exchange_reaches_every_other_rank_once() {
    for n in SIZES {
        let reduced = measure(Op::AllReduce, Algorithm::Pairwise, n);
        assert_eq!(reduced.rounds(), 2 * (n - 1));
        reduced.assert_each_moves_parts(2 * (n - 1));
        assert_eq!(reduced.scratch(), vec![(n - 1) * reduced.count / n; n]);
        for op in [Op::ReduceScatter, Op::AllGather] {
            let half = measure(op, Algorithm::Pairwise, n);
            assert_eq!(half.rounds(), n - 1);
            half.assert_each_moves_parts(n - 1);
        }
        let exchanged = measure(Op::AllToAll, Algorithm::Pairwise, n);
        assert_eq!(exchanged.rounds(), n - 1);
        let own_input = exchanged.count / n;
        assert_eq!(exchanged.each(Traffic::sent_len), vec![(n - 1) * own_input / n; n]);
    }
}

#[test]
fn direct_sums_synchronize_twice_and_access_every_part_once() {
    for n in SIZES {
        let parts = |measured: &Measured, times: usize| vec![times * measured.count / n; n];
        let all_reduce = measure(Op::AllReduce, Algorithm::Direct, n);
        assert_eq!(all_reduce.rounds(), 2);
        assert_eq!(all_reduce.each(Traffic::read_len), parts(&all_reduce, n - 1));
        assert_eq!(all_reduce.each(Traffic::written_len), parts(&all_reduce, n - 1));
        assert_eq!(all_reduce.scratch(), vec![0; n]);
        let reduce_scatter = measure(Op::ReduceScatter, Algorithm::Direct, n);
        assert_eq!(reduce_scatter.rounds(), 2);
        assert_eq!(reduce_scatter.each(Traffic::read_len), parts(&reduce_scatter, n - 1));
        assert_eq!(reduce_scatter.each(Traffic::written_len), vec![0; n]);
        let one_shot = measure(Op::AllReduce, Algorithm::OneShot, n);
        assert_eq!(one_shot.rounds(), 2);
        assert_eq!(one_shot.each(Traffic::read_len), vec![(n - 1) * one_shot.count; n]);
        assert_eq!(one_shot.each(Traffic::written_len), vec![0; n]);
        for measured in [all_reduce, reduce_scatter, one_shot] {
            assert_eq!(measured.num_messages(), vec![0; n]);
        }
    }
}

#[test]
fn direct_data_movement_accesses_only_the_parts_it_needs() {
    for n in SIZES {
        for op in [Op::AllGather, Op::AllToAll] {
            let moved = measure(op, Algorithm::Direct, n);
            let output = if op == Op::AllGather { moved.count } else { moved.count / n };
            assert_eq!(moved.rounds(), 2);
            assert_eq!(moved.each(Traffic::read_len), vec![(n - 1) * output / n; n]);
        }
        for root in 0..n {
            let others = |len: usize| {
                (0..n).map(|rank| if rank == root { 0 } else { len }).collect::<Vec<_>>()
            };
            let broadcast = measure(Op::Broadcast { root }, Algorithm::Direct, n);
            assert_eq!(broadcast.each(Traffic::read_len), others(broadcast.count));
            let scatter = measure(Op::Scatter { root }, Algorithm::Direct, n);
            assert_eq!(scatter.each(Traffic::read_len), others(scatter.count / n));
            let gather = measure(Op::Gather { root }, Algorithm::Direct, n);
            assert_eq!(gather.each(Traffic::written_len), others(gather.count / n));
            assert_eq!([broadcast.rounds(), scatter.rounds(), gather.rounds()], [2; 3]);
        }
    }
}

#[test]
fn scatter_and_gather_go_through_a_tree_or_directly_to_the_root() {
    for n in SIZES {
        for root in [0, n / 2, n - 1] {
            for op in [Op::Scatter { root }, Op::Gather { root }] {
                let tree = measure(op, Algorithm::Tree, n);
                assert_eq!(tree.rounds(), log2_up(n));
                let linear = measure(op, Algorithm::Linear, n);
                assert_eq!(linear.rounds(), 1);
                assert_eq!(linear.total_sent(), (n - 1) * linear.count / n);
                for measured in [tree, linear] {
                    let moved = match op {
                        Op::Scatter { .. } => measured.each(Traffic::sent_len)[root],
                        _ => measured.each(Traffic::received_len)[root],
                    };
                    assert_eq!(moved, (n - 1) * measured.count / n);
                }
            }
        }
    }
}

#[test]
fn a_long_broadcast_or_reduce_costs_the_root_about_two_vectors() {
    for n in SIZES {
        let broadcast = measure(Op::Broadcast { root: 0 }, Algorithm::ScatterGather, n);
        assert_eq!(broadcast.rounds(), log2_up(n) + n - 1);
        assert!(broadcast.each(Traffic::sent_len)[0] <= 2 * broadcast.count);
        let reduce = measure(Op::Reduce { root: 0 }, Algorithm::ScatterGather, n);
        assert_eq!(reduce.rounds(), n);
        assert_eq!(reduce.each(Traffic::received_len)[0], 2 * (n - 1) * reduce.count / n);
        let linear = measure(Op::Broadcast { root: 0 }, Algorithm::Linear, n);
        assert_eq!(
            (linear.rounds(), linear.each(Traffic::sent_len)[0]),
            (1, (n - 1) * linear.count)
        );
    }
}

#[test]
fn a_barrier_takes_log_n_messages_or_one_flag() {
    for n in SIZES {
        let barrier = measure(Op::Barrier, Algorithm::Dissemination, n);
        assert_eq!(barrier.rounds(), log2_up(n));
        assert_eq!(barrier.num_messages(), vec![log2_up(n); n]);
        assert_eq!(measure(Op::Barrier, Algorithm::Direct, n).rounds(), 1);
    }
}
