//! Barrier and shared memory of the ranks of a measurement, independent of the measured library.
//!
//! A barrier of the library would affect the time of the next call and differ between transports.
//! The ranks therefore share a memory segment: a barrier with a counter and a
//! generation, and slots for times. The command that starts the ranks creates the segment and sends
//! it to each of them over a local stream; a closed stream reports the end of the command.
#![expect(unsafe_code, reason = "buffers in a segment that all ranks write")]

use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockstep_platform::memory::PAGE_BYTES;
use lockstep_platform::{
    Deadline, LocalListener, LocalStream, Segment, SharedError, Target, World,
};

use super::BenchError;

/// Distance between words that different ranks write, to avoid false sharing.
const APART: usize = 128;

/// Number of ranks in the barrier.
const ARRIVED: usize = 0;
/// Number of completed barriers.
const GENERATION: usize = APART;
/// 1 after a rank has stopped.
const STOPPED: usize = 2 * APART;
/// Value that one rank publishes, and whether it is set.
const VALUE: usize = 3 * APART;
const IS_VALUE_SET: usize = 4 * APART;
/// Slots of all ranks.
const SLOTS: usize = 5 * APART;
const SLOTS_PER_RANK: usize = 256;

/// Polls of the barrier between two checks for a stopped rank.
const NUM_POLLS: u32 = 1 << 14;

/// Timeout of the barrier; the other ranks may verify large results.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Shared segment of the ranks of a measurement.
pub struct Coordinator {
    world: World,
    segment: Segment,
    num_ranks: usize,
    buffer_bytes: usize,
    num_cores: usize,
    /// Stream to the process that created the segment.
    creator: Option<Mutex<Box<dyn LocalStream>>>,
}

/// Segment offered to ranks in other processes.
pub struct CoordinatorOffer {
    listener: Box<dyn LocalListener>,
    streams: Vec<Box<dyn LocalStream>>,
}

impl Coordinator {
    /// Segment for `num_ranks`, with a buffer of `bytes` for each rank and at least two buffers.
    pub fn new(world: &World, num_ranks: usize, bytes: usize) -> Result<Self, SharedError> {
        let header = header_bytes(num_ranks);
        let buffer_bytes = bytes.max(1).next_multiple_of(2 << 20);
        let segment = world.shared().create(header, header + num_ranks.max(2) * buffer_bytes)?;
        Ok(Self::over(world, segment, num_ranks, None))
    }

    fn over(
        world: &World,
        segment: Segment,
        num_ranks: usize,
        creator: Option<Box<dyn LocalStream>>,
    ) -> Self {
        let buffer_bytes = (segment.bytes() - segment.header_bytes()) / num_ranks.max(2);
        let (num_cores, creator) = (world.threads().available(), creator.map(Mutex::new));
        Self { world: world.clone(), segment, num_ranks, buffer_bytes, num_cores, creator }
    }

    /// Offers the segment to ranks in other processes under a name.
    pub fn offer(&self, name: &str) -> Result<CoordinatorOffer, SharedError> {
        Ok(CoordinatorOffer { listener: self.world.shared().listen(name)?, streams: Vec::new() })
    }

    /// Attaches to the segment that another process [offers](Self::offer).
    pub fn attach(
        world: &World,
        name: &str,
        num_ranks: usize,
        timeout: Duration,
    ) -> Result<Self, BenchError> {
        let mut stream = world.shared().connect(name, timeout)?;
        let mut parcel = stream.recv(timeout)?;
        let segment = parcel.segments.pop().ok_or(BenchError::Stopped)?;
        if segment.header_bytes() != header_bytes(num_ranks) {
            return Err(BenchError::Stopped);
        }
        Ok(Self::over(world, segment, num_ranks, Some(stream)))
    }

