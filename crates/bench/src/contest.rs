//! The choice of the library against every algorithm it could have chosen.
//!
//! All of them take turns, a few calls each, over and over in one run, so that a machine that is
//! busy with something else is slow for all. What the library would choose by itself is one of
//! them, and is compared with the best: it is not measured a second time, because two series of one
//! algorithm differ too.

use std::time::Duration;

use lockstep_comm::{Comm, Dtype, Element};
use lockstep_platform::Target;
use lockstep_schedule::Algorithm;
use lockstep_schedule::collective::algorithms;

use super::exercise::Exercise;
use super::{BenchError, Board, Case, Point, Stage};

/// Turns of each at least and at most.
const MIN_TURNS: u64 = 11;
const MAX_TURNS: u64 = 400;

/// Calls in one turn: the first one finds what another algorithm has left behind and does not
/// count.
const NUM_IN_A_TURN: usize = 3;

/// Measures one case with the algorithm that the library chooses and with every one that it could
/// have chosen. All ranks call it together; `budget` is the time for all calls.
pub fn contest(
    comm: &Comm,
    board: &Board,
    case: &Case,
    budget: Duration,
) -> Result<Point, BenchError> {
    dispatch!(case.dtype, contest_as(comm, board, case, budget))
}

fn contest_as<T: Element>(
    comm: &Comm,
    board: &Board,
    case: &Case,
    budget: Duration,
) -> Result<Point, BenchError> {
    let &Case { kind, bytes, buffers, .. } = case;
    let (rank, n) = (comm.group_rank(), comm.group_size());
    let count = bytes / size_of::<T>();
    let whole_count = if kind.op() == lockstep_schedule::Op::AllToAll { count * n } else { count };
    let chosen = comm.choice::<T>(kind.op(), whole_count)?;
    let is_offered = |algorithm: &&Algorithm| comm.offers(kind.op(), **algorithm);
    let forced: Vec<Algorithm> = algorithms(kind.op()).iter().filter(is_offered).copied().collect();
    let ends: Vec<Comm> = forced.iter().map(|&algorithm| comm.using(algorithm)).collect();

    let mut exercise = Exercise::<T>::new(comm.clone(), kind, count, buffers)?;
    // Of zeros there is one sum in any order.
    let stage = Stage::<T>::new(comm.platform(), board, rank, n, false);
    Target::of(exercise.brought()).cast().fill(0_u8);
    let mut is_right = true;
    let mut total_ns = 0;
    for end in &ends {
        exercise.by(end.clone());
        let mut trials = [0; 2];
        for (turn, trial) in trials.iter_mut().enumerate() {
            *trial = stage.call(&mut exercise, turn, &mut is_right)?;
        }
        board.largest(rank, &mut trials)?;
        total_ns += trials[1];
    }
    let num_turns = budget.as_nanos() as u64 / (NUM_IN_A_TURN as u64 * total_ns + 10_000);
    let num_turns = num_turns.clamp(MIN_TURNS, MAX_TURNS);
    let mut times: Vec<Vec<u64>> = vec![Vec::new(); ends.len()];
    for turn in 0..num_turns as usize {
        for place in 0..ends.len() {
            // Not always behind the same one.
            let index = (place + turn) % ends.len();
            exercise.by(ends[index].clone());
            for call in 0..NUM_IN_A_TURN {
                let took = stage.call(&mut exercise, turn, &mut is_right)?;
                if call > 0 {
                    times[index].push(took);
                }
            }
        }
    }
    for times in &mut times {
        board.largest(rank, times)?;
        times.sort_unstable();
    }
    let is_right = board.exchange(rank, u64::from(is_right))?.into_iter().all(|right| right == 1);
    let forced: Vec<(Algorithm, Vec<u64>)> = forced.into_iter().zip(times).collect();
    let own = forced.iter().find(|(algorithm, _)| *algorithm == chosen);
    let call_ns = own.expect("what is chosen is on offer").1.clone();
    let forecasts = comm.forecast::<T>(kind.op(), whole_count)?;
    let (is_canonical, sweep_ns) = (false, vec![0]);
    Ok(Point { algorithm: chosen, is_canonical, call_ns, sweep_ns, is_right, forecasts, forced })
}
