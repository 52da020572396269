//! Properties of every schedule, for any group, length and execution order.

use std::ops::Range;

use crate::engine::{self, Buffers};
use lockstep_schedule::collective::{GroupSpec, algorithms, build};
use lockstep_schedule::{Algorithm, Contributions, Layout, Medium, Op, Schedule, Topology, verify};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Fixed seed: the same cases on every run and machine.
fn cases(num_cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: num_cases,
        rng_seed: RngSeed::Fixed(3),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// A schedule of any operation by any algorithm that implements it.
fn schedules() -> impl Strategy<Value = Schedule> {
    (1..=9_usize, any::<prop::sample::Index>(), any::<prop::sample::Index>()).prop_map(
        |(num_ranks, op, algorithm)| {
            let ops = Op::all(num_ranks);
            let op = ops[op.index(ops.len())];
            let team = GroupSpec::new(num_ranks);
            let built: Vec<Schedule> =
                algorithms(op).iter().filter_map(|&by| build(op, by, &team).ok()).collect();
            built[algorithm.index(built.len())].clone()
        },
    )
}

/// Ranks in nested groups of any shape.
fn topologies() -> impl Strategy<Value = Topology> {
    let medium = || prop_oneof![Just(Medium::Memory), Just(Medium::Messages)];
    let shape = Just(Topology::Rank(0)).prop_recursive(3, 10, 4, move |inner| {
        let children = prop::collection::vec(inner, 1..=4);
        (medium(), children).prop_map(|(medium, children)| Topology::Group { medium, children })
    });
    (shape, any::<bool>()).prop_map(|(mut shape, backwards)| {
        let num_ranks = shape.ranks().len();
        let mut names: Vec<usize> = (0..num_ranks).collect();
        if backwards {
            names.reverse();
        }
        rename(&mut shape, &mut names.into_iter());
        shape
    })
}

fn rename(topology: &mut Topology, names: &mut impl Iterator<Item = usize>) {
    match topology {
        Topology::Rank(rank) => *rank = names.next().expect("a name for every rank"),
        Topology::Group { children, .. } => {
            for member in children {
                rename(member, names);
            }
        }
    }
}

/// Leaves assigned to ranks in runs of any length.
fn leaf_shares() -> impl Strategy<Value = Vec<Range<usize>>> {
    prop::collection::vec(1..=5_usize, 1..=6).prop_map(|lens| {
        let starts = lens.iter().scan(0, |next, len| {
            *next += len;
            Some(*next - len..*next)
        });
        starts.collect()
    })
}

fn lens(num_chunks: usize, seed: u64) -> Vec<usize> {
    (0..num_chunks as u64).map(|chunk| ((seed >> (chunk % 40)) % 4) as usize).collect()
}

fn check_numbers(schedule: &Schedule, layout: &Layout, seed: u64) -> Result<(), TestCaseError> {
    let inputs = engine::inputs(schedule, layout, seed);
    let outputs = engine::run(schedule, layout, &inputs, Buffers::Apart, seed);
    let second_run = engine::run(schedule, layout, &inputs, Buffers::Apart, !seed);
    prop_assert_eq!(bits(&outputs), bits(&second_run), "the order of steps shows in\n{}", schedule);
    let report = verify(schedule).expect("every schedule is right");
    let expected = engine::expected(schedule, layout, &inputs, &report.sums);
    prop_assert_eq!(bits(&outputs), bits(&expected), "{}", schedule);
    if matches!(schedule.op, Op::AllReduce) {
        let in_place = engine::run(schedule, layout, &inputs, Buffers::InPlace, seed);
        prop_assert_eq!(bits(&in_place), bits(&outputs), "in place:\n{}", schedule);
    }
    Ok(())
}

fn bits(outputs: &[Vec<f64>]) -> Vec<Vec<u64>> {
    outputs.iter().map(|output| output.iter().map(|value| value.to_bits()).collect()).collect()
}

/// Checks that the inputs of the next test expose the order of additions.
#[test]
fn the_order_of_a_sum_shows_in_its_bits() {
    let team = GroupSpec::new(5);
    let outputs = [Algorithm::RING, Algorithm::Pairwise].map(|algorithm| {
        let schedule = build(Op::AllReduce, algorithm, &team).expect("it is for all-reduce");
        let layout = Layout::even(&schedule, 100);
        let inputs = engine::inputs(&schedule, &layout, 7);
        engine::run(&schedule, &layout, &inputs, Buffers::Apart, 7)
    });
    assert_ne!(bits(&outputs[0]), bits(&outputs[1]));
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn results_match_the_proof(
        schedule in schedules(),
        count in prop::sample::select(vec![0, 1, 4, 10, 64, 100, 1000]),
        seed in any::<u64>(),
    ) {
        // An all-to-all counts all inputs together, which must be equally long.
        let count = if schedule.op == Op::AllToAll { count * schedule.num_ranks() } else { count };
        check_numbers(&schedule, &Layout::even(&schedule, count), seed)?;
    }

    #[test]
    fn chunks_may_have_any_lengths(schedule in schedules(), seed in any::<u64>()) {
        let layout = Layout::explicit(&schedule, &lens(schedule.num_chunks, seed));
        check_numbers(&schedule, &layout, seed)?;
    }

    #[test]
    fn every_hierarchy_is_valid(topology in topologies(), seed in any::<u64>()) {
        let num_ranks = topology.ranks().len();
        let team = GroupSpec { topology: Some(topology), ..GroupSpec::new(num_ranks) };
        let schedule = build(Op::AllReduce, Algorithm::Hierarchical, &team).expect("it covers");
        let report = verify(&schedule);
        prop_assert!(report.is_ok(), "{:?}: {}", team.topology, report.unwrap_err());
        if schedule.num_chunks < 200 {
            check_numbers(&schedule, &Layout::even(&schedule, 50), seed)?;
        }
    }

    #[test]
    fn any_split_of_the_leaves_gives_the_same_bits(shares in leaf_shares(), seed in any::<u64>()) {
        let contributions = Contributions::of_leaves(&shares);
        let team = GroupSpec { contributions, ..GroupSpec::new(1) };
        for algorithm in [Algorithm::Direct, Algorithm::Pairwise, Algorithm::OneShot] {
            let schedule = build(Op::AllReduce, algorithm, &team).expect("it takes several");
            prop_assert!(verify(&schedule).expect("it is right").canonical);
            check_numbers(&schedule, &Layout::even(&schedule, 13), seed)?;
        }
    }
}