    /// Buffer of one rank.
    pub(super) fn buffer(&self, index: usize, bytes: usize) -> Target<'_, u8> {
        assert!(bytes <= self.buffer_bytes, "{bytes} bytes in a buffer of {}", self.buffer_bytes);
        let start = self.segment.header_bytes() + index * self.buffer_bytes;
        // SAFETY: no slice of this segment exists, and each rank writes its own part.
        unsafe { self.segment.target(start, bytes) }
    }

    /// Number of ranks that can run at the same time.
    pub(super) fn num_at_once(&self) -> usize {
        self.num_cores.min(self.num_ranks)
    }

    /// Barrier of all ranks.
    pub fn wait(&self) -> Result<(), BenchError> {
        let (arrived, generation) = (self.segment.word(ARRIVED), self.segment.word(GENERATION));
        let current = generation.load(Ordering::Acquire);
        if arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.num_ranks as u64 {
            arrived.store(0, Ordering::Relaxed);
            generation.store(current + 1, Ordering::Release);
            return Ok(());
        }
        self.wait_until(|| generation.load(Ordering::Acquire) != current)
    }

    fn wait_until(&self, mut is_done: impl FnMut() -> bool) -> Result<(), BenchError> {
        // Short waits do not read the clock.
        let mut deadline = None;
        loop {
            for _ in 0..NUM_POLLS {
                if is_done() {
                    return Ok(());
                }
                // With a core for every rank, spinning delays no other rank.
                if self.num_ranks <= self.num_cores {
                    std::hint::spin_loop();
                } else {
                    self.world.shared().yield_now();
                }
            }
            let creator = self.creator.as_ref().map(|creator| creator.lock());
            let is_creator_gone = creator
                .is_some_and(|creator| !creator.unwrap_or_else(PoisonError::into_inner).is_open());
            if is_creator_gone || self.segment.word(STOPPED).load(Ordering::Acquire) != 0 {
                return Err(BenchError::Stopped);
            }
            let clock = self.world.clock();
            let deadline = deadline.get_or_insert_with(|| Deadline::after(clock, TIMEOUT));
            if deadline.remaining(clock).is_zero() {
                return Err(BenchError::Deadline { seconds: TIMEOUT.as_secs() });
            }
        }
    }

    /// Stops all ranks because one of them failed.
    pub fn stop(&self) {
        self.segment.word(STOPPED).store(1, Ordering::Release);
    }

    /// Publishes a value to all ranks, once.
    pub fn publish(&self, number: u64) {
        self.segment.word(VALUE).store(number, Ordering::Relaxed);
        self.segment.word(IS_VALUE_SET).store(1, Ordering::Release);
    }

    /// Waits for the [published](Self::publish) value.
    pub fn wait_for_value(&self) -> Result<u64, BenchError> {
        self.wait_until(|| self.segment.word(IS_VALUE_SET).load(Ordering::Acquire) == 1)?;
        Ok(self.segment.word(VALUE).load(Ordering::Relaxed))
    }

    /// All-gather of one number, indexed by rank.
    pub(super) fn exchange(&self, rank: usize, number: u64) -> Result<Vec<u64>, BenchError> {
        self.slot(rank, 0).store(number, Ordering::Relaxed);
        self.wait()?;
        let all = |rank| self.slot(rank, 0).load(Ordering::Relaxed);
        let numbers = (0..self.num_ranks).map(all).collect();
        self.wait()?;
        Ok(numbers)
    }

    /// Element-wise maximum over all ranks.
    pub(super) fn max(&self, rank: usize, numbers: &mut [u64]) -> Result<(), BenchError> {
        self.combine(rank, numbers, |all| all.max().unwrap_or(0))
    }

    /// Element-wise reduction over all ranks with the function `of`.
    pub(super) fn combine(
        &self,
        rank: usize,
        numbers: &mut [u64],
        of: impl Fn(&mut dyn Iterator<Item = u64>) -> u64,
    ) -> Result<(), BenchError> {
        for numbers in numbers.chunks_mut(SLOTS_PER_RANK) {
            for (index, number) in numbers.iter().enumerate() {
                self.slot(rank, index).store(*number, Ordering::Relaxed);
            }
            self.wait()?;
            for (index, number) in numbers.iter_mut().enumerate() {
                let all = (0..self.num_ranks).map(|rank| self.slot(rank, index));
                *number = of(&mut all.map(|slot| slot.load(Ordering::Relaxed)));
            }
            self.wait()?;
        }
        Ok(())
    }

    fn slot(&self, rank: usize, index: usize) -> &AtomicU64 {
        self.segment.word(SLOTS + (rank * SLOTS_PER_RANK + index) * size_of::<u64>())
    }
}

