//! How large a bucket should be, measured on the wires that will carry it.
//!
//! Every call has a price of its own, so small buckets waste time; large ones leave late and cannot
//! hide behind the rest of backward. The best is the smallest that costs hardly more a byte than
//! any other. A few all-reduces of growing size find it when a run starts; the first worker's clock
//! decides for all. Bits do not depend on the answer.

use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_platform::World;
use std::time::Duration;

use crate::groups::Groups;
use crate::memory::Floats;

/// What is tried, in bytes.
const CANDIDATES: [usize; 5] = [1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20];

/// More time than this is not spent on the search; what follows would take longer still.
const BUDGET: Duration = Duration::from_millis(60);

/// A bucket may cost this much more a byte than the cheapest.
const TOLERANCE: f64 = 1.15;

/// The answers that [`bucket_len`] may come to, the likeliest first. A small model, and a worker
/// alone, have one only.
pub fn possible_bucket_lens(num_workers: usize, num_params: usize) -> Vec<usize> {
    let lens = CANDIDATES.map(|bytes| bytes / size_of::<f32>());
    let is_tried = |len: &usize| num_workers > 1 && 2 * len <= num_params;
    let tried: Vec<usize> = lens.into_iter().filter(is_tried).collect();
    if tried.is_empty() { vec![lens[0]] } else { tried }
}

/// The length, in parameters, of the buckets of a model of `num_params` parameters, the same for
/// all workers. Groups that share the batch try at the same time, as they will work.
pub fn bucket_len(groups: &Groups, world: &World, num_params: usize) -> Result<usize, CommError> {
    let found = tried(groups.data(), world, num_params)?;
    let mut len = [found as u64];
    groups.world().broadcast(&mut len, 0)?;
    Ok(len[0] as usize)
}

/// What the first worker of a group finds.
fn tried(comm: &Comm, world: &World, num_params: usize) -> Result<usize, CommError> {
    let mut costs: Vec<(usize, f64)> = Vec::new();
    let started = world.clock().now();
    for bytes in CANDIDATES {
        let len = bytes / size_of::<f32>();
        // A bucket is worth its call only where the model has several of them.
        let is_wanted = comm.group_size() > 1 && 2 * len <= num_params;
        let mut goes_on = [u8::from(is_wanted && world.clock().since(started) < BUDGET)];
        comm.broadcast(&mut goes_on, 0)?;
        if goes_on == [0] {
            break;
        }
        let mut bucket = Floats::exchanged(comm, len)?;
        // The first call touches the memory and makes the plan.
        comm.all_reduce(&mut bucket, Reduction::Sum)?;
        let start = world.clock().now();
        comm.all_reduce(&mut bucket, Reduction::Sum)?;
        costs.push((len, world.clock().since(start).as_secs_f64() / bytes as f64));
    }
    let cheapest = costs.iter().map(|(_, cost)| *cost).fold(f64::INFINITY, f64::min);
    let found = costs.iter().find(|(_, cost)| *cost <= TOLERANCE * cheapest);
    Ok(found.map_or(CANDIDATES[0] / size_of::<f32>(), |(len, _)| *len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_comm::Options;
    use lockstep_mesh::{Degrees, Mesh};
    use lockstep_platform::real;

    #[test]
    fn all_workers_come_to_one_answer_among_the_candidates() {
        let world = real();
        for (num_workers, num_params) in [(1, 1 << 24), (2, 1 << 24), (3, 1 << 10)] {
            let ends = Comm::threads(&world, num_workers, &Options::default()).unwrap();
            let answers: Vec<usize> = std::thread::scope(|scope| {
                let ask = |end| {
                    let mesh = Mesh::new(Degrees { data: num_workers, ..Degrees::ONE }).unwrap();
                    let groups = Groups::new(end, mesh).unwrap();
                    scope.spawn(move || bucket_len(&groups, &real(), num_params).unwrap())
                };
                let workers: Vec<_> = ends.iter().map(ask).collect();
                workers.into_iter().map(|worker| worker.join().unwrap()).collect()
            });
            assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
            assert!(CANDIDATES.contains(&(answers[0] * size_of::<f32>())), "{answers:?}");
        }
    }
}
