//! Parameters of a rank: whole, or sharded and gathered on demand (ZeRO-3, FSDP).
//!
//! Whole parameters of which a rank steps only its shard (ZeRO-1 and 2) are gathered after the
//! step, bucket by bucket, while the next forward already runs on the first ones.
//!
//! Sharded parameters (ZeRO-3) are gathered before a bucket is used, in forward and again in
//! backward, into one of two windows: while blocks compute from one, the next bucket is prefetched
//! into the other. A window's contents are dropped when it is reused.

use crate::buckets::Buckets;
use crate::buffer::Floats;
use crate::overlap::{Overlap, Pending};
use lockstep_comm::{Comm, CommError};
use std::mem;
use std::ops::Range;
use std::sync::Arc;

/// Parameters of a rank.
pub enum Weights {
    /// Whole parameters.
    Whole(WholeWeights),
    /// This rank's shard of every bucket.
    Sharded(Box<ShardedWeights>),
}

/// Whole parameters on every rank.
pub struct WholeWeights {
    data: Vec<Floats>,
    /// Runs of each bucket that are gathered together.
    runs: Vec<Vec<Run>>,
    gathering: Vec<Option<Pending<RunsOfBucket>>>,
}

/// Range of a bucket, and the length of every rank's part of it.
type Run = (Range<usize>, Arc<[usize]>);

/// Parameters of a bucket, and the runs of it that are gathered.
type RunsOfBucket = (Floats, Vec<Run>);

/// Sharded parameters.
pub struct ShardedWeights {
    own: Vec<Floats>,
    windows: [Window; 2],
    window_len: usize,
}

/// Buffer of one gathered bucket.
struct Window {
    bucket: Option<usize>,
    state: State,
}

enum State {
    Here(Floats),
    Arriving(Pending<Floats>),
}

impl Weights {
    /// Parameters of a bucket that has arrived.
    pub fn bucket(&self, bucket: usize) -> &Floats {
        match self {
            Self::Whole(whole) => whole.bucket(bucket),
            Self::Sharded(sharded) => sharded.bucket(bucket),
        }
    }

    /// Number of parameters held, and of elements in windows.
    pub fn num_elements(&self) -> (usize, usize) {
        match self {
            Self::Whole(whole) => (whole.data.iter().map(Floats::len).sum(), 0),
            Self::Sharded(sharded) => {
                let own = sharded.own.iter().map(Floats::len).sum();
                (own, sharded.windows.len() * sharded.window_len)
            }
        }
    }
}

impl WholeWeights {
    /// Zeros, in shared buffers where ranks step shards of them.
    pub fn new(
        buckets: &Buckets,
        is_exchanged: bool,
        overlap: &Overlap,
    ) -> Result<Self, CommError> {
        let buffer = |len| {
            if is_exchanged && len > 0 { overlap.exchanged(len) } else { overlap.private(len) }
        };
        let data =
            buckets.list.iter().map(|bucket| buffer(bucket.len)).collect::<Result<_, _>>()?;
        let runs = vec![Vec::new(); buckets.list.len()];
        Ok(Self { data, runs, gathering: buckets.list.iter().map(|_| None).collect() })
    }

    /// Parameters of a bucket.
    pub fn bucket(&self, bucket: usize) -> &Floats {
        &self.data[bucket]
    }

    /// Mutable parameters of a bucket.
    pub fn bucket_mut(&mut self, bucket: usize) -> &mut Floats {
        &mut self.data[bucket]
    }

    /// Parameters of two buckets, to copy from one to the other.
    pub fn two_mut(&mut self, one: usize, other: usize) -> [&mut Floats; 2] {
        self.data.get_disjoint_mut([one, other]).expect("two buckets")
    }

    /// Adds the next of the runs of a bucket to those that are gathered; `lens` are the lengths of
    /// the ranks' parts of it.
    pub fn add_run(&mut self, bucket: usize, runs: &[Range<usize>], lens: Arc<[usize]>) {
        let added = &mut self.runs[bucket];
        let next = runs.iter().filter(|run| !run.is_empty()).nth(added.len());
        added.push((next.expect("every run is gathered once").clone(), lens));
    }

