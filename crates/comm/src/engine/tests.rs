//! Mutated schedules: the engine runs them, and counters, results or errors reveal the mutation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use lockstep_platform::real;
use lockstep_schedule::collective::{GroupSpec, build};
use lockstep_schedule::mutation::{Mutation, mutations};
use lockstep_schedule::{Algorithm, Layout, Op, Schedule, Step, StepId, verify};

use crate::{Comm, CommError, Element, Options, Reduction, Traffic};

/// A length whose chunks differ, so that a wrong chunk has a wrong number of bytes.
const COUNT: usize = 11;

fn input(group_rank: usize) -> Vec<f32> {
    (0..COUNT).map(|index| (group_rank + 1) as f32 * (1.0 + index as f32)).collect()
}

/// Traffic of a rank, and its data if the call did not fail.
type Outcome = (Traffic, Option<Vec<f32>>);

/// Longer than any wait that ends.
const LONG: Duration = Duration::from_mins(1);

/// Runs an all-reduce by any schedule.
fn run_schedule(schedule: &Schedule, timeout: Duration) -> Vec<Outcome> {
    let num_ranks = schedule.num_ranks();
    let options = Options { arena_bytes: 1 << 20, timeout };
    let ends = Comm::threads(&real(), num_ranks, &options).unwrap();
    let outcomes = Mutex::new(vec![None; num_ranks]);
    std::thread::scope(|scope| {
        for comm in &ends {
            scope.spawn(|| {
                let comm = comm.using(schedule.algorithm);
                let key = comm.schedule_key::<f32>(Op::AllReduce, Some(Reduction::Sum), COUNT, &[]);
                comm.lock().schedules.force_schedule(&key, schedule.clone());
                let mut output = vec![f32::from_small(0); COUNT];
                let input = input(comm.group_rank());
                let call = || comm.all_reduce_into(&input, &mut output, Reduction::Sum);
                // The engine panics at an access to a rank that the schedule has not waited for.
                let result = catch_unwind(AssertUnwindSafe(call));
                let is_ok = result.is_ok_and(|result| result.is_ok());
                let traffic = comm.counters().of(Op::AllReduce).traffic;
                let outcome = (traffic, is_ok.then_some(output));
                outcomes.lock().unwrap()[comm.group_rank()] = Some(outcome);
            });
        }
    });
    outcomes.into_inner().unwrap().into_iter().map(Option::unwrap).collect()
}

/// Traffic of each rank according to the verified schedule.
fn proven(schedule: &Schedule) -> Vec<Traffic> {
    let (report, layout) = (verify(schedule).unwrap(), Layout::even(schedule, COUNT));
    let bytes = |len: usize| 4 * len as u64;
    let traffic = |rank: &lockstep_schedule::Traffic| Traffic {
        messages: rank.num_messages as u64,
        sent_bytes: bytes(rank.sent_len(&layout)),
        received_bytes: bytes(rank.received_len(&layout)),
        read_bytes: bytes(rank.read_len(&layout)),
        written_bytes: bytes(rank.written_len(&layout)),
    };
    report.ranks.iter().map(traffic).collect()
}

fn counted(outcomes: &[Outcome]) -> Vec<Traffic> {
    outcomes.iter().map(|(traffic, _)| *traffic).collect()
}

#[test]
fn a_verified_schedule_moves_the_verified_traffic() {
    for algorithm in [Algorithm::RING, Algorithm::Direct, Algorithm::Rabenseifner] {
        for num_ranks in [2, 3] {
            let schedule = build(Op::AllReduce, algorithm, &GroupSpec::new(num_ranks)).unwrap();
            let outcomes = run_schedule(&schedule, LONG);
            assert_eq!(counted(&outcomes), proven(&schedule), "{schedule}");
            assert!(outcomes.iter().all(|(_, data)| data.is_some()), "{schedule}");
        }
    }
}

