//! Compares the algorithm that the library selects with every other one.
//!
//! The algorithms run in turns of a few calls, so that other load on the machine affects all of
//! them. The selected algorithm is one of them and is not measured separately, because two series
//! of one algorithm differ as well.

use std::time::Duration;

use lockstep_comm::{Comm, Dtype, Element};
use lockstep_platform::Target;
use lockstep_schedule::Algorithm;
use lockstep_schedule::collective::algorithms;

use super::operation::Operation;
use super::{BenchError, Case, Coordinator, Measurement, Timer};

/// Smallest and max number of turns of an algorithm.
const MIN_TURNS: u64 = 11;
const MAX_TURNS: u64 = 400;

/// Calls in one turn. The first one expected on the caches of another algorithm and does not count.
const CALLS_PER_TURN: usize = 3;

/// Measures one case with every algorithm that the group supports. All ranks call it together;
/// `budget` is the time for all calls.
pub fn compare_algorithms(
    comm: &Comm,
    coordinator: &Coordinator,
    case: &Case,
    budget: Duration,
) -> Result<Measurement, BenchError> {
    dispatch!(case.dtype, compare_as(comm, coordinator, case, budget))
}

fn compare_as<T: Element>(
    comm: &Comm,
    coordinator: &Coordinator,
    case: &Case,
    budget: Duration,
) -> Result<Measurement, BenchError> {
    let &Case { collective, bytes, buffers, .. } = case;
    let (rank, n) = (comm.group_rank(), comm.group_size());
    let count = bytes / size_of::<T>();
    let whole_count =
        if collective.op() == lockstep_schedule::Op::AllToAll { count * n } else { count };
    let chosen = comm.choice::<T>(collective.op(), whole_count)?;
    let is_supported = |algorithm: &&Algorithm| comm.offers(collective.op(), **algorithm);
    let by_algorithm: Vec<Algorithm> =
        algorithms(collective.op()).iter().filter(is_supported).copied().collect();
    let comms: Vec<Comm> = by_algorithm.iter().map(|&algorithm| comm.using(algorithm)).collect();

    let mut operation = Operation::<T>::new(comm.clone(), collective, count, buffers)?;
    // The sum of zeros is equal in any order.
    let timer = Timer::<T>::new(comm.platform(), coordinator, rank, n, false);
    Target::of(operation.input()).cast().fill(0_u8);
    let mut is_correct = true;
    let mut total_ns = 0;
    for by in &comms {
        operation.use_comm(by.clone());
        let mut trials = [0; 2];
        for (turn, trial) in trials.iter_mut().enumerate() {
            *trial = timer.call(&mut operation, turn, &mut is_correct)?;
        }
        coordinator.max(rank, &mut trials)?;
        total_ns += trials[1];
    }
    let num_turns = budget.as_nanos() as u64 / (CALLS_PER_TURN as u64 * total_ns + 10_000);
    let num_turns = num_turns.clamp(MIN_TURNS, MAX_TURNS);
    let mut times: Vec<Vec<u64>> = vec![Vec::new(); comms.len()];
    for turn in 0..num_turns as usize {
        for position in 0..comms.len() {
            // The order rotates, so that no algorithm always follows the same one.
            let index = (position + turn) % comms.len();
            operation.use_comm(comms[index].clone());
            for call in 0..CALLS_PER_TURN {
                let took = timer.call(&mut operation, turn, &mut is_correct)?;
                if call > 0 {
                    times[index].push(took);
                }
            }
        }
    }
    for times in &mut times {
        coordinator.max(rank, times)?;
        times.sort_unstable();
    }
    let is_correct =
        coordinator.exchange(rank, u64::from(is_correct))?.into_iter().all(|right| right == 1);
    let by_algorithm: Vec<(Algorithm, Vec<u64>)> = by_algorithm.into_iter().zip(times).collect();
    let own = by_algorithm.iter().find(|(algorithm, _)| *algorithm == chosen);
    let call_ns = own.expect("the group supports the selected algorithm").1.clone();
    let forecasts = comm.forecast::<T>(collective.op(), whole_count)?;
    let (is_canonical, sweep_ns) = (false, vec![0]);
    Ok(Measurement {
        algorithm: chosen,
        is_canonical,
        call_ns,
        sweep_ns,
        is_correct,
        forecasts,
        by_algorithm,
    })
}