    /// Starts to gather what other ranks have stepped: the added runs of a bucket.
    pub fn start_gathering(
        &mut self,
        bucket: usize,
        overlap: &mut Overlap,
    ) -> Result<(), CommError> {
        if self.data[bucket].is_on_accelerator() && overlap.comm().group_size() == 1 {
            // One rank has stepped all of them, which need not leave the device.
            self.runs[bucket].clear();
            return Ok(());
        }
        let buffers = (mem::take(&mut self.data[bucket]), mem::take(&mut self.runs[bucket]));
        let gather = |comm: &Comm, (data, runs): &mut RunsOfBucket| {
            let mut runs = runs.drain(..);
            runs.try_for_each(|(run, lens)| comm.all_gather_parts::<f32>(&mut data[run], &lens))
        };
        self.gathering[bucket] = Some(overlap.start(bucket, buffers, gather)?);
        Ok(())
    }

    /// Receives a bucket in the background.
    pub fn receive(
        &mut self,
        bucket: usize,
        comm: &Comm,
        receive: impl FnOnce(&Comm, &mut [f32]) -> Result<(), CommError> + Send + 'static,
    ) -> Result<(), CommError> {
        let buffers = (mem::take(&mut self.data[bucket]), mem::take(&mut self.runs[bucket]));
        let receive = |comm: &Comm, (data, _): &mut RunsOfBucket| receive(comm, data);
        self.gathering[bucket] = Some(Pending::Running(comm.start(buffers, receive)?));
        Ok(())
    }

    /// Waits until a bucket is complete.
    pub fn fetch(&mut self, bucket: usize, overlap: &mut Overlap) -> Result<(), CommError> {
        if let Some(pending) = self.gathering[bucket].take() {
            (self.data[bucket], self.runs[bucket]) = overlap.finish(pending)?;
        }
        Ok(())
    }
}

impl ShardedWeights {
    /// Zeros.
    pub fn new(buckets: &Buckets, overlap: &Overlap) -> Result<Self, CommError> {
        let worker = overlap.comm().group_rank();
        let window = || -> Result<_, CommError> {
            let room = overlap.exchanged(buckets.max_len())?;
            Ok(Window { bucket: None, state: State::Here(room) })
        };
        let own = buckets.list.iter().map(|b| overlap.private(b.part(worker).len()));
        Ok(Self {
            own: own.collect::<Result<_, _>>()?,
            windows: [window()?, window()?],
            window_len: buckets.max_len(),
        })
    }

    /// This rank's shard of a bucket.
    pub fn own(&self, bucket: usize) -> &Floats {
        &self.own[bucket]
    }

    /// Mutable shard of a bucket.
    pub fn own_mut(&mut self, bucket: usize) -> &mut Floats {
        &mut self.own[bucket]
    }

    /// This rank's shards of two buckets, to copy from one to the other.
    pub fn two_mut(&mut self, one: usize, other: usize) -> [&mut Floats; 2] {
        self.own.get_disjoint_mut([one, other]).expect("two buckets")
    }

    /// Starts to gather a bucket, whose shards have these lengths, into a window.
    pub fn gather(
        &mut self,
        buckets: &Buckets,
        bucket: usize,
        window: usize,
        lens: Arc<[usize]>,
        overlap: &mut Overlap,
    ) -> Result<(), CommError> {
        let window = &mut self.windows[window];
        window.arrive(overlap)?;
        window.bucket = Some(bucket);
        let State::Here(room) = &mut window.state else { unreachable!("it has arrived") };
        let part = buckets.list[bucket].part(overlap.comm().group_rank());
        room[part].copy_from_slice(&self.own[bucket]);
        let (room, len) = (mem::take(room), buckets.list[bucket].len);
        window.state = State::Arriving(overlap.start(bucket, room, move |comm, room| {
            comm.all_gather_parts::<f32>(&mut room[..len], &lens)
        })?);
        Ok(())
    }

    /// Drops the contents of a window.
    pub fn release(&mut self, window: usize, overlap: &mut Overlap) -> Result<(), CommError> {
        self.windows[window].arrive(overlap)?;
        self.windows[window].bucket = None;
        Ok(())
    }

    /// Drops everything gathered, because the parameters have changed.
    pub fn release_all(&mut self, overlap: &mut Overlap) -> Result<(), CommError> {
        (0..self.windows.len()).try_for_each(|window| self.release(window, overlap))
    }

    /// Whether a window holds a bucket, or will.
    pub fn holds(&self, bucket: usize) -> bool {
        self.window_of(bucket).is_some()
    }

    /// Waits until a bucket is gathered.
    pub fn arrive(&mut self, bucket: usize, overlap: &mut Overlap) -> Result<(), CommError> {
        let at = self.window_of(bucket).expect("the program gathers a bucket before its use");
        self.windows[at].arrive(overlap)
    }