#[test]
fn a_dropped_message_is_missing_from_the_counters_of_both_ranks() {
    let ring = build(Op::AllReduce, Algorithm::RING, &GroupSpec::new(3)).unwrap();
    let (verified, layout) = (proven(&ring), Layout::even(&ring, COUNT));
    let is_message = |step: &Step| matches!(step, Step::Send { .. });
    for (sent, step) in ring.steps().filter(|(_, step)| is_message(step)) {
        let Step::Send { peer, chunks, .. } = *step else { unreachable!("filtered above") };
        let received = StepId { rank: peer, ..sent };
        let steps = &ring.programs[peer][sent.round];
        let step = steps.iter().position(|step| !is_message(step)).expect("a ring also receives");
        let mutant = Mutation::Drop(StepId { step, ..received }).apply(&ring).unwrap();
        let mutant = Mutation::Drop(sent).apply(&mutant).unwrap();
        assert!(verify(&mutant).is_err(), "{mutant}");
        let found = counted(&run_schedule(&mutant, LONG));
        let bytes = 4 * layout.len(chunks) as u64;
        for (rank, (verified, found)) in verified.iter().zip(&found).enumerate() {
            let mut expected = *verified;
            if rank == sent.rank {
                expected.messages -= 1;
                expected.sent_bytes -= bytes;
            }
            if rank == peer {
                expected.received_bytes -= bytes;
            }
            assert_eq!(*found, expected, "rank {rank} of\n{mutant}");
        }
    }
}

#[test]
fn the_memory_of_a_rank_is_not_accessed_by_the_descriptor_of_another_call() {
    let direct = build(Op::AllReduce, Algorithm::Direct, &GroupSpec::new(2)).unwrap();
    let is_wait = |step: &Step| matches!(step, Step::Wait { .. });
    let (first_wait, _) = direct.steps().find(|(_, step)| is_wait(step)).expect("it synchronizes");
    let mutant = Mutation::Drop(first_wait).apply(&direct).unwrap();
    let outcomes = run_schedule(&mutant, Duration::from_millis(30));
    assert_eq!(outcomes[first_wait.rank].1, None, "{mutant}");
    assert_eq!(outcomes[first_wait.rank].0.written_bytes, 0, "{mutant}");
}

#[test]
fn a_broken_schedule_changes_the_counters_or_the_result_or_fails() {
    for algorithm in [Algorithm::RING, Algorithm::Direct] {
        let schedule = build(Op::AllReduce, algorithm, &GroupSpec::new(2)).unwrap();
        let verified = proven(&schedule);
        let sums: Vec<f32> = (0..COUNT).map(|index| input(0)[index] + input(1)[index]).collect();
        let mut num_changed = 0;
        for mutation in mutations(&schedule) {
            let Some(mutant) = mutation.apply(&schedule) else { continue };
            // A few mutations, such as the other order of a sum of two, are correct schedules.
            if verify(&mutant).is_ok() {
                continue;
            }
            let is_wait = |step: &Step| matches!(step, Step::Wait { .. } | Step::Signal);
            let touches_flags = schedule.steps().any(|(id, step)| {
                is_wait(step) && format!("{mutation:?}").contains(&format!("{id:?}"))
            });
            let outcomes = run_schedule(&mutant, Duration::from_millis(30));
            let is_right = outcomes.iter().all(|(_, data)| data.as_ref() == Some(&sums));
            let is_counted = counted(&outcomes) != verified;
            num_changed += usize::from(is_counted);
            // A dropped wait is a race that may go unnoticed.
            let is_race = touches_flags
                || matches!(mutation, Mutation::JoinRounds(_) | Mutation::SwapRounds(_));
            assert!(!is_right || is_counted || is_race, "{mutation:?} of\n{schedule}");
        }
        assert!(num_changed >= 4, "{algorithm}: {num_changed} mutants changed the counters");
    }
}

#[test]
fn a_late_rank_does_not_write_into_a_buffer_that_a_failed_call_has_returned() {
    type Collective = fn(&Comm, &mut [f32]) -> Result<(), CommError>;
    let calls: [Collective; 2] = [
        |comm, data| comm.all_reduce(data, Reduction::Sum),
        |comm, data| comm.gather(&[1.0; 500], data, 0),
    ];
    for call in calls {
        let options = Options { arena_bytes: 1 << 20, timeout: LONG };
        let ends = Comm::threads(&real(), 2, &options).unwrap();
        let [first, late]: [Comm; 2] = ends.try_into().ok().unwrap();
        let mut buffer = first.allocate::<f32>(1000).unwrap();
        let timeout = Duration::from_millis(20);
        call(&first.using(Algorithm::Direct).within(timeout), &mut buffer)
            .expect_err("the other rank is late");
        buffer.fill(7.0);
        // The first rank has signalled that its buffer is ready, and is gone.
        let mut data = late.allocate::<f32>(1000).unwrap();
        call(&late.using(Algorithm::Direct), &mut data).expect_err("the first rank has failed");
        assert!(buffer.iter().all(|x| x.to_bits() == 7.0_f32.to_bits()));
    }
}
