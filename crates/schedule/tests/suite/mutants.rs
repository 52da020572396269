//! Mutation tests of the verifier: broken schedules must be rejected, or the report must show the
//! difference.

use std::collections::BTreeMap;

use lockstep_schedule::collective::{GroupSpec, algorithms, build};
use lockstep_schedule::mutation::{Mutation, mutations};
use lockstep_schedule::{Op, Schedule, Topology, verify};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Refused,
    Shown,
    Undetected,
}

fn schedules() -> Vec<Schedule> {
    let mut schedules = Vec::new();
    for num_ranks in 1..=5 {
        let topology = Topology::by_host(&["a", "a", "a", "b", "b"][..num_ranks]);
        let team = GroupSpec { topology: Some(topology), ..GroupSpec::new(num_ranks) };
        let rooted_in_the_middle = |op: &Op| op.root().is_none_or(|root| root == num_ranks / 2);
        for op in Op::all(num_ranks).into_iter().filter(rooted_in_the_middle) {
            let built = algorithms(op).iter().filter_map(|&by| build(op, by, &team).ok());
            schedules.extend(built);
        }
    }
    schedules
}

/// Verdict on every mutant of every schedule, by mutation.
fn verdicts_of(selected: fn(&Mutation) -> bool) -> BTreeMap<Verdict, Vec<(Schedule, Mutation)>> {
    let mut verdicts: BTreeMap<Verdict, Vec<(Schedule, Mutation)>> = BTreeMap::new();
    for schedule in schedules() {
        let report = verify(&schedule).expect("every schedule is right");
        for mutation in mutations(&schedule).into_iter().filter(selected) {
            let Some(mutant) = mutation.apply(&schedule) else { continue };
            let verdict = match verify(&mutant) {
                Err(_) => Verdict::Refused,
                Ok(changed) if changed != report => Verdict::Shown,
                Ok(_) => Verdict::Undetected,
            };
            verdicts.entry(verdict).or_default().push((schedule.clone(), mutation));
        }
    }
    verdicts
}

fn assert_noticed(verdicts: &BTreeMap<Verdict, Vec<(Schedule, Mutation)>>) {
    let num_detected = verdicts.get(&Verdict::Refused).map_or(0, Vec::len);
    assert!(num_detected > 100, "there is something to notice");
    if let Some((schedule, mutation)) =
        verdicts.get(&Verdict::Undetected).and_then(|all| all.first())
    {
        panic!("{mutation:?} is undetected in\n{schedule}");
    }
}

#[test]
fn a_dropped_step_is_always_rejected() {
    let verdicts = verdicts_of(|mutation| matches!(mutation, Mutation::Drop(_)));
    assert_noticed(&verdicts);
    assert_eq!(verdicts.get(&Verdict::Shown), None);
}

#[test]
fn another_chunk_is_always_rejected() {
    let verdicts = verdicts_of(|mutation| matches!(mutation, Mutation::OtherChunk(_)));
    assert_noticed(&verdicts);
    assert_eq!(verdicts.get(&Verdict::Shown), None);
}

#[test]
fn a_missing_chunk_or_another_peer_is_rejected_or_reported() {
    assert_noticed(&verdicts_of(|mutation| {
        matches!(mutation, Mutation::FewerChunks(_) | Mutation::OtherPeer(_))
    }));
}

#[test]
fn swapped_or_merged_rounds_are_rejected_or_reported() {
    assert_noticed(&verdicts_of(|mutation| {
        matches!(mutation, Mutation::SwapRounds(_) | Mutation::JoinRounds(_))
    }));
}

#[test]
fn swapped_sides_change_the_order_of_the_sum() {
    let verdicts = verdicts_of(|mutation| matches!(mutation, Mutation::OtherSides(_)));
    assert_eq!(verdicts.get(&Verdict::Undetected), None);
    for (schedule, mutation) in &verdicts[&Verdict::Shown] {
        let original = verify(schedule).unwrap();
        let mutant = verify(&mutation.apply(schedule).unwrap()).unwrap();
        assert_ne!(mutant.sums, original.sums, "{mutation:?} in\n{schedule}");
        assert!(!mutant.canonical || !original.canonical);
    }
}

#[test]
fn another_source_is_rejected_unless_it_holds_the_same_value() {
    let verdicts = verdicts_of(|mutation| matches!(mutation, Mutation::OtherSource(_)));
    assert!(verdicts[&Verdict::Refused].len() > 100);
    // A rank that has copied its input to its output may send either, and an empty message names a
    // buffer that it does not access. In a sum the two never hold the same value.
    for (schedule, mutation) in verdicts.get(&Verdict::Undetected).into_iter().flatten() {
        assert!(!schedule.op.is_sum(), "{mutation:?} is undetected in\n{schedule}");
    }
}