impl CoordinatorOffer {
    /// Sends the segment to the next rank that connects within `timeout`; false if none does, or
    /// if that rank has died meanwhile: whoever started it finds out and names it.
    pub fn serve_one(
        &mut self,
        coordinator: &Coordinator,
        timeout: Duration,
    ) -> Result<bool, SharedError> {
        let mut stream = match self.listener.accept(timeout) {
            Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(false),
            accepted => accepted?,
        };
        match stream.send(&[], &[&coordinator.segment]) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(false),
            sent => sent?,
        }
        self.streams.push(stream);
        Ok(true)
    }
}

fn header_bytes(num_ranks: usize) -> usize {
    (SLOTS + num_ranks * SLOTS_PER_RANK * size_of::<u64>()).next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_dies_while_it_joins_is_not_an_error_of_the_offer() {
        let world = lockstep_platform::real();
        let coordinator = Coordinator::new(&world, 2, 0).unwrap();
        let name = format!("lockstep/bench-test/{}", world.entropy().u64());
        let mut offer = coordinator.offer(&name).unwrap();
        drop(world.shared().connect(&name, TIMEOUT).unwrap());
        assert!(!offer.serve_one(&coordinator, TIMEOUT).unwrap());
    }

    #[test]
    fn the_maximum_over_all_ranks_is_elementwise() {
        let world = lockstep_platform::real();
        let coordinator = Coordinator::new(&world, 3, 0).unwrap();
        std::thread::scope(|scope| {
            for rank in 0..3_u64 {
                let coordinator = &coordinator;
                scope.spawn(move || {
                    // More numbers than a rank has slots.
                    let mine = |index: u64| (index + rank) % 3 * 100 + index;
                    let mut numbers: Vec<u64> = (0..700).map(mine).collect();
                    coordinator.max(rank as usize, &mut numbers).unwrap();
                    assert!(numbers.iter().zip(0..).all(|(&found, index)| found == 200 + index));
                    let all = coordinator.exchange(rank as usize, 10 * rank).unwrap();
                    assert_eq!(all, [0, 10, 20]);
                });
            }
        });
    }

    #[test]
    fn peers_of_a_stopped_rank_report_it() {
        let world = lockstep_platform::real();
        let coordinator = Coordinator::new(&world, 2, 0).unwrap();
        coordinator.stop();
        assert!(matches!(coordinator.wait(), Err(BenchError::Stopped)));
        assert!(matches!(coordinator.wait_for_value(), Err(BenchError::Stopped)));
        coordinator.publish(7);
        assert_eq!(coordinator.wait_for_value().unwrap(), 7);
    }

    #[test]
    fn an_attached_segment_is_the_same_memory() {
        let world = lockstep_platform::real();
        let coordinator = Coordinator::new(&world, 1, 100).unwrap();
        let name = format!("lockstep/bench-test/{}", world.entropy().u64());
        let mut offer = coordinator.offer(&name).unwrap();
        assert!(!offer.serve_one(&coordinator, Duration::ZERO).unwrap());
        let limit = Duration::from_secs(20);
        std::thread::scope(|scope| {
            let attach =
                || Coordinator::attach(&world, &name, 1, limit).map_err(|error| error.to_string());
            let attached = scope.spawn(attach);
            assert!(offer.serve_one(&coordinator, limit).unwrap());
            let attached = attached.join().unwrap().unwrap();
            coordinator.buffer(1, 100).fill(7);
            assert_eq!(attached.buffer(1, 100).as_source().get(99), 7);
        });
    }
}
