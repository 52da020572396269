//! Proofs of every algorithm, for every number of ranks and every root.

use std::collections::BTreeSet;
use std::ops::Range;

use lockstep_schedule::collective::{GroupSpec, algorithms, build};
use lockstep_schedule::{Algorithm, Contributions, Op, Report, Schedule, Step, verify};

fn sizes() -> impl Iterator<Item = usize> {
    (1..=16).chain([24, 32])
}

/// Every schedule of the operations that `selected` accepts, with its report.
fn for_each(selected: impl Fn(Op) -> bool, mut check: impl FnMut(&Schedule, &Report)) {
    for num_ranks in sizes() {
        let group = GroupSpec::new(num_ranks);
        for op in Op::all(num_ranks).into_iter().filter(|op| selected(*op)) {
            let mut num_built = 0;
            for &algorithm in algorithms(op) {
                // Halving needs a power of two, and hierarchical schedules have their own tests.
                let Ok(schedule) = build(op, algorithm, &group) else { continue };
                let report = verify(&schedule);
                let report = report.unwrap_or_else(|error| panic!("{error}\n{schedule}"));
                // Only an all-to-all moves chunks to other positions.
                assert_eq!(report.in_place, op != Op::AllToAll || num_ranks == 1, "{schedule}");
                check(&schedule, &report);
                num_built += 1;
            }
            assert!(num_built > 1, "{op} has several algorithms");
        }
    }
}

/// Whether a schedule promises the canonical order.
fn promises_canonical(schedule: &Schedule) -> Option<bool> {
    let num_ranks = schedule.num_ranks();
    match schedule.algorithm {
        Algorithm::Ring { .. } => Some(num_ranks <= 2),
        Algorithm::DoubleTree { .. } if num_ranks > 2 => Some(false),
        Algorithm::Butterfly | Algorithm::Rabenseifner | Algorithm::DoubleTree { .. } => {
            num_ranks.is_power_of_two().then_some(true)
        }
        _ => Some(true),
    }
}

#[test]
fn all_reduces() {
    for_each(
        |op| op == Op::AllReduce,
        |schedule, report| {
            if let Some(promised) = promises_canonical(schedule) {
                assert_eq!(report.canonical, promised, "{schedule}");
            }
        },
    );
}

#[test]
fn reduce_scatters() {
    for_each(
        |op| op == Op::ReduceScatter,
        |schedule, report| {
            assert_eq!(Some(report.canonical), promises_canonical(schedule), "{schedule}");
        },
    );
}

#[test]
fn reduces_to_every_root_are_canonical() {
    for_each(
        |op| matches!(op, Op::Reduce { .. }),
        |schedule, report| assert!(report.canonical, "{schedule}"),
    );
}

#[test]
fn broadcasts_from_every_root() {
    for_each(|op| matches!(op, Op::Broadcast { .. }), |_, report| assert!(report.sums.is_empty()));
}

#[test]
fn scatters_and_gathers_of_every_root() {
    let selected = |op| matches!(op, Op::Scatter { .. } | Op::Gather { .. });
    for_each(selected, |_, report| assert!(report.sums.is_empty()));
}

#[test]
fn all_gathers_all_to_alls_and_barriers() {
    let selected = |op| matches!(op, Op::AllGather | Op::AllToAll | Op::Barrier);
    for_each(selected, |_, report| assert!(report.sums.is_empty()));
}

#[test]
fn rings_with_many_channels_and_double_trees_with_many_segments() {
    for num_ranks in 1..=9 {
        for number in 1..=5 {
            let group = GroupSpec::new(num_ranks);
            for op in [Op::AllReduce, Op::ReduceScatter, Op::AllGather] {
                let ring = build(op, Algorithm::Ring { channels: number }, &group).unwrap();
                verify(&ring).unwrap_or_else(|error| panic!("{error}\n{ring}"));
            }
            let double_tree = Algorithm::DoubleTree { segments: number };
            let double_tree = build(Op::AllReduce, double_tree, &group).unwrap();
            verify(&double_tree).unwrap_or_else(|error| panic!("{error}\n{double_tree}"));
        }
    }
}

#[test]
fn any_number_of_workers_up_to_the_leaves_adds_in_one_order() {
    for num_leaves in [1, 2, 6, 8, 16] {
        for num_ranks in 1..=num_leaves {
            // Shares of whole leaves of different sizes: the first ranks hold one more.
            let start = |rank: usize| (rank * num_leaves).div_ceil(num_ranks);
            let shares: Vec<Range<usize>> =
                (0..num_ranks).map(|rank| start(rank)..start(rank + 1)).collect();
            let contributions = Contributions::of_leaves(&shares);
            let group = GroupSpec { contributions, ..GroupSpec::new(1) };
            for op in [Op::AllReduce, Op::ReduceScatter, Op::Reduce { root: num_ranks - 1 }] {
                let mut num_built = 0;
                for &algorithm in algorithms(op) {
                    let Ok(schedule) = build(op, algorithm, &group) else { continue };
                    let report = verify(&schedule);
                    let report = report.unwrap_or_else(|error| panic!("{error}\n{schedule}"));
                    let promised = promises_canonical(&schedule).unwrap_or(report.canonical);
                    assert_eq!(report.canonical, promised, "{schedule}");
                    num_built += 1;
                }
                assert!(num_built > 1, "direct and pairwise take several contributions");
            }
        }
    }
}

#[test]
fn a_group_of_one_sends_and_waits_for_nothing() {
    let group = GroupSpec::new(1);
    for op in Op::all(1) {
        for &algorithm in algorithms(op) {
            let Ok(schedule) = build(op, algorithm, &group) else { continue };
            let report = verify(&schedule).unwrap();
            assert_eq!(report.num_rounds, 0, "{schedule}");
            assert!(!schedule.needs_messages() && !schedule.needs_memory(), "{schedule}");
            // At most one copy of the input to the output is left, and none in place.
            assert!(schedule.steps().count() <= 1, "{schedule}");
        }
    }
}

#[test]
fn a_ring_in_any_order_is_a_ring() {
    for order in [vec![0, 2, 1, 3], vec![0, 3, 1, 4, 2], vec![5, 1, 0, 4, 2, 3]] {
        let group = GroupSpec { ring: order.clone(), ..GroupSpec::new(order.len()) };
        for op in [Op::AllReduce, Op::ReduceScatter, Op::AllGather] {
            for channels in 1..=3 {
                let ring = build(op, Algorithm::Ring { channels }, &group).unwrap();
                verify(&ring).unwrap_or_else(|error| panic!("{error}\n{ring}"));
                if channels == 1 {
                    let next = order.iter().cycle().skip(1);
                    let edges: BTreeSet<(usize, usize)> =
                        order.iter().copied().zip(next.copied()).collect();
                    let sends = ring.steps().filter_map(|(id, step)| match step {
                        Step::Send { peer, .. } => Some((id.rank, *peer)),
                        _ => None,
                    });
                    assert_eq!(sends.collect::<BTreeSet<_>>(), edges, "{ring}");
                }
            }
        }
    }
}
