//! The tournament of pairwise exchanges, and how often a pair exchanges how much.

use std::time::Duration;

use super::measurements::SMALL_BYTES;

/// Least and most short exchanges; the first one only synchronizes the pair.
const MIN_SHORT: usize = 4;
const MAX_SHORT: usize = 24;

/// Exponent of the first long length, which determines the longest affordable one.
const FIRST_LONG: u8 = 16;

/// Most exchanges of that length.
const NUM_FIRST: usize = 8;

/// Exponent of the longest length.
const LAST_LONG: u8 = 20;

/// Exchanges of the longest affordable length.
const NUM_LONG: usize = 7;

/// Partner of a rank in a round of a round-robin tournament (circle method): in n-1 rounds of an
/// even number of ranks every pair plays once; with an odd number one rank pauses.
pub(super) fn partner_of(num_ranks: usize, round_index: usize, rank: usize) -> Option<usize> {
    let num_slots = num_ranks.next_multiple_of(2);
    let around = num_slots - 1;
    let fixed = num_slots - 1;
    let partner = if rank == fixed {
        // The rank opposite itself plays the fixed one.
        (0..around).find(|&other| (2 * other) % around == round_index % around)?
    } else {
        let other = (round_index + around - rank) % around;
        if other == rank { fixed } else { other }
    };
    (partner < num_ranks).then_some(partner)
}

/// Chooses the lengths of the exchanges of a pair.
pub(super) struct Driver {
    start: Duration,
    now: Duration,
    time: Duration,
    num_short: usize,
    /// The time of the first long exchange.
    first_long: Option<Duration>,
    phase: Phase,
}

/// Phase of the series of exchanges.
#[derive(Clone, Copy)]
enum Phase {
    Short,
    /// Remaining exchanges of the first long length.
    First(usize),
    /// Remaining exchanges of a length, and its exponent.
    Long(usize, u8),
}

impl Driver {
    /// A series that starts now and may take `time`.
    pub(super) fn new(start: Duration, time: Duration) -> Self {
        Self { start, now: start, time, num_short: 0, first_long: None, phase: Phase::Short }
    }

    /// Exponent of the length of the exchange *after* the next one, which the next one announces to
    /// the peers; 0 to end the series.
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

    /// Whether the next short exchange is the last.
    fn is_enough(&self) -> bool {
        let num_short = self.num_short + 1;
        num_short >= MAX_SHORT || (num_short >= MIN_SHORT && self.spent() > self.time / 4)
    }

    /// Whether there is time for more of the first long ones.
    fn has_time(&self) -> bool {
        self.spent() < self.time / 2
    }

    /// Exponent of the longest length that fits the remaining time.
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

    /// Records the duration of an exchange.
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
    fn every_pair_plays_once() {
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

    /// Lengths of a series in which an exchange of n bytes takes `micros(n)`.
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
    fn a_fast_link_gets_long_exchanges_and_a_slow_one_few() {
        let fast = lengths(|bytes| 10 + bytes as u64 / 4000);
        assert_eq!(fast.iter().filter(|&&bytes| bytes == SMALL_BYTES).count(), MAX_SHORT);
        assert_eq!(fast.iter().filter(|&&bytes| bytes == 1 << LAST_LONG).count(), NUM_LONG);
        let slow = lengths(|bytes| 20_000 + bytes as u64);
        assert!(slow.len() <= MIN_SHORT + 3, "{slow:?}");
        assert!(slow.iter().any(|&bytes| bytes > SMALL_BYTES));
    }
}
