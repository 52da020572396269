//! Who meets whom, and how often two ranks exchange how much.

use std::time::Duration;

use super::measurements::SMALL_BYTES;

/// Short exchanges, at least and at most; the first one only brings both to the same place.
const MIN_SHORT: usize = 4;
const MAX_SHORT: usize = 24;

/// The length that tells how long others may be.
const FIRST_LONG: u8 = 16;

/// Long exchanges of that length, at most.
const NUM_FIRST: usize = 8;

/// The longest that is tried.
const LAST_LONG: u8 = 20;

/// Long exchanges of the longest length that fits.
const NUM_LONG: usize = 7;

/// The partner of a rank in a meeting of a tournament, by the circle method: in n-1 meetings of an
/// even number of ranks everybody meets everybody once. Of an odd number one pauses.
pub(super) fn partner_of(num_ranks: usize, round_index: usize, rank: usize) -> Option<usize> {
    let num_slots = num_ranks.next_multiple_of(2);
    let around = num_slots - 1;
    let fixed = num_slots - 1;
    let partner = if rank == fixed {
        // Who stands opposite of itself meets the one that does not move.
        (0..around).find(|&other| (2 * other) % around == round_index % around)?
    } else {
        let other = (round_index + around - rank) % around;
        if other == rank { fixed } else { other }
    };
    (partner < num_ranks).then_some(partner)
}

/// Decides how a meeting goes on.
pub(super) struct Driver {
    start: Duration,
    now: Duration,
    time: Duration,
    num_short: usize,
    /// The time of the first long exchange.
    first_long: Option<Duration>,
    phase: Phase,
}

/// What the exchange is that comes next.
#[derive(Clone, Copy)]
enum Phase {
    Short,
    /// So many that tell how long others may be, the next one included.
    First(usize),
    /// So many of a length, the next one included.
    Long(usize, u8),
}

impl Driver {
    /// A meeting that begins now and may take so long.
    pub(super) fn new(start: Duration, time: Duration) -> Self {
        Self { start, now: start, time, num_short: 0, first_long: None, phase: Phase::Short }
    }

    /// The exponent of the length of the exchange *after* the next one, which goes with the next
    /// one as a word to the others; 0 if there is none.
    pub(super) fn next(&mut self) -> u8 {
        let (phase, exponent) = match self.phase {
            Phase::Short if !self.is_enough() => (Phase::Short, SMALL_BYTES.ilog2() as u8),
            Phase::Short => (Phase::First(NUM_FIRST), FIRST_LONG),
            Phase::First(left) if left > 1 && (left == NUM_FIRST || self.has_time()) => {
                (Phase::First(left - 1), FIRST_LONG)
            }
            Phase::First(_) => match self.longest() {
                Some(exponent) => (Phase::Long(NUM_LONG, exponent), exponent),
                None => (Phase::Long(0, 0), 0),
            },
            Phase::Long(0 | 1, _) => (Phase::Long(0, 0), 0),
            Phase::Long(left, exponent) => (Phase::Long(left - 1, exponent), exponent),
        };
        self.phase = phase;
        exponent
    }

    /// Whether there are short exchanges enough with the next one.
    fn is_enough(&self) -> bool {
        let num_short = self.num_short + 1;
        num_short >= MAX_SHORT || (num_short >= MIN_SHORT && self.spent() > self.time / 4)
    }

    /// Whether there is time for more of the first long ones.
    fn has_time(&self) -> bool {
        self.spent() < self.time / 2
    }

    /// The length of which there can be several in the time that is left.
    fn longest(&self) -> Option<u8> {
        let (took, left) = (self.first_long?, self.time.saturating_sub(self.spent()));
        let fits = |longer: &u8| {
            took.saturating_mul(NUM_LONG as u32 * (1 << (longer - FIRST_LONG))) < left
        };
        (FIRST_LONG + 1..=LAST_LONG).rev().find(fits)
    }

    fn spent(&self) -> Duration {
        self.now.saturating_sub(self.start)
    }

    /// Notes how long an exchange took.
    pub(super) fn add(&mut self, bytes: usize, took: Duration, now: Duration) {
        self.now = now;
        if bytes == SMALL_BYTES {
            self.num_short += 1;
        } else {
            self.first_long.get_or_insert(took);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn everybody_meets_everybody_once() {
        for num_ranks in 2..=17_usize {
            let mut met = BTreeSet::new();
            for round_index in 0..num_ranks.next_multiple_of(2) - 1 {
                for rank in 0..num_ranks {
                    let Some(partner) = partner_of(num_ranks, round_index, rank) else { continue };
                    assert_eq!(partner_of(num_ranks, round_index, partner), Some(rank));
                    assert!(partner != rank && met.insert((rank, partner)), "{num_ranks}");
                }
            }
            assert_eq!(met.len(), num_ranks * (num_ranks - 1));
        }
    }

    /// The lengths of a meeting at which an exchange of n bytes takes so many microseconds.
    fn lengths(micros: impl Fn(usize) -> u64) -> Vec<usize> {
        let mut driver = Driver::new(Duration::ZERO, Duration::from_millis(50));
        let (mut now, mut bytes, mut lengths) = (Duration::ZERO, SMALL_BYTES, Vec::new());
        loop {
            let word = driver.next();
            let took = Duration::from_micros(micros(bytes));
            now += took;
            driver.add(bytes, took, now);
            lengths.push(bytes);
            match word {
                0 => return lengths,
                exponent => bytes = 1 << exponent,
            }
        }
    }

    #[test]
    fn a_fast_link_is_tried_with_long_messages_and_a_slow_one_with_few() {
        let fast = lengths(|bytes| 10 + bytes as u64 / 4000);
        assert_eq!(fast.iter().filter(|&&bytes| bytes == SMALL_BYTES).count(), MAX_SHORT);
        assert_eq!(fast.iter().filter(|&&bytes| bytes == 1 << LAST_LONG).count(), NUM_LONG);
        let slow = lengths(|bytes| 20_000 + bytes as u64);
        assert!(slow.len() <= MIN_SHORT + 3, "{slow:?}");
        assert!(slow.iter().any(|&bytes| bytes > SMALL_BYTES));
    }
}