    /// Parameters of a gathered bucket.
    pub fn bucket(&self, bucket: usize) -> &Floats {
        let at = self.window_of(bucket).expect("the bucket was fetched");
        match &self.windows[at].state {
            State::Here(data) => data,
            State::Arriving(_) => panic!("the bucket has arrived"),
        }
    }

    fn window_of(&self, bucket: usize) -> Option<usize> {
        self.windows.iter().position(|window| window.bucket == Some(bucket))
    }
}

impl Window {
    fn arrive(&mut self, overlap: &mut Overlap) -> Result<(), CommError> {
        if let State::Arriving(_) = self.state {
            let here = State::Here(Floats::default());
            if let State::Arriving(pending) = mem::replace(&mut self.state, here) {
                self.state = State::Here(overlap.finish(pending)?);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MODEL, on_workers};
    use lockstep_model::describe;

    /// Element i of a bucket, equal on all ranks.
    fn value(bucket: usize, element: usize, version: usize) -> f32 {
        (bucket * 1000 + element % 997 + version * 100_000) as f32
    }

    fn fill(weights: &mut ShardedWeights, buckets: &Buckets, worker: usize, version: usize) {
        for (index, bucket) in buckets.list.iter().enumerate() {
            let values = bucket.part(worker).map(|element| value(index, element, version));
            weights.own_mut(index).iter_mut().zip(values).for_each(|(own, value)| *own = value);
        }
    }

    fn assert_brought(weights: &ShardedWeights, buckets: &Buckets, bucket: usize, version: usize) {
        let brought = &weights.bucket(bucket)[..buckets.list[bucket].len];
        let is_right = |(element, found): (usize, &f32)| {
            found.to_bits() == value(bucket, element, version).to_bits()
        };
        assert!(brought.iter().enumerate().all(is_right), "bucket {bucket}, version {version}");
    }

    #[test]
    fn buckets_are_gathered_into_either_window_and_dropped_on_change() {
        let blueprint = describe(&MODEL);
        // Buckets with their windows: alternating, in one window only, and one bucket twice.
        let orders = [
            &[(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)][..],
            &[(3, 0), (1, 0), (4, 1), (0, 0), (2, 0), (3, 1)],
            &[(2, 1), (3, 0), (2, 1)],
        ];
        for num_workers in [1, 2, 3] {
            for is_overlapped in [false, true] {
                on_workers(num_workers, is_overlapped, |mut overlap| {
                    let worker = overlap.comm().group_rank();
                    let buckets = Buckets::new(&blueprint, 0, num_workers);
                    let mut weights = ShardedWeights::new(&buckets, &overlap).unwrap();
                    for (version, order) in orders.into_iter().cycle().take(6).enumerate() {
                        fill(&mut weights, &buckets, worker, version);
                        for &(bucket, window) in order {
                            let lens = buckets.list[bucket].part_lens().into();
                            weights.gather(&buckets, bucket, window, lens, &mut overlap).unwrap();
                            weights.arrive(bucket, &mut overlap).unwrap();
                            assert_brought(&weights, &buckets, bucket, version);
                        }
                        for window in 0..2 {
                            weights.release(window, &mut overlap).unwrap();
                        }
                    }
                });
            }
        }
    }

    #[test]
    fn stepped_shards_reach_all_ranks() {
        let blueprint = describe(&MODEL);
        for is_overlapped in [false, true] {
            on_workers(3, is_overlapped, |mut overlap| {
                let worker = overlap.comm().group_rank();
                let buckets = Buckets::new(&blueprint, 40_000, 3);
                let mut weights = WholeWeights::new(&buckets, true, &overlap).unwrap();
                for version in 0..2 {
                    for (index, bucket) in buckets.list.iter().enumerate() {
                        for element in bucket.part(worker) {
                            weights.bucket_mut(index)[element] = value(index, element, version);
                        }
                    }
                    // In two ranges: any will do, as long as all ranks name the same.
                    let halves: Vec<_> =
                        buckets.list.iter().map(|b| [0..b.len / 2, b.len / 2..b.len]).collect();
                    for (index, runs) in halves.iter().enumerate() {
                        for run in runs {
                            let lens = buckets.list[index].part_lens_of(run).into();
                            weights.add_run(index, runs, lens);
                        }
                        weights.start_gathering(index, &mut overlap).unwrap();
                    }
                    for (index, bucket) in buckets.list.iter().enumerate() {
                        weights.fetch(index, &mut overlap).unwrap();
                        let expected: Vec<_> =
                            (0..bucket.len).map(|element| value(index, element, version)).collect();
                        assert!(weights.bucket(index)[..] == expected, "bucket {index}");
                    }
                }
            });
        }
    }
}
