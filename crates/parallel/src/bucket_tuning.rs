//! Bucket-size tuning by measurement.
//!
//! Every collective has a fixed cost, so small buckets waste time; large ones start late and cannot
//! overlap with the rest of backward. The best is the smallest size whose cost per byte is near the
//! minimum. A few all-reduces of growing size find it at the start of a run; rank 0's clock decides
//! for all. Results do not depend on the bucket size.

use lockstep_comm::{Comm, CommError, Reduction};
use lockstep_platform::World;
use std::time::Duration;

use crate::buffer::Buffer;
use crate::groups::Groups;

/// Sizes tried, in bytes.
const CANDIDATES: [usize; 5] = [1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20];

/// Time limit of the search; larger sizes would take longer still.
const BUDGET: Duration = Duration::from_millis(60);

/// Accepted cost per byte relative to the cheapest size.
const TOLERANCE: f64 = 1.15;

/// Possible results of [`bucket_len`], the likeliest first. A small model, or a single rank, has
/// one only.
pub fn candidate_bucket_lens(num_workers: usize, num_params: usize) -> Vec<usize> {
    let lens = CANDIDATES.map(|bytes| bytes / size_of::<f32>());
    let is_tried = |len: &usize| num_workers > 1 && 2 * len <= num_params;
    let measure_bucket_len: Vec<usize> = lens.into_iter().filter(is_tried).collect();
    if measure_bucket_len.is_empty() { vec![lens[0]] } else { measure_bucket_len }
}

/// Bucket length in parameters for a model of `num_params` parameters, equal on all ranks. All
/// data-parallel groups measure at the same time, as they will run.
pub fn bucket_len(groups: &Groups, world: &World, num_params: usize) -> Result<usize, CommError> {
    let found = measure_bucket_len(groups.data(), world, num_params)?;
    let mut len = [found as u64];
    groups.world().broadcast(&mut len, 0)?;
    Ok(len[0] as usize)
}

/// Result of a group's first rank.
fn measure_bucket_len(comm: &Comm, world: &World, num_params: usize) -> Result<usize, CommError> {
    let mut costs: Vec<(usize, f64)> = Vec::new();
    let started = world.clock().now();
    for bytes in CANDIDATES {
        let len = bytes / size_of::<f32>();
        // A bucket size is of use only if the model has several buckets.
        let is_candidate = comm.group_size() > 1 && 2 * len <= num_params;
        let mut goes_on = [u8::from(is_candidate && world.clock().since(started) < BUDGET)];
        comm.broadcast(&mut goes_on, 0)?;
        if goes_on == [0] {
            break;
        }
        let mut bucket = Buffer::<f32>::exchanged(comm, len)?;
        // The first call touches the memory and plans the collective.
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
    fn all_ranks_choose_the_same_candidate() {
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
