//! Where the ranks of a measurement meet, apart from the library that is measured.
//!
//! A barrier of the library would shape the times of the call that follows it, and would be
//! different for every transport. So the ranks share a piece of memory of their own, whatever they
//! measure: a counter of those who have come, a number that changes when all have, and room to put
//! down times for the others. The command that starts the ranks makes the board and hands it to
//! each of them over a local stream, which also tells a rank that the command is gone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockstep_platform::memory::PAGE_BYTES;
use lockstep_platform::{
    Deadline, LocalListener, LocalStream, Segment, SharedError, Target, World,
};

use super::BenchError;

/// Distance between words that different ranks write.
const APART: usize = 128;

/// How many have come.
const ARRIVED: usize = 0;
/// How often all have come.
const GENERATION: usize = APART;
/// 1 once somebody has given up.
const STOPPED: usize = 2 * APART;
/// What one rank tells all others, and that it has.
const WORD: usize = 3 * APART;
const IS_WORD_THERE: usize = 4 * APART;
/// Every rank's numbers.
const SLOTS: usize = 5 * APART;
const SLOTS_PER_RANK: usize = 256;

/// Looks at the barrier between two looks at whether somebody has given up.
const LOOKS: u32 = 1 << 14;

/// The longest that a rank waits for the others: they may have to check a lot of data.
const PATIENCE: Duration = Duration::from_mins(2);

/// Memory that all ranks of a measurement see.
pub struct Board {
    world: World,
    segment: Segment,
    num_ranks: usize,
    room_bytes: usize,
    num_cores: usize,
    /// To whoever handed out the board.
    home: Option<Mutex<Box<dyn LocalStream>>>,
}

/// A board that ranks in other processes can come for.
pub struct Offer {
    listener: Box<dyn LocalListener>,
    streams: Vec<Box<dyn LocalStream>>,
}

impl Board {
    /// A board for `num_ranks` ranks, with room for as many buffers of `bytes`, and at least two.
    pub fn new(world: &World, num_ranks: usize, bytes: usize) -> Result<Self, SharedError> {
        let header = header_bytes(num_ranks);
        let room_bytes = bytes.max(1).next_multiple_of(2 << 20);
        let segment = world.shared().create(header, header + num_ranks.max(2) * room_bytes)?;
        Ok(Self::over(world, segment, num_ranks, None))
    }

    fn over(
        world: &World,
        segment: Segment,
        num_ranks: usize,
        home: Option<Box<dyn LocalStream>>,
    ) -> Self {
        let room_bytes = (segment.bytes() - segment.header_bytes()) / num_ranks.max(2);
        let (num_cores, home) = (world.threads().available(), home.map(Mutex::new));
        Self { world: world.clone(), segment, num_ranks, room_bytes, num_cores, home }
    }

    /// Lets ranks in other processes come for the board under a name.
    pub fn offer(&self, name: &str) -> Result<Offer, SharedError> {
        Ok(Offer { listener: self.world.shared().listen(name)?, streams: Vec::new() })
    }

    /// Comes for the board that another process [offers](Self::offer).
    pub fn fetch(
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

    /// The room for the buffer of one rank.
    pub(super) fn room(&self, index: usize, bytes: usize) -> Target<'_, u8> {
        assert!(bytes <= self.room_bytes, "{bytes} bytes in a room of {}", self.room_bytes);
        self.segment.target(self.segment.header_bytes() + index * self.room_bytes, bytes)
    }

    /// How many ranks can run at once.
    pub(super) fn num_at_once(&self) -> usize {
        self.num_cores.min(self.num_ranks)
    }

    /// Waits until all ranks have come, and lets all go at once.
    pub fn wait(&self) -> Result<(), BenchError> {
        let (arrived, generation) = (self.segment.word(ARRIVED), self.segment.word(GENERATION));
        let seen = generation.load(Ordering::Acquire);
        if arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.num_ranks as u64 {
            arrived.store(0, Ordering::Relaxed);
            generation.store(seen + 1, Ordering::Release);
            return Ok(());
        }
        self.wait_until(|| generation.load(Ordering::Acquire) != seen)
    }

    fn wait_until(&self, mut is_done: impl FnMut() -> bool) -> Result<(), BenchError> {
        // The clock is asked only once a wait is long.
        let mut deadline = None;
        loop {
            for _ in 0..LOOKS {
                if is_done() {
                    return Ok(());
                }
                // With a core for every rank, looking again and again disturbs nobody.
                if self.num_ranks <= self.num_cores {
                    std::hint::spin_loop();
                } else {
                    self.world.shared().yield_now();
                }
            }
            let home = self.home.as_ref().map(|home| home.lock());
            let is_home_gone =
                home.is_some_and(|home| !home.unwrap_or_else(PoisonError::into_inner).is_open());
            if is_home_gone || self.segment.word(STOPPED).load(Ordering::Acquire) != 0 {
                return Err(BenchError::Stopped);
            }
            let clock = self.world.clock();
            let deadline = deadline.get_or_insert_with(|| Deadline::after(clock, PATIENCE));
            if deadline.remaining(clock).is_zero() {
                return Err(BenchError::Deadline { seconds: PATIENCE.as_secs() });
            }
        }
    }

    /// Tells all ranks to give up, because one of them did.
    pub fn stop(&self) {
        self.segment.word(STOPPED).store(1, Ordering::Release);
    }

    /// Tells all ranks a number, once.
    pub fn tell(&self, number: u64) {
        self.segment.word(WORD).store(number, Ordering::Relaxed);
        self.segment.word(IS_WORD_THERE).store(1, Ordering::Release);
    }

    /// Waits for the number that somebody [tells](Self::tell).
    pub fn hear(&self) -> Result<u64, BenchError> {
        self.wait_until(|| self.segment.word(IS_WORD_THERE).load(Ordering::Acquire) == 1)?;
        Ok(self.segment.word(WORD).load(Ordering::Relaxed))
    }

    /// Every rank's number, by rank.
    pub(super) fn exchange(&self, rank: usize, number: u64) -> Result<Vec<u64>, BenchError> {
        self.slot(rank, 0).store(number, Ordering::Relaxed);
        self.wait()?;
        let all = |rank| self.slot(rank, 0).load(Ordering::Relaxed);
        let numbers = (0..self.num_ranks).map(all).collect();
        self.wait()?;
        Ok(numbers)
    }

    /// Replaces every number by the largest that any rank has at its place.
    pub(super) fn largest(&self, rank: usize, numbers: &mut [u64]) -> Result<(), BenchError> {
        self.combine(rank, numbers, |all| all.max().unwrap_or(0))
    }

    /// Replaces every number by what `of` makes of all ranks' numbers at its place.
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

impl Offer {
    /// Hands the board to the next rank that comes, if one does within `timeout`.
    pub fn hand_out(&mut self, board: &Board, timeout: Duration) -> Result<bool, SharedError> {
        let mut stream = match self.listener.accept(timeout) {
            Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return Ok(false),
            accepted => accepted?,
        };
        stream.send(&[], &[&board.segment])?;
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
    fn the_largest_of_all_ranks_is_found_at_every_place() {
        let world = lockstep_platform::real();
        let board = Board::new(&world, 3, 0).unwrap();
        std::thread::scope(|scope| {
            for rank in 0..3_u64 {
                let board = &board;
                scope.spawn(move || {
                    // More numbers than fit the board at once.
                    let mine = |index: u64| (index + rank) % 3 * 100 + index;
                    let mut numbers: Vec<u64> = (0..700).map(mine).collect();
                    board.largest(rank as usize, &mut numbers).unwrap();
                    assert!(numbers.iter().zip(0..).all(|(&found, index)| found == 200 + index));
                    let all = board.exchange(rank as usize, 10 * rank).unwrap();
                    assert_eq!(all, [0, 10, 20]);
                });
            }
        });
    }

    #[test]
    fn who_waits_for_a_rank_that_gave_up_is_told() {
        let world = lockstep_platform::real();
        let board = Board::new(&world, 2, 0).unwrap();
        board.stop();
        assert!(matches!(board.wait(), Err(BenchError::Stopped)));
        assert!(matches!(board.hear(), Err(BenchError::Stopped)));
        board.tell(7);
        assert_eq!(board.hear().unwrap(), 7);
    }

    #[test]
    fn another_process_would_get_the_same_memory() {
        let world = lockstep_platform::real();
        let board = Board::new(&world, 1, 100).unwrap();
        let name = format!("lockstep/bench-test/{}", world.entropy().u64());
        let mut offer = board.offer(&name).unwrap();
        assert!(!offer.hand_out(&board, Duration::ZERO).unwrap());
        let limit = Duration::from_secs(20);
        std::thread::scope(|scope| {
            let fetch = || Board::fetch(&world, &name, 1, limit).map_err(|error| error.to_string());
            let fetched = scope.spawn(fetch);
            assert!(offer.hand_out(&board, limit).unwrap());
            let fetched = fetched.join().unwrap().unwrap();
            board.room(1, 100).fill(7);
            assert_eq!(fetched.room(1, 100).as_source().get(99), 7);
        });
    }
}
